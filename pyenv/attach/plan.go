package attach

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// Set is what a run has of Python.
type Set struct {
	Python *python.Interpreter
	Layers []*store.Layer // those of kind x first, in the order of the import path; a base or iso layer, if any, last
	// Startup are the lines of code that somebody approved, by the id of the
	// layer. Each must be one that a .pth file of the layer's wheels has.
	Startup map[string][]string
}

// Mounts are the parts of a sandboxrun.Run that a Set comes to.
type Mounts struct {
	Binds []sandboxrun.Bind // in this order: some are mounted within others
	Data  []sandboxrun.Data
	Env   []string
}

// The kinds of errors, for errors.Is; their texts are for the operator and name
// paths of the host. Errors of the disk are passed on.
var (
	// ErrInvalid: the Set contradicts itself. It is a mistake of the caller.
	ErrInvalid = errors.New("these layers cannot be attached")
	// ErrMismatch: a layer was made for another Python.
	ErrMismatch = errors.New("the layer is for another Python")
	// ErrUnsafe: what would be mounted is not what this user made.
	ErrUnsafe = errors.New("what would be mounted is not safe")
)

// Where things are in the sandbox.
const (
	ShimDir  = "/opt/mcp/shim"
	fontsDir = "/tmp/mpl" // MPLCONFIGDIR
)

// maxLayers bounds the mounts of a run; a workspace has at most eight layers
// besides its base.
const maxLayers = 16

// Plan returns the mounts of a Set, whose interpreter and layers are below root,
// the environment root. Everything is checked right then, so that Plan is called
// before every run; it takes less than a millisecond. Prepare was called before.
//
// Errors: ErrInvalid, ErrMismatch, ErrUnsafe.
func Plan(root string, s Set) (Mounts, error) {
	if err := s.check(); err != nil {
		return Mounts{}, err
	}
	e, err := openEnv(root)
	if err != nil {
		return Mounts{}, err
	}
	defer e.close()
	p := planner{env: e}
	if err := p.python(s.Python); err != nil {
		return Mounts{}, err
	}
	for _, l := range s.Layers {
		if err := p.layer(l); err != nil {
			return Mounts{}, err
		}
	}
	if err := p.generated(s); err != nil {
		return Mounts{}, err
	}
	p.bind(shimDir, ShimDir)
	// The font caches lie within no other mount, and come last.
	p.m.Binds = append(p.m.Binds, p.fonts...)
	if p.err != nil {
		return Mounts{}, p.err
	}
	p.m.Env = p.environment()
	return p.m, nil
}

// Host returns the mounts of a run with a Python of the host, which is its path in the
// sandbox: none of an environment root, and what looks for pip is told the same.
func Host(python string) Mounts {
	const dir = "/run/vdisk/shim"
	m := Mounts{Env: []string{"PATH=" + dir + ":/usr/local/bin:/usr/bin:/bin", "PIP_NO_INDEX=1"}}
	for _, name := range shims {
		m.Data = append(m.Data, sandboxrun.Data{Path: dir + "/" + name, Mode: 0o555, Bytes: shim(python)})
	}
	return m
}

var layerID = regexp.MustCompile(`^(base|x|iso)-[0-9a-f]{16}$`)

// check refuses a Set that no workspace can have.
func (s Set) check() error {
	if s.Python == nil {
		return fmt.Errorf("%w: there is no Python", ErrInvalid)
	}
	if len(s.Layers) > maxLayers {
		return fmt.Errorf("%w: there are %d, and %d are the most", ErrInvalid, len(s.Layers), maxLayers)
	}
	seen := map[string]bool{}
	for i, l := range s.Layers {
		switch {
		case l == nil || !layerID.MatchString(l.ID) || !strings.HasPrefix(l.ID, string(l.Kind)+"-"):
			return fmt.Errorf("%w: number %d has no valid id", ErrInvalid, i)
		case seen[l.ID]:
			return fmt.Errorf("%w: %s is there twice", ErrInvalid, l.ID)
		case l.Kind != lock.X && i != len(s.Layers)-1:
			return fmt.Errorf("%w: %s is not the last one", ErrInvalid, l.ID)
		}
		seen[l.ID] = true
		if err := s.fits(l); err != nil {
			return err
		}
	}
	for id := range s.Startup {
		if !seen[id] {
			return fmt.Errorf("%w: startup code of %s, which is not among them", ErrInvalid, id)
		}
	}
	return nil
}

// fits says whether a layer was made for the interpreter: bytecode is for one
// version, and programs are for a C library that is not newer.
func (s Set) fits(l *store.Layer) error {
	have, want := s.Python.Facts, l.Manifest.Python
	best := have.Target.Tags()[0]
	fits := want.Platform == best.Platform
	for _, t := range have.Target.Tags() {
		fits = fits || t.Platform == want.Platform
	}
	if want.Full != have.Full || want.Tag != best.Python || !fits {
		return fmt.Errorf("%w: %s is for %s %s on %s, and this is %s on %s", ErrMismatch, l.ID, want.Tag, want.Full, want.Platform, have.Full, best.Platform)
	}
	return nil
}

// planner collects mounts.
type planner struct {
	env   *env
	m     Mounts
	fonts []sandboxrun.Bind
	bins  []string // directories for the PATH
	site  string   // where the placeholders are, in the sandbox
	err   error    // the first one of bind
}

// bind adds a mount of something in the environment root.
func (p *planner) bind(name, target string) {
	if p.err == nil {
		p.err = p.env.check(name)
	}
	p.m.Binds = append(p.m.Binds, sandboxrun.Bind{Source: p.env.path(name), Target: target})
}

func (p *planner) python(it *python.Interpreter) error {
	name, err := p.env.name(it.Dir)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(it.Facts.SitePackages, python.Prefix+"/") || filepath.Clean(it.Facts.SitePackages) != it.Facts.SitePackages {
		return fmt.Errorf("%w: the Python has its packages in %q", ErrInvalid, it.Facts.SitePackages)
	}
	p.site = it.Facts.SitePackages
	p.bind(name, python.Prefix)
	return p.err
}

// layer mounts a layer, and finds out what it has besides modules.
func (p *planner) layer(l *store.Layer) error {
	name, err := p.env.name(l.Dir)
	if err != nil {
		return err
	}
	target := store.MountDir + "/" + l.ID
	if filepath.Base(name) != l.ID {
		return fmt.Errorf("%w: %s is in %q", ErrInvalid, l.ID, name)
	}
	p.bind(name, target)
	if p.err != nil {
		return p.err
	}
	switch there, err := p.env.hasDir(name + "/bin"); {
	case err != nil:
		return err
	case there:
		p.bins = append(p.bins, target+"/bin")
	}
	return p.fontCaches(name + "/" + store.FontCache)
}

// maxFontCaches is how many a run is shown; a matplotlib has one.
const maxFontCaches = 4

// fontCaches mounts the font caches of a layer. Of two with one name, which two
// layers with the same matplotlib have, the first is taken, as for modules.
func (p *planner) fontCaches(dir string) error {
	there, err := p.env.hasDir(dir)
	if err != nil || !there {
		return err
	}
	list, err := p.env.list(dir)
	if err != nil {
		return err
	}
	for _, file := range list {
		target := fontsDir + "/" + file
		double := slices.ContainsFunc(p.fonts, func(b sandboxrun.Bind) bool { return b.Target == target })
		if !store.IsFontList(file) || double || len(p.fonts) >= maxFontCaches {
			continue
		}
		if err := p.env.check(dir + "/" + file); err != nil {
			return err
		}
		p.fonts = append(p.fonts, sandboxrun.Bind{Source: p.env.path(dir + "/" + file), Target: target})
	}
	return nil
}

// generated writes the .pth files of the run and mounts them on the placeholders.
func (p *planner) generated(s Set) error {
	paths, err := pathLines(s.Layers)
	if err != nil {
		return err
	}
	code, err := startupLines(s)
	if err != nil {
		return err
	}
	for _, f := range []struct{ text, placeholder string }{{paths, python.LayersPth}, {code, python.StartupPth}} {
		if f.text == "" {
			continue
		}
		name, err := p.env.keep(f.text)
		if err != nil {
			return err
		}
		p.bind(name, p.site+"/"+f.placeholder)
	}
	return p.err
}

// maxThreads bounds the threads that OpenBLAS starts at its import, each of which
// takes memory and one of Limits.Processes.
const maxThreads = 4

// environment is what the run has besides HOME, TMPDIR and LANG. PYTHONPYCACHEPREFIX
// and PYTHONOPTIMIZE are not in it: with either the bytecode of layers is not used.
func (p *planner) environment() []string {
	dirs := append([]string{ShimDir, python.Prefix + "/bin", "/usr/local/bin", "/usr/bin", "/bin"}, p.bins...)
	return []string{
		"PATH=" + strings.Join(dirs, ":"),
		"PIP_NO_INDEX=1",
		"PYTHONNOUSERSITE=1",
		"PYTHONDONTWRITEBYTECODE=1",
		"MPLBACKEND=Agg",
		"MPLCONFIGDIR=" + fontsDir,
		"OPENBLAS_NUM_THREADS=" + strconv.Itoa(min(maxThreads, runtime.NumCPU())),
	}
}
