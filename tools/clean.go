package tools

import (
	"unicode"
	"unicode/utf8"
)

// cleaner makes one stream of a script's output safe to show, piece by piece:
// valid UTF-8, without terminal escapes and control characters. A line that a
// progress bar wrote over becomes lines of its own. However the stream is cut
// into pieces, what comes out is the same.
type cleaner struct {
	rest []byte // the beginning of something whose end has not come yet
	out  []byte
	cr   bool // a carriage return waits for what follows it
	bad  bool // the last that was written stands for bytes that are no UTF-8
}

// write returns what p adds to the text; it is good until the next call.
func (c *cleaner) write(p []byte) []byte { return c.scan(p, false) }

// end returns what is left when the stream has ended.
func (c *cleaner) end() []byte {
	out := c.scan(nil, true)
	if c.cr {
		c.cr = false
		out = append(out, '\n')
	}
	return out
}

// cleanOutput cleans a whole stream.
func cleanOutput(b []byte) string {
	var c cleaner
	text := string(c.write(b))
	return text + string(c.end())
}

func (c *cleaner) scan(p []byte, last bool) []byte {
	in := p
	if len(c.rest) > 0 {
		in = append(c.rest, p...)
	}
	c.out = c.out[:0]
	done := 0
	for done < len(in) {
		n := c.next(in[done:], last)
		if n == 0 {
			break
		}
		done += n
	}
	c.rest = append(c.rest[:0], in[done:]...)
	return c.out
}

// next takes one thing off in and returns its length, 0 when more of it must
// come first.
func (c *cleaner) next(in []byte, last bool) int {
	switch b := in[0]; {
	case plain(b):
		n := 1
		for n < len(in) && plain(in[n]) {
			n++
		}
		c.put(in[:n])
		return n
	case b == esc:
		n, open := escape(in)
		if open && !last {
			return 0
		}
		return max(n, 1)
	case b == '\r':
		if c.cr {
			c.out = append(c.out, '\n')
		}
		c.cr, c.bad = true, false
		return 1
	case b < utf8.RuneSelf: // the other control characters
		c.bad = false
		return 1
	}
	return c.char(in, last)
}

// char takes a character of several bytes, or a byte that begins none.
func (c *cleaner) char(in []byte, last bool) int {
	if !last && !utf8.FullRune(in) {
		return 0
	}
	r, n := utf8.DecodeRune(in)
	switch {
	case r == utf8.RuneError && n == 1:
		if !c.bad {
			c.put([]byte("�"))
		}
		c.bad = true
	case unicode.IsControl(r):
		c.bad = false
	default:
		c.put(in[:n])
	}
	return n
}

// put writes text. A carriage return before it has begun a new line.
func (c *cleaner) put(text []byte) {
	if c.cr && text[0] != '\n' {
		c.out = append(c.out, '\n')
	}
	c.cr, c.bad = false, false
	c.out = append(c.out, text...)
}

func plain(b byte) bool { return b >= ' ' && b < 0x7f || b == '\n' || b == '\t' }

const (
	esc = 0x1b
	// maxEscape is the longest terminal sequence that is taken for one.
	maxEscape = 16 << 10
)

// escape measures the terminal control sequence that in begins with: CSI,
// control strings such as OSC, and the shorter escapes (ECMA-48 §5.3–5.6,
// ECMA-35 §13.2). A control string does not go over the end of a line. open says
// that the sequence has not ended yet; n is then, as for what is no sequence,
// the length of the introducer alone.
func escape(in []byte) (n int, open bool) {
	more := len(in) < maxEscape
	in = in[:min(len(in), maxEscape)]
	if len(in) == 1 {
		return 1, more
	}
	switch in[1] {
	case '[':
		i := skip(in, 2, '0', '?')
		i = skip(in, i, ' ', '/')
		if i == len(in) {
			return 2, more
		}
		if in[i] >= '@' && in[i] <= '~' {
			return i + 1, false
		}
		return 2, false
	case ']', 'P', 'X', '^', '_':
		return controlString(in, more)
	}
	i := skip(in, 1, ' ', '/')
	switch {
	case i == len(in):
		return 1, more
	case in[i] >= '0' && in[i] <= '~':
		return i + 1, false
	}
	return 1, false
}

func controlString(in []byte, more bool) (n int, open bool) {
	for i := 2; i < len(in); i++ {
		switch in[i] {
		case 0x07:
			return i + 1, false
		case '\n':
			return 2, false
		case esc:
			switch {
			case i+1 == len(in):
				return 2, more
			case in[i+1] == '\\':
				return i + 2, false
			}
			return 2, false
		}
	}
	return 2, more
}

// skip passes over bytes from lo to hi.
func skip(in []byte, i int, lo, hi byte) int {
	for i < len(in) && in[i] >= lo && in[i] <= hi {
		i++
	}
	return i
}
