package tools

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// fill writes random pieces of both streams, cut anywhere, and returns what each
// stream was.
func fill(tr *transcript, rnd *rand.Rand, pieces int) (streams [2]string) {
	words := []string{"é", "漢", "🎉", "line\n", "\x1b[31mred\x1b[0m", "a", "\r\n", "50%\r"}
	var raw, sent [2]string
	for range pieces {
		s := rnd.IntN(2)
		for range rnd.IntN(9) {
			raw[s] += words[rnd.IntN(len(words))]
		}
		left := raw[s][len(sent[s]):]
		part := left[:rnd.IntN(len(left)+1)]
		sent[s] += part
		tr.tap(sandboxrun.Stream(s), []byte(part))
	}
	tr.end()
	return [2]string{cleanOutput([]byte(sent[0])), cleanOutput([]byte(sent[1]))}
}

// pages reads a transcript page by page, by the offsets that it gives.
func pages(t *testing.T, tr *transcript, room func() int) (streams [2]string) {
	t.Helper()
	for from := int64(0); ; {
		e, err := tr.page(from, room())
		if err != nil || e.from != from || e.more() && e.next == from {
			t.Fatalf("page from %d: %+v, %v", from, e, err)
		}
		for s, text := range e.text {
			if !utf8.ValidString(text) {
				t.Fatalf("page from %d cuts a character: %q", from, text)
			}
			streams[s] += text
		}
		if from = e.next; !e.more() {
			return streams
		}
	}
}

// TestTranscriptPages: whatever the pieces and the pages, together the pages are
// the streams. The larger ones go to a file.
func TestTranscriptPages(t *testing.T) {
	dir := t.TempDir()
	for seed, pieces := range []int{0, 1, 20, 500, 500, 9000} {
		rnd := rand.New(rand.NewPCG(uint64(seed), 1))
		tr := newTranscript(dir)
		want := fill(tr, rnd, pieces)
		spilled := tr.text.file != nil
		if size, lost := tr.length(); lost > 0 || size != int64(len(want[0])+len(want[1])) || spilled != (size > maxInMemory) {
			t.Errorf("%d bytes, %d lost, in a file: %v", size, lost, spilled)
		}
		if got := pages(t, tr, func() int { return 4 + rnd.IntN(900) }); got != want {
			t.Errorf("%d pieces: the pages are not the streams", pieces)
		}
		for range 50 { // any offset is good
			size, _ := tr.length()
			from := rnd.Int64N(size + 10)
			e, err := tr.page(from, 100)
			if err != nil || e.from > from || from-e.from >= utf8.UTFMax && from < size || !utf8.ValidString(e.text[0]+e.text[1]) {
				t.Fatalf("page from %d of %d: %+v, %v", from, size, e, err)
			}
		}
		for s, text := range want { // a stream's position is found
			for range 5 {
				n := rnd.IntN(len(text) + 1)
				off, err := tr.offset(sandboxrun.Stream(s), int64(n))
				e, err2 := tr.page(0, int(off))
				if err != nil || err2 != nil || off > 0 && len(e.text[s]) > n {
					t.Fatalf("offset of %d: %d, %v, %v", n, off, err, err2)
				}
			}
		}
		tr.close()
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left on disk: %v, %v", left, err)
	}
}

// TestTranscriptLimit: what is over the limit is counted, whole characters are
// kept, and the streams' turns count too.
func TestTranscriptLimit(t *testing.T) {
	tr := newTranscript(t.TempDir())
	defer tr.close()
	tr.tap(sandboxrun.Stdout, []byte("x"))
	for range 10 {
		tr.tap(sandboxrun.Stdout, []byte(strings.Repeat("漢", 1<<20/3)))
	}
	tr.end()
	size, lost := tr.length()
	if size > maxOutput || size < maxOutput-10 || size+lost != 1+10*(1<<20/3*3) {
		t.Errorf("%d kept, %d lost", size, lost)
	}
	if got := pages(t, tr, func() int { return pageRoom }); int64(len(got[0])) != size {
		t.Errorf("%d bytes in pages", len(got[0]))
	}
	two := newTranscript(t.TempDir())
	defer two.close()
	for i := range 1_800_000 {
		two.tap(sandboxrun.Stream(i%2), []byte("y"))
	}
	if size, lost := two.length(); size > maxOutput/(1+turnSize)+1 || lost == 0 || two.text.size+two.turns.size > maxOutput {
		t.Errorf("%d kept, %d lost, %d of turns", size, lost, two.turns.size)
	}
}

// TestTranscriptWithoutRoom: a place that takes nothing costs the output behind
// the first 64 KiB and nothing else.
func TestTranscriptWithoutRoom(t *testing.T) {
	tr := newTranscript(filepath.Join(t.TempDir(), "none"))
	line := strings.Repeat("z", 999) + "\n"
	for range 100 {
		tr.tap(sandboxrun.Stderr, []byte(line))
	}
	e, err := tr.page(0, 1<<20)
	if err != nil || !e.broken || e.size != 65_000 || e.lost != 35_000 || e.text[1] != strings.Repeat(line, 65) {
		t.Errorf("%d kept, %d lost, %v", e.size, e.lost, err)
	}
}

// TestTranscriptReach: who waits for a length is told when it is there.
func TestTranscriptReach(t *testing.T) {
	tr := newTranscript(t.TempDir())
	five, leave := tr.reach(5)
	ten, leaveTen := tr.reach(10)
	leaveTen()
	tr.tap(sandboxrun.Stdout, []byte("1234"))
	select {
	case <-five:
		t.Error("too early")
	default:
	}
	tr.tap(sandboxrun.Stderr, []byte("56789012"))
	<-five
	leave()
	select {
	case <-ten:
		t.Error("told although it had left")
	default:
	}
	now, leave := tr.reach(12)
	<-now
	leave()
	if len(tr.waiting) > 0 {
		t.Errorf("%d wait", len(tr.waiting))
	}
}
