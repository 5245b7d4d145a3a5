package pyenv

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// DoctorReport is the state of the environments. It is for the operator: it names
// paths of the host.
type DoctorReport struct {
	Root       string        `json:"root"`
	Candidates []Candidate   `json:"candidates"` // interpreters, best first, and why
	Status     Status        `json:"status"`
	Pythons    []LayerReport `json:"pythons"` // the one of the base, and the one that the settings lead to
	Layers     []LayerReport `json:"layers"`
	Resolver   string        `json:"resolver"` // "pip/26.2.1", "" for none
	CJKFont    string        `json:"cjk_font"` // a font with Chinese characters, "" for none
	Problems   []string      `json:"problems"` // sentences; none: all is well
	Notes      []string      `json:"notes"`    // sentences about what works and could be better
}

// Candidate is an interpreter that was considered.
type Candidate struct {
	Path   string `json:"path"`
	Real   string `json:"real"` // the file or directory that it leads to, "" if there is none
	Chosen bool   `json:"chosen"`
	Why    string `json:"why"`
}

// LayerReport is what reading all of a layer, or of an interpreter, found.
type LayerReport struct {
	ID     string  `json:"id"`
	Files  int     `json:"files"`
	Bytes  int64   `json:"bytes"`
	Faults []Fault `json:"faults"`
}

// Fault is a file of a layer or an interpreter that is not as it was made.
type Fault = python.Fault

// Doctor looks at everything: which interpreter and why, whether it holds, every file
// of it and of the base layer (strict: of every layer), fonts, the resolver. It takes
// seconds and changes nothing but that a missing interpreter is made. What is wrong is in
// Problems.
//
// Errors: *Error when the root cannot be looked at; the cause of ctx, wrapped.
func (e *Env) Doctor(ctx context.Context, strict bool) (DoctorReport, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return DoctorReport{}, tell(context.Background(), err)
	}
	defer leave()
	rep := DoctorReport{Root: e.o.Root, Candidates: []Candidate{}, Pythons: []LayerReport{}, Layers: []LayerReport{}, Problems: []string{}, Notes: []string{}}
	for _, c := range python.Candidates(e.pythonOptions()) {
		rep.Candidates = append(rep.Candidates, Candidate(c))
	}
	if e.o.Root != "" {
		err = e.examine(ctx, strict, &rep)
	} else {
		rep.note("there is no directory for Python environments; scripts get the Python of the host")
	}
	if err == nil {
		rep.Status, err = e.Status(ctx, "")
	}
	rep.fonts()
	return rep, tell(ctx, err)
}

func (r *DoctorReport) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

func (r *DoctorReport) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// unusable tells that the interpreter which the settings lead to cannot be made.
func (r *DoctorReport) unusable(err error) {
	r.problem("the Python that the settings lead to cannot be made: %s; scripts get that of the base layer, or else that of the host", err)
	for i := range r.Candidates {
		if c := &r.Candidates[i]; c.Chosen {
			c.Chosen, c.Why = false, "it looked as if it could be used"
		}
	}
}

// examine looks at what is in the root.
func (e *Env) examine(ctx context.Context, strict bool, rep *DoctorReport) error {
	root, err := e.store()
	if err != nil {
		return err
	}
	whole, err := e.examinePythons(ctx, root, rep)
	if err != nil {
		return err
	}
	var it *python.Interpreter
	if e.o.Box == nil {
		rep.problem("nothing can be run in a sandbox here; mcp-vdisk doctor says what is missing")
	} else if !whole {
		rep.note("nothing was run by a Python that is not as it was made, so pip was not looked for")
	} else if it, err = e.make(ctx); err != nil {
		if ctx.Err() != nil {
			return err
		}
		if it = e.readOnly(err); it != nil {
			rep.note("the directory of the environments is on a read-only file system: scripts get the base layer that is in it, and nothing can be added")
		} else {
			rep.unusable(err)
		}
	}
	if it != nil && it.Facts.Target.Musl {
		rep.note("this system has musl: many packages have no wheel for it")
	}
	if it != nil && it.Source.Kind == python.KindSystem {
		rep.note("the Python for scripts was made from that of the system; the setting env.python names a better one")
	}
	e.examineResolver(ctx, it, rep)
	if extras, err := e.extras(); err != nil {
		rep.problem("%s", sentence(err))
	} else if s := importedForBase(extras); s != "" {
		rep.note("%s", s)
	}
	ids, err := e.layersToExamine(root, strict, rep)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := e.examineLayer(ctx, root, id, rep); err != nil {
			return err
		}
	}
	return nil
}

// readOnly is the interpreter of the base layer when nothing more is wrong than that
// the root cannot be written to; nil otherwise.
func (e *Env) readOnly(err error) *python.Interpreter {
	if !hostos.IsReadOnly(err) {
		return nil
	}
	it, err := e.tellLayers(&Status{}, "")
	if err != nil {
		return nil // it is told of the layer
	}
	return it
}

// examinePythons compares the interpreter of the base and the one that the settings lead
// to with what was made. It comes before anything is run, and before Make would replace
// one that it finds damaged. whole tells whether all that are there are as they were made.
func (e *Env) examinePythons(ctx context.Context, root *store.Root, rep *DoctorReport) (whole bool, err error) {
	var ids []string
	if cur, err := root.Current(); err == nil {
		ids = append(ids, cur.Python)
	}
	if id, err := python.ID(ctx, e.pythonOptions()); err == nil && !slices.Contains(ids, id) {
		ids = append(ids, id)
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	for _, id := range ids {
		faults, err := python.Verify(ctx, root.Dir(), id)
		if errors.Is(err, python.ErrNotFound) {
			continue // it is made, or told of as a problem
		}
		if err != nil {
			return false, err
		}
		r := LayerReport{ID: id, Faults: append([]Fault{}, faults...)}
		r.Files, r.Bytes = python.Size(root.Dir(), id)
		rep.Pythons = append(rep.Pythons, r)
		if len(faults) > 0 {
			rep.problem("the Python %s is not as it was made: %s; mcp-vdisk env ensure --repair makes it again", id, first(faults))
		}
		if len(faults) > 0 && r.Files == 0 {
			rep.note("the Python %s has no manifest to compare it with; those that an earlier version of mcp-vdisk made have none", id)
		}
	}
	return !slices.ContainsFunc(rep.Pythons, func(r LayerReport) bool { return len(r.Faults) > 0 }), nil
}

// first names one of some faults, and how many there are.
func first(faults []Fault) string {
	text := fmt.Sprintf("%s is %s", faults[0].Path, faults[0].Kind)
	if n := len(faults); n > 1 {
		text += fmt.Sprintf(" (%d faults in all)", n)
	}
	return text
}

// boundLayers are the layers that workspaces are bound to. One that is not there is a
// problem: those workspaces get what is current instead.
func (e *Env) boundLayers(root *store.Root, rep *DoctorReport) (ids []string) {
	if e.o.Queue == nil {
		return nil
	}
	list, err := e.o.Queue.Bindings()
	if err != nil {
		rep.problem("what workspaces are bound to cannot be read: %s", err)
	}
	for _, b := range list {
		for _, id := range slices.Concat(b.Layers, []string{b.Base, b.Iso}) {
			if _, err := root.Layer(id); id != "" && errors.Is(err, store.ErrNotFound) {
				rep.problem("the disk %s is bound to layer %s, which is gone: mcp-vdisk env ensure --repair builds it again", b.Workspace, id)
			} else if id != "" && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// layersToExamine are the base layer, or all of them.
func (e *Env) layersToExamine(root *store.Root, strict bool, rep *DoctorReport) ([]string, error) {
	var ids []string
	cur, err := root.Current()
	switch {
	case errors.Is(err, store.ErrNotFound):
		rep.note("there is no base layer: mcp-vdisk env ensure makes one")
	case err != nil:
		rep.problem("%s", sentence(err))
	default:
		ids = append(ids, cur.Layer)
		if _, err := root.Lock(cur.Lock); err != nil {
			rep.problem("the lock of the base layer: %s", sentence(err))
		}
		faulty := slices.ContainsFunc(rep.Pythons, func(r LayerReport) bool { return r.ID == cur.Python && len(r.Faults) > 0 })
		if _, err := python.Load(context.Background(), root.Dir(), cur.Python, nil); err != nil && !faulty {
			rep.problem("the Python of the base layer: %s", err)
		}
	}
	for _, id := range e.boundLayers(root, rep) {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if !strict {
		return ids, nil
	}
	entries, err := fs.Glob(os.DirFS(root.Dir()), "layers/*-*")
	for _, p := range entries {
		if id := filepath.Base(p); !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, err
}

func (e *Env) examineLayer(ctx context.Context, root *store.Root, id string, rep *DoctorReport) error {
	l, err := root.Layer(id)
	if err != nil {
		damaged := unusable(id, err)
		rep.Layers = append(rep.Layers, LayerReport{ID: id, Faults: []Fault{{Path: "manifest.json", Kind: store.Missing}}})
		rep.problem("%s (%s); %s", damaged.Sentence, sentence(err), damaged.Hint)
		return nil
	}
	faults, err := root.Verify(ctx, l)
	if err != nil {
		return err
	}
	rep.Layers = append(rep.Layers, LayerReport{ID: id, Files: len(l.Manifest.Files), Bytes: l.Manifest.Size, Faults: append([]Fault{}, faults...)})
	if len(faults) > 0 {
		rep.problem("layer %s is not as it was built: %s; mcp-vdisk env ensure --repair builds it again", id, first(faults))
	}
	return nil
}

// examineResolver looks for a pip, in the root and then on the host.
func (e *Env) examineResolver(ctx context.Context, it *python.Interpreter, rep *DoctorReport) {
	if e.o.Box == nil || it == nil {
		return
	}
	p, err := resolve.FindTool(ctx, e.o.Root, e.o.Box, it)
	if err != nil {
		rep.note("%s", sentence(err))
		return
	}
	rep.Resolver = p.Name()
	if p.Lacks != "" {
		rep.note("pip %s of the host would resolve packages: mcp-vdisk env ensure gets the pinned one when it needs it", p.Version)
	}
}

// cjk are the names of files of fonts with Chinese, Japanese or Korean characters.
var cjk = regexp.MustCompile(`(?i)(cjk|wqy|wenquan|sourcehan|source-han|droidsansfallback|unifont|takao|ipaex|ipag|nanum|uming|ukai|arphic|simsun|fandol)`)

// fontDirs are where the sandbox shows fonts of the host.
var fontDirs = []string{"/usr/share/fonts", "/usr/local/share/fonts"}

// fonts looks for a font that charts with Chinese text need.
func (r *DoctorReport) fonts() {
	for _, dir := range fontDirs {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil // what cannot be read is no font that can be used
			}
			if d.Type().IsRegular() && cjk.MatchString(d.Name()) {
				r.CJKFont = path
				return fs.SkipAll
			}
			return nil
		})
		if r.CJKFont != "" {
			return
		}
	}
	r.note("no font with Chinese, Japanese or Korean characters was found below /usr/share/fonts; charts and PDF files show boxes in their place (Debian: fonts-noto-cjk)")
}
