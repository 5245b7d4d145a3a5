package hostos

import (
	"errors"
	"os"
)

// unlinked makes a temporary file and removes its name.
func unlinked(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "unnamed-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		// A system that keeps open files named: better none than one that stays.
		return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return f, nil
}
