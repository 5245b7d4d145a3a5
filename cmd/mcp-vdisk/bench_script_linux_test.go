package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

func BenchmarkScriptTrue(b *testing.B) {
	benchScript(b, 2, map[string]any{"language": "bash", "source": "true"}, "/bin/bash", "--noprofile", "--norc", "-c", "true")
}

func BenchmarkScriptPython(b *testing.B) {
	benchScript(b, 1.4, map[string]any{"language": "python", "source": "pass"}, "/usr/bin/python3", "-s", "-c", "pass")
}

// benchScript compares run_script with bubblewrap alone, with the same flags. Both
// begin after a pause, as the calls of an agent do: what a server does after its
// answer (it starts a stage for the next script) is over by then, and disturbs
// neither side.
func benchScript(b *testing.B, goal float64, args map[string]any, argv ...string) {
	ours, ctx := startOurs(b), context.Background()
	ours.call(b, "write_file", map[string]any{"path": "a.txt", "content": "x"})
	box, err := sandboxrun.New(ctx, sandboxrun.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer box.Close()
	run := sandboxrun.Run{Lower: b.TempDir(), Argv: argv}
	runtime.LockOSThread() // Bare asks for it
	defer runtime.UnlockOSThread()
	contest(b,
		contender{prepare: pause, run: timed(func() { ours.call(b, "run_script", args) })},
		contender{name: "bare-bwrap", goal: goal, prepare: pause, run: timed(func() {
			cmd, release, err := box.Bare(ctx, run)
			if err != nil {
				b.Fatal(err)
			}
			defer release()
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
		})},
	)
}

func pause() { <-time.After(20 * time.Millisecond) }

// scriptResult is what the answer to run_script says for programs.
type scriptResult struct {
	text     string
	duration time.Duration // of the script itself
}

func (p *stdioPeer) script(b *testing.B, language, source string) scriptResult {
	line := p.call(b, "run_script", map[string]any{"language": language, "source": source})
	var m struct {
		Result struct {
			Content []struct{ Text string }
			Meta    map[string]struct {
				Saved    bool
				Duration int64 `json:"duration_ms"`
			} `json:"_meta"`
		}
	}
	if err := json.Unmarshal(line, &m); err != nil || len(m.Result.Content) == 0 {
		b.Fatalf("%v: %.500s", err, line)
	}
	facts := m.Result.Meta["mcp-vdisk/result"]
	if !facts.Saved {
		b.Fatalf("not saved: %.500s", line)
	}
	return scriptResult{m.Result.Content[0].Text, time.Duration(facts.Duration) * time.Millisecond}
}

// besides runs a script and returns what the call took besides the script.
func (p *stdioPeer) besides(b *testing.B, language, source string) time.Duration {
	start := time.Now()
	r := p.script(b, language, source)
	return time.Since(start) - r.duration
}

// manyFiles is a script that makes n files of 4 KiB, half of which compresses
// away; no two are alike.
func manyFiles(dir string, n int) string {
	return fmt.Sprintf("import os\nos.mkdir(%[1]q)\nfor i in range(%[2]d):\n with open(f\"%[1]s/f{i:05}\", \"w\") as f: f.write(os.urandom(2048).hex())\n", dir, n)
}

// copying copies the n files of manyFiles on the host and makes the copy durable.
func copying(b *testing.B, n int) contender {
	dir := b.TempDir()
	make := exec.Command("/usr/bin/python3", "-c", manyFiles("from", n))
	make.Dir = dir
	if out, err := make.CombinedOutput(); err != nil {
		b.Fatalf("%s: %s", err, out)
	}
	from, to, round := filepath.Join(dir, "from"), "", 0
	return contender{
		prepare: func() {
			os.RemoveAll(to)
			round++
			to = filepath.Join(dir, "to"+strconv.Itoa(round))
			settle(b, dir) // what others left to be written is not ours to wait for
		},
		run: timed(func() {
			if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
				b.Fatalf("cp: %s: %s", err, out)
			}
			settle(b, to)
		}),
	}
}

// settle makes everything on a file system durable.
func settle(b *testing.B, dir string) {
	if out, err := exec.Command("sync", "-f", dir).CombinedOutput(); err != nil {
		b.Fatalf("sync: %s: %s", err, out)
	}
}

// A script that makes 2,000 files: what its call takes besides the script itself,
// so its sandbox, looking for changes, the commit and the log.
func BenchmarkBulkScriptCommit2000(b *testing.B) {
	ours, n := startOurs(b), 0
	copies := copying(b, 2000)
	copies.name, copies.goal = "cp-and-sync", 1.6
	contest(b,
		contender{
			prepare: func() {
				ours.script(b, "bash", "true") // the files of the round before get on the view
				settle(b, os.TempDir())
			},
			run: func() time.Duration {
				n++
				return ours.besides(b, "python", manyFiles(fmt.Sprintf("r%d", n), 2000))
			},
		},
		copies,
	)
}

// The same with the next script, whose start brings the view of the disk up to date.
func BenchmarkBulkScriptCommit2000AndView(b *testing.B) {
	ours, n := startOurs(b), 0
	copies := copying(b, 2000)
	copies.name = "cp-and-sync"
	contest(b,
		contender{
			prepare: func() { settle(b, os.TempDir()) },
			run: func() time.Duration {
				n++
				return ours.besides(b, "python", manyFiles(fmt.Sprintf("r%d", n), 2000)) + ours.besides(b, "bash", "true")
			},
		},
		copies,
	)
}

// smallFiles makes, looks at, reads and removes 2,000 files and prints how many
// milliseconds that took.
const smallFiles = `import os, time
begin = time.perf_counter()
os.mkdir("small")
for i in range(2000):
    with open(f"small/{i}", "w") as f: f.write("a small file\n")
for i in range(2000): os.stat(f"small/{i}")
for i in range(2000):
    with open(f"small/{i}") as f: f.read()
for i in range(2000): os.remove(f"small/{i}")
os.rmdir("small")
print("took", (time.perf_counter() - begin) * 1e3)
`

// Work on small files within a script against the same work on the host, on the
// disk and in memory, where a script's changes lie. All time themselves, without
// the start of Python.
func BenchmarkBulkSmallFiles(b *testing.B) {
	ours := startOurs(b)
	shm, err := os.MkdirTemp("/dev/shm", "bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(shm) })
	native := func(dir string) func() time.Duration {
		return func() time.Duration {
			cmd := exec.Command("/usr/bin/python3", "-s", "-c", smallFiles)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err != nil {
				b.Fatalf("%s: %s", err, out)
			}
			return printed(b, string(out))
		}
	}
	contest(b,
		contender{run: func() time.Duration { return printed(b, ours.script(b, "python", smallFiles).text) }},
		contender{name: "host-disk", goal: 1.5, run: native(b.TempDir())},
		contender{name: "host-memory", run: native(shm)},
	)
}

// printed finds the time that smallFiles printed.
func printed(b *testing.B, text string) time.Duration {
	for line := range strings.Lines(text) {
		if ms, ok := strings.CutPrefix(strings.TrimSpace(line), "took "); ok {
			v, err := strconv.ParseFloat(ms, 64)
			if err != nil {
				b.Fatal(err)
			}
			return time.Duration(v * 1e6)
		}
	}
	b.Fatalf("no time in %q", text)
	return 0
}

// write_file while a script keeps one processor and its own files busy.
func BenchmarkWriteFileBesideScript(b *testing.B) {
	ours, text, n := startOurs(b), benchText(1<<10), 0
	ours.id++
	ours.send(b, map[string]any{"jsonrpc": "2.0", "id": ours.id, "method": "tools/call", "params": map[string]any{"name": "run_script",
		"arguments": map[string]any{"language": "bash", "timeout_s": 180, "source": "while :; do echo x >busy; read -r line <busy; done"}}})
	var times []time.Duration
	write := timed(func() {
		n++
		ours.call(b, "write_file", map[string]any{"path": fmt.Sprintf("d/f%d.txt", n%64), "content": fmt.Sprintf("%8d", n) + text[8:]})
	})
	for b.Loop() {
		times = append(times, write())
	}
	b.ReportMetric(0, "ns/op")
	reportLimit(b, percentile(times, 99), 100, "ms")
}

// What the server takes above idle while a script's 300 MB are committed, and read
// in pages. Once is enough: it is a peak.
func BenchmarkBulkMemory300MB(b *testing.B) {
	const size, page = 300_000_000, 500_000
	done := false
	for b.Loop() {
		if done {
			continue
		}
		done = true
		state := filepath.Join(b.TempDir(), "state")
		if err := os.Mkdir(state, 0o700); err != nil {
			b.Fatal(err)
		}
		config := "script.scratch = \"disk\"\nscript.write_bytes = \"400MiB\"\n"
		if err := os.WriteFile(filepath.Join(state, "config.toml"), []byte(config), 0o600); err != nil {
			b.Fatal(err)
		}
		ours := startPeer(b, benchEnv(b, "MCP_VDISK_TEST_BIN"), "serve", "--state", state)
		ours.call(b, "write_file", map[string]any{"path": "a.txt", "content": "x"})
		ours.script(b, "bash", "true")
		idle := memory(b, ours.pid, "VmRSS")
		ours.script(b, "bash", fmt.Sprintf("head -c %d /dev/urandom >big", size))
		b.ReportMetric(memory(b, ours.pid, "VmHWM")-idle, "commit-MiB")
		for at := 0; at < size; at += page {
			ours.call(b, "read_file", map[string]any{"path": "big", "encoding": "base64", "byte_offset": at, "byte_limit": page})
		}
		reportLimit(b, memory(b, ours.pid, "VmHWM")-idle, 64, "MiB")
	}
	b.ReportMetric(0, "ns/op")
}

// memory reads a line of /proc/PID/status in MiB.
func memory(b *testing.B, pid int, key string) float64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == key+":" {
			kib, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				b.Fatal(err)
			}
			return kib / 1024
		}
	}
	b.Fatalf("no %s", key)
	return 0
}
