package live

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// BenchmarkSync is what a script waits for after a commit of 2,000 new files
// of 4 KiB.
func BenchmarkSync2000x4K(b *testing.B) {
	p := newPair(b)
	p.view.Sync(context.Background())
	for i := range b.N {
		b.StopTimer()
		s := p.im.Stage(context.Background())
		var changes []step
		for j := range 2000 {
			changes = append(changes, file(fmt.Sprintf("r%d/d%d/f%d", i, j%100, j), strings.Repeat(fmt.Sprint(j), 4096)[:4096])(s))
		}
		p.commitAll(b, s, changes)
		b.StartTimer()
		if _, _, err := p.view.Sync(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSyncOne is the same for one small file.
func BenchmarkSyncOne(b *testing.B) {
	p := newPair(b)
	p.view.Sync(context.Background())
	for i := range b.N {
		b.StopTimer()
		p.commit(b, file("d/f", fmt.Sprint(i)))
		b.StartTimer()
		if _, _, err := p.view.Sync(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCompare10k looks at 10,000 files of which none differs.
func BenchmarkCompare10k(b *testing.B) {
	p := newPair(b)
	s := p.im.Stage(context.Background())
	var changes []step
	for j := range 10_000 {
		changes = append(changes, file(fmt.Sprintf("d%d/f%d", j%100, j), fmt.Sprint(j))(s))
	}
	p.commitAll(b, s, changes)
	if _, _, err := p.view.Sync(context.Background()); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for range b.N {
		if err := p.view.scan(context.Background(), false); err != nil {
			b.Fatal(err)
		}
	}
}
