package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
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
	pid int
	in  *bufio.Writer
	out *bufio.Reader
	id  int

	hangUp func() // ends it, and waits
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
	hangUp := sync.OnceFunc(func() {
		in.Close()
		cmd.Wait()
	})
	b.Cleanup(hangUp)
	p := &stdioPeer{pid: cmd.Process.Pid, hangUp: hangUp, in: bufio.NewWriter(in), out: bufio.NewReaderSize(out, 1<<20)}
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
		// Some put the id first and some last.
		id := fmt.Appendf(nil, `"id":%d`, p.id)
		if bytes.Contains(line[:min(200, len(line))], id) || bytes.Contains(line[max(0, len(line)-200):], id) {
			return line
		}
	}
}

// call makes a tool call that must succeed.
func (p *stdioPeer) call(b *testing.B, tool string, args map[string]any) []byte {
	line := p.request(b, "tools/call", map[string]any{"name": tool, "arguments": args})
	if bytes.Contains(line, []byte(`"isError":true`)) || bytes.Contains(line, []byte(`"error":{`)) {
		b.Fatalf("%s: %.500s", tool, line)
	}
	return line
}

// contender is one side of a comparison. Its run does the work once and says how
// long it took; prepare is what has to happen before it and is not counted.
type contender struct {
	name    string
	goal    float64 // the ratio to stay below; 0 when there is none
	prepare func()
	run     func() time.Duration
}

// timed makes a run of what is counted from its beginning to its end.
func timed(f func()) func() time.Duration {
	return func() time.Duration {
		start := time.Now()
		f()
		return time.Since(start)
	}
}

// contest times the contenders in turn. It reports the medians, and the ratio of
// the first, which is ours, to each of the others.
func contest(b *testing.B, list ...contender) {
	times := make([][]time.Duration, len(list))
	round := func(count bool) {
		for i, c := range list {
			if c.prepare != nil {
				c.prepare()
			}
			if took := c.run(); count {
				times[i] = append(times[i], took)
			}
		}
	}
	round(false) // warm up
	for b.Loop() {
		round(true)
	}
	ours := median(times[0])
	b.ReportMetric(0, "ns/op") // of all sides together: leave it out
	b.ReportMetric(ours, "ours-ms")
	for i, c := range list[1:] {
		theirs := median(times[i+1])
		b.ReportMetric(theirs, c.name+"-ms")
		b.ReportMetric(ours/theirs, c.name+"-ratio")
		if c.goal > 0 {
			b.ReportMetric(c.goal, c.name+"-goal")
		}
	}
}

// against times one thing and reports its median and what it should stay below.
func against(b *testing.B, limit time.Duration, run func() time.Duration) {
	var times []time.Duration
	run() // warm up
	for b.Loop() {
		times = append(times, run())
	}
	b.ReportMetric(0, "ns/op")
	reportLimit(b, median(times), milliseconds(limit), "ms")
}

func reportLimit(b *testing.B, value, limit float64, unit string) {
	b.ReportMetric(value, "value-"+unit)
	b.ReportMetric(limit, "limit-"+unit)
}

func median(times []time.Duration) float64 { return percentile(times, 50) }

// percentile is in milliseconds.
func percentile(times []time.Duration, p int) float64 {
	slices.Sort(times)
	return milliseconds(times[min(len(times)*p/100, len(times)-1)])
}

func milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

func startOurs(b *testing.B, flags ...string) *stdioPeer {
	return startPeer(b, append([]string{benchEnv(b, "MCP_VDISK_TEST_BIN"), "serve", "--state", filepath.Join(b.TempDir(), "state")}, flags...)...)
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
		contender{run: timed(func() {
			n++
			ours.call(b, "write_file", map[string]any{"path": fmt.Sprintf("d/f%d.txt", n%64), "content": fmt.Sprintf("%8d", n) + text[8:]})
		})},
		contender{name: "fsync-rename-loop", goal: 1.7, run: timed(func() {
			n++
			if err := writeDurably(filepath.Join(dir, fmt.Sprintf("f%d.txt", n%64)), fmt.Sprintf("%8d", n)+text[8:]); err != nil {
				b.Fatal(err)
			}
		})},
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
		contender{run: timed(func() { ours.call(b, "read_file", map[string]any{"path": "1k.txt"}) })},
		contender{name: "minimal-go-server", goal: 1.2, run: timed(func() { min.call(b, "read_file", map[string]any{"path": file}) })},
		contender{name: "npm-filesystem", goal: 1, run: timed(func() { npm.call(b, "read_text_file", map[string]any{"path": file}) })},
	)
}

// 1 MiB is two pages of ours, and one reply of 1 MiB of the others (of 2 MiB from
// npm, which sends the text twice).
func BenchmarkReadFile1MiB(b *testing.B) {
	ours, min, npm, dir := readers(b)
	ours.call(b, "write_file", map[string]any{"path": "1m.txt", "content": benchText(1 << 20)})
	file := filepath.Join(dir, "1m.txt")
	contest(b,
		contender{run: timed(func() {
			for i := range 2 {
				ours.call(b, "read_file", map[string]any{"path": "1m.txt", "byte_offset": i << 19, "byte_limit": 1 << 19})
			}
		})},
		contender{name: "minimal-go-server", run: timed(func() { min.call(b, "read_file", map[string]any{"path": file}) })},
		contender{name: "npm-filesystem", goal: 1, run: timed(func() { npm.call(b, "read_text_file", map[string]any{"path": file}) })},
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
		contender{run: timed(func() { ours.call(b, "list_files", map[string]any{"path": "many"}) })},
		contender{name: "minimal-go-server", run: timed(func() { min.call(b, "list_directory", map[string]any{"path": many}) })},
		contender{name: "npm-filesystem", run: timed(func() { npm.call(b, "list_directory", map[string]any{"path": many}) })},
	)
}
