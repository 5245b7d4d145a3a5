package sandboxrun

import (
	"encoding/binary"
	"fmt"
)

// Mark is the end of a step of a run, as Run.Trace is told. The times are of the
// moment itself, in this process or in the stage; they are told a little later,
// by one goroutine and before Run returns. A run that fails leaves marks out.
type Mark string

// The marks, in their order.
const (
	MarkOrdered  Mark = "ordered"  // the stage has been sent its orders
	MarkTaken    Mark = "taken"    // it has read them
	MarkMounted  Mark = "mounted"  // the workspace is mounted
	MarkForked   Mark = "forked"   // bubblewrap has been executed
	MarkReleased Mark = "released" // the limits are set; the command may start once bubblewrap is ready
	MarkEnded    Mark = "ended"    // bubblewrap has ended
	MarkReaped   Mark = "reaped"   // no process of the sandbox is left
	MarkRead     Mark = "read"     // the callback had all changes
	MarkGone     Mark = "gone"     // the stage has ended and its mounts are gone
)

// appendMark is the payload of frameMark; at is of the clock of monotonic.
func appendMark(m Mark, at int64) []byte {
	return binary.AppendVarint(appendString(nil, m), at)
}

func parseMark(b []byte) (m Mark, at int64, err error) {
	p := payloadReader{rest: b}
	m, at = Mark(p.string()), p.int()
	if !p.done() {
		return "", 0, fmt.Errorf("%w: mark", ErrStream)
	}
	return m, at, nil
}
