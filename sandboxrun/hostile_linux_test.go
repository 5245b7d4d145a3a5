package sandboxrun

import (
	"fmt"
	"testing"
	"time"
)

// hostile is a script that takes what it can get, or will not end.
type hostile struct {
	name   string
	run    Run
	limits Limits
	want   Outcome
	group  bool // only a control group holds it
}

// soon is when a script that has to be ended at a limit is answered at the
// latest, on a machine that others use as well.
const soon = 20 * time.Second

// TestHostileScripts: what takes the memory, the processes, the files or the
// patience of a host is contained, has the right outcome, is answered in time and
// leaves nothing; the next run works.
func TestHostileScripts(t *testing.T) {
	for area, list := range map[string][]hostile{
		"memory": memoryBombs(t), "processes": processBombs(t), "files": fileBombs(t), "output": floods(t),
	} {
		for _, h := range list {
			t.Run(area+"/"+h.name, func(t *testing.T) {
				runner := newRunner
				if h.group {
					runner = groupRunner
				}
				r := runner(t)
				before := footprintOf(t, r)
				h.test(t, r)
				sameFootprint(t, r, before)
				mustExit(t, r, bash(`true`))
			})
		}
	}
	// Those that only wait do so together.
	r := newRunner(t)
	before := footprintOf(t, r)
	t.Run("end", func(t *testing.T) {
		for _, h := range undying(t) {
			t.Run(h.name, func(t *testing.T) {
				t.Parallel()
				h.test(t, r)
			})
		}
	})
	sameFootprint(t, r, before)
	mustExit(t, r, bash(`true`))
}

// test runs the script and looks at its result.
func (h hostile) test(t *testing.T, r *Runner) {
	run := h.run
	run.Limits = h.limits
	if run.Limits.Timeout == 0 {
		run.Limits.Timeout = time.Minute
	}
	tapped := int64(0)
	run.Tap = func(_ Stream, p []byte) { tapped += int64(len(p)) }
	start := time.Now()
	res, _ := mustRun(t, r, run)
	took := time.Since(start)
	if res.Outcome != h.want {
		t.Errorf("outcome %s, want %s; exit %d, stderr %.300s", res.Outcome, h.want, res.ExitCode, res.Stderr.Text)
	}
	switch res.Outcome {
	case Exited:
		if res.ExitCode != 0 {
			t.Errorf("exit %d; stderr %.300s", res.ExitCode, res.Stderr.Text)
		}
	case MemoryLimit, OutputLimit, TimedOut:
		if res.ExitCode != -1 || res.Signal != "" {
			t.Errorf("exit %d, signal %q of a script that was killed", res.ExitCode, res.Signal)
		}
	}
	if h.want == TimedOut {
		// The two clocks of a run start a moment apart.
		if res.Duration < h.limits.Timeout-50*time.Millisecond || took > h.limits.Timeout+soon {
			t.Errorf("ended after %v and answered after %v with a timeout of %v", res.Duration, took, h.limits.Timeout)
		}
	} else if took > soon {
		t.Errorf("answered after %v", took)
	}
	l := run.Limits.Filled()
	for stream, out := range map[Stream]Output{Stdout: res.Stdout, Stderr: res.Stderr} {
		if len(out.Text) > l.Head+l.Tail+100 || out.Total > l.OutputMax+1<<20 {
			t.Errorf("%s: %d bytes read and %d kept", stream, out.Total, len(out.Text))
		}
	}
	if tapped > l.OutputMax {
		t.Errorf("%d bytes were handed on, the limit is %d", tapped, l.OutputMax)
	}
	t.Logf("%s after %v, answered after %v", res.Outcome, res.Duration.Round(time.Millisecond), took.Round(time.Millisecond))
}

// small are limits that are reached soon.
func small() Limits {
	return Limits{
		MemoryBytes: 64 << 20, WriteBytes: 16 << 20, TmpBytes: 16 << 20, ShmBytes: 16 << 20, HomeBytes: 1 << 20,
		WriteFiles: 2000, OutputMax: 600_000,
	}
}

// tiny are limits that are reached soon by what the kernel keeps of names.
func tiny() Limits {
	return Limits{MemoryBytes: 20 << 20, WriteBytes: 1 << 20, TmpBytes: 1 << 20, ShmBytes: 1 << 20, HomeBytes: 1 << 20}
}

// brief are limits of a script that ends by its timeout only.
func brief() Limits { return Limits{Timeout: 300 * time.Millisecond} }

func memoryBombs(t *testing.T) []hostile {
	return []hostile{
		{"ten gigabytes", python(t, `b = bytearray(10 << 30)`+"\n"+`for i in range(0, len(b), 4096): b[i] = 1`), Limits{}, MemoryLimit, true},
		{"four times 600 MB", python(t, `
import os, time
for _ in range(4):
    if os.fork() == 0:
        b = b"x" * 600_000_000
        time.sleep(60)
for _ in range(4): os.wait()`), Limits{}, MemoryLimit, true},
		{"a child whose death is ignored", python(t, `
import subprocess, sys
subprocess.run([sys.executable, "-c", "b = b'x' * 500_000_000"])`), small(), MemoryLimit, true},
		{"shared mapping", python(t, `
import mmap, os
m = mmap.mmap(-1, 1 << 30)
for i in range(0, len(m), 4096): m[i] = 1`), small(), MemoryLimit, true},
		{"memory file", python(t, `
import os
fd = os.memfd_create("m")
while True: os.write(fd, bytes(1 << 20))`), small(), MemoryLimit, true},
		{"many memory files, closed but mapped", python(t, `
import mmap, os
kept = []
while True:
    fd = os.memfd_create("m"); os.ftruncate(fd, 1 << 20)
    m = mmap.mmap(fd, 1 << 20); os.close(fd)
    m.write(bytes(1 << 20)); kept.append(m)`), small(), MemoryLimit, true},
		{"memory and files together", bash(`for d in . /tmp /dev/shm; do head -c 15M /dev/zero >$d/f; done; head -c 300M /dev/zero | tail -c 300M >/dev/null`), small(), MemoryLimit, true},
		{"pipes", python(t, `
import os
fds = []
try:
    while True:
        r, w = os.pipe(); fds += [r, w]
        os.set_blocking(w, False)
        try: os.write(w, bytes(65536))
        except BlockingIOError: pass
except OSError: pass`), small(), Exited, true},
		{"buffers of sockets", python(t, `
import socket
def pages(): return sum(int(line.split()[-1]) for line in open("/proc/net/sockstat") if line[:4] in ("TCP:", "UDP:"))
before, kept = pages(), []
l = socket.create_server(("127.0.0.1", 0))
for i in range(40):
    a = socket.socket(); a.connect(l.getsockname()); b, _ = l.accept()
    c, d = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(2))
    c.bind(("127.0.0.1", 0)); d.connect(c.getsockname())
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    kept += [a, b, c, d]
    for s in a, d:
        s.setblocking(False)
        try:
            for _ in range(100): s.send(bytes(60000))
        except OSError: pass
assert pages() - before < 32 << 20 >> 12, f"{pages() - before} pages"`), small(), Exited, true},
		{"all files, and memory besides", bash(`for d in . /tmp /dev/shm ~; do head -c 200M /dev/zero >$d/f; done 2>/dev/null
			head -c 40M /dev/zero | tail -c 40M | wc -c`), small(), Exited, true},
	}
}

func processBombs(t *testing.T) []hostile {
	return []hostile{
		{"fork bomb", bash(`f() { f | f & }; f; sleep 60`), brief(), TimedOut, false},
		{"fork bomb that is left behind", bash(`f() { f | f & }; f; exit 0`), Limits{}, Exited, false},
		{"fork bomb that ignores signals", bash(`trap '' TERM INT HUP CHLD; f() { f | f & }; f; while :; do :; done`), brief(), TimedOut, false},
		{"all that may be, each busy", python(t, `
import os
try:
    while os.fork(): pass
except OSError: pass
while True: pass`), brief(), TimedOut, false},
		{"too many processes", python(t, `
import os, time
while True:
    if os.fork() == 0: time.sleep(60)`), Limits{}, PidsLimit, true},
		{"too many threads", python(t, `
import threading, time
while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()`), Limits{}, PidsLimit, true},
		{"too many threads, and it copes", python(t, `
import threading, time
try:
    while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
except RuntimeError: pass`), Limits{}, Exited, true},
		{"kills everybody", bash(`kill -9 -1; exit 0`), Limits{}, Exited, false},
		{"kills its init", bash(`kill -9 1; exit 0`), Limits{}, Exited, false},
	}
}

func fileBombs(t *testing.T) []hostile {
	names := func(dir, make string) Run {
		return python(t, fmt.Sprintf("import os\ni = 0\nwhile True: name = f%q; %s; i += 1", dir+"/{i}", make))
	}
	const file = `os.close(os.open(name, os.O_CREAT))`
	return []hostile{
		{"/workspace is full", bash(`cat /dev/zero >f`), small(), DiskLimit, false},
		{"/tmp is full", bash(`cat /dev/zero >/tmp/f`), small(), DiskLimit, false},
		{"/dev/shm is full", bash(`cat /dev/zero >/dev/shm/f`), small(), DiskLimit, false},
		{"home is full", bash(`cat /dev/zero >~/f`), small(), DiskLimit, false},
		{"files that are open and have no name", bash(`exec 3>f; rm f; cat /dev/zero >&3`), small(), DiskLimit, false},
		{"names in /workspace", names(".", file), small(), DiskLimit, false},
		{"directories in /workspace", names(".", `os.mkdir(name)`), small(), DiskLimit, false},
		{"links in /workspace", names(".", `os.symlink("x", name)`), small(), DiskLimit, false},
		{"names in /tmp", names("/tmp", file), tiny(), MemoryLimit, true},
		{"names in /dev/shm", names("/dev/shm", file), tiny(), MemoryLimit, true},
		{"names in the home directory", names("/home/user", file), tiny(), MemoryLimit, true},
		{"hard links", names("/tmp", `os.path.exists("/tmp/f") or open("/tmp/f", "w"); os.link("/tmp/f", name)`), tiny(), DiskLimit, false},
		{"attributes", python(t, `
import os
open("f", "w").close()
i = 0
while True: os.setxattr("f", f"user.{i}", bytes(60000)); i += 1`), tiny(), MemoryLimit, true},
	}
}

func floods(t *testing.T) []hostile {
	return []hostile{
		{"of the default limit", bash(`yes`), Limits{}, OutputLimit, false},
		{"stdout", bash(`yes`), small(), OutputLimit, false},
		{"stderr", bash(`yes >&2`), small(), OutputLimit, false},
		{"both", bash(`yes & yes >&2`), small(), OutputLimit, false},
		{"without a newline", bash(`cat /dev/zero`), small(), OutputLimit, false},
		{"binary", bash(`cat /dev/urandom`), small(), OutputLimit, false},
		{"many tiny writes", python(t, `
import os
while True: os.write(1, b"x")`), Limits{OutputMax: 100_000}, OutputLimit, false},
		{"tiny writes in turns", python(t, `
import os
while True: os.write(1, b"o"); os.write(2, b"e")`), Limits{OutputMax: 100_000}, OutputLimit, false},
		{"escape sequences without an end", bash(`while :; do printf '\e]0;'; done`), Limits{OutputMax: 100_000}, OutputLimit, false},
		{"stdout closed, stderr floods", bash(`exec >&-; yes >&2`), small(), OutputLimit, false},
		{"stderr closed, stdout floods", bash(`exec 2>&-; yes`), small(), OutputLimit, false},
		{"from many", bash(`for i in {1..20}; do yes & done; wait`), small(), OutputLimit, false},
		{"that ignores SIGPIPE", bash(`trap '' PIPE; while :; do echo x; cat /dev/zero; done`), small(), OutputLimit, false},
		{"from the background, while the script sleeps", bash(`setsid -f yes; sleep 60`), small(), OutputLimit, false},
		{"from the background, of a script that has ended", bash(`setsid -f yes; exit 0`), Limits{OutputMax: 1 << 40}, Exited, false},
		{"and files besides", bash(`while :; do echo x >>f; echo xxxxxxxxxxxxxxxx; done`), Limits{OutputMax: 100_000}, OutputLimit, false},
	}
}

func undying(t *testing.T) []hostile {
	return []hostile{
		{"busy loop", bash(`while :; do :; done`), brief(), TimedOut, false},
		{"ignores SIGTERM", bash(`trap '' TERM INT HUP; while :; do sleep 1; done`), brief(), TimedOut, false},
		{"blocks all signals", python(t, `
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
while True: signal.pause()`), brief(), TimedOut, false},
		{"stops itself", bash(`kill -STOP $$; sleep 60`), brief(), TimedOut, false},
		{"stops everybody", bash(`sleep 60 & setsid -f sleep 60; kill -STOP -1; kill -STOP $$; sleep 60`), brief(), TimedOut, false},
		{"closes its streams and sleeps", bash(`exec >&- 2>&- <&-; sleep 60`), brief(), TimedOut, false},
		{"waits for a pipe that nobody opens", bash(`mkfifo p; cat p`), brief(), TimedOut, false},
		{"waits for itself", python(t, `
import os
if os.fork() == 0: os.setsid(); os.read(os.pipe()[0], 1)
os.wait()`), brief(), TimedOut, false},
	}
}
