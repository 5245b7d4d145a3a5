package python

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Load returns the interpreter of an id that Make made in the environment root. It
// starts nothing as long as FACTS holds, which it finds out by hashes. Otherwise (the
// C library of the system was updated, say) the interpreter is asked anew in box,
// which may be nil where that is not wanted.
//
// Errors: ErrNotFound, ErrBroken; ErrChanged when it is another version than it was,
// or its files are damaged, in which case Make makes it again. The disk's and the
// box's as they are.
func Load(ctx context.Context, root, id string, box *sandboxrun.Runner) (*Interpreter, error) {
	it, err := open(root, id, true)
	if !errors.Is(err, errOutdated) {
		return it, err
	}
	unlock, err := lockRoot(ctx, filepath.Join(root, pythonDir))
	if err != nil {
		return nil, err
	}
	defer unlock()
	return load(ctx, root, id, box)
}

// load does it for the holder of the lock.
func load(ctx context.Context, root, id string, box *sandboxrun.Runner) (*Interpreter, error) {
	it, err := open(root, id, true)
	if !errors.Is(err, errOutdated) {
		return it, err
	}
	if err := again(ctx, it, box); err != nil {
		return nil, err
	}
	return open(root, id, true)
}

// errOutdated: the interpreter is there, and may not be what FACTS says.
var errOutdated = errors.New("its facts do not hold any more")

// open reads what Make wrote, and looks whether it holds if it is to be run.
func open(root, id string, run bool) (*Interpreter, error) {
	if !idForm.MatchString(id) {
		return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	dir, err := filepath.Abs(filepath.Join(root, pythonDir, id))
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	it := &Interpreter{ID: id, Dir: filepath.Join(dir, prefixName)}
	var f facts
	if err := errors.Join(readJSON(filepath.Join(dir, sourceName), &it.Source), readJSON(filepath.Join(dir, factsName), &f)); err != nil {
		return nil, err
	}
	it.Facts = f.Facts
	if run && !f.hold(it.Dir) {
		return it, errOutdated
	}
	return it, nil
}

var idForm = regexp.MustCompile(`^(prefix|standalone|system)-[0-9a-f]{16}$`)

// again asks an interpreter anew, and writes down what it says if it is the one
// that it was. The caller has the lock.
func again(ctx context.Context, it *Interpreter, box *sandboxrun.Runner) error {
	dir := filepath.Dir(it.Dir)
	var old facts
	if err := readJSON(filepath.Join(dir, factsName), &old); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), tmpPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	p := prober{box: box, dir: it.Dir, timeout: probeTime, system: it.Source.Kind == KindSystem}
	now, err := p.prove(ctx, tmp)
	if err != nil {
		return err
	}
	for _, m := range old.Files {
		if strings.HasPrefix(m.Path, Prefix+"/") && !slices.Contains(now.Files, m) {
			return fmt.Errorf("%w: %s is damaged", ErrChanged, m.Path)
		}
	}
	if now.Full != old.Full || now.SitePackages != old.SitePackages {
		return fmt.Errorf("%w: it was %s and is %s", ErrChanged, old.Full, now.Full)
	}
	file := filepath.Join(tmp, factsName)
	if err := writeJSON(file, now); err != nil {
		return err
	}
	if err := os.Rename(file, filepath.Join(dir, factsName)); err != nil {
		return err
	}
	return hostos.SyncDir(dir)
}

// readJSON reads a file that was made here, and nothing else.
func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil || d.More() {
		return fmt.Errorf("%w: %s is damaged", ErrChanged, filepath.Base(path))
	}
	return nil
}
