package wheel

import (
	"slices"
	"strings"
)

// Top is a name that a wheel adds to the import path.
type Top struct {
	Name    string
	Package bool // it has an __init__ or is a module: a directory of this name elsewhere is hidden by it
}

// tops finds the importable names at the top of site-packages, sorted, and what
// else is to be known about the files there: whether there is machine code, and
// modules that have only bytecode.
func (l *layout) tops() (list []Top, native bool, sourceless []string) {
	found := map[string]bool{}
	sources := map[string]bool{} // of bytecode outside __pycache__: is the source there
	for _, it := range l.items {
		if strings.HasSuffix(it.rel, ".pyc") {
			sources[strings.TrimSuffix(it.rel, "c")] = false
		}
	}
	for _, it := range l.items {
		if _, asked := sources[it.rel]; asked && it.root == SitePackages {
			sources[it.rel] = true
		}
	}
	for _, it := range l.items {
		if it.root != SitePackages {
			continue
		}
		rest := it.rel
		native = native || strings.HasSuffix(rest, ".so") || strings.Contains(rest, ".so.")
		if strings.HasSuffix(rest, ".pyc") && !sources[strings.TrimSuffix(rest, "c")] {
			sourceless = append(sourceless, rest)
		}
		first, below, nested := strings.Cut(rest, "/")
		switch {
		case nested && Importable(first):
			found[first] = found[first] || ModuleName(below) == "__init__"
		case !nested && ModuleName(first) != "":
			found[ModuleName(first)] = true
		}
	}
	for name, pkg := range found {
		list = append(list, Top{name, pkg})
	}
	slices.SortFunc(list, func(a, b Top) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(sourceless)
	return list, native, sourceless
}

// ModuleName is what a file is imported as, "" when it is not importable:
// "json.py", "json.pyc", "json.so" and "json.cpython-312-x86_64-linux-gnu.so"
// are json.
func ModuleName(file string) string {
	name, _, _ := strings.Cut(file, ".")
	for _, suffix := range []string{".py", ".pyc", ".so"} {
		if strings.HasSuffix(file, suffix) && Importable(name) {
			return name
		}
	}
	return ""
}

// Importable says whether a name can be that of a module or of a directory of
// modules.
func Importable(name string) bool {
	return name != "" && name != "__pycache__" && !strings.ContainsAny(name, ".-/ ")
}

// checkShadow refuses modules that stand in for those of Python itself.
func checkShadow(tops []Top, stdlib []string) error {
	for _, top := range tops {
		if slices.Contains(stdlib, top.Name) || slices.Contains(startupModules, top.Name) {
			return refuse(ErrStdlibShadow, top.Name, "Python has a module of this name")
		}
	}
	return nil
}
