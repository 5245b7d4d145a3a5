package python

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// useTime is how long Use waits for who is removing or replacing the interpreter.
const useTime = 5 * time.Second

// Use keeps an interpreter from being removed or replaced until release is called or
// this process ends: it is for as long as a script runs. release may be called more
// than once, by any goroutine. Errors: ErrNotFound; those of the disk.
func Use(root, id string) (release func(), err error) {
	if !idForm.MatchString(id) {
		return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	ctx, cancel := context.WithTimeout(context.Background(), useTime)
	defer cancel()
	for {
		f, err := openLocked(filepath.Join(root, pythonDir, id), func(f *os.File) error { return hostos.Lock(ctx, f, false) })
		if err != nil {
			return nil, err
		}
		if f != nil {
			return sync.OnceFunc(func() { f.Close() }), nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w: %s", ErrNotFound, id)
		}
	}
}

// claim takes an interpreter that nobody uses, to remove or replace it; done ends that.
// The caller has the lock of dir. Errors: ErrInUse, ErrNotFound; those of the disk.
func claim(dir, id string) (done func(), err error) {
	f, err := openLocked(filepath.Join(dir, id), func(f *os.File) error {
		free, err := hostos.TryLock(f, true)
		if err == nil && !free {
			return fmt.Errorf("%w: %s", ErrInUse, id)
		}
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case f == nil:
		return nil, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	return func() { f.Close() }, nil
}

// claimOld is claim for what need not be there.
func claimOld(dir, id string) (done func(), err error) {
	if done, err = claim(dir, id); errors.Is(err, ErrNotFound) {
		return func() {}, nil
	}
	return done, err
}

// openLocked opens a directory and locks it: the directory itself, so that the lock
// goes where it goes. It returns nil when there is another one in its place by then.
func openLocked(dir string, lock func(*os.File) error) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|hostos.NonBlock, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, filepath.Base(dir))
	}
	if err != nil {
		return nil, err
	}
	if err := lock(f); err != nil {
		f.Close()
		return nil, err
	}
	have, err := f.Stat()
	if now, e := os.Lstat(dir); err != nil || e != nil || !os.SameFile(have, now) {
		f.Close()
		return nil, nil
	}
	return f, nil
}
