//go:build !unix || portable

package live

import (
	"errors"
	"os"
)

// linkAt makes no links here: files are written anew.
func linkAt(_, _ *os.File, _ string) error { return errors.ErrUnsupported }
