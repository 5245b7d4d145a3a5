package sandboxrun

import "fmt"

// capture keeps the beginning and the end of a stream and counts the rest.
// Its memory is at most head + 2 × tail bytes.
type capture struct {
	head, tail int
	first      []byte
	last       []byte // at most 2 × tail, compacted when full
	total      int64
}

func (c *capture) write(p []byte) {
	c.total += int64(len(p))
	n := min(len(p), c.head-len(c.first))
	c.first = append(c.first, p[:n]...)
	p = p[n:]
	if len(p) >= c.tail {
		c.last = append(c.last[:0], p[len(p)-c.tail:]...)
		return
	}
	if len(c.last)+len(p) > 2*c.tail {
		c.last = append(c.last[:0], c.last[len(c.last)-c.tail:]...)
	}
	c.last = append(c.last, p...)
}

// output joins what was kept.
func (c *capture) output() Output {
	last := c.last[max(0, len(c.last)-c.tail):]
	o := Output{Total: c.total, Cut: c.total - int64(len(c.first)+len(last))}
	o.Text = append(o.Text, c.first...)
	if o.Cut > 0 {
		if len(o.Text) > 0 && o.Text[len(o.Text)-1] != '\n' {
			o.Text = append(o.Text, '\n')
		}
		o.Text = fmt.Appendf(o.Text, "[... %d bytes left out ...]\n", o.Cut)
	}
	o.Text = append(o.Text, last...)
	return o
}
