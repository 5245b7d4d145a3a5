//go:build !linux || portable

package hostos

import "errors"

// Exchange would let two names change places in one step, which these systems do not
// offer. The error wraps errors.ErrUnsupported.
func Exchange(_, _ string) error { return errors.ErrUnsupported }
