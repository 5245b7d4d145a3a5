package spec

import (
	"errors"
	"strconv"
	"strings"
)

// The kinds of failure. Their text is a stable code; an error that wraps one is
// "code: one sentence" and holds nothing of the host.
var (
	ErrBadSpec = errors.New("bad_spec")    // the text is not what may stand there
	ErrVersion = errors.New("bad_version") // the text is no version by PEP 440
	ErrMarker  = errors.New("bad_marker")  // the marker compares what has no order
)

// quote shows a stranger's text, cut to 80 bytes.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.Quote(s)
}
