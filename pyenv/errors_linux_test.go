package pyenv

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
)

// constants are the codes that the source of a directory names: constants whose type,
// given or by the call of it, has a name that ends in "Code".
func constants(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	must(t, err)
	codes := map[string]string{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		must(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || len(v.Values) != 1 {
				return true
			}
			typ := ""
			switch x := v.Type.(type) {
			case *ast.Ident:
				typ = x.Name
			case *ast.SelectorExpr:
				typ = x.Sel.Name
			}
			if lit, ok := v.Values[0].(*ast.BasicLit); ok && typ == "Code" && lit.Kind == token.STRING {
				text, err := strconv.Unquote(lit.Value)
				must(t, err)
				codes[text] = v.Names[0].Name
			}
			return true
		})
	}
	return codes
}

// TestErrorsDocument: docs/errors.md has every code of environments, and no other.
func TestErrorsDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/errors.md")
	must(t, err)
	_, part, ok := strings.Cut(string(text), "\n## Codes of environments\n")
	part, _, _ = strings.Cut(part, "\n##") // or a part of it, on the rules of python_env
	if !ok {
		t.Fatal("docs/errors.md has no codes of environments")
	}
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\|([^|]*)\|`).FindAllStringSubmatch(part, -1) {
		for _, code := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			documented[code[1]] = true
		}
	}
	seen := map[string]bool{policy.ErrDenied.Error(): true}
	for _, dir := range []string{".", "resolve", "store", "wheel", "../cmd/mcp-vdisk"} {
		codes := constants(t, dir)
		if len(codes) == 0 {
			t.Errorf("no codes were found in %s", dir)
		}
		for code, name := range codes {
			seen[code] = true
			if !documented[code] && code != string(wheel.StartupCode) { // which is no failure
				t.Errorf("docs/errors.md does not have %s (%s in %s)", code, name, dir)
			}
		}
	}
	for code := range documented {
		if !seen[code] {
			t.Errorf("docs/errors.md has %s, which is no code", code)
		}
	}
}

// TestWheelsAreRefusedWithAHint: the code is said once, and there is something to do.
func TestWheelsAreRefusedWithAHint(t *testing.T) {
	for code := range constants(t, "wheel") {
		if code == string(wheel.StartupCode) {
			continue
		}
		for _, cause := range []error{
			&wheel.Error{Code: wheel.Code(code), Path: "a/b", Detail: "it is so"}, &wheel.Error{Code: wheel.Code(code), Detail: "it is so"},
			&store.Error{Code: wheel.Code(code), Package: "foo", Detail: "it is so"},
		} {
			e := tell(t.Context(), fmt.Errorf("build: %w", cause)).(*Error)
			if strings.Count(e.Error(), code) != 1 || e.Hint == "" || !strings.Contains(e.Sentence, "it is so") {
				t.Errorf("%v | %s", e, e.Hint)
			}
		}
	}
}

// TestUnusableRoots: what cannot be a root is refused for what it is, and the text that
// agents may see has no path.
func TestUnusableRoots(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.WriteFile(at("file"), nil, 0o600))
	must(t, os.Symlink("nowhere/at/all", at("dangling")))
	must(t, os.Mkdir(at("loose"), 0o700))
	must(t, os.Chmod(at("loose"), 0o777))
	must(t, os.Mkdir(at("closed"), 0o500))
	must(t, syscall.Mkfifo(at("fifo"), 0o600))
	for _, c := range []struct {
		root string
		code Code
		says string
	}{
		{at("file"), ErrNoRoot, "is not a directory"},
		{at("file/below"), ErrNoRoot, "cannot be made: not a directory"},
		{at("fifo"), ErrNoRoot, "is not a directory"},
		{"/dev/null", ErrNoRoot, "is not a directory"},
		{at("dangling"), ErrNoRoot, "cannot be made"},
		{"/proc/envs", ErrNoRoot, "cannot be made: no such file or directory"},
		{"/proc", ErrUnsafe, "belongs to uid 0"},
		{"/usr", ErrUnsafe, "belongs to uid 0"},
		{"/", ErrUnsafe, "is the root of the file system"},
		{at("loose"), ErrUnsafe, "by others than its owner"},
		{at("closed"), ErrNoRoot, fmt.Sprintf("cannot be used by uid %d: permission denied", os.Geteuid())},
		{at("closed/below"), ErrNoRoot, fmt.Sprintf("cannot be used by uid %d: permission denied", os.Geteuid())},
	} {
		e, err := Open(Options{Root: c.root, Box: newBox(t)})
		must(t, err)
		defer e.Close()
		_, err = e.Ensure(t.Context(), EnsureRequest{})
		p := &place{t: t, root: c.root}
		if c.root == "/" {
			p.root = "/ " // no text has that
		}
		if own := p.refused(err, c.code, c.says); c.code == ErrUnsafe && strings.HasPrefix(c.says, "belongs") && strings.Contains(own.Sentence, "others") {
			t.Errorf("%s: %q", c.root, own.Sentence)
		}
		// A script gets the Python of the host all the same.
		s, release, err := e.Setup(t.Context(), "")
		must(t, err)
		release()
		if s.ID != "" || len(s.Layers) > 0 {
			t.Errorf("%s: a script gets %+v", c.root, s)
		}
	}
	err := tell(context.Background(), &os.PathError{Op: "open", Path: at("x"), Err: syscall.EROFS})
	(&place{t: t, root: dir}).refused(err, ErrNoRoot, "read-only file system")
}

// TestReadOnlyRoot: with a base in it, a root that cannot be written to is no problem.
func TestReadOnlyRoot(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	readOnly := &os.PathError{Op: "open", Path: p.root, Err: syscall.EROFS}
	if it := p.readOnly(readOnly); it != nil {
		t.Errorf("without a base scripts get %s", it.ID)
	}
	rep := p.ensure(at(index(t, indextest.Options{}, wheels()...)))
	if it := p.readOnly(readOnly); it == nil || it.ID != rep.Python {
		t.Errorf("%v, want %s", it, rep.Python)
	}
	if it := p.readOnly(syscall.EIO); it != nil {
		t.Errorf("another error counts as a root that is read-only: %s", it.ID)
	}
}

// TestProbeReached: only what the probe itself would write now counts.
func TestProbeReached(t *testing.T) {
	modules := []string{"alpha", "beta.part", "gamma"}
	for _, c := range []struct {
		said string
		at   string
		done bool
	}{
		{"", "", false},
		{"alpha\n", "alpha", false},
		{"alpha\nhello\nbeta.part\n\x00\xff\ngamma\nall imported\n", "gamma", true},
		{"alpha\ngamma\nall imported\n", "alpha", false},
		{"alpha\nall imported\n", "alpha", false},
		{"alpha\nnumpy\n", "alpha", false},
		{"alpha\nalpha\nbeta.part gamma all imported\n", "alpha", false},
		{"beta.part\n", "", false},
		{"alpha\nbeta.part\ngamma\n", "gamma", false},
		{"all imported\n", "", false},
	} {
		if at, done := reached(c.said, modules); at != c.at || done != c.done {
			t.Errorf("%q: at %q, %t; want %q, %t", c.said, at, done, c.at, c.done)
		}
	}
	if at, done := reached("all imported\n", nil); at != "" || !done {
		t.Errorf("without modules: %q, %t", at, done)
	}
}

// TestProbeIsNotMisled: what packages print changes neither whether a base can be
// imported nor what is to blame.
func TestProbeIsNotMisled(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	chatty := wheels()
	chatty[0].Files = []wheeltest.File{{Name: "alpha/__init__.py", Body: "print('beta.part')\nprint('done all imported')\nprint('no end of line', end='', flush=True)\n"}}
	x := index(t, indextest.Options{}, chatty...)
	p.ensure(at(x))

	broken := slices.Clone(chatty)
	broken[0].Version, broken[0].Files = "8.0", []wheeltest.File{{Name: "alpha/__init__.py", Body: "print('beta.part')\nprint('numpy')\nprint('all imported', flush=True)\nraise ImportError('alpha is broken')\n"}}
	x.Add(fileOf(broken[0]))
	q := at(x)
	q.Relock = true
	_, err := p.Ensure(t.Context(), q)
	if e := p.refused(err, ErrProbe, "alpha cannot be imported", "alpha is broken"); e.Blocking.Name != "alpha" {
		t.Errorf("blamed is %+v", e.Blocking)
	}
}

// TestForeignIndex: the packages of the base list are nobody's typing errors.
func TestForeignIndex(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	_, err := p.Ensure(t.Context(), at(index(t, indextest.Options{})))
	e := p.refused(err, ErrNotFound, "the package index 127.0.0.1 has no project")
	if len(e.Suggestions) != 1 || !strings.Contains(e.Suggestions[0], "index-url") {
		t.Errorf("%q", e.Suggestions)
	}
	p.clean()
}
