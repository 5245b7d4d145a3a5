package main

import (
	"fmt"
	"io"
	"os"
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
