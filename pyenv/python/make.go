package python

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Options say where an interpreter may come from, best first. The zero value is
// the Python of the system.
type Options struct {
	// Prefix is the absolute path of a directory that has an interpreter and all
	// that it needs: what `make install` or an unpacked archive is, not a virtual
	// environment. It is copied; what is installed in it is not.
	Prefix string
	// Archive is a file of python-build-standalone, .tar.gz or .tar.zst, of which
	// SHA256 is the hash, in hexadecimal.
	Archive string
	SHA256  string
	// HostPath is the PATH of the caller. Candidates tells of what is on it, and
	// why it is not used. Nothing of it is ever run.
	HostPath []string

	system []string // where the Python of the system is looked for; nil: systemPythons
}

// Make returns the interpreter that the options lead to. If root, the environment
// root, has it already, that is all; otherwise it is made, which takes some
// seconds, also in the place of one that is damaged. Two processes that make the
// same one make it once.
//
// Errors: ErrNone, ErrRefused, ErrBroken, ErrInUse when a script runs the damaged
// one, those of Load, those of the box, and those of the disk. Whatever the error, and
// however the process ends, nothing half-made can be seen.
func Make(ctx context.Context, root string, o Options, box *sandboxrun.Runner) (*Interpreter, error) {
	it, _, err := obtain(ctx, root, o, box, false)
	return it, err
}

// Repair is Make for an interpreter that somebody may have changed: all of it is read
// first, as Verify does, and one that differs is made again in its place. It returns
// what was found. Errors: as Make.
func Repair(ctx context.Context, root string, o Options, box *sandboxrun.Runner) (*Interpreter, []Fault, error) {
	return obtain(ctx, root, o, box, true)
}

// ID is that of the interpreter that Make would return; the root need not have it. It
// reads what would be copied. Errors: ErrNone, ErrRefused; those of the disk and of
// ctx.
func ID(ctx context.Context, o Options) (string, error) {
	src, err := choose(o)
	if err != nil {
		return "", err
	}
	defer src.close()
	return src.id(ctx)
}

// obtain is Make, and with read Repair.
func obtain(ctx context.Context, root string, o Options, box *sandboxrun.Runner, read bool) (it *Interpreter, faults []Fault, err error) {
	src, err := choose(o)
	if err != nil {
		return nil, nil, err
	}
	defer src.close()
	dir := filepath.Join(root, pythonDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	unlock, err := lockRoot(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	if err := sweep(dir); err != nil {
		return nil, nil, err
	}
	id, err := src.id(ctx)
	if err != nil {
		return nil, nil, err
	}
	if read {
		// Before anything of it is run.
		if faults, err = Verify(ctx, root, id); err != nil && !errors.Is(err, ErrNotFound) {
			return nil, nil, err
		}
	}
	if len(faults) == 0 {
		it, err := load(ctx, root, id, box)
		if !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrChanged) {
			return it, nil, err
		}
	}
	if err := build(ctx, dir, id, src, box); err != nil {
		return nil, nil, err
	}
	it, err = load(ctx, root, id, box)
	return it, faults, err
}

// Names below the environment root. What begins with tmpPrefix is being made, or
// was when its process died; only the holder of the lock makes anything.
const (
	pythonDir  = "python"
	lockName   = ".lock"
	tmpPrefix  = ".tmp-"
	prefixName = "prefix"
	sourceName = "SOURCE"
	factsName  = "FACTS"
)

// lockRoot makes this process the one that writes into dir, python/ of the root.
func lockRoot(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := hostos.Lock(ctx, f, true); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// sweep removes what killed processes left. The caller has the lock.
func sweep(dir string) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), tmpPrefix) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// build makes dir/id, all of it or nothing.
func build(ctx context.Context, dir, id string, src source, box *sandboxrun.Runner) (err error) {
	if box == nil {
		return fmt.Errorf("the Python cannot be tried out: %w", sandboxrun.ErrUnavailable)
	}
	// One that is in use stays. This is known before the work, and asked again after it.
	done, err := claimOld(dir, id)
	if err != nil {
		return err
	}
	done()
	tmp, err := os.MkdirTemp(dir, tmpPrefix)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	if err := fill(ctx, tmp, src, box); err != nil {
		return err
	}
	made, err := os.OpenRoot(tmp)
	if err != nil {
		return err
	}
	defer made.Close()
	if err := hostos.SyncTree(made); err != nil {
		return err
	}
	if done, err = claimOld(dir, id); err != nil {
		return err
	}
	defer done()
	// One that is damaged makes room, and is removed after that. Should this process
	// end in between, the next Make does both.
	old := tmp + "-old"
	if err := os.Rename(filepath.Join(dir, id), old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(dir, id)); err != nil {
		return err
	}
	return errors.Join(hostos.SyncDir(dir), os.RemoveAll(old))
}

// fill writes prefix, SOURCE, FACTS and MANIFEST into an empty directory.
func fill(ctx context.Context, tmp string, src source, box *sandboxrun.Runner) error {
	prefix := filepath.Join(tmp, prefixName)
	if err := os.Mkdir(prefix, 0o755); err != nil {
		return err
	}
	w, err := newWriter(prefix)
	if err != nil {
		return err
	}
	defer w.close()
	if err := src.copy(ctx, w); err != nil {
		return err
	}
	if err := w.addNames(); err != nil {
		return err
	}
	p := prober{box: box, dir: prefix, timeout: probeTime, system: src.tell().Kind == KindSystem}
	first, err := p.ask(ctx)
	if err != nil {
		return err
	}
	if err := w.addPackages(first); err != nil {
		return err
	}
	if err := compile(ctx, box, w); err != nil {
		return err
	}
	facts, err := p.prove(ctx, tmp)
	if err != nil {
		return err
	}
	said := src.tell()
	if len(first.Missing) > 0 {
		said.Why = strings.TrimPrefix(said.Why+"; it lacks the modules "+strings.Join(first.Missing, ", "), "; ")
	}
	if err := errors.Join(writeJSON(filepath.Join(tmp, sourceName), said), writeJSON(filepath.Join(tmp, factsName), facts)); err != nil {
		return err
	}
	return writeManifest(ctx, tmp)
}

// source is where an interpreter comes from.
type source interface {
	id(ctx context.Context) (string, error) // the same for the same content
	copy(ctx context.Context, w *writer) error
	tell() Source
	close()
}

// choose returns the first source that the options have.
func choose(o Options) (source, error) {
	switch {
	case o.Prefix != "":
		return openPrefix(o.Prefix)
	case o.Archive != "" || o.SHA256 != "":
		return openArchive(o.Archive, o.SHA256)
	}
	var why []string
	for _, path := range o.systemPythons() {
		src, err := openSystem(path)
		if err == nil {
			return src, nil
		}
		why = append(why, reason(err))
	}
	return nil, fmt.Errorf("%w: no prefix and no archive is configured, and %s", ErrNone, strings.Join(why, "; "))
}

// reason is an error without the words of its kind.
func reason(err error) string { return strings.TrimPrefix(err.Error(), ErrRefused.Error()+": ") }
