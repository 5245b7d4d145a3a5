package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// The benchmarks compare a server over stdio with peers in the same run, in
// turns, so that all see the same machine, and report medians and their ratios.
// `make bench` installs the peers and says where they are:
//
//	MCP_VDISK_TEST_BIN        the program
//	MCP_VDISK_BENCH_MIN       testdata/minserver, built
//	MCP_VDISK_BENCH_NPM       the entry file of the npm filesystem server
func benchEnv(b *testing.B, name string) string {
	b.Helper()
	v := os.Getenv(name)
	if v == "" {
		b.Skipf("%s is not set: run make bench", name)
	}
	return v
}

// stdioPeer is an MCP server at the other end of two pipes.
type stdioPeer struct {
	in  *bufio.Writer
	out *bufio.Reader
	id  int
}

func startPeer(b *testing.B, argv ...string) *stdioPeer {
	b.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	p := &stdioPeer{in: bufio.NewWriter(in), out: bufio.NewReaderSize(out, 1<<20)}
	p.request(b, "initialize", map[string]any{
		"protocolVersion": "2025-06-18", "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "bench", "version": "1"},
	})
	p.send(b, map[string]any{"jsonrpc": "2.0", "method": "notifications/initialized"})
	return p
}

func (p *stdioPeer) send(b *testing.B, m any) {
	data, err := json.Marshal(m)
	if err == nil {
		p.in.Write(append(data, '\n'))
		err = p.in.Flush()
	}
	if err != nil {
		b.Fatal(err)
	}
}

func (p *stdioPeer) request(b *testing.B, method string, params any) []byte {
	p.id++
	p.send(b, map[string]any{"jsonrpc": "2.0", "id": p.id, "method": method, "params": params})
	for {
		line, err := p.out.ReadBytes('\n')
		if err != nil {
			b.Fatal(err)
		}
		if strings.Contains(string(line[max(0, len(line)-200):]), fmt.Sprintf(`"id":%d`, p.id)) || strings.Contains(string(line[:min(200, len(line))]), fmt.Sprintf(`"id":%d`, p.id)) {
			return line
		}
	}
}

// call makes a tool call that must succeed.
func (p *stdioPeer) call(b *testing.B, tool string, args map[string]any) {
	line := p.request(b, "tools/call", map[string]any{"name": tool, "arguments": args})
	if strings.Contains(string(line), `"isError":true`) || strings.Contains(string(line), `"error":{`) {
		b.Fatalf("%s: %.500s", tool, line)
	}
}

// contest times each contender in turn and reports medians, and the ratio of
// the first to each of the others.
type contender struct {
	name string
	run  func()
}

func contest(b *testing.B, list ...contender) {
	times := make([][]time.Duration, len(list))
	for _, c := range list {
		c.run() // warm up
	}
	for b.Loop() {
		for i, c := range list {
			start := time.Now()
			c.run()
			times[i] = append(times[i], time.Since(start))
		}
	}
	var ours float64
	for i, c := range list {
		slices.Sort(times[i])
		us := float64(times[i][len(times[i])/2].Nanoseconds()) / 1e3
		b.ReportMetric(us, c.name+"-us")
		if i == 0 {
			ours = us
			continue
		}
		b.ReportMetric(ours/us, "ratio-to-"+c.name)
	}
}

func startOurs(b *testing.B) *stdioPeer {
	return startPeer(b, benchEnv(b, "MCP_VDISK_TEST_BIN"), "serve", "--state", filepath.Join(b.TempDir(), "state"))
}

// host is a directory of the host with the files that the peers read.
func host(b *testing.B) string {
	dir := b.TempDir()
	write := func(name string, n int) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(benchText(n)), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	write("1k.txt", 1<<10)
	write("1m.txt", 1<<20)
	return dir
}

// benchText is n bytes of lines of 64.
func benchText(n int) string {
	return strings.Repeat("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+\n", n/64)
}

func BenchmarkWriteFile1KiB(b *testing.B) {
	ours, dir, text, n := startOurs(b), b.TempDir(), benchText(1<<10), 0
	contest(b,
		contender{"write_file", func() {
			n++
			ours.call(b, "write_file", map[string]any{"path": fmt.Sprintf("d/f%d.txt", n%64), "content": fmt.Sprintf("%8d", n) + text[8:]})
		}},
		contender{"fsync-rename-loop", func() {
			n++
			if err := writeDurably(filepath.Join(dir, fmt.Sprintf("f%d.txt", n%64)), fmt.Sprintf("%8d", n)+text[8:]); err != nil {
				b.Fatal(err)
			}
		}},
	)
}

// writeDurably is what a careful program does to replace a file.
func writeDurably(name, text string) error {
	f, err := os.CreateTemp(filepath.Dir(name), "t")
	if err != nil {
		return err
	}
	if _, err = f.WriteString(text); err == nil {
		err = f.Sync()
	}
	f.Close()
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// readers starts us and both peers.
func readers(b *testing.B) (ours, min, npm *stdioPeer, dir string) {
	dir = host(b)
	ours = startOurs(b)
	min = startPeer(b, benchEnv(b, "MCP_VDISK_BENCH_MIN"))
	npm = startPeer(b, "node", benchEnv(b, "MCP_VDISK_BENCH_NPM"), dir)
	return ours, min, npm, dir
}

func BenchmarkReadFile1KiB(b *testing.B) {
	ours, min, npm, dir := readers(b)
	ours.call(b, "write_file", map[string]any{"path": "1k.txt", "content": benchText(1 << 10)})
	file := filepath.Join(dir, "1k.txt")
	contest(b,
		contender{"read_file", func() { ours.call(b, "read_file", map[string]any{"path": "1k.txt"}) }},
		contender{"minimal-go-server", func() { min.call(b, "read_file", map[string]any{"path": file}) }},
		contender{"npm-filesystem", func() { npm.call(b, "read_text_file", map[string]any{"path": file}) }},
	)
}

// 1 MiB is two pages of ours, and one reply of 1 MiB of the others (of 2 MiB from
// npm, which sends the text twice).
func BenchmarkReadFile1MiB(b *testing.B) {
	ours, min, npm, dir := readers(b)
	ours.call(b, "write_file", map[string]any{"path": "1m.txt", "content": benchText(1 << 20)})
	file := filepath.Join(dir, "1m.txt")
	contest(b,
		contender{"read_file", func() {
			for i := range 2 {
				ours.call(b, "read_file", map[string]any{"path": "1m.txt", "byte_offset": i << 19, "byte_limit": 1 << 19})
			}
		}},
		contender{"minimal-go-server", func() { min.call(b, "read_file", map[string]any{"path": file}) }},
		contender{"npm-filesystem", func() { npm.call(b, "read_text_file", map[string]any{"path": file}) }},
	)
}

// A list of 10,000 entries is a page of 200 and a count from us, and the whole
// list in one reply from the others.
func BenchmarkList10000(b *testing.B) {
	ours, min, npm, dir := readers(b)
	many := filepath.Join(dir, "many")
	if err := os.Mkdir(many, 0o755); err != nil {
		b.Fatal(err)
	}
	for i := range 10_000 {
		if err := os.WriteFile(filepath.Join(many, fmt.Sprintf("file-%05d.txt", i)), []byte("x"), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	ours.call(b, "run_script", map[string]any{"language": "bash", "source": "mkdir many; for i in $(seq -w 0 9999); do echo x >many/file-$i.txt; done"})
	contest(b,
		contender{"list_files", func() { ours.call(b, "list_files", map[string]any{"path": "many"}) }},
		contender{"minimal-go-server", func() { min.call(b, "list_directory", map[string]any{"path": many}) }},
		contender{"npm-filesystem", func() { npm.call(b, "list_directory", map[string]any{"path": many}) }},
	)
}

func BenchmarkScriptTrue(b *testing.B) {
	benchScript(b, map[string]any{"language": "bash", "source": "true"}, "/bin/bash", "--noprofile", "--norc", "-c", "true")
}

func BenchmarkScriptPython(b *testing.B) {
	benchScript(b, map[string]any{"language": "python", "source": "pass"}, "/usr/bin/python3", "-s", "-c", "pass")
}

// benchScript compares run_script with bubblewrap alone, with the same flags.
func benchScript(b *testing.B, args map[string]any, argv ...string) {
	ours, ctx := startOurs(b), context.Background()
	ours.call(b, "write_file", map[string]any{"path": "a.txt", "content": "x"})
	box, err := sandboxrun.New(ctx, sandboxrun.Config{})
	if err != nil {
		b.Fatal(err)
	}
	run := sandboxrun.Run{Lower: b.TempDir(), Argv: argv}
	runtime.LockOSThread() // Bare asks for it
	defer runtime.UnlockOSThread()
	contest(b,
		contender{"run_script", func() { ours.call(b, "run_script", args) }},
		contender{"bare-bwrap", func() {
			cmd, release, err := box.Bare(ctx, run)
			if err != nil {
				b.Fatal(err)
			}
			defer release()
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
		}},
	)
}
