package python

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// List returns the ids of the interpreters in the environment root, sorted. It
// reads names only.
func List(root string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(root, pythonDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && idForm.MatchString(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, err
}

// Peek returns what is written of an interpreter, for showing. Unlike Load it
// neither waits nor looks whether that still holds, so nothing may be run on the
// strength of it. Errors: ErrNotFound, ErrChanged.
func Peek(root, id string) (*Interpreter, error) {
	it, err := open(root, id, false)
	if err != nil {
		return nil, err
	}
	return it, nil
}

// Drop removes an interpreter: it is renamed first, so that a crash leaves no half
// of one. Errors: ErrInUse while somebody has it by Use, ErrNotFound; those of the disk
// and of ctx.
func Drop(ctx context.Context, root, id string) error {
	if !idForm.MatchString(id) {
		return fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	dir := filepath.Join(root, pythonDir)
	unlock, err := lockRoot(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	done, err := claim(dir, id)
	if err != nil {
		return err
	}
	defer done()
	gone := filepath.Join(dir, tmpPrefix+id+"-old")
	if err := os.Rename(filepath.Join(dir, id), gone); err != nil {
		return err
	}
	return os.RemoveAll(gone)
}
