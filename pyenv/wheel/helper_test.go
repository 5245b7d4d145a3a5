package wheel_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
)

// open opens a wheel that was built in memory.
func open(w wheeltest.Wheel, o wheel.Options) (*wheel.Wheel, error) {
	b := w.Bytes()
	return wheel.Open(bytes.NewReader(b), int64(len(b)), w.FileName(), o)
}

// mustOpen is open for a good wheel.
func mustOpen(t *testing.T, w wheeltest.Wheel, o wheel.Options) *wheel.Wheel {
	t.Helper()
	opened, err := open(w, o)
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// layer is a directory to unpack into, with a neighbour that must stay as it is.
type layer struct {
	dir  string
	root *os.Root
}

func newLayer(t *testing.T) layer {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layer")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return layer{dir, root}
}

// unpack opens and unpacks; the files are in the layer on success only.
func (l layer) unpack(t *testing.T, w wheeltest.Wheel, o wheel.Options) (*wheel.Manifest, error) {
	t.Helper()
	opened, err := open(w, o)
	if err != nil {
		return nil, err
	}
	return opened.Unpack(t.Context(), l.root)
}

// tree is all that lies in and beside the layer, with modes and contents.
func (l layer) tree(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	top := filepath.Dir(l.dir)
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == top {
			return err
		}
		rel, _ := filepath.Rel(top, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		found[rel] = info.Mode().String()
		if info.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			found[rel] += " " + string(b)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// wantCode checks that a wheel is refused with a code, at Open or at Unpack, that
// the error is presentable, and that nothing is left of it anywhere.
func wantCode(t *testing.T, name string, w wheeltest.Wheel, code wheel.Code) {
	t.Helper()
	l := newLayer(t)
	_, err := l.unpack(t, w, wheel.Options{})
	var e *wheel.Error
	switch {
	case !errors.Is(err, code) || !errors.As(err, &e):
		t.Errorf("%s: got %v, want %s", name, err, code)
	case strings.ContainsAny(err.Error(), "\n\r\x00") || len(err.Error()) > 500 || !strings.HasPrefix(err.Error(), string(code)+": "):
		t.Errorf("%s: the error reads %q", name, err)
	case strings.Contains(err.Error(), l.dir):
		t.Errorf("%s: the error tells a path of the host: %v", name, err)
	}
	if left := l.tree(t); len(left) != 1 {
		t.Errorf("%s: left behind: %v", name, left)
	}
}

// with is the default wheel with more files.
func with(files ...wheeltest.File) wheeltest.Wheel {
	return wheeltest.Wheel{Files: append([]wheeltest.File{{Name: "demo/__init__.py", Body: "answer = 42\n"}}, files...)}
}

// bent is the default wheel with its zip file changed.
func bent(change func(a *wheeltest.Archive, e *wheeltest.Entry)) wheeltest.Wheel {
	return wheeltest.Wheel{Zip: func(a *wheeltest.Archive) { change(a, a.Find("demo/__init__.py")) }}
}
