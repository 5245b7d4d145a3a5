package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
)

// progress tells a person what a long command is at: on a terminal by one line that
// is drawn anew, elsewhere by a line for each step.
type progress struct {
	w       io.Writer
	columns int // of the terminal, 0 for none

	mu    sync.Mutex
	step  pyenv.Step
	drawn time.Time // zero: the line is empty
	line  string    // the last one that was due, drawn or not
}

// redraw is how often the line is drawn at most.
const redraw = 100 * time.Millisecond

// show may be called from many goroutines.
func (p *progress) show(at pyenv.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fresh := at.Step != p.step
	p.step, p.line = at.Step, progressText(at)
	switch {
	case p.columns == 0 && fresh:
		fmt.Fprintf(p.w, "%s\n", p.line)
	case p.columns > 0 && (fresh || time.Since(p.drawn) >= redraw):
		p.drawn = time.Now()
		// The line is erased first: CSI K, ECMA-48 §8.3.41.
		fmt.Fprintf(p.w, "\r\x1b[K%s", cutTo(p.line, p.columns-1))
	}
}

// end leaves an empty line to whatever is told next.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.drawn.IsZero() {
		p.drawn = time.Time{}
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// progressText is such as "fetch     fetched numpy, 3 of 28 wheels, 27.4 of 66.9 MB".
func progressText(at pyenv.Progress) string {
	text := fmt.Sprintf("%-8s  %s", at.Step, safe(at.Text))
	const mb = 1e6
	switch {
	case at.Step == pyenv.StepFetch && at.Done == 0:
		text += fmt.Sprintf(", %.1f MB", float64(at.Total)/mb)
	case at.Step == pyenv.StepFetch:
		text += fmt.Sprintf(", %.1f of %.1f MB", float64(at.Done)/mb, float64(at.Total)/mb)
	}
	return text
}

// cutTo cuts a text to so many characters. What is told is in Latin letters, each
// one column wide.
func cutTo(s string, n int) string {
	if r := []rune(s); len(r) > max(n, 0) {
		return string(r[:max(n, 0)])
	}
	return s
}

// columnsOf is how wide a terminal is, 0 when w is none that lines can be drawn on.
func columnsOf(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return 0
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	const least = 20 // a terminal that does not know its width says 0
	if columns < least {
		columns = 80
	}
	return columns
}

// meter draws how far a copy is: one line on a terminal, nothing elsewhere. Its methods
// may be called from many goroutines.
type meter struct {
	w       io.Writer
	columns int    // of the terminal, 0 for none
	verb    string // such as "put"

	mu          sync.Mutex
	done, total int64 // bytes; total 0 is unknown
	entries     int64
	name        string // of the entry that is copied now
	drawn       time.Time
}

func newMeter(w io.Writer, verb string, total int64) *meter {
	return &meter{w: w, columns: columnsOf(w), verb: verb, total: total}
}

// expect says how many bytes there will be, once that is known.
func (m *meter) expect(total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total = total
}

// Write counts bytes that went by, for io.TeeReader and io.MultiWriter.
func (m *meter) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += int64(len(p))
	m.draw()
	return len(p), nil
}

// entry tells what is copied now.
func (m *meter) entry(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries++
	m.name = name
	m.draw()
}

func (m *meter) draw() {
	if m.columns == 0 || time.Since(m.drawn) < redraw {
		return
	}
	m.drawn = time.Now()
	fmt.Fprintf(m.w, "\r\x1b[K%s", cutTo(m.line(), m.columns-1))
}

// line is such as "put  [=====>    ]  52 %  1.0 of 2.0 GB, 12 entries  data/big.bin".
func (m *meter) line() string {
	how := showBytes(m.done)
	if m.total > 0 {
		const cells = 20
		part := min(float64(m.done)/float64(m.total), 1)
		full := int(part * cells)
		bar := strings.Repeat("=", full) + strings.Repeat(" ", cells-full)
		how = fmt.Sprintf("[%s] %3d %%  %s of %s", bar, int(part*100), how, showBytes(m.total))
	}
	if m.entries == 0 { // of what is copied as one
		return m.verb + "  " + how
	}
	return fmt.Sprintf("%s  %s, %s  %s", m.verb, how, entries(int(m.entries)), safe(m.name))
}

// end leaves an empty line to whatever is told next.
func (m *meter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.erase()
}

func (m *meter) erase() {
	if !m.drawn.IsZero() {
		m.drawn = time.Time{}
		fmt.Fprint(m.w, "\r\x1b[K")
	}
}

// words is where lines go that are told meanwhile.
func (m *meter) words() io.Writer { return meterWords{m} }

type meterWords struct{ m *meter }

func (w meterWords) Write(p []byte) (int, error) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	w.m.erase()
	return w.m.w.Write(p)
}

// metered is a reader whose bytes a meter counts, which ends with them.
type metered struct {
	r io.Reader
	m *meter
}

func (r *metered) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.m.Write(p[:n])
	if err != nil {
		r.m.end()
	}
	return n, err
}
