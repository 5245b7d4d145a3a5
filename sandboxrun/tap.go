package sandboxrun

import (
	"bytes"
	"sync"
)

// Stream tells the two outputs of a script apart.
type Stream int

const (
	Stdout Stream = iota
	Stderr
)

// String returns "stdout" or "stderr".
func (s Stream) String() string {
	if s == Stderr {
		return "stderr"
	}
	return "stdout"
}

// tap hands output on as it arrives, one piece at a time.
type tap struct {
	mu   sync.Mutex
	f    func(Stream, []byte)
	left int64  // bytes that may still be handed on
	held []byte // the beginning of stderr, while it may be bubblewrap's
	ours bool   // stderr is known to be the script's
}

func (t *tap) write(s Stream, p []byte) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := min(int64(len(p)), t.left)
	t.left -= n
	p = p[:n:n]
	if s == Stderr && !t.ours {
		t.held = append(t.held, p...)
		if mayBeBwrap(t.held) {
			return
		}
		p, t.held, t.ours = t.held, nil, true
	}
	if len(p) > 0 {
		t.f(s, p)
	}
}

// finish hands on what was held back; the command was started, so it is the
// script's. Without a call of finish it never was.
func (t *tap) finish() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.held) > 0 {
		t.f(Stderr, t.held)
	}
	t.held, t.ours = nil, true
}

// bwrapPrefix begins every message of bubblewrap, and maxBwrap is more than it
// ever says: one line with a path or two, and it ends.
const (
	bwrapPrefix = "bwrap: "
	maxBwrap    = 16 << 10
)

// mayBeBwrap reports whether the beginning of stderr can be a message of
// bubblewrap, which has the same stderr until it starts the command. Such a
// message names what it could not mount and becomes the error of Run; it is no
// output.
func mayBeBwrap(b []byte) bool {
	n := min(len(b), len(bwrapPrefix))
	return len(b) <= maxBwrap && bytes.Equal(b[:n], []byte(bwrapPrefix[:n]))
}
