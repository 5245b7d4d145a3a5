package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// PutLock stores a lock under its id, durably. It may be called again with the
// same lock. Errors: lock.ErrInvalid, ErrDiskFull; those of the file system.
func (r *Root) PutLock(l lock.Lock) (id string, err error) {
	b, err := l.Encode()
	if err != nil {
		return "", err
	}
	if id, err = l.ID(); err != nil {
		return "", err
	}
	if have, err := r.read(lockName(id), maxLock); err == nil && bytes.Equal(have, b) {
		r.touch(lockName(id))
		return id, nil
	}
	err = r.put(lockName(id), 0o400, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
	if err != nil {
		return "", full(fmt.Errorf("store a lock: %w", err))
	}
	return id, nil
}

// Lock returns a stored lock. Errors: ErrNotFound; ErrTampered when its bytes are
// not those that its id stands for.
func (r *Root) Lock(id string) (lock.Lock, error) {
	if !lock.ValidID(id) {
		return lock.Lock{}, refuse(ErrNotFound, "", "there is no such lock")
	}
	b, err := r.read(lockName(id), maxLock)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return lock.Lock{}, refuse(ErrNotFound, "", "there is no lock %s", id)
	case err != nil:
		return lock.Lock{}, fmt.Errorf("read a lock: %w", err)
	}
	l, err := lock.Parse(b)
	if err != nil {
		return lock.Lock{}, tampered(id).because(err)
	}
	if have, err := l.ID(); err != nil || have != id {
		return lock.Lock{}, tampered(id).because(err)
	}
	return l, nil
}

func tampered(id string) *Error {
	return refuse(ErrTampered, "", "the lock %s was changed after it was stored", id).
		suggest("ask for the packages again, so that a new lock is made")
}

// maxLock bounds what is read of a lock, in bytes.
const maxLock = 8 << 20

func lockName(id string) string { return locksDir + "/" + id + ".json" }

// read reads a regular file of at most so many bytes.
func (r *Root) read(name string, most int64) ([]byte, error) {
	f, err := r.root.OpenFile(name, os.O_RDONLY|hostos.NonBlock, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular() || st.Size() > most:
		return nil, fmt.Errorf("%s is not a file of at most %d bytes", name, most)
	}
	return io.ReadAll(io.LimitReader(f, most))
}
