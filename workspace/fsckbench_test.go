package workspace

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// manyFiles makes an image of n files of the given size, a thousand to a
// directory, in commits of 10,000.
func manyFiles(tb testing.TB, n, size int) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "many.vdisk")
	im, err := Create(path, CreateOptions{QuotaEntries: 2_000_000})
	if err != nil {
		tb.Fatal(err)
	}
	defer im.Close()
	im.db.NoSync = true
	body := noise(rand.New(rand.NewPCG(1, 2)), size)
	for at := 0; at < n; {
		stage := im.Stage(context.Background())
		txn := Txn{Stage: stage}
		for range min(10_000, n-at) {
			binary.LittleEndian.PutUint64(body, uint64(at))
			c, err := stage.Add(bytes.NewReader(body))
			if err != nil {
				tb.Fatal(err)
			}
			p := must(Clean(fmt.Sprintf("d%d/file%d", at/1000, at)))
			txn.Changes = append(txn.Changes, Change{Op: OpPut, Path: p, Content: c, Parents: true})
			at++
		}
		if _, err := im.Commit(context.Background(), txn); err != nil {
			tb.Fatal(err)
		}
	}
	return path
}

// What the look at the pages takes of it.
func BenchmarkSurvey100k(b *testing.B) {
	f, err := os.Open(manyFiles(b, 100_000, 1024))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	for b.Loop() {
		if damage, err := survey(f); damage != "" || err != nil {
			b.Fatal(damage, err)
		}
	}
}

// The speed of a check: plain bytes of contents per second, half of them in
// files of one chunk, half in long ones.
func BenchmarkCheck(b *testing.B) {
	path := filepath.Join(b.TempDir(), "check.vdisk")
	im, err := Create(path, CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	im.db.NoSync = true
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 8 {
		benchPut(b, im, fmt.Sprintf("long/%d", i), noise(r, 16<<20))
	}
	for i := range 2000 {
		benchPut(b, im, fmt.Sprintf("short/%d", i), noise(r, 64<<10))
	}
	im.Close()
	for b.Loop() {
		report, err := Check(context.Background(), path, CheckOptions{})
		if err != nil || !report.Clean() {
			b.Fatal(report, err)
		}
		b.SetBytes(report.PlainBytes)
	}
}

// Memory and time of a check of 500,000 entries, each with a chunk.
func BenchmarkCheck500k(b *testing.B) {
	if os.Getenv("MCP_VDISK_SOAK") != "1" {
		b.Skip("takes minutes to build; MCP_VDISK_SOAK=1 runs it")
	}
	path := manyFiles(b, 500_000, 300)
	for b.Loop() {
		stop := make(chan struct{})
		peak := watchHeap(stop)
		report, err := Check(context.Background(), path, CheckOptions{})
		close(stop)
		if err != nil || !report.Clean() {
			b.Fatal(report, err)
		}
		b.ReportMetric(float64(<-peak)/(1<<20), "MiB-peak")
	}
}

// watchHeap samples what the process has from the system for its heap.
func watchHeap(stop <-chan struct{}) <-chan uint64 {
	result := make(chan uint64, 1)
	debug.FreeOSMemory()
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		high := uint64(0)
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			high = max(high, m.HeapSys-m.HeapReleased)
			select {
			case <-stop:
				result <- high
				return
			case <-tick.C:
			}
		}
	}()
	return result
}
