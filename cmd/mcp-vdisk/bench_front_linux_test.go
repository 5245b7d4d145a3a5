package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// benchDaemon is a state directory whose clients share a daemon.
type benchDaemon struct {
	bin, state string
}

func newBenchDaemon(b *testing.B) benchDaemon {
	d := benchDaemon{bin: benchEnv(b, "MCP_VDISK_TEST_BIN"), state: filepath.Join(b.TempDir(), "state")}
	b.Setenv("MCP_VDISK_NO_DAEMON", "0")
	b.Cleanup(func() { d.command("stop", "--force").Run() })
	return d
}

func (d benchDaemon) command(args ...string) *exec.Cmd {
	cmd := exec.Command(d.bin, append([]string{"--state", d.state, "daemon"}, args...)...)
	cmd.Env = append(os.Environ(), "MCP_VDISK_NO_DAEMON=0")
	return cmd
}

// serve starts a client's server, and tells how long its handshake took.
func (d benchDaemon) serve(b *testing.B) (*stdioPeer, time.Duration) {
	begin := time.Now()
	p := startPeer(b, d.bin, "serve", "--state", d.state)
	return p, time.Since(begin)
}

// kill ends the daemon as a power cut would, and waits for its end.
func (d benchDaemon) kill(b *testing.B) {
	var f daemonFacts
	out, err := d.command("status", "--json").Output()
	if err == nil {
		err = json.Unmarshal(out, &f)
	}
	if err == nil {
		err = syscall.Kill(f.PID, syscall.SIGKILL)
	}
	if err != nil {
		b.Fatal(err)
	}
	lock, err := os.Open(filepath.Join(d.state, "daemon.lock"))
	if err == nil {
		err = hostos.Lock(context.Background(), lock, true)
	}
	if err != nil {
		b.Fatal(err)
	}
	lock.Close()
}

// From the start of serve to the answer to initialize, beside a daemon that runs.
func BenchmarkStartWarm(b *testing.B) {
	d := newBenchDaemon(b)
	d.serve(b) // keeps the disk open, as another client does
	against(b, 10*time.Millisecond, func() time.Duration {
		p, took := d.serve(b)
		p.hangUp()
		return took
	})
}

// The same where the daemon was killed and left its socket.
func BenchmarkStartCold(b *testing.B) {
	d := newBenchDaemon(b)
	against(b, 60*time.Millisecond, func() time.Duration {
		p, took := d.serve(b)
		p.hangUp()
		d.kill(b)
		return took
	})
}

// What a client's own process takes.
func BenchmarkFrontMemory(b *testing.B) {
	p, _ := newBenchDaemon(b).serve(b)
	for b.Loop() {
		p.call(b, "list_files", map[string]any{})
	}
	b.ReportMetric(0, "ns/op")
	reportLimit(b, memory(b, p.pid, "VmRSS"), 16, "MiB")
}

// What the way through the front and the daemon costs a call, against a server
// that is one process.
func BenchmarkThroughFront(b *testing.B) {
	alone := startOurs(b, "--no-daemon")
	p, _ := newBenchDaemon(b).serve(b)
	read := func(p *stdioPeer) func() time.Duration {
		p.call(b, "write_file", map[string]any{"path": "a.txt", "content": benchText(1 << 10)})
		return timed(func() { p.call(b, "read_file", map[string]any{"path": "a.txt"}) })
	}
	contest(b, contender{name: "ours", run: read(p)}, contender{name: "one-process", run: read(alone)})
}
