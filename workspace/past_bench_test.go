package workspace

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
)

func BenchmarkTreeDigest500k(b *testing.B) {
	im := benchImage(b)
	benchTree(b, im, 50, 9_990)
	b.ResetTimer()
	for range b.N {
		if _, _, err := im.TreeDigest(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// benchHistory commits n small changes of ten files.
func benchHistory(b *testing.B, n int) *Image {
	b.Helper()
	im := benchImage(b)
	im.db.NoSync = true // making it is not what is measured
	for i := range n {
		p := must(Clean(fmt.Sprintf("d/f%d", i%10)))
		txn := Txn{Call: fmt.Sprint("call", i), Actor: "bench", Changes: []Change{{Op: OpSymlink, Path: p, Target: fmt.Sprint(i), Parents: true, Replace: true}}}
		if _, err := im.Commit(context.Background(), txn); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	return im
}

// A path that exists now and did then.
func BenchmarkNodeAtBehind20kCommits(b *testing.B) {
	im := benchHistory(b, 20_000)
	for range b.N {
		if _, err := im.NodeAt(must(Clean("d/f1")), 100); err != nil {
			b.Fatal(err)
		}
	}
}

// One that never did: every commit has to be looked at.
func BenchmarkNoNodeAtBehind20kCommits(b *testing.B) {
	im := benchHistory(b, 20_000)
	for range b.N {
		if _, err := im.NodeAt(must(Clean("d/none")), 100); err == nil {
			b.Fatal("it is there")
		}
	}
}

func BenchmarkBetween20kCommits(b *testing.B) {
	im := benchHistory(b, 20_000)
	for range b.N {
		if e, err := im.Between(context.Background(), 100, 20_000, nil); err != nil || len(e) != 10 {
			b.Fatal(err)
		}
	}
}

func BenchmarkHistoryOfAPathIn20kCommits(b *testing.B) {
	im := benchHistory(b, 20_000)
	for range b.N {
		if _, err := im.History(context.Background(), LogQuery{Under: []Path{must(Clean("none"))}}); err != nil {
			b.Fatal(err)
		}
	}
}

// Plan and commit of removing 10,000 files of 4 KiB and bringing them back.
func BenchmarkRestore10k(b *testing.B) {
	im := benchImage(b)
	r := rand.New(rand.NewPCG(1, 2))
	s := im.Stage(context.Background())
	var changes []Change
	for i := range 10_000 {
		c, err := s.Add(bytes.NewReader(noise(r, 4096)))
		if err != nil {
			b.Fatal(err)
		}
		changes = append(changes, Change{Op: OpPut, Path: must(Clean(fmt.Sprintf("d%02d/f%d", i%10, i))), Content: c, Parents: true})
	}
	full, err := im.Commit(context.Background(), Txn{Stage: s, Changes: changes})
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for range b.N {
		for _, seq := range []uint64{1, full.Seq} {
			txn, err := im.Restoring(context.Background(), seq, nil)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := im.Commit(context.Background(), txn); err != nil {
				b.Fatal(err)
			}
		}
	}
}
