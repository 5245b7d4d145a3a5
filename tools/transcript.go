package tools

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sort"
	"sync"
	"unicode/utf8"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// transcript is what a script printed, cleaned: both streams in the order in
// which they arrived, as one text. An offset counts its bytes from the start and
// means the same for as long as the job is kept.
//
// At most maxOutput bytes are kept. What is behind them, or does not fit on the
// host's disk, is counted.
type transcript struct {
	mu      sync.Mutex
	clean   [2]cleaner
	text    spool
	turns   spool             // for each place where the other stream begins, see turn
	current sandboxrun.Stream // of the last byte
	lost    int64             // bytes that are not kept
	broken  bool              // because the host could not take them
	closed  bool
	waiting []*reached
}

const (
	maxOutput = 8 << 20
	turnSize  = 4
)

// reached is closed when the text has a length.
type reached struct {
	size int64
	ch   chan struct{}
}

func newTranscript(dir string) *transcript {
	return &transcript{text: spool{dir: dir}, turns: spool{dir: dir}}
}

// tap takes a piece of output; it is what a run is given to call.
func (t *transcript) tap(s sandboxrun.Stream, p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lost > 0 || t.closed {
		t.lost += int64(len(p))
		return
	}
	t.add(s, t.clean[s].write(p))
}

// end adds what the streams held back.
func (t *transcript) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range []sandboxrun.Stream{sandboxrun.Stdout, sandboxrun.Stderr} {
		if t.lost == 0 && !t.closed {
			t.add(s, t.clean[s].end())
		}
	}
	t.clean = [2]cleaner{}
}

// add appends cleaned text, whole characters only.
func (t *transcript) add(s sandboxrun.Stream, p []byte) {
	if len(p) == 0 {
		return
	}
	left := maxOutput - t.text.size - t.turns.size - turnSize
	keep := p[:max(min(int64(len(p)), left), 0)]
	for len(keep) < len(p) && len(keep) > 0 && !utf8.RuneStart(p[len(keep)]) {
		keep = keep[:len(keep)-1]
	}
	if err := t.store(s, keep); err != nil {
		keep, t.broken = nil, true
	}
	t.lost += int64(len(p) - len(keep))
	t.wake()
}

func (t *transcript) store(s sandboxrun.Stream, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if s != t.current && t.text.size > 0 {
		if err := t.turns.append(binary.LittleEndian.AppendUint32(nil, turn(t.text.size, t.current))); err != nil {
			return err
		}
	}
	t.current = s
	return t.text.append(p)
}

// turn is a place where a stream ends and the other goes on.
func turn(end int64, s sandboxrun.Stream) uint32 { return uint32(end)<<1 | uint32(s) }

// wake tells those who wait for a length that is there now.
func (t *transcript) wake() {
	t.waiting = slices.DeleteFunc(t.waiting, func(r *reached) bool {
		if r.size > t.text.size {
			return false
		}
		close(r.ch)
		return true
	})
}

// reach returns a channel that is closed once the text has size bytes, and what
// ends the wait.
func (t *transcript) reach(size int64) (<-chan struct{}, func()) {
	r := &reached{size, make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting = append(t.waiting, r)
	t.wake()
	return r.ch, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.waiting = slices.DeleteFunc(t.waiting, func(o *reached) bool { return o == r })
	}
}

// passage is a part of a transcript.
type passage struct {
	from, next int64 // offsets of its first byte and of the first byte after it
	size       int64 // of the whole so far
	lost       int64 // what is behind it and was not kept
	broken     bool
	text       [2]string // by stream
}

// more tells whether the transcript has something behind the passage.
func (e passage) more() bool { return e.next < e.size }

// page reads at most room bytes from an offset on; one inside a character means
// that character, one behind the end the end. A page that is not the last ends
// with a line if it has one in its second half, else with a character.
func (t *transcript) page(from int64, room int) (passage, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := passage{size: t.text.size, lost: t.lost, broken: t.broken}
	from = max(min(from, e.size), 0)
	start := max(from-utf8.UTFMax+1, 0)
	buf := make([]byte, max(min(e.size-start, int64(room)+from-start), 0))
	if _, err := t.text.ReadAt(buf, start); err != nil && err != io.EOF {
		return e, fmt.Errorf("read the output: %w", err)
	}
	skip := int(from - start)
	for skip > 0 && skip < len(buf) && !utf8.RuneStart(buf[skip]) {
		skip--
	}
	e.from, buf = start+int64(skip), buf[skip:]
	if e.from+int64(len(buf)) < e.size {
		buf = wholeLines(buf)
	}
	e.next = e.from + int64(len(buf))
	return e, t.split(&e, buf)
}

// wholeLines cuts a page where the text goes on behind it.
func wholeLines(b []byte) []byte {
	for i := len(b); i > len(b)/2; i-- {
		if b[i-1] == '\n' {
			return b[:i]
		}
	}
	// The last character may be cut.
	for i := len(b) - 1; i >= 0 && i >= len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return b[:i]
			}
			break
		}
	}
	return b
}

// split gives each stream its part of a page.
func (t *transcript) split(e *passage, b []byte) error {
	var failed error
	n := int(t.turns.size / turnSize)
	at := func(i int) (end int64, s sandboxrun.Stream) {
		if i == n {
			return t.text.size, t.current
		}
		var v [turnSize]byte
		if _, err := t.turns.ReadAt(v[:], int64(i)*turnSize); err != nil && err != io.EOF {
			failed = fmt.Errorf("read the output: %w", err)
		}
		u := binary.LittleEndian.Uint32(v[:])
		return int64(u >> 1), sandboxrun.Stream(u & 1)
	}
	var parts [2][]byte
	i := sort.Search(n, func(i int) bool { end, _ := at(i); return end > e.from })
	for off := e.from; len(b) > 0 && failed == nil; i++ {
		end, s := at(i)
		if i > n || end <= off && failed == nil {
			failed = fmt.Errorf("read the output: its parts do not fit")
			break
		}
		part := b[:min(int64(len(b)), end-off)]
		parts[s] = append(parts[s], part...)
		b, off = b[len(part):], end
	}
	e.text = [2]string{string(parts[0]), string(parts[1])}
	return failed
}

// offset is where the text has had n bytes of a stream.
func (t *transcript) offset(s sandboxrun.Stream, n int64) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	turns := make([]byte, t.turns.size)
	if _, err := t.turns.ReadAt(turns, 0); err != nil && err != io.EOF {
		return 0, fmt.Errorf("read the output: %w", err)
	}
	start := int64(0)
	for i := 0; ; i += turnSize {
		end, of := t.text.size, t.current
		if i < len(turns) {
			u := binary.LittleEndian.Uint32(turns[i:])
			end, of = int64(u>>1), sandboxrun.Stream(u&1)
		}
		if of == s {
			if n <= end-start {
				return start + n, nil
			}
			n -= end - start
		}
		if i >= len(turns) {
			return end, nil
		}
		start = end
	}
}

// length is how many bytes there are, and how many more were not kept.
func (t *transcript) length() (kept, lost int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.size, t.lost
}

// close gives back what the transcript holds; it is empty then.
func (t *transcript) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.text.close()
	t.turns.close()
	t.wake()
}
