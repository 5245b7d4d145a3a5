package sandboxrun

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestCapture compares with the plain way to do it, for writes of all sizes.
func TestCapture(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		head, tail := rnd.IntN(20), 1+rnd.IntN(20)
		c := capture{head: head, tail: tail}
		var all []byte
		for range rnd.IntN(12) {
			p := make([]byte, rnd.IntN(30))
			for i := range p {
				p[i] = "abcdefgh\n"[rnd.IntN(9)]
			}
			c.write(p)
			all = append(all, p...)
		}
		want := all
		if cut := len(all) - head - tail; cut > 0 {
			want = bytes.Clone(all[:head])
			if head > 0 && want[head-1] != '\n' {
				want = append(want, '\n')
			}
			want = fmt.Appendf(want, "[... %d bytes left out ...]\n%s", cut, all[len(all)-tail:])
		}
		o := c.output()
		if !bytes.Equal(o.Text, want) || o.Total != int64(len(all)) || o.Cut != max(0, int64(len(all)-head-tail)) {
			t.Fatalf("head %d, tail %d: got %q (%d, %d), want %q", head, tail, o.Text, o.Total, o.Cut, want)
		}
		if len(c.last) > 2*tail {
			t.Fatalf("keeps %d bytes for a tail of %d", len(c.last), tail)
		}
	}
}
