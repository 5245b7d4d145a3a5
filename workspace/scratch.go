package workspace

import "sync"

// scratch are the buffers with which one content is read.
type scratch struct {
	head [maxSingle + 1]byte
	win  []byte
}

// window is where the chunker works.
func (b *scratch) window() []byte {
	if b.win == nil {
		b.win = make([]byte, 2*maxChunk)
	}
	return b.win
}

type scratchPool struct{ pool sync.Pool }

func (p *scratchPool) get() *scratch {
	if b, ok := p.pool.Get().(*scratch); ok {
		return b
	}
	return new(scratch)
}

func (p *scratchPool) put(b *scratch) { p.pool.Put(b) }
