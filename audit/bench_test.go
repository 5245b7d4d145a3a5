package audit

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// benchLog is a log, or with raw set the same sequencer over a plain file: every
// group is one write and one fsync, the floor that a store can reach.
func benchLog(b *testing.B, raw bool) *Log {
	dir := b.TempDir()
	db, err := OpenDB(dir, nil)
	if err != nil {
		b.Fatal(err)
	}
	log, err := New(db, filepath.Join(dir, "tail"), Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { log.Close(); db.Close() })
	if raw {
		file, err := os.OpenFile(filepath.Join(dir, "raw"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { file.Close() })
		var buf []byte
		log.lock()
		log.save = func(g *batch) error {
			buf = buf[:0]
			for _, it := range g.items {
				buf = append(append(buf, it.line...), '\n')
			}
			if _, err := file.Write(buf); err != nil {
				return err
			}
			return file.Sync()
		}
		log.unlock()
	}
	return log
}

// BenchmarkFloor is one record appended to a plain file and synced, in a loop.
func BenchmarkFloor(b *testing.B) {
	file, err := os.Create(filepath.Join(b.TempDir(), "raw"))
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	full := samples()["full"]
	line := append(full.append(nil), '\n')[:600]
	for b.Loop() {
		if _, err := file.Write(line); err != nil {
			b.Fatal(err)
		}
		if err := file.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// Durable appends: log to raw is the ratio that matters, in one run.
func BenchmarkAppend(b *testing.B) {
	for _, c := range []struct {
		name    string
		raw     bool
		writers int
	}{{"raw/1", true, 1}, {"log/1", false, 1}, {"raw/64", true, 64}, {"log/64", false, 64}} {
		b.Run(c.name, func(b *testing.B) {
			log := benchLog(b, c.raw)
			var next atomic.Int64
			var group sync.WaitGroup
			b.ResetTimer()
			for range c.writers {
				group.Go(func() {
					for next.Add(1) <= int64(b.N) {
						if _, err := log.Append(context.Background(), disk, intentOf("01JGFJJZ00SX7BRRBJSVZBTAHW")); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			group.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// What a read or an outcome waits for.
func BenchmarkNote(b *testing.B) {
	log := benchLog(b, false)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := log.Note(context.Background(), disk, intentOf("01JGFJJZ00SX7BRRBJSVZBTAHW")); err != nil {
			b.Fatal(err)
		}
	}
}

const benchRecords = 200_000

// filled is a log with many records; a quarter of them have a body.
func filled(b *testing.B) *Log {
	log := benchLog(b, false)
	var group sync.WaitGroup
	for range 512 {
		group.Go(func() {
			for range benchRecords / 512 / 2 {
				log.Append(context.Background(), disk, intentOf("01JGFJJZ00SX7BRRBJSVZBTAHW"))
				log.Append(context.Background(), disk, outcomeOf("01JGFJJZ00SX7BRRBJSVZBTAHW"))
			}
		})
	}
	group.Wait()
	return log
}

func BenchmarkVerify(b *testing.B) {
	log := filled(b)
	var records uint64
	for b.Loop() {
		r, err := log.Verify(context.Background(), disk)
		if err != nil || !r.OK {
			b.Fatal(r, err)
		}
		records += r.Records
	}
	b.ReportMetric(float64(records)/b.Elapsed().Seconds(), "records/s")
}

func BenchmarkQuery(b *testing.B) {
	log := filled(b)
	run := func(name string, q Query) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				err := log.Query(context.Background(), q, func([]byte, Record) error { return nil })
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("last100", Query{Stream: disk, Limit: 100, Reverse: true})
	run("nothing", Query{Stream: disk, Match: map[string][]string{"tool": {"no_such_tool"}}})
	run("all", Query{Stream: disk})
}

func BenchmarkEncode(b *testing.B) {
	log := benchLog(b, false)
	s, e := newStream(disk), intentOf("01JGFJJZ00SX7BRRBJSVZBTAHW")
	b.ReportAllocs()
	for b.Loop() {
		p, err := log.prepare(disk, e)
		if err != nil {
			b.Fatal(err)
		}
		makeItem(s, moment{}, p)
	}
}

func BenchmarkScan(b *testing.B) {
	full := samples()["full"]
	full.Out.Changes = nil
	line := full.append(nil)
	var v view
	b.ReportAllocs()
	for b.Loop() {
		if err := v.scan(line); err != nil {
			b.Fatal(err)
		}
	}
}
