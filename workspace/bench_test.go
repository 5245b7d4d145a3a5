package workspace

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

func benchImage(b *testing.B) *Image {
	b.Helper()
	im, err := Create(filepath.Join(b.TempDir(), "bench.vdisk"), CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { im.Close() })
	return im
}

// noise is text-like: half of it compresses away.
func noise(r *rand.Rand, n int) []byte {
	const letters = "abcdefghijklmnop"
	out := make([]byte, n)
	for i := range out {
		out[i] = letters[r.IntN(len(letters))]
	}
	for i := 79; i < n; i += 80 {
		out[i] = '\n'
	}
	return out
}

func benchPut(b *testing.B, im *Image, path string, data []byte) {
	b.Helper()
	s := im.Stage(context.Background())
	c, err := s.Add(bytes.NewReader(data))
	if err != nil {
		b.Fatal(err)
	}
	p, err := Clean(path)
	if err != nil {
		b.Fatal(err)
	}
	_, err = im.Commit(context.Background(), Txn{Stage: s, Changes: []Change{{Op: OpPut, Path: p, Content: c, Parents: true}}})
	if err != nil {
		b.Fatal(err)
	}
}

// The yardstick of the small commit: write, fsync, rename, fsync of the
// directory.
func BenchmarkNativeDurable1K(b *testing.B) {
	dir, r := b.TempDir(), rand.New(rand.NewPCG(1, 2))
	for i := range b.N {
		name := filepath.Join(dir, fmt.Sprintf("f%d", i%100))
		f, err := os.Create(name + ".tmp")
		if err != nil {
			b.Fatal(err)
		}
		f.Write(noise(r, 1024))
		f.Sync()
		f.Close()
		os.Rename(name+".tmp", name)
		d, _ := os.Open(dir)
		d.Sync()
		d.Close()
	}
}

func BenchmarkCommit1K(b *testing.B) {
	im, r := benchImage(b), rand.New(rand.NewPCG(1, 2))
	for i := range b.N {
		benchPut(b, im, fmt.Sprintf("d/f%d", i%100), noise(r, 1024))
	}
}

func BenchmarkCommit2000x4K(b *testing.B) {
	im, r := benchImage(b), rand.New(rand.NewPCG(1, 2))
	for i := range b.N {
		b.StopTimer()
		var files [][]byte
		for range 2000 {
			files = append(files, noise(r, 4096))
		}
		b.StartTimer()
		s := im.Stage(context.Background())
		var changes []Change
		for j, data := range files {
			c, err := s.Add(bytes.NewReader(data))
			if err != nil {
				b.Fatal(err)
			}
			p, _ := Clean(fmt.Sprintf("run%d/d%d/f%d", i, j%100, j))
			changes = append(changes, Change{Op: OpPut, Path: p, Content: c, Parents: true})
		}
		if _, err := im.Commit(context.Background(), Txn{Stage: s, Changes: changes}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCommit100M(b *testing.B) {
	im := benchImage(b)
	data := make([]byte, 100<<20)
	var seed [32]byte
	rand.NewChaCha8(seed).Read(data)
	b.SetBytes(int64(len(data)))
	for i := range b.N {
		data[i]++ // no chunk is stored twice, but the first
		benchPut(b, im, fmt.Sprintf("big%d", i), data)
		b.StopTimer()
		p, _ := Clean(fmt.Sprintf("big%d", i))
		if _, err := im.Commit(context.Background(), Txn{Changes: []Change{{Op: OpRemove, Path: p}}}); err != nil {
			b.Fatal(err)
		}
		rand.NewChaCha8([32]byte{byte(i + 1)}).Read(data)
		b.StartTimer()
	}
}

func benchTree(b *testing.B, im *Image, dirs, files int) {
	b.Helper()
	s := im.Stage(context.Background())
	for d := range dirs {
		var changes []Change
		for f := range files {
			c, _ := s.Add(bytes.NewReader(fmt.Appendf(nil, "file %d in %d\n", f, d)))
			p, _ := Clean(fmt.Sprintf("d%04d/f%06d", d, f))
			changes = append(changes, Change{Op: OpPut, Path: p, Content: c, Parents: true})
		}
		if _, err := im.Commit(context.Background(), Txn{Stage: s, Changes: changes}); err != nil {
			b.Fatal(err)
		}
		s = im.Stage(context.Background())
	}
}

func BenchmarkOpen100k(b *testing.B) {
	path := filepath.Join(b.TempDir(), "bench.vdisk")
	im, err := Create(path, CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	benchTree(b, im, 10, 10_000)
	im.Close()
	b.ResetTimer()
	for range b.N {
		im, err := Open(path, OpenOptions{})
		if err != nil {
			b.Fatal(err)
		}
		im.Close()
	}
}

func BenchmarkListPage(b *testing.B) {
	im := benchImage(b)
	benchTree(b, im, 2, 10_000)
	p, _ := Clean("d0001")
	b.ResetTimer()
	for range b.N {
		if _, _, err := im.List(p, "f005000", 200); err != nil {
			b.Fatal(err)
		}
		if _, err := im.Count(p, "f005199", 10_000); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRead1K(b *testing.B) {
	im := benchImage(b)
	benchPut(b, im, "d/f", noise(rand.New(rand.NewPCG(1, 2)), 1024))
	p, _ := Clean("d/f")
	b.ResetTimer()
	for range b.N {
		f, err := im.Open(p)
		if err != nil {
			b.Fatal(err)
		}
		if page, err := f.Lines(1, 2000, 40_000); err != nil || len(page.Data) != 1024 {
			b.Fatal(err)
		}
	}
}

func BenchmarkPageOf100M(b *testing.B) {
	im := benchImage(b)
	benchPut(b, im, "big", noise(rand.New(rand.NewPCG(1, 2)), 100<<20))
	p, _ := Clean("big")
	b.ResetTimer()
	for range b.N {
		f, err := im.Open(p)
		if err != nil {
			b.Fatal(err)
		}
		if page, err := f.Lines(1_000_000, 500, 40_000); err != nil || len(page.Data) != 40_000 {
			b.Fatal(err, len(page.Data))
		}
	}
}
