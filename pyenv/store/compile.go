package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// compiler runs in the sandbox. It does what the module compileall does with
// --invalidation-mode unchecked-hash -s -p, by two processes; compileall itself can
// only start processes in a way that needs sockets since Python 3.12.
//
//go:embed compile.py
var compiler string

// Limits of the compiler.
const (
	compileTime   = 10 * time.Minute
	compileBytes  = 1 << 30
	compileMemory = 2 << 30
	maxBytecode   = 64 << 20 // of one file
)

// compile makes the bytecode of all sources in the sandbox, where the tree of the
// layer is the workspace, and puts it into the tree. A source that does not compile
// has none.
func (w *builder) compile(ctx context.Context) error {
	w.stage(StageCompile)
	in := &bytecode{tree: w.tree, expected: w.bytecodeNames(), dirs: map[string]bool{}}
	for p := range in.expected {
		in.dirs[path.Dir(p)] = false
	}
	defer in.leave()
	limits := sandboxrun.Limits{
		Timeout: compileTime, WriteBytes: compileBytes, MemoryBytes: compileMemory,
		WriteFiles: int64(4*len(in.expected) + 1000), // directories, and files being written
	}
	res, err := w.Box.Run(ctx, sandboxrun.Run{
		Lower:  w.hostDir(),
		Argv:   []string{python.Executable, "-I", "-S", "-c", compiler, "/workspace/" + wheel.SitePackages, w.target() + "/" + wheel.SitePackages},
		Binds:  []sandboxrun.Bind{{Source: w.Python.Dir, Target: python.Prefix}},
		Limits: limits,
	}, in.take)
	switch {
	case err != nil:
		return fmt.Errorf("compile: %w", err)
	case res.Outcome != sandboxrun.Exited || res.ExitCode != 0:
		return refuse(ErrBytecode, "", "the compiler ended with %s, exit code %d", res.Outcome, res.ExitCode).
			because(errors.New(lastLine(res.Stderr.Text)))
	}
	w.layer.Files = append(w.layer.Files, in.files...)
	return nil
}

// target is where the layer will be in the sandbox.
func (w *builder) target() string { return MountDir + "/" + w.id }

// bytecodeNames are the files that the compiler may make.
func (w *builder) bytecodeNames() map[string]bool {
	names := map[string]bool{}
	suffix := "." + "cpython-" + strings.TrimPrefix(w.Lock.Python.Tag, "cp") + ".pyc"
	for _, o := range w.wheels {
		for _, f := range o.files {
			stem, source := strings.CutSuffix(f.Path, ".py")
			dir, name := path.Split(stem)
			if source && strings.HasPrefix(dir, wheel.SitePackages+"/") && !strings.Contains("/"+dir, "/__pycache__/") {
				names[dir+"__pycache__/"+name+suffix] = true
			}
		}
	}
	return names
}

// bytecode takes what the compiler made. What it could not have made is refused:
// nothing of a wheel runs there, but nothing else stands between it and the layer.
type bytecode struct {
	tree     *os.Root
	expected map[string]bool // files; false once they are there
	dirs     map[string]bool // directories for them; true once they are there
	files    []wheel.Installed

	at   string
	here *os.Root
}

func (b *bytecode) take(c sandboxrun.Change) error {
	p := string(c.Path)
	_, ours := b.dirs[p]
	switch {
	case c.Kind == sandboxrun.File && b.expected[p]:
		return b.write(p, c)
	case ours && (c.Kind == sandboxrun.Dir || c.Kind == sandboxrun.OpaqueDir):
		return b.mkdir(p)
	case c.Kind == sandboxrun.Dir && b.exists(p):
		return nil // told because of what is below
	}
	return refuse(ErrBytecode, "", "the compiler left %s %q", c.Kind, p)
}

// exists says whether a directory was there before.
func (b *bytecode) exists(dir string) bool {
	st, err := b.tree.Lstat(dir)
	return err == nil && st.IsDir()
}

func (b *bytecode) mkdir(dir string) error {
	if b.dirs[dir] {
		return nil
	}
	b.dirs[dir] = true
	if st, err := b.tree.Lstat(dir); err == nil && st.IsDir() {
		return nil // the wheel has something else in its __pycache__
	}
	if err := b.tree.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return b.tree.Chmod(dir, 0o755)
}

// write makes one file, whose header says that its source need not be looked at.
func (b *bytecode) write(p string, c sandboxrun.Change) error {
	if c.Size > maxBytecode {
		return refuse(ErrBytecode, "", "%q has %d bytes", p, c.Size)
	}
	if err := b.enter(path.Dir(p)); err != nil {
		return err
	}
	b.expected[p] = false
	var head bytes.Buffer
	if _, err := io.CopyN(&head, c.Body, 16); err != nil || !bytes.Equal(head.Bytes()[4:8], []byte{1, 0, 0, 0}) {
		return refuse(ErrBytecode, "", "%q is no bytecode", p)
	}
	f, err := b.here.OpenFile(path.Base(p), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), io.MultiReader(&head, c.Body))
	if err := errors.Join(err, f.Chmod(0o444), f.Close()); err != nil {
		return err
	}
	if n != c.Size {
		return refuse(ErrBytecode, "", "%q is cut off", p)
	}
	b.files = append(b.files, wheel.Installed{Path: p, Size: n, SHA256: hex.EncodeToString(h.Sum(nil))})
	return nil
}

// enter keeps the directory of the last file open, for they come in its order.
func (b *bytecode) enter(dir string) (err error) {
	if b.here != nil && b.at == dir {
		return nil
	}
	b.leave()
	b.at = dir
	b.here, err = b.tree.OpenRoot(dir)
	return err
}

func (b *bytecode) leave() {
	if b.here != nil {
		b.here.Close()
		b.here = nil
	}
}

// lastLine is the end of what a program said, for logs.
func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	last := lines[len(lines)-1]
	return last[:min(len(last), 300)]
}
