package python

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

// writer fills a prefix. Files get mode 0444, or 0555 if they are programs or
// shared libraries, and are made with O_EXCL below an os.Root. Its only links are
// to a name in the same directory.
type writer struct {
	root  *os.Root
	dir   string // of root
	bytes int64
	files int
}

// What a prefix may have. python-build-standalone is about 120 MB in 5,000 files;
// one of Conda has more libraries.
const (
	maxBytes = 2 << 30
	maxFiles = 100_000
)

func newWriter(dir string) (*writer, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &writer{root: root, dir: dir}, nil
}

func (w *writer) close() { w.root.Close() }

// program is the name of an interpreter. Free-threaded ones ("python3.13t") and
// debug builds have a letter more, and are another kind for wheels.
var program = regexp.MustCompile(`^python3\.([1-9]?[0-9])$`)

// library is the name of a shared library that lies beside the standard library.
var library = regexp.MustCompile(`^[A-Za-z0-9_+.-]+\.so(\.[0-9]+)*$`)

// wanted says whether a file of a prefix, given by its path in there, is copied.
func wanted(name string) bool {
	dir, rest, _ := strings.Cut(name, "/")
	switch dir {
	case "bin":
		return program.MatchString(rest)
	case "lib", "lib64":
		lib, inside, below := strings.Cut(rest, "/")
		if !below {
			return library.MatchString(rest)
		}
		return program.MatchString(lib) && wantedModule(inside)
	}
	return false
}

// unwanted are the parts of a standard library that have no place in the sandbox:
// what belongs to the site and not to Python, what installs, and what tests.
var unwanted = []string{"site-packages", "dist-packages", "ensurepip", "sitecustomize.py", "usercustomize.py", "EXTERNALLY-MANAGED"}

// wantedModule says whether a file of the standard library, given by its path in
// there, is copied.
func wantedModule(name string) bool {
	parts := strings.Split(name, "/")
	if slices.Contains(unwanted, parts[0]) || strings.HasPrefix(parts[0], "config-") {
		return false
	}
	return !slices.ContainsFunc(parts, func(p string) bool {
		return p == "__pycache__" || p == "test" || p == "tests" || p == "idle_test"
	})
}

// file writes one file.
func (w *writer) file(ctx context.Context, name string, exec bool, r io.Reader) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := w.count(); err != nil {
		return err
	}
	if err := w.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := w.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(r, maxBytes-w.bytes+1))
	w.bytes += n
	mode := fs.FileMode(0o444)
	if exec {
		mode = 0o555
	}
	if err := errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return err
	}
	if w.bytes > maxBytes {
		return refuse("it has more than %d bytes", int64(maxBytes))
	}
	return nil
}

func (w *writer) text(name, content string) error {
	return w.file(context.Background(), name, false, strings.NewReader(content))
}

// link makes a link to another name in the same directory.
func (w *writer) link(name, target string) error {
	if err := w.count(); err != nil {
		return err
	}
	if err := w.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	return w.root.Symlink(target, name)
}

// hardLink gives a file that was written another name.
func (w *writer) hardLink(name, to string) error {
	if err := w.count(); err != nil {
		return err
	}
	if err := w.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	return w.root.Link(to, name)
}

func (w *writer) count() error {
	if w.files++; w.files > maxFiles {
		return refuse("it has more than %d files", maxFiles)
	}
	return nil
}

// minor returns the N of the one bin/python3.N.
func (w *writer) minor() (string, error) {
	list, err := fs.ReadDir(w.root.FS(), "bin")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var found []string
	for _, e := range list {
		if m := program.FindStringSubmatch(e.Name()); m != nil && e.Type().IsRegular() {
			found = append(found, m[1])
		}
	}
	if len(found) != 1 {
		return "", refuse("it has %d programs bin/python3.N, not one", len(found))
	}
	return found[0], nil
}

// addNames gives the interpreter the names that scripts use, and looks whether
// every link leads somewhere.
func (w *writer) addNames() error {
	minor, err := w.minor()
	if err != nil {
		return err
	}
	for _, name := range []string{"bin/python3", "bin/python"} {
		if err := w.link(name, "python3."+minor); err != nil {
			return err
		}
	}
	return fs.WalkDir(w.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink == 0 {
			return err
		}
		if info, err := w.root.Stat(name); err != nil || !info.Mode().IsRegular() {
			return refuse("the link %q leads to no file of it", name)
		}
		return nil
	})
}

// addPackages writes what layers are attached by, and what stands in the place of
// pip and ensurepip.
func (w *writer) addPackages(a answer) error {
	minor, err := w.minor()
	if err != nil {
		return err
	}
	site := strings.TrimPrefix(a.sitePackages(), Prefix+"/")
	stdlib := ""
	for _, lib := range []string{"lib", "lib64"} {
		dir := lib + "/python3." + minor
		if _, err := w.root.Lstat(dir + "/os.py"); err == nil {
			stdlib = dir
		}
	}
	if stdlib == "" {
		return refuse("it has no standard library in lib/python3.%s", minor)
	}
	for name, content := range map[string]string{
		path.Join(site, LayersPth):         "# The layers of a run are named here.\n",
		path.Join(site, StartupPth):        "# Startup code that was approved is named here.\n",
		path.Join(site, "pip/__init__.py"): string(Stub()),
		path.Join(site, "pip/__main__.py"): "import sys\nfrom pip import main\nsys.exit(main())\n",
		stdlib + "/ensurepip/__init__.py":  string(Stub()),
		stdlib + "/ensurepip/__main__.py":  "import sys\nfrom ensurepip import main\nsys.exit(main())\n",
	} {
		if err := w.text(name, content); err != nil {
			return err
		}
	}
	script := fmt.Sprintf("#!%s -I\n%s", Executable, Stub())
	return w.file(context.Background(), "bin/pip3."+minor, true, strings.NewReader(script))
}
