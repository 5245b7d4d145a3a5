package pyenv

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
)

// TestCase52Interpreter: a module of the interpreter that was changed, and its bytecode
// removed, is found by Doctor and mended by Ensure, when no script runs it.
func TestCase52Interpreter(t *testing.T) {
	t.Parallel()
	p, rep := newBased(t)
	well, err := p.Doctor(t.Context(), false)
	must(t, err)
	if len(well.Problems) > 0 || len(well.Pythons) != 1 || well.Pythons[0].ID != rep.Python || well.Pythons[0].Files == 0 || len(well.Pythons[0].Faults) > 0 {
		t.Errorf("%q %+v", well.Problems, well.Pythons)
	}
	file := p.changeJSON()
	if got := prints(t, p.Env, "import json; print(json.changed)"); got != "1" {
		t.Errorf("without strict a script gets %q", got)
	}
	ill, err := p.Doctor(t.Context(), false)
	must(t, err)
	if len(ill.Problems) != 1 || !strings.Contains(ill.Problems[0], rep.Python) || !strings.Contains(ill.Problems[0], file+" is changed") ||
		!strings.Contains(ill.Problems[0], "mcp-vdisk env ensure --repair makes it again") || ill.Pythons[0].Faults[0] != (Fault{Path: file, Kind: "changed"}) {
		t.Errorf("%q %+v", ill.Problems, ill.Pythons)
	}
	if again := p.ensure(nowhere(t)); again.Remade {
		t.Error("it was repaired without being asked to")
	}
	q := nowhere(t)
	q.Repair = true
	_, release, err := p.Setup(t.Context(), "")
	must(t, err)
	_, err = p.Ensure(t.Context(), q)
	if p.refused(err, ErrInUse, "a script that runs"); !errors.Is(err, python.ErrInUse) {
		t.Errorf("%v", err)
	}
	release()
	again := p.ensure(q)
	if !again.Remade || again.Built || again.Python != rep.Python || again.Base != rep.Base || len(again.Notes) != 1 || !strings.Contains(again.Notes[0], file) {
		t.Errorf("%+v", again)
	}
	if got := prints(t, p.Env, "import json; print(hasattr(json, 'changed'))"); got != "False" {
		t.Errorf("after the repair: %q", got)
	}
	if well, err = p.Doctor(t.Context(), false); err != nil || len(well.Problems) > 0 {
		t.Errorf("%q, %v", well.Problems, err)
	}
	if again := p.ensure(q); again.Remade || len(again.Notes) > 0 {
		t.Errorf("nothing was to be done: %+v", again)
	}
}

// TestCase52EarlierPython: an interpreter without a manifest cannot be compared, which
// Doctor says, and Ensure makes it again.
func TestCase52EarlierPython(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	ids, err := python.List(p.root)
	must(t, err)
	must(t, os.Remove(filepath.Join(p.root, "python", ids[0], "MANIFEST")))
	rep, err := p.Doctor(t.Context(), false)
	must(t, err)
	if len(rep.Problems) != 1 || !strings.Contains(strings.Join(rep.Notes, "\n"), "an earlier version of mcp-vdisk") || rep.Pythons[0].Faults[0] != (Fault{Path: "MANIFEST", Kind: "missing"}) {
		t.Errorf("%q %q %+v", rep.Problems, rep.Notes, rep.Pythons)
	}
	q := at(index(t, indextest.Options{}, wheels()...))
	q.Repair = true
	if rep := p.ensure(q); !rep.Remade || rep.Python != ids[0] {
		t.Errorf("%+v", rep)
	}
	if rep, err = p.Doctor(t.Context(), false); err != nil || len(rep.Problems) > 0 {
		t.Errorf("%q, %v", rep.Problems, err)
	}
}

// TestCase52Strict: with Strict nothing that differs is run, and nothing in its place;
// what was mended is run again.
func TestCase52Strict(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(p *place, rep EnsureReport)
		code   Code
		words  func(rep EnsureReport) string
	}{
		"the interpreter": {func(p *place, _ EnsureReport) { p.changeJSON() }, ErrChanged, func(rep EnsureReport) string { return "the Python " + rep.Python + " is not as it was made: 2 files" }},
		"the layer": {func(p *place, rep EnsureReport) {
			replace(p.t, filepath.Join(p.root, "layers", rep.Base, "site-packages/gamma/__init__.py"), "version = '4'\n")
		}, ErrChanged, func(rep EnsureReport) string { return "layer " + rep.Base + " is not as it was made: one file" }},
		"the layer's manifest": {func(p *place, rep EnsureReport) {
			replace(p.t, filepath.Join(p.root, "layers", rep.Base, "manifest.json"), "{}")
		}, ErrChanged, func(rep EnsureReport) string { return rep.Base }},
		"the interpreter is gone": {func(p *place, rep EnsureReport) { must(p.t, os.RemoveAll(filepath.Join(p.root, "python", rep.Python))) }, ErrNotFound, func(EnsureReport) string { return "managed Python" }},
	} {
		t.Run(name, func(t *testing.T) {
			p, rep := newBased(t)
			p.o.Strict = true
			if got := prints(t, p.Env, "import gamma, json; print(gamma.version)"); got != "3" {
				t.Errorf("before: %q", got)
			}
			c.change(p, rep)
			for range 2 {
				s, _, err := p.Setup(t.Context(), "")
				if p.refused(err, c.code, c.words(rep)); s.Python != "" || len(s.Binds) > 0 {
					t.Errorf("%+v", s)
				}
			}
			if n := strings.Count(p.logged(), "a script was refused"); n != 1 {
				t.Errorf("logged %d times: %s", n, p.logged())
			}
			q := nowhere(t)
			q.Repair = true
			p.ensure(q) // and what a script held was let go
			if got := prints(t, p.Env, "import gamma, json; print(gamma.version, hasattr(json, 'changed'))"); got != "3 False" {
				t.Errorf("after the repair: %q", got)
			}
		})
	}
}

// TestCase52StrictWithoutPython: what cannot be had is not replaced by what nobody
// compared.
func TestCase52StrictWithoutPython(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.o.Strict, p.o.Prefix = true, "/usr/share"
	_, _, err := p.Setup(t.Context(), "")
	p.refused(err, ErrNoPython)
}

// BenchmarkStrict is what comparing costs a run: here the interpreter and three small
// packages, 1,300 files and 32 MB.
func BenchmarkStrict(b *testing.B) {
	e := newPlace(b)
	e.ensure(at(index(b, indextest.Options{}, wheels()...)))
	for name, strict := range map[string]bool{"owner": false, "strict": true} {
		b.Run(name, func(b *testing.B) {
			e.o.Strict = strict
			for b.Loop() {
				_, release, err := e.Setup(b.Context(), "")
				must(b, err)
				release()
			}
		})
	}
}

// changeJSON adds a line to a module of the interpreter and removes its bytecode. It
// returns the module's path in the interpreter's directory.
func (p *place) changeJSON() string {
	p.t.Helper()
	found, err := filepath.Glob(filepath.Join(p.root, "python", "*", "prefix", "lib*", "python3.*", "json"))
	must(p.t, err)
	if len(found) != 1 {
		p.t.Fatalf("found %q", found)
	}
	file := filepath.Join(found[0], "__init__.py")
	old, err := os.ReadFile(file)
	must(p.t, err)
	replace(p.t, file, string(old)+"changed = 1\n")
	must(p.t, os.RemoveAll(filepath.Join(found[0], "__pycache__")))
	rel, err := filepath.Rel(filepath.Join(p.root, "python"), file)
	must(p.t, err)
	_, rel, _ = strings.Cut(rel, "/")
	return rel
}

// replace puts another file in the place of one, whose other names keep the old.
func replace(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path+".new", []byte(text), 0o600))
	must(t, os.Chmod(path+".new", 0o444))
	must(t, os.Rename(path+".new", path))
}
