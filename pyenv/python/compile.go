package python

import (
	"context"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// compile makes the bytecode of the standard library, which nobody can write later:
// without it every script would compile what it imports. It is made in the sandbox,
// not dated and never compared with its source ("unchecked-hash", PEP 552), for the
// source does not change.
func compile(ctx context.Context, box *sandboxrun.Runner, w *writer) error {
	var dirs []string
	for _, dir := range []string{"lib", "lib64", "local"} {
		if _, err := w.root.Lstat(dir); err == nil {
			dirs = append(dirs, "/workspace/"+dir)
		}
	}
	made := 0
	res, err := box.Run(ctx, sandboxrun.Run{
		Lower: w.dir,
		// -q twice: files of examples need not compile. -j needs sockets that the
		// sandbox refuses (Python 3.14).
		Argv: append([]string{Executable, "-I", "-B", "-m", "compileall", "-q", "-q", "--invalidation-mode", "unchecked-hash",
			"-s", "/workspace", "-p", Prefix}, dirs...),
		Binds:  []sandboxrun.Bind{{Source: w.dir, Target: Prefix}},
		Limits: sandboxrun.Limits{Timeout: compileTime},
	}, func(c sandboxrun.Change) error {
		made++
		return w.bytecode(ctx, c)
	})
	if res.Outcome == sandboxrun.Exited && res.ExitCode == 1 {
		res.ExitCode = 0 // a file that does not compile
	}
	if err := ended(ctx, res, err, compileTime); err != nil {
		return err
	}
	if made < 100 {
		return broken("its standard library does not compile: %s", quote(res.Stdout.Text))
	}
	return nil
}

// compileTime bounds the compilation. It takes 3 s on a machine with nothing else
// to do.
const compileTime = 5 * time.Minute

// bytecode takes over what compileall wrote: nothing but .pyc files in directories
// __pycache__.
func (w *writer) bytecode(ctx context.Context, c sandboxrun.Change) error {
	name := string(c.Path)
	inCache := path.Base(path.Dir(name)) == "__pycache__" && strings.HasSuffix(name, ".pyc")
	switch {
	case c.Kind == sandboxrun.Dir || c.Kind == sandboxrun.OpaqueDir:
		return nil
	case c.Kind == sandboxrun.File && inCache && c.Size <= maxBytecode:
		return w.file(ctx, name, false, io.LimitReader(c.Body, c.Size))
	}
	return fmt.Errorf("%w: compiling it made %s %q", ErrBroken, c.Kind, name)
}

// maxBytecode is far above the largest file of a standard library.
const maxBytecode = 16 << 20
