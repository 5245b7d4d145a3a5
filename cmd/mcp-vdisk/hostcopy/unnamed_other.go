//go:build !linux

package hostcopy

import (
	"errors"
	"os"
)

// No system but Linux has files without a name that get one later.
func unnamed(string) (*os.File, error) { return nil, errors.ErrUnsupported }

func nameIt(*os.File, string) error { return errors.ErrUnsupported }
