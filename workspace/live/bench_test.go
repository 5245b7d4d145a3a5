package live

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// BenchmarkPin2000x4K is what a script waits for after a commit of 2,000 new
// files of 4 KiB.
func BenchmarkPin2000x4K(b *testing.B) {
	p := newPair(b)
	p.pin(b).Release()
	b.ResetTimer()
	for i := range b.N {
		b.StopTimer()
		s := p.im.Stage(context.Background())
		var changes []step
		for j := range 2000 {
			changes = append(changes, file(fmt.Sprintf("r%d/d%d/f%d", i, j%100, j), strings.Repeat(fmt.Sprint(j), 4096)[:4096])(s))
		}
		p.commitAll(b, s, changes)
		b.StartTimer()
		p.pinFast(b).Release()
	}
}

// BenchmarkPinAfterOneCommit is the same for one small file.
func BenchmarkPinAfterOneCommit(b *testing.B) {
	p := newPair(b)
	p.pin(b).Release()
	b.ResetTimer()
	for i := range b.N {
		b.StopTimer()
		p.commit(b, file("d/f", fmt.Sprint(i)))
		b.StartTimer()
		p.pinFast(b).Release()
	}
}

// BenchmarkPinUnchanged shares the newest generation.
func BenchmarkPinUnchanged(b *testing.B) {
	p := newPair(b)
	p.commit(b, file("d/f", "x"))
	p.pin(b)
	b.ResetTimer()
	for range b.N {
		p.pinFast(b).Release()
	}
}

// BenchmarkPinByLinks10k makes a generation of 10,000 files in 100 directories
// while the one before is held; one file was changed between them.
func BenchmarkPinByLinks10k(b *testing.B) {
	p := newPair(b)
	p.tenThousand(b)
	held := p.pin(b)
	b.ResetTimer()
	for i := range b.N {
		b.StopTimer()
		p.commit(b, file("d1/f", fmt.Sprint(i)))
		b.StartTimer()
		g := p.pinFast(b)
		b.StopTimer()
		held.Release()
		held = g
		b.StartTimer()
	}
	b.StopTimer()
	held.Release()
}

// BenchmarkRelease10k removes such a generation.
func BenchmarkRelease10k(b *testing.B) {
	p := newPair(b)
	p.tenThousand(b)
	held := p.pin(b)
	b.ResetTimer()
	for i := range b.N {
		b.StopTimer()
		p.commit(b, file("d1/f", fmt.Sprint(i)))
		g := p.pinFast(b)
		b.StartTimer()
		held.Release()
		held = g
	}
	b.StopTimer()
	held.Release()
}

// BenchmarkCompare10k looks at 10,000 files of which none differs.
func BenchmarkCompare10k(b *testing.B) {
	p := newPair(b)
	p.tenThousand(b)
	p.pin(b).Release()
	b.ResetTimer()
	for range b.N {
		if err := p.view.builder(context.Background(), p.newest()).scan(false); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCheck10k reads them too.
func BenchmarkCheck10k(b *testing.B) {
	p := newPair(b)
	p.tenThousand(b)
	p.pin(b).Release()
	b.ResetTimer()
	for range b.N {
		if drift, err := p.view.Check(context.Background(), false); err != nil || len(drift) > 0 {
			b.Fatal(drift, err)
		}
	}
}

func (p *pair) pinFast(b *testing.B) *Generation {
	g, err := p.view.Pin(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	return g
}

func (p *pair) tenThousand(b *testing.B) {
	s := p.im.Stage(context.Background())
	var changes []step
	for j := range 10_000 {
		changes = append(changes, file(fmt.Sprintf("d%d/f%d", j%100, j), fmt.Sprint(j))(s))
	}
	p.commitAll(b, s, changes)
}
