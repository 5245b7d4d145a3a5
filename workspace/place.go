package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// tempPrefix begins the name that an image has until it is whole.
const tempPrefix = ".vdisk-new-"

// Temp makes an empty file beside an image that is to be made, in which it can be made:
// see Place and SweepTemp. Its mode is 0600.
func Temp(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return nil, createError(err)
	}
	return f, nil
}

// Place gives a whole image its name, which must be free, and makes that durable. tmp
// lies in the same directory, made by Temp, and nobody has it open; it is gone
// afterwards, also when Place fails.
//
// Errors: ErrExists, ErrNoSpace. A crash leaves the image under its name or not at all;
// it may leave tmp.
func Place(tmp, path string) error {
	defer os.Remove(tmp)
	f, err := os.OpenFile(tmp, os.O_RDWR, 0)
	if err != nil {
		return createError(err)
	}
	return errors.Join(publish(f, path, 0), f.Close())
}

// SweepTemp removes what images that were never finished left in a directory. Nobody may
// be making one there.
func SweepTemp(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("sweep images that were not finished: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) && e.Type().IsRegular() {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
