package live

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Size returns how many files and symlinks all generations of the view of an
// image below dir have, and how many bytes of disk they and their directories
// take; both are 0 when there is none. What several generations share by hard
// links counts once. It looks at every file, takes no lock, changes nothing, and
// holds up nobody; what appears or goes meanwhile may or may not be counted, and
// what lies in a directory that its owner may not search is not.
//
// Errors: those of the host's file system.
func Size(dir, uuid string) (files, bytes int64, err error) {
	root, err := os.OpenRoot(filepath.Join(dir, uuid))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	} else if err != nil {
		return 0, 0, fmt.Errorf("size of live view: %w", err)
	}
	defer root.Close()
	names, err := list(root)
	c := &counter{seen: map[inode]bool{}}
	for _, name := range names {
		if _, ok := number(name); ok && err == nil {
			err = c.generation(root, name)
		}
	}
	if err != nil {
		return 0, 0, fmt.Errorf("size of live view: %w", err)
	}
	return c.files, c.bytes, nil
}

// inode names a file that may have several names.
type inode struct{ dev, ino uint64 }

type counter struct {
	files, bytes int64
	seen         map[inode]bool // of those that have several
}

func (c *counter) generation(d *os.Root, name string) error {
	sub, err := d.OpenRoot(name)
	if err != nil {
		return passing(err)
	}
	defer sub.Close()
	return passing(c.entry(sub, treeName))
}

// passing leaves out what is no failure: something went away meanwhile, or may
// not be looked at.
func passing(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

func (c *counter) dir(d *os.Root) error {
	names, err := list(d)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := passing(c.entry(d, name)); err != nil {
			return err
		}
	}
	return nil
}

func (c *counter) entry(d *os.Root, name string) error {
	st, err := d.Lstat(name)
	if err != nil {
		return err
	}
	bytes, id, shared := diskUse(st)
	if st.IsDir() {
		c.bytes += bytes
		sub, err := d.OpenRoot(name)
		if err != nil {
			return err
		}
		defer sub.Close()
		return c.dir(sub)
	}
	if shared && c.seen[id] {
		return nil
	}
	if shared {
		c.seen[id] = true
	}
	c.files++
	c.bytes += bytes
	return nil
}
