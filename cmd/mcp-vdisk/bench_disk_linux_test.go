package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// buildTime is how long filling a disk for a benchmark may take. What there was
// no time for is left out, and the row says how many entries there are.
const buildTime = 60 * time.Second

// filledDisk makes an image whose directory "many" has up to n small files, and
// returns its path and how many there are.
func filledDisk(b *testing.B, n int) (path string, entries int) {
	b.Helper()
	path = filepath.Join(b.TempDir(), "filled.vdisk")
	im, err := workspace.Create(path, workspace.CreateOptions{QuotaEntries: 2_000_000})
	if err != nil {
		b.Fatal(err)
	}
	const batch = 10_000
	for begin := time.Now(); entries < n && time.Since(begin) < buildTime; entries += batch {
		addFiles(b, im, "many", entries, batch, 10)
	}
	if err := im.Close(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(entries), "entries")
	return path, entries
}

// addFiles commits the n files from number first on, each of so many bytes.
func addFiles(b *testing.B, im *workspace.Image, dir string, first, n, size int) {
	b.Helper()
	stage := im.Stage(context.Background())
	defer stage.Discard()
	var changes []workspace.Change
	for i := first; i < first+n; i++ {
		text := []byte(benchText(size + 63))[:size]
		copy(text, fmt.Sprintf("%8d", i))
		content, err := stage.Add(bytes.NewReader(text))
		if err != nil {
			b.Fatal(err)
		}
		changes = append(changes, workspace.Change{Op: workspace.OpPut, Path: benchPath(b, fmt.Sprintf("%s/file-%07d.txt", dir, i)), Content: content, Parents: true})
	}
	if _, err := im.Commit(context.Background(), workspace.Txn{Stage: stage, Changes: changes}); err != nil {
		b.Fatal(err)
	}
}

func benchPath(b *testing.B, path string) workspace.Path {
	b.Helper()
	p, err := workspace.Clean(path)
	if err != nil {
		b.Fatal(err)
	}
	return p
}

func BenchmarkListPageOf10000(b *testing.B)   { benchListPage(b, 10_000, 3*time.Millisecond) }
func BenchmarkListPageOf1000000(b *testing.B) { benchListPage(b, 1_000_000, 5*time.Millisecond) }

// benchListPage asks for the pages of 200 entries of a directory, one after the other.
func benchListPage(b *testing.B, n int, limit time.Duration) {
	path, entries := filledDisk(b, n)
	ours, args := startOurs(b, "--image", path), map[string]any{"path": "many"}
	var line []byte
	ask := timed(func() { line = ours.call(b, "list_files", args) })
	against(b, limit, func() time.Duration {
		took := ask()
		if delete(args, "cursor"); nextCursor.Match(line) {
			args["cursor"] = string(nextCursor.FindSubmatch(line)[1])
		}
		return took
	})
	b.ReportMetric(float64(entries), "entries")
}

var nextCursor = regexp.MustCompile(`"cursor":"([^"]+)"`)

func BenchmarkBulkOpen100000(b *testing.B) {
	path, entries := filledDisk(b, 100_000)
	var im *workspace.Image
	against(b, 100*time.Millisecond, func() time.Duration {
		if im != nil {
			im.Close()
		}
		return timed(func() {
			var err error
			if im, err = workspace.Open(path, workspace.OpenOptions{}); err != nil {
				b.Fatal(err)
			}
		})()
	})
	im.Close()
	b.ReportMetric(float64(entries), "entries")
}

// A directory of 10,000 files of 4 KiB that was removed comes back, against a
// copy of as many. What comes back refers to the chunks that are there.
func BenchmarkBulkRestore10000(b *testing.B) {
	im, err := workspace.Create(filepath.Join(b.TempDir(), "restore.vdisk"), workspace.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer im.Close()
	addFiles(b, im, "many", 0, 10_000, 4096)
	ctx, many := context.Background(), benchPath(b, "many")
	info, err := im.Info()
	if err != nil {
		b.Fatal(err)
	}
	copies := copying(b, 10_000)
	copies.name, copies.goal = "cp-and-sync", 2
	contest(b,
		contender{
			prepare: func() {
				remove := workspace.Change{Op: workspace.OpRemove, Path: many, Recursive: true}
				if _, err := im.Commit(ctx, workspace.Txn{Changes: []workspace.Change{remove}}); err != nil {
					b.Fatal(err)
				}
				settle(b, os.TempDir())
			},
			run: timed(func() {
				txn, err := im.Restoring(ctx, info.Seq, nil)
				if err != nil {
					b.Fatal(err)
				}
				if c, err := im.Commit(ctx, txn); err != nil || len(c.Effects) < 10_000 {
					b.Fatalf("%d came back: %v", len(c.Effects), err)
				}
			}),
		},
		copies,
	)
}
