package main_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// describe is a tree in a digest: names, kinds, permissions, times in ns, contents and
// targets of all that is in it.
func describe(t testing.TB, dir string) (digest string, entries int) {
	t.Helper()
	sum := sha256.New()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		info, err := d.Info()
		if err != nil {
			return err
		}
		entries++
		fmt.Fprintf(sum, "%q %s %d", rel, info.Mode()&^(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky), info.ModTime().UnixNano())
		switch {
		case info.Mode().IsRegular():
			f, err := os.Open(p)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.Copy(sum, f)
			return err
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			fmt.Fprintf(sum, "%q", to)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), entries
}

// forest makes a tree of so many files, with all that a tree can have.
func forest(t testing.TB, dir string, files int) {
	t.Helper()
	r := rand.New(rand.NewPCG(8, 1))
	when := func(p string) {
		ts := unix.NsecToTimespec(r.Int64N(2e18) - 1e17)
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	var dirs []string
	modes := []fs.FileMode{0o644, 0o600, 0o755, 0o444, 0o640, 0o400, 0o711}
	for i := range files {
		sub := fmt.Sprintf("%s/d%02d/e%d", dir, i/500, i/100%5)
		if i%100 == 0 {
			must(os.MkdirAll(sub+"/empty", 0o755))
			dirs = append(dirs, sub, sub+"/empty")
			must(os.Symlink("../e0/f-0", sub+"/link"))
			must(os.Symlink("nowhere\xff", sub+"/dangling"))
			when(sub + "/link")
			when(sub + "/dangling")
		}
		name := fmt.Sprintf("%s/f-%d", sub, i%100)
		if i%50 == 1 {
			name += "\xff\n\x80"
		}
		must(os.WriteFile(name, []byte(strings.Repeat(fmt.Sprint("content ", i%900), i%40)), 0o600))
		must(os.Chmod(name, modes[i%len(modes)]))
		when(name)
	}
	for i, d := range dirs {
		must(os.Chmod(d, []fs.FileMode{0o555, 0o755, 0o700, 0o500}[i%4]))
		when(d)
	}
	for i := range (files + 499) / 500 {
		when(fmt.Sprintf("%s/d%02d", dir, i))
	}
	when(dir)
}

// What is put and got again is the same: 20,000 files, within a bound of memory.
func TestPutGetRoundTrip(t *testing.T) {
	t.Parallel()
	files := 20000
	if quick() {
		files = 2000
	}
	dir := passable(t)
	state := daemonState(t)
	s, daemon, idle := resting(t, state) // a session has the disk open
	forest(t, dir+"/forest", files)
	want, n := describe(t, dir+"/forest")
	begin := time.Now()
	put := watched(t, state, "image", "put", dir+"/forest", "/workspace/forest")
	putting := time.Since(begin)
	begin = time.Now()
	get := watched(t, state, "image", "get", "/workspace/forest", dir+"/back")
	getting := time.Since(begin)
	if got, m := describe(t, dir+"/back"); got != want || m != n {
		t.Errorf("%d entries came back, of %d, or others", m, n)
	}
	grown := peakOf(t, daemon) - idle
	t.Logf("%d entries: put %s, get %s; above idle: daemon %d MiB, front of put %d MiB, of get %d MiB", n, putting.Round(time.Millisecond), getting.Round(time.Millisecond), grown>>20, put>>20, get>>20)
	bounded(t, grown, put, get)
	s.end()
	healthy(t, state, "default")
}

// bounded holds processes to 64 MiB more than they need idle.
func bounded(t *testing.T, above ...int64) {
	t.Helper()
	for _, n := range above {
		if n > 64<<20 {
			t.Errorf("%d MiB of memory above idle", n>>20)
		}
	}
}

// peakOf is the most memory that a process had so far, in bytes.
func peakOf(t testing.TB, pid int) int64 {
	t.Helper()
	var kib int64
	if _, err := fmt.Sscanf(status(pid, "VmHWM"), "%d kB", &kib); err != nil {
		t.Fatalf("VmHWM of %d: %v", pid, err)
	}
	return kib << 10
}

// watched runs a command that has to succeed, and returns what memory it needed beyond
// what one that does little needs.
func watched(t testing.TB, state string, args ...string) int64 {
	t.Helper()
	peak := func(args ...string) (most int64) {
		cmd := frontOf(state, args...)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case err := <-ended:
				if err != nil {
					t.Fatalf("%v: %v\n%s", args, err, &out)
				}
				return most
			case <-tick.C:
				var kib int64
				fmt.Sscanf(status(cmd.Process.Pid, "VmHWM"), "%d kB", &kib)
				most = max(most, kib<<10)
			}
		}
	}
	return peak(args...) - peak("image", "show")
}

// resting starts a session of a daemon, and returns that and what memory it needs idle. For
// a second a daemon that starts collects no garbage.
func resting(t testing.TB, state string) (s *server, daemon int, idle int64) {
	t.Helper()
	begin := time.Now()
	s = shared(t, state)
	s.hello()
	s.ok("write_file", object{"path": "x", "content": "x"})
	within(t, patience, "the daemon has begun to collect", func() bool { return time.Since(begin) > 2*time.Second })
	daemon = daemonFactsOf(t, state).PID
	return s, daemon, peakOf(t, daemon)
}

// A large file with holes comes back with holes, and needs no memory of its size.
func TestPutGetLargeFile(t *testing.T) {
	t.Parallel()
	size := int64(128 << 20)
	if os.Getenv("MCP_VDISK_SOAK") == "1" {
		size = 2 << 30
	}
	dir := passable(t)
	f, err := os.Create(dir + "/big")
	if err != nil {
		t.Fatal(err)
	}
	r := rand.NewChaCha8([32]byte{8})
	block := make([]byte, 1<<20)
	for off := int64(0); off < size; off += size / 16 {
		r.Read(block)
		if _, err := f.WriteAt(block, off+4096*7); err != nil {
			t.Fatal(err)
		}
	}
	if err := anyway(f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
	state := daemonState(t)
	s, daemon, idle := resting(t, state)
	begin := time.Now()
	put := watched(t, state, "image", "put", dir+"/big", "/workspace/")
	putting := time.Since(begin)
	begin = time.Now()
	get := watched(t, state, "image", "get", "/workspace/big", dir+"/back")
	getting := time.Since(begin)
	grown := peakOf(t, daemon) - idle
	same := exec.Command("cmp", dir+"/big", dir+"/back")
	if out, err := same.CombinedOutput(); err != nil {
		t.Errorf("%s: %v", out, err)
	}
	info, err := os.Stat(dir + "/back")
	if err != nil {
		t.Fatal(err)
	}
	used := info.Sys().(*syscall.Stat_t).Blocks * 512
	t.Logf("%d MiB, back with %d MiB on the host: put %s, get %s; above idle: daemon %d MiB, front of put %d MiB, of get %d MiB",
		size>>20, used>>20, putting.Round(time.Millisecond), getting.Round(time.Millisecond), grown>>20, put>>20, get>>20)
	if used > 17<<20 {
		t.Errorf("%d MiB are used of 16 that are no hole", used>>20)
	}
	bounded(t, grown, put, get)
	s.end()
}

// interrupts are the ways in which a person or a host ends a copy.
var interrupts = []struct {
	name string
	sig  syscall.Signal
	what string // front, group or daemon
	code int
}{
	{"Control-C", syscall.SIGINT, "group", 130}, {"SIGINT", syscall.SIGINT, "front", 130}, {"SIGTERM", syscall.SIGTERM, "front", 130},
	{"SIGKILL", syscall.SIGKILL, "front", -1}, {"SIGKILL of the daemon", syscall.SIGKILL, "daemon", 1},
}

// early is the exit code of what a signal ends before the program has begun to catch it.
const early = -1

// A copy that is ended at any moment leaves the disk as before or as after, and of files
// on the host only whole ones.
func TestInterruptedCopies(t *testing.T) {
	t.Parallel()
	for _, daemon := range []bool{false, true} {
		t.Run(map[bool]string{true: "daemon", false: "direct"}[daemon], func(t *testing.T) {
			t.Parallel()
			interruptedCopies(t, daemon)
		})
	}
}

func interruptedCopies(t *testing.T, daemon bool) {
	dir := passable(t)
	if err := os.Mkdir(dir+"/tree", 0o755); err != nil {
		t.Fatal(err)
	}
	r := rand.NewChaCha8([32]byte{1})
	for i := range 60 {
		data := make([]byte, 400<<10)
		r.Read(data)
		if err := os.WriteFile(fmt.Sprintf("%s/tree/f%02d", dir, i), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, _ := describe(t, dir+"/tree")
	state := daemonState(t)
	counts := map[string]int{}
	// How long they take undisturbed tells when to disturb them.
	run := func(args ...string) *exec.Cmd {
		cmd := frontOf(state, args...)
		cmd.Dir = dir
		if !daemon {
			cmd.Env = append(cmd.Env, "MCP_VDISK_NO_DAEMON=1")
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return cmd
	}
	begin := time.Now()
	if out := outputOf(t, run("image", "put", "tree", "/workspace/tree")); out.code != 0 {
		t.Fatal(out)
	}
	long := time.Since(begin)
	for i := range rounds(60) {
		for _, c := range interrupts {
			if !daemon && c.what == "daemon" {
				continue
			}
			if daemon { // one that a session started, and left
				s := shared(t, state)
				s.hello()
				s.end()
			}
			if i%2 == 0 {
				dest := fmt.Sprintf("/workspace/t%d%d", i, c.sig)
				code := disturbed(t, state, run("image", "put", "tree", dest), c.sig, c.what, rand.N(long+long/4))
				if code != 0 && code != c.code && code != early {
					t.Errorf("%s of put: exit code %d", c.name, code)
				}
				stopDaemon(t, state)
				back := fmt.Sprintf("%s/back-%d-%d", dir, i, rand.Int())
				out := outputOf(t, run("image", "get", dest, back))
				counts[fmt.Sprintf("put %d", code)]++
				switch {
				case out.code == 0:
					if got, _ := describe(t, back); got != want {
						t.Errorf("%s of put: another tree is there", c.name)
					}
					os.RemoveAll(back)
				case out.code != 3 || code == 0:
					t.Errorf("%s of put, exit %d: then get exits %d: %s", c.name, code, out.code, out.stderr)
				}
				if out := outputOf(t, run("image", "rm", "-r", dest)); out.code != 0 && out.code != 3 {
					t.Errorf("rm: %s", out.stderr)
				}
				continue
			}
			back := fmt.Sprintf("%s/got-%d-%d-%d", dir, i, c.sig, rand.Int())
			code := disturbed(t, state, run("image", "get", "/workspace/tree", back), c.sig, c.what, rand.N(long))
			if code != 0 && code != c.code && code != early {
				t.Errorf("%s of get: exit code %d", c.name, code)
			}
			counts[fmt.Sprintf("get %d", code)]++
			names, _ := filepath.Glob(back + "/f*")
			for _, name := range names {
				same(t, c.name, name, dir+"/tree/"+filepath.Base(name))
			}
			left, _ := filepath.Glob(back + "/.*")
			if len(left) > 1 || len(left) == 1 && c.code != -1 {
				t.Errorf("%s of get: left are %q", c.name, left)
			}
			// The next one is not hindered.
			if out := outputOf(t, run("image", "get", "--force", "/workspace/tree", back)); out.code != 0 {
				if _, err := os.Stat(back); err == nil {
					out = outputOf(t, run("image", "get", "--force", "/workspace/tree/f00", back))
				}
				if out.code != 0 {
					t.Errorf("%s of get: the next one exits %d: %s", c.name, out.code, out.stderr)
				}
			}
			os.RemoveAll(back)
		}
	}
	t.Logf("exit codes: %v", counts)
	if !quick() && counts["put 130"]+counts["get 130"] == 0 {
		t.Error("no copy was interrupted in the middle")
	}
	stopDaemon(t, state)
	healthy(t, state, "default")
}

func same(t testing.TB, what, a, b string) {
	t.Helper()
	x, err := os.ReadFile(a)
	y, err2 := os.ReadFile(b)
	if err != nil || err2 != nil || !bytes.Equal(x, y) {
		t.Errorf("%s: %s is not whole: %d of %d bytes, %v %v", what, a, len(x), len(y), err, err2)
	}
}

// disturbed starts a command, sends a signal after a while, and returns its exit code.
func disturbed(t testing.TB, state string, cmd *exec.Cmd, sig syscall.Signal, what string, after time.Duration) int {
	t.Helper()
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	var pids []int
	if what == "daemon" {
		pids = daemonsOf(state)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	switch what {
	case "front":
		pids = []int{cmd.Process.Pid}
	case "group":
		pids = []int{-cmd.Process.Pid}
	}
	timer := time.AfterFunc(after, func() {
		for _, pid := range pids {
			syscall.Kill(pid, sig)
		}
	})
	defer timer.Stop()
	begin := time.Now()
	cmd.Wait()
	if d := time.Since(begin); d > after+8*time.Second {
		t.Errorf("it ended %s after the signal", d-after)
	}
	if strings.Contains(out.String(), "panic") {
		t.Errorf("%s", out.String())
	}
	return cmd.ProcessState.ExitCode()
}

// A bar is drawn on a terminal, and nothing where no one looks; the last line is the same.
func TestCopyProgress(t *testing.T) {
	t.Parallel()
	state, dir := newState(t), passable(t)
	data := make([]byte, 40<<20)
	rand.NewChaCha8([32]byte{2}).Read(data)
	if err := os.WriteFile(dir+"/big", data, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args        []string
		drawn, last string
	}{
		{[]string{"image", "put", dir + "/big", "/workspace/"}, "put  [", "put big into /workspace (1 changed)"},
		{[]string{"image", "put", "-", "/workspace/stdin"}, "put  ", "put standard input into /workspace/stdin (1 changed)"},
		{[]string{"image", "get", "/workspace/big", dir + "/back"}, "get  [", "got " + dir + "/back (1 entry)"},
	} {
		cmd := exec.Command(program, append([]string{"--state", state}, c.args...)...)
		cmd.Stdin = bytes.NewReader(data)
		screen := onScreen(t, cmd)
		if !strings.Contains(screen, "\r\x1b[K"+c.drawn) || strings.Contains(c.drawn, "[") && !strings.Contains(screen, " % ") || !strings.HasSuffix(screen, "\r\x1b[K"+c.last+"\r\n") {
			t.Errorf("%v: on the screen is %.2000q", c.args, screen)
		}
		if *updateGolden && c.args[1] == "put" && c.args[2] != "-" {
			var frames []string
			for _, f := range strings.Split(screen, "\r\x1b[K") {
				if strings.Contains(f, " % ") {
					frames = append(frames, f)
				}
			}
			screenshot(t, "put.svg", "$ mcp-vdisk image put big /workspace/", frames[len(frames)/2])
		}
		cmd = exec.Command(program, append([]string{"--state", state}, append(c.args, "--force")...)...)
		cmd.Stdin = bytes.NewReader(data)
		out := outputOf(t, cmd)
		last := strings.Replace(c.last, "1 changed", "0 changed", 1)
		if out.code != 0 || out.stdout != "" || out.stderr != last+"\n" && !strings.Contains(c.last, "stdin") {
			t.Errorf("%v: without a terminal: %+v", c.args, out)
		}
	}
}

// onScreen runs a command whose standard error is a terminal, and returns what is drawn.
func onScreen(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	keyboard, screen, err := terminal()
	if err != nil {
		t.Fatal(err)
	}
	defer keyboard.Close()
	if err := unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}); err != nil {
		t.Fatal(err)
	}
	var seen bytes.Buffer
	var wg sync.WaitGroup
	wg.Go(func() { io.Copy(&seen, keyboard) }) // ends by EIO, when nobody has the other end open
	cmd.Stderr, cmd.Env = screen, append(os.Environ(), "TERM=xterm")
	err = cmd.Run()
	screen.Close()
	wg.Wait()
	if err != nil {
		t.Errorf("%v: %v\n%s", cmd.Args, err, &seen)
	}
	return seen.String()
}

// A file that grows, shrinks or goes away while it is copied: the disk has what was
// there at one time, or nothing.
func TestPutOfWhatChanges(t *testing.T) {
	t.Parallel()
	state, dir := newState(t), passable(t)
	must(t, state, "image", "create")
	for i := range rounds(100) {
		name := fmt.Sprintf("%s/f%d", dir, i)
		if err := os.WriteFile(name, bytes.Repeat([]byte("x"), 8<<20), 0o644); err != nil {
			t.Fatal(err)
		}
		change := []func() error{
			func() error { return os.Truncate(name, 1<<20) }, func() error { return os.Truncate(name, 16<<20) }, func() error { return os.Remove(name) },
			func() error { return anyway(os.Remove(name), syscall.Mkfifo(name, 0o600)) },
		}[i%4]
		timer := time.AfterFunc(rand.N(60*time.Millisecond), func() { change() })
		out := command(t, state, "image", "put", name, "/workspace/f"+strconv.Itoa(i))
		timer.Stop()
		got := command(t, state, "image", "cat", "f"+strconv.Itoa(i))
		switch {
		case out.code == 0 && got.code == 0 && (len(got.stdout) == 8<<20 || len(got.stdout) == 1<<20 || len(got.stdout) == 16<<20):
		case out.code != 0 && out.code != 130 && got.code == 3:
		default:
			t.Errorf("%d: put exits %d, then there are %d bytes (exit %d): %s", i%4, out.code, len(got.stdout), got.code, out.stderr)
		}
		os.Remove(name)
	}
}
