package mcpvdisk_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/mcp-vdisk/mcp-vdisk/"

// arrows are the imports that one package of this module may make of another.
// They point one way only; workspace/hostos is a leaf that all may import.
var arrows = map[string][]string{
	"cmd/mcp-vdisk":          {"tools", "workspace", "workspace/live", "workspace/lease", "sandboxrun", "pyenv", "pyenv/lock", "pyenv/python", "pyenv/policy", "pyenv/queue", "pyenv/resolve", "pyenv/store", "audit", "schemas", "conformance", "conformance/leaseproc", "cmd/mcp-vdisk/front", "cmd/mcp-vdisk/exit", "cmd/mcp-vdisk/hostcopy", "cmd/mcp-vdisk/hostbox", "cmd/mcp-vdisk/bundle", "workspace/archive"},
	"cmd/mcp-vdisk/front":    {"cmd/mcp-vdisk/exit", "sandboxrun", "pyenv/pipconf"},
	"cmd/mcp-vdisk/bundle":   {},
	"cmd/mcp-vdisk/exit":     {},
	"cmd/mcp-vdisk/hostcopy": {"cmd/mcp-vdisk/front", "cmd/mcp-vdisk/exit", "cmd/mcp-vdisk/hostname"},
	"cmd/mcp-vdisk/hostbox":  {"cmd/mcp-vdisk/front", "cmd/mcp-vdisk/exit", "cmd/mcp-vdisk/hostname", "cmd/mcp-vdisk/hostcopy"},
	"cmd/mcp-vdisk/hostname": {},
	"tools":                  {"workspace", "workspace/live", "workspace/lease", "sandboxrun", "pyenv", "pyenv/queue", "pyenv/policy", "pyenv/spec", "pyenv/resolve", "audit", "schemas"},
	"conformance":            {"sandboxrun", "sandboxrun/prober", "workspace/lease", "audit", "schemas"},
	"conformance/leaseproc":  {"conformance", "workspace/lease"},
	"pyenv":                  {"sandboxrun", "pyenv/spec", "pyenv/tags", "pyenv/wheel", "pyenv/lock", "pyenv/python", "pyenv/store", "pyenv/resolve", "pyenv/attach", "pyenv/policy", "pyenv/queue"},
	"pyenv/lock":             {"pyenv/spec", "pyenv/tags"},
	"pyenv/python":           {"sandboxrun", "pyenv/tags"},
	"pyenv/store":            {"sandboxrun", "pyenv/spec", "pyenv/tags", "pyenv/wheel", "pyenv/lock", "pyenv/python"},
	"pyenv/pipconf":          {},
	"pyenv/resolve":          {"sandboxrun", "pyenv/pipconf", "pyenv/spec", "pyenv/tags", "pyenv/wheel", "pyenv/lock", "pyenv/python"},
	"pyenv/policy":           {"pyenv/spec", "pyenv/lock", "pyenv/tags"},
	"pyenv/attach":           {"sandboxrun", "pyenv/lock", "pyenv/python", "pyenv/store"},
	"pyenv/queue":            {"pyenv/spec", "pyenv/lock"},
	"pyenv/spec":             {},
	"pyenv/tags":             {"pyenv/spec"},
	"pyenv/wheel":            {"pyenv/spec", "pyenv/tags"},
	"pyenv/wheeltest":        {},                                    // for tests: nothing may import it
	"pyenv/indextest":        {},                                    // the same
	"pyenv/pyenvtest":        {"sandboxrun", "sandboxrun/usertest"}, // the same
	"pyenv/pythontest":       {"pyenv/python", "pyenv/pyenvtest"},   // the same
	"workspace":              {},
	"workspace/live":         {"workspace"},
	"workspace/archive":      {"workspace"},
	"workspace/lease":        {},
	"workspace/hostos":       {},
	"sandboxrun":             {},
	"sandboxrun/prober":      {},
	"sandboxrun/usertest":    {}, // for tests: nothing may import it
	"audit":                  {},
	"schemas":                {},
}

// primitives are the packages that may make system calls by themselves.
var primitives = []string{"workspace/hostos", "workspace/live", "sandboxrun", "sandboxrun/prober", "sandboxrun/usertest", "cmd/mcp-vdisk", "cmd/mcp-vdisk/front", "cmd/mcp-vdisk/hostcopy", "cmd/mcp-vdisk/hostbox", "cmd/mcp-vdisk/hostname"}

// topLevel are the folders that may hold Go files.
var topLevel = []string{"cmd", "schemas", "tools", "workspace", "sandboxrun", "pyenv", "audit", "conformance", "examples"}

func TestImportArrows(t *testing.T) {
	seen := map[string]bool{}
	for file, imports := range goFiles(t) {
		pkg := path.Dir(file)
		seen[pkg] = true
		allowed, known := arrows[pkg]
		if !known {
			t.Errorf("%s: package %s is not in the table of arrows", file, pkg)
			continue
		}
		for _, im := range imports {
			to, ours := strings.CutPrefix(im, module)
			if ours && to != "workspace/hostos" && !slices.Contains(allowed, to) {
				t.Errorf("%s imports %s: no such arrow", file, to)
			}
		}
	}
	for _, pkg := range []string{"cmd/mcp-vdisk", "tools", "workspace", "workspace/live", "workspace/lease", "workspace/hostos", "sandboxrun", "pyenv", "pyenv/spec", "pyenv/tags", "pyenv/wheel", "pyenv/wheeltest", "pyenv/lock", "pyenv/policy", "pyenv/store", "audit", "schemas", "conformance"} {
		if !seen[pkg] {
			t.Errorf("no Go file of package %s was looked at", pkg)
		}
	}
}

func TestSystemCallsStayInTheirPackages(t *testing.T) {
	for file, imports := range goFiles(t) {
		pkg := path.Dir(file)
		for _, im := range imports {
			if (im == "syscall" || strings.HasPrefix(im, "golang.org/x/sys")) && !slices.Contains(primitives, pkg) {
				t.Errorf("%s imports %s: host primitives live in workspace/hostos", file, im)
			}
		}
	}
}

func TestEveryPackageTellsWhatItIsFor(t *testing.T) {
	for pkg := range arrows {
		if _, err := os.Stat(pkg); err != nil {
			continue // not built yet
		}
		doc, err := os.ReadFile(path.Join(pkg, "doc.go"))
		if err != nil {
			t.Errorf("%s has no doc.go", pkg)
			continue
		}
		if len(doc) < 300 {
			t.Errorf("%s/doc.go is no essay: %d bytes", pkg, len(doc))
		}
	}
}

// goFiles maps every Go file that is not a test to its imports.
func goFiles(t *testing.T) map[string][]string {
	t.Helper()
	files := map[string][]string{}
	err := fs.WalkDir(os.DirFS("."), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || p == "bin") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
			return nil
		}
		top, _, _ := strings.Cut(p, "/")
		if !slices.Contains(topLevel, top) {
			t.Errorf("%s: Go files live in %s", p, strings.Join(topLevel, ", "))
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, im := range f.Imports {
			files[p] = append(files[p], strings.Trim(im.Path.Value, `"`))
		}
		if files[p] == nil {
			files[p] = []string{}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
