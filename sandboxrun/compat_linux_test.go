package sandboxrun

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// ordinary are things that scripts do and that a filter could break.
var ordinary = []struct{ name, needs, script string }{
	{"subprocess", "python3", `import subprocess
assert subprocess.run(["sh", "-c", "echo a | tr a b"], capture_output=True, text=True).stdout == "b\n"
assert subprocess.run("exit 7", shell=True, start_new_session=True).returncode == 7`},
	{"threads", "python3", `from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(16) as e: assert sum(e.map(abs, range(1000))) == 499500`},
	{"multiprocessing, fork", "python3", `import multiprocessing as mp
mp.set_start_method("fork")
with mp.Pool(2) as p: assert p.map(abs, [-1, -2, -3]) == [1, 2, 3]
q = mp.Queue(); p = mp.Process(target=q.put, args=("x" * 100000,)); p.start(); assert len(q.get(timeout=20)) == 100000; p.join()
v = mp.Value("i", 1)
with v.get_lock(): v.value += 1
a, b = mp.Pipe(); a.send(3); assert b.recv() == 3`},
	{"multiprocessing, spawn", "python3", `import multiprocessing as mp, os
def f(x): return x * 2
if __name__ == "__main__":
    with mp.get_context("spawn").Pool(2) as p: assert p.map(abs, [-1, 2]) == [1, 2]`},
	{"process pool", "python3", `from concurrent.futures import ProcessPoolExecutor
import multiprocessing as mp
with ProcessPoolExecutor(2, mp_context=mp.get_context("fork")) as e: assert list(e.map(abs, [-1, 2])) == [1, 2]`},
	{"shared memory", "python3", `from multiprocessing.shared_memory import SharedMemory
s = SharedMemory(create=True, size=4096); s.buf[0] = 7; t = SharedMemory(s.name); assert t.buf[0] == 7; t.close(); s.close(); s.unlink()`},
	{"asyncio", "python3", `import asyncio
async def main():
    p = await asyncio.create_subprocess_exec("echo", "hello", stdout=asyncio.subprocess.PIPE)
    assert (await p.communicate())[0] == b"hello\n"
    async def serve(r, w): w.write(await r.readline()); await w.drain(); w.close()
    s = await asyncio.start_server(serve, "127.0.0.1", 0)
    r, w = await asyncio.open_connection("localhost", s.sockets[0].getsockname()[1])
    w.write(b"line\n"); assert await r.readline() == b"line\n"
    assert await asyncio.to_thread(abs, -1) == 1
    asyncio.get_running_loop().add_signal_handler(10, lambda: None)
asyncio.run(main())`},
	{"socket pairs", "python3", `import socket
for kind in socket.SOCK_STREAM, socket.SOCK_SEQPACKET:
    a, b = socket.socketpair(socket.AF_UNIX, kind); a.send(b"x"); assert b.recv(1) == b"x"
import array, os
a, b = socket.socketpair(); socket.send_fds(a, [b"f"], [os.open("/etc/passwd", 0)]); assert os.read(socket.recv_fds(b, 1, 1)[1][0], 4) == b"root"`},
	{"IPv6 and names", "python3", `import socket, getpass, pwd
s = socket.create_server(("::1", 0), family=socket.AF_INET6); socket.create_connection(s.getsockname()[:2], 5)
assert socket.getaddrinfo("localhost", 80); assert getpass.getuser() == "sandbox"; assert socket.gethostname() == "sandbox"
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(("127.0.0.1", 0))`},
	{"sqlite with a write-ahead log", "python3", `import sqlite3
c = sqlite3.connect("db"); assert c.execute("pragma journal_mode=wal").fetchone()[0] == "wal"
c.execute("create table t(a)"); c.execute("insert into t values(1)"); c.commit()
assert sqlite3.connect("db").execute("select a from t").fetchone() == (1,)`},
	{"machine code", "python3", `import mmap, ctypes
m = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
assert ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 5)() == 5`},
	{"files", "python3", `import os, fcntl, tempfile, shutil, stat
os.mkfifo("p"); os.mknod("s", stat.S_IFSOCK | 0o600); os.mkdir("d", 0o1777); os.chmod("d", 0o1777)
f = open("f", "w"); fcntl.flock(f, fcntl.LOCK_EX); fcntl.lockf(f, fcntl.LOCK_EX); os.setxattr("f", "user.a", b"b"); os.posix_fallocate(f.fileno(), 0, 100)
shutil.copytree("/etc", "c", symlinks=True)
os.memfd_create("m"); os.eventfd(0); os.pidfd_open(os.getpid()); tempfile.TemporaryFile().write(b"x")`},
	{"terminals", "python3", `import pty, os
pid, fd = pty.fork()
if pid == 0: os.execv("/bin/sh", ["sh", "-c", "stty size; test -t 0 && echo terminal"])
out = b""
try:
    while b := os.read(fd, 100): out += b
except OSError: pass
assert b"terminal" in out, out`},
	{"virtual environment", "python3", `import venv; venv.create("v", with_pip=False); import subprocess; subprocess.run(["v/bin/python", "-c", "pass"], check=True)`},
	{"node", "node", `const c = require("child_process"), r = c.spawnSync("echo", ["a"]);
if (r.error || r.stdout.toString() !== "a\n") throw r.error || r.stdout;
c.execSync("true"); require("fs").promises.writeFile("n", "x").then(() => 0);
const s = require("net").createServer(x => x.end("hi")).listen(0, "127.0.0.1", () =>
  require("net").connect(s.address().port, "127.0.0.1").on("data", d => { s.close(); if (d != "hi") throw d; }));
new (require("worker_threads").Worker)("1", {eval: true});`},
	{"git", "git", `git init -q r && cd r && git config user.email a@b && git config user.name n && echo 1 >f && git add f && git commit -qm one &&
git mv f g && git commit -qam two && git branch b && git gc -q && git clone -q . ../c && test "$(git -C ../c log --oneline | wc -l)" = 2`},
	{"shell", "bash", `cat <<<"here" >a; cat <<EOF >>a
document
EOF
diff <(echo 1) <(echo 1) && yes | head -n 1 >/dev/null && mktemp >/dev/null && ! (exec 3<>/dev/tcp/127.0.0.1/1) 2>/dev/null && test "$(wc -l <a)" = 2`},
	{"archives", "bash", `mkdir d && echo 1 >d/f && chmod 755 d/f && tar czf t.tgz d && rm -r d && tar xzpf t.tgz && test -x d/f && cp -a d e && mv e g
find g -newer d && timeout 5 true && nice true && setsid -w true && xargs -P 4 -n 1 true <<<"1 2 3"`},
}

// TestOrdinaryScripts: what people write works under the filter.
func TestOrdinaryScripts(t *testing.T) {
	r := newRunner(t)
	for _, tc := range ordinary {
		t.Run(tc.name, func(t *testing.T) {
			mustExit(t, r, program(t, tc.needs, tc.script))
		})
	}
}

// program is a run of a script by an interpreter of the host, if it is there.
func program(t testing.TB, interpreter, script string) Run {
	t.Helper()
	argv := map[string][]string{
		"python3": {"/usr/bin/python3", "/run/vdisk/script"}, "node": {"/usr/bin/node", "/run/vdisk/script"},
		"git": {"/bin/bash", "-e", "/run/vdisk/script"}, "bash": {"/bin/bash", "-e", "/run/vdisk/script"},
	}[interpreter]
	if _, err := os.Stat("/usr/bin/" + interpreter); err != nil {
		t.Skipf("SKIP no /usr/bin/%s on this host", interpreter)
	}
	return Run{Argv: argv, Data: []Data{{Path: "/run/vdisk/script", Bytes: []byte(script)}}, Limits: Limits{Timeout: 60 * time.Second}}
}

// refusedThings are what scripts cannot do, as docs/security.md lists it, what they
// are told, and the way out that it names. Those of unixOnly are besides.
var refusedThings = []struct{ name, needs, script, told, wayOut string }{
	{"multiprocessing manager", "python3", `import multiprocessing as mp
mp.get_context("fork").Manager()`, "Address family not supported", `import multiprocessing as mp
from multiprocessing.managers import SyncManager
m = SyncManager(("127.0.0.1", 0), ctx=mp.get_context("fork")); m.start(); d = m.dict(a=1); assert d["a"] == 1; m.shutdown()`},
	{"multiprocessing, forkserver", "python3", `import multiprocessing as mp
if __name__ == "__main__":
    mp.get_context("forkserver").Pool(2)`, "Address family not supported", `import multiprocessing as mp
if __name__ == "__main__":
    with mp.get_context("spawn").Pool(2) as p: assert p.map(abs, [-1]) == [1]`},
	{"listener", "python3", `from multiprocessing.connection import Listener
Listener("/tmp/s")`, "Address family not supported", `from multiprocessing.connection import Listener
Listener(("127.0.0.1", 0)).close()`},
	{"netlink", "python3", `import socket
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)`, "Address family not supported", `assert open("/proc/net/dev").read().count("lo:") == 1`},
	{"interfaces in node", "node", `require("os").networkInterfaces()`, "uv_interface_addresses", `if (!require("fs").readFileSync("/proc/net/dev", "utf8").includes("lo:")) throw 1`},
	{"shmget", "python3", `import ctypes, os
if ctypes.CDLL(None, use_errno=True).shmget(0, 4096, 0o1600) < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))`, "Operation not permitted", `from multiprocessing.shared_memory import SharedMemory
s = SharedMemory(create=True, size=4096); s.buf[0] = 1; s.close(); s.unlink()`},
	{"debuggers", "python3", `import ctypes, os
if ctypes.CDLL(None, use_errno=True).ptrace(0, 0, 0, 0) < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))`, "Operation not permitted", `import io, pdb
out = io.StringIO(); pdb.Pdb(stdin=io.StringIO("p 40 + 2\nc\n"), stdout=out, nosigint=True, readrc=False).run("pass"); assert "42" in out.getvalue()`},
	{"git for a group", "git", `git init -q --shared r`, "writable by group", `git init -q r`},
	{"set-group-ID directory", "bash", `mkdir d; chmod g+s d`, "Operation not permitted", `mkdir d; chmod g+w d`},
	{"setuid file out of an archive", "bash", archiveOfSetuid + `tar xpf t.tar`, "Operation not permitted", archiveOfSetuid + `tar xf t.tar; test "$(stat -c %a f)" = 755`},
	{"name of a process", "bash", `echo name >/proc/self/comm`, "Read-only file system", `/usr/bin/python3 -c 'import ctypes; ctypes.CDLL(None).prctl(15, b"name"); assert open("/proc/self/comm").read() == "name\n"'`},
	{"rename of an old directory", "python3", `import os; os.rename("old", "new")`, "Invalid cross-device link", `import shutil; shutil.move("old", "new"); assert open("new/file").read() == "x"`},
}

// archiveOfSetuid makes an archive with a setuid file in it.
const archiveOfSetuid = `/usr/bin/python3 - <<'END'
import io, tarfile
t = tarfile.open("t.tar", "w"); f = tarfile.TarInfo("f"); f.mode = 0o4755; t.addfile(f, io.BytesIO()); t.close()
END
`

// TestRefusedThings: each of them is told plainly, and its way out is one.
func TestRefusedThings(t *testing.T) {
	r := newRunner(t)
	lower := tree(t, map[string]string{"old/file": "x"})
	for _, tc := range refusedThings {
		t.Run(tc.name, func(t *testing.T) {
			run := program(t, tc.needs, tc.script)
			run.Lower = lower
			res, _ := mustRun(t, r, run)
			if text := string(res.Stderr.Text); res.Outcome != Exited || res.ExitCode == 0 || !strings.Contains(text, tc.told) {
				t.Errorf("%s, exit %d: %s", res.Outcome, res.ExitCode, text)
			}
			run = program(t, tc.needs, tc.wayOut)
			run.Lower = lower
			mustExit(t, r, run)
		})
	}
}

// unixOnly are things that need sockets of AF_UNIX.
var unixOnly = []struct{ name, script string }{
	{"multiprocessing manager", `import multiprocessing as mp
with mp.get_context("fork").Manager() as m: d = m.dict(a=1); assert d["a"] == 1`},
	{"multiprocessing, forkserver", `import multiprocessing as mp
if __name__ == "__main__":
    with mp.get_context("forkserver").Pool(2) as p: assert p.map(abs, [-1]) == [1]`},
	{"multiprocessing listener", `from multiprocessing.connection import Listener
Listener(family="AF_UNIX")`},
	{"server on a path", `import asyncio
async def main():
    await asyncio.start_unix_server(lambda r, w: w.close(), "/tmp/s"); await asyncio.open_unix_connection("/tmp/s")
asyncio.run(main())`},
	{"datagram pair", `import socket
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.send(b"x"); assert b.recv(1) == b"x"`},
}

// TestAllowUnixSockets: what does not work by default, and does with the option.
func TestAllowUnixSockets(t *testing.T) {
	closed, open := newRunner(t), runnerWith(t, Config{AllowUnixSockets: true})
	for _, tc := range unixOnly {
		t.Run(tc.name, func(t *testing.T) {
			run := program(t, "python3", tc.script)
			run.Limits.Timeout = 20 * time.Second
			res, _ := mustRun(t, closed, run)
			text := string(res.Stderr.Text)
			if res.Outcome != Exited || res.ExitCode == 0 || !strings.Contains(text, "Address family not supported") && !strings.Contains(text, "Socket type not supported") {
				t.Errorf("without the option: %s, exit %d: %s", res.Outcome, res.ExitCode, text)
			}
			mustExit(t, open, run)
		})
	}
}

// TestSocketsOfTheHost: a socket that a process of the host has in a directory
// that is shown. It cannot be reached; with AllowUnixSockets it can, which is
// why that says so.
func TestSocketsOfTheHost(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	must(t, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	defer func() { must(t, l.Close()); <-served }()
	must(t, os.Chmod(filepath.Join(dir, "s"), 0o777))
	for _, unixSockets := range []bool{false, true} {
		run := program(t, "python3", `import socket
for p in "/workspace/s", "/opt/dir/s":
    try: s = socket.socket(socket.AF_UNIX); s.connect(p); print(p, "connected")
    except OSError as e: print(p, e.strerror)`)
		run.Lower, run.Binds = dir, []Bind{{dir, "/opt/dir"}}
		res, _ := mustExit(t, runnerWith(t, Config{AllowUnixSockets: unixSockets}), run)
		got := string(res.Stdout.Text)
		t.Logf("AllowUnixSockets %v: %q", unixSockets, got)
		switch {
		case !unixSockets && strings.Contains(got, "connected"):
			t.Errorf("a socket of the host was reached: %s", got)
		case unixSockets && !strings.Contains(got, "/opt/dir/s connected"):
			t.Errorf("the control did not reach it either: %s", got)
		}
	}
}
