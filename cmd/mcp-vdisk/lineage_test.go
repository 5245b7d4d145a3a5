package main_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// State directories and disks that do not belong together, and leases that were
// lost under a daemon that is gone.

// A lease that a person took back is not given back by the next daemon, however
// that comes, and everybody is told why.
func TestABrokenLeaseStaysBroken(t *testing.T) {
	for name, c := range map[string]struct {
		next  func(testing.TB, string)
		write bool // between the break and the next daemon
	}{
		"restarted":      {restartDaemon, true},
		"restarted soon": {restartDaemon, false},
		"killed":         {killDaemon, true},
		"killed soon":    {killDaemon, false},
	} {
		t.Run(name, func(t *testing.T) {
			state := daemonState(t)
			token := operatorToken(t, state)
			a, b := shared(t, state, "--exclusive"), shared(t, state)
			a.hello()
			b.hello()
			a.ok("write_file", write("a", "1"))
			c.next(t, state) // a session that lost nothing has it again
			within(t, patience, "it holds the disk again", func() bool {
				l := leases(t, state)
				return len(l) == 1 && l[0].Exclusive && !l[0].Over
			})
			a.ok("write_file", write("a", "2"))
			b.call("write_file", write("b", "1")).refusedAs(t, "LEASE_HELD")

			if out := breakLease(t, state, token, "default"); out.code != 0 {
				t.Fatalf("break: exit %d %s", out.code, out.stderr)
			}
			if c.write {
				b.ok("write_file", write("b", "2"))
				a.call("write_file", write("a", "3")).refusedAs(t, "FENCED", `a person took it back ("a test")`)
			}
			for range 2 {
				c.next(t, state)
				a.ok("list_files", object{}) // it is served by the next one
				a.call("write_file", write("a", "4")).refusedAs(t, "FENCED", `a person took it back ("a test")`, "only a new session")
				b.ok("write_file", write("b", "3"))
			}
			if n := strings.Count(a.words(), "can only read now"); n != 1 {
				t.Errorf("it was told %d times: %s", n, a.words())
			}
			if got := leases(t, state); len(got) != 1 || got[0].Exclusive {
				t.Errorf("leases: %+v", got)
			}
			a.end()
			again := shared(t, state, "--exclusive")
			again.hello()
			again.ok("write_file", write("a", "5"))
			again.end()
			healthy(t, state, "default")
		})
	}
}

func restartDaemon(t testing.TB, state string) {
	t.Helper()
	if out := viaDaemon(t, state, "daemon", "restart"); out.code != 0 {
		t.Fatalf("daemon restart: exit %d %s", out.code, out.stderr)
	}
}

// A lease that was lost while the daemon was stopped stays lost, also for the next
// daemon, and is not listed when its session has ended.
func TestALeaseLostWhileTheDaemonIsStopped(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	a, b := shared(t, state, "--exclusive"), shared(t, state)
	a.hello()
	b.hello()
	c := shared(t, state, "--exclusive", "--image", "other")
	c.hello()
	a.ok("write_file", write("a", "1"))
	c.ok("write_file", write("c", "1"))
	pid := daemonFactsOf(t, state).PID
	syscall.Kill(pid, syscall.SIGSTOP)
	<-time.After(62 * time.Second) // a minute is what the lease lives
	syscall.Kill(pid, syscall.SIGCONT)
	// Of those who wake up together it may be the first one, and be told to wait.
	within(t, patience, "another session writes", func() bool { return !b.call("write_file", write("b", "1")).IsError })
	for _, s := range []*server{a, c} {
		within(t, patience, "the session is told", func() bool { return strings.Contains(s.words(), "can only read now: it was not renewed in time") })
		s.call("write_file", write("a", "2")).refusedAs(t, "FENCED", "it was not renewed in time")
	}
	if got := leases(t, state); len(got) != 2 || !got[0].Over && !got[1].Over {
		t.Errorf("leases: %+v", got)
	}
	c.end()
	within(t, patience, "nobody has the other disk", func() bool { return len(leases(t, state)) == 1 })
	for _, next := range []func(testing.TB, string){restartDaemon, killDaemon} {
		next(t, state)
		a.call("write_file", write("a", "3")).refusedAs(t, "FENCED", "it was not renewed in time")
		b.ok("write_file", write("b", "2"))
	}
	healthy(t, state, "default", "other")
}

// A state directory that was put back from a backup does not change what it does
// not know, says so, and goes on when a person has decided it.
func TestAnOldStateDirectory(t *testing.T) {
	for _, daemon := range []bool{true, false} {
		t.Run(map[bool]string{true: "daemon", false: "direct"}[daemon], func(t *testing.T) {
			state := daemonState(t)
			token := operatorToken(t, state)
			run := func(args ...string) output { t.Helper(); return command(t, state, args...) }
			if daemon {
				run = func(args ...string) output { t.Helper(); return viaDaemon(t, state, args...) }
			}
			must(t, state, "call", "write_file", `{"path":"a","content":"1"}`)
			outdate(t, state)

			if daemon {
				s := shared(t, state)
				s.hello()
				s.ok("read_file", object{"path": "b"})
				s.call("write_file", write("c", "x")).refusedAs(t, "FENCED", "token 4", "given out 1", "lease adopt", "older copy")
				s.call("run_script", object{"language": "bash", "source": "echo x > x"}).refusedAs(t, "FENCED", "lease adopt")
				shared(t, state, "--exclusive").refused(t, 4, "FENCED", "lease adopt default")
				defer func() { // without connecting again
					s.ok("write_file", write("d", "x"))
					s.end()
					if got := leases(t, state); len(got) > 0 && got[0].Token <= 4 {
						t.Errorf("the counter went on with %+v", got)
					}
				}()
			}
			for _, args := range [][]string{
				{"image", "rm", "a"}, {"image", "checkpoint", "x"}, {"lease", "break", "--why", "x", "--operator-token", token},
			} {
				if out := run(args...); out.code != 4 || !strings.Contains(out.stderr, "token 4") || !strings.Contains(out.stderr, "lease adopt default") {
					t.Errorf("%s: exit %d %s", args, out.code, out.stderr)
				}
			}
			if out := run("call", "write_file", `{"path":"c","content":"x"}`); out.code != 5 || !strings.HasPrefix(out.stdout, "FENCED: ") {
				t.Errorf("call: exit %d %s", out.code, out.stdout+out.stderr)
			}
			for _, args := range [][]string{{"image", "cat", "b"}, {"image", "log"}, {"image", "fsck"}, {"audit", "verify", "--all"}} {
				if out := run(args...); out.code != 0 {
					t.Errorf("%s: exit %d %s", args, out.code, out.stdout+out.stderr)
				}
			}
			if out := run("image", "fsck", "--cross"); out.code != 10 {
				t.Errorf("commits that the log does not know: exit %d %s", out.code, out.stdout)
			}
			if out := run("lease", "adopt", "--why", "x"); out.code != 4 {
				t.Errorf("adopt without a person: exit %d %s", out.code, out.stderr)
			}
			if out := run("lease", "adopt", "--why", "restored after the crash", "--operator-token", token); out.code != 0 {
				t.Fatalf("adopt: exit %d %s", out.code, out.stderr)
			}
			if out := run("lease", "adopt", "--why", "again", "--operator-token", token); out.code != 4 || !strings.Contains(out.stderr, "nothing to adopt") {
				t.Errorf("a second time: exit %d %s", out.code, out.stderr)
			}
			if out := run("call", "write_file", `{"path":"c","content":"x"}`); out.code != 0 {
				t.Errorf("after that: exit %d %s", out.code, out.stdout+out.stderr)
			}
			adopted := logged(t, state, "ev=lease.adopt")
			if len(adopted) != 1 || adopted[0].Fence != 4 || adopted[0].Args["why"] != "restored after the crash" || !strings.HasPrefix(fmt.Sprint(adopted[0].Args["op_proof"]), "token ") {
				t.Fatalf("the log has %v", adopted)
			}
			adopted[0].byWhom(t)
			for _, r := range logged(t, state, "ev=call.outcome") {
				if r.line > adopted[0].line && r.Fence > 1 && r.Fence <= 4 {
					t.Errorf("token %d after the adoption", r.Fence)
				}
			}
			if out := run("image", "fsck", "--cross"); !strings.Contains(out.stdout, "note: 3 commits in no record") {
				t.Errorf("fsck says\n%s", out.stdout)
			}
			healthy(t, state, "default")
		})
	}
}

// copyTree copies a directory with everything in it, owners included.
func copyTree(t testing.TB, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, out)
	}
}

// A disk that comes from another state directory is taken on by its first change,
// and reading it takes nothing on.
func TestADiskFromElsewhere(t *testing.T) {
	first, second := daemonState(t), daemonState(t)
	must(t, second, "call", "--image", "other", "write_file", `{"path":"x","content":"x"}`)
	for range 3 {
		must(t, first, "call", "write_file", `{"path":"a","content":"1"}`)
	}
	images := func(state string) string { return filepath.Join(state, "images", "default.vdisk") }
	copyTree(t, images(first), images(second))
	for _, args := range [][]string{{"image", "cat", "a"}, {"image", "fsck"}, {"image", "log"}, {"call", "read_file", `{"path":"a"}`}} {
		if out := viaDaemon(t, second, args...); out.code != 0 {
			t.Errorf("%s: exit %d %s", args, out.code, out.stdout+out.stderr)
		}
	}
	if got := logged(t, second, "ev=lease.adopt"); len(got) != 0 {
		t.Errorf("it was taken on by reading: %v", got)
	}
	token := operatorToken(t, second)
	for _, verb := range []string{"adopt", "break"} {
		if out := viaDaemon(t, second, "lease", verb, "--why", "x", "--operator-token", token); out.code == 0 {
			t.Errorf("lease %s before its first change: %s", verb, out.stdout)
		}
	}
	s := shared(t, second)
	s.hello()
	s.ok("write_file", write("b", "2"))
	s.ok("write_file", write("b", "3"))
	s.end()
	adopted := logged(t, second, "ev=lease.adopt")
	if len(adopted) != 1 || !strings.Contains(fmt.Sprint(adopted[0].Args["why"]), "another state directory") || adopted[0].Fence != 3 || adopted[0].Args["version"] != "v4" {
		t.Fatalf("the log has %v", adopted)
	}
	adopted[0].byWhom(t)
	healthy(t, second, "default")

	// Back to where it came from, and by its path.
	stopDaemon(t, second)
	stopDaemon(t, first)
	copyTree(t, images(second), images(first))
	must(t, first, "call", "write_file", `{"path":"a","content":"4"}`)
	must(t, first, "call", "write_file", `{"path":"a","content":"5"}`)
	if got := logged(t, first, "ev=lease.adopt"); len(got) != 1 {
		t.Errorf("the log has %v", got)
	}
	healthy(t, first, "default")
}

// Two copies of one state directory at work on one disk: the one that lags behind
// is refused, whichever it is.
func TestTwoCopiesOfAState(t *testing.T) {
	a := daemonState(t)
	b := filepath.Join(filepath.Dir(a), "copy")
	t.Cleanup(func() { stopDaemon(t, b) })
	file := filepath.Join(passable(t), "own.vdisk")
	os.Chmod(filepath.Dir(file), 0o777)
	put := func(state, text string) output {
		return viaDaemon(t, state, "call", "--image", file, "write_file", fmt.Sprintf(`{"path":"a","content":%q}`, text))
	}
	if out := put(a, "1"); out.code != 0 {
		t.Fatal(out.stdout + out.stderr)
	}
	copyTree(t, a, b)
	if out := put(a, "2"); out.code != 0 {
		t.Fatal(out.stdout + out.stderr)
	}
	if out := put(b, "3"); out.code != 5 || !strings.HasPrefix(out.stdout, "FENCED: ") {
		t.Errorf("the copy that lags behind: exit %d %s", out.code, out.stdout+out.stderr)
	}
	if got := viaDaemon(t, b, "image", "cat", "a", "--image", file).stdout; got != "2" {
		t.Errorf("it holds %q", got)
	}
	if out := viaDaemon(t, b, "lease", "adopt", file, "--why", "this one goes on", "--operator-token", operatorToken(t, b)); out.code != 0 {
		t.Fatalf("adopt: exit %d %s", out.code, out.stderr)
	}
	if out := put(b, "4"); out.code != 0 {
		t.Error(out.stdout + out.stderr)
	}
	if out := put(a, "5"); out.code != 5 || !strings.HasPrefix(out.stdout, "FENCED: ") {
		t.Errorf("now the other one: exit %d %s", out.code, out.stdout+out.stderr)
	}
	healthy(t, b, file)
}

// A copy of a disk that is open is not opened beside it: both would have one log
// and one lease. Afterwards it is an older disk, for a person to decide about.
func TestACopyBesideItsDisk(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	s.ok("write_file", write("a", "1"))
	images := filepath.Join(state, "images")
	copyTree(t, filepath.Join(images, "default.vdisk"), filepath.Join(images, "copy.vdisk"))
	shared(t, state, "--image", "copy").refused(t, 6, "disk copy is a copy of disk default")
	if out := viaDaemon(t, state, "image", "list"); out.code != 0 || !strings.Contains(out.stdout, "is a copy of") {
		t.Errorf("image list: exit %d %s", out.code, out.stdout)
	}
	s.ok("write_file", write("a", "2"))
	s.end()
	within(t, patience, "the disk is closed", func() bool { return len(daemonFactsOf(t, state).Disks) == 0 })
	c := shared(t, state, "--image", "copy")
	c.hello()
	c.call("write_file", write("a", "3")).refusedAs(t, "FENCED", "older copy of the disk")
	if out := viaDaemon(t, state, "lease", "adopt", "copy", "--why", "a test", "--operator-token", operatorToken(t, state)); out.code != 0 {
		t.Fatalf("adopt: exit %d %s", out.code, out.stderr)
	}
	c.ok("write_file", write("a", "3"))
}

// A disk that an old release made knows of no lease until its first change.
func TestADiskOfAnOldRelease(t *testing.T) {
	state := daemonState(t)
	must(t, state, "image", "create", "other") // makes the state
	packed, err := os.Open("../../workspace/testdata/v1.vdisk.gz")
	if err != nil {
		t.Skipf("SKIP the fixture is not to be found from here: %s", err)
	}
	defer packed.Close()
	z, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(state, "images", "v1.vdisk")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(state); err != nil || os.Chown(path, ownerOf(info), -1) != nil {
		t.Fatal(err)
	}
	s := shared(t, state, "--image", "v1")
	s.hello()
	s.ok("list_files", object{})
	if got := leases(t, state); len(got) != 0 {
		t.Errorf("reading has taken %+v", got)
	}
	s.ok("write_file", write("new", "x"))
	if got := leases(t, state); len(got) != 1 || got[0].Disk != "v1" {
		t.Errorf("leases: %+v", got)
	}
	if got := logged(t, state, "ev=lease.adopt"); len(got) != 0 {
		t.Errorf("the log has %v", got)
	}
	s.end()
	if out := viaDaemon(t, state, "image", "fsck", "v1"); out.code != 0 {
		t.Error(out.stdout)
	}
}

// outdate changes the default disk and puts the database back that was there before.
func outdate(t testing.TB, state string) {
	t.Helper()
	db, old := filepath.Join(state, "db"), filepath.Join(filepath.Dir(state), "old")
	copyTree(t, db, old)
	for i := range 3 {
		must(t, state, "call", "write_file", fmt.Sprintf(`{"path":"b","content":"%d"}`, i))
	}
	if err := os.RemoveAll(db); err != nil {
		t.Fatal(err)
	}
	copyTree(t, old, db)
}

// An old state is told by what it gave out for this disk, whatever others it has
// given out tokens for.
func TestAnOldStateThatWasBusyElsewhere(t *testing.T) {
	state := daemonState(t)
	token := operatorToken(t, state)
	must(t, state, "call", "write_file", `{"path":"a","content":"1"}`)
	stopDaemon(t, state)
	outdate(t, state)
	for i := range 6 {
		must(t, state, "call", "--exclusive", "--image", "other", "write_file", fmt.Sprintf(`{"path":"b","content":"%d"}`, i))
	}
	s := shared(t, state)
	s.hello()
	s.call("write_file", write("c", "x")).refusedAs(t, "FENCED", "token 4", "given out 1 for it", "lease adopt", "older copy")
	if out := viaDaemon(t, state, "lease", "adopt", "--why", "x", "--operator-token", token); out.code != 0 {
		t.Fatalf("adopt: exit %d %s", out.code, out.stderr)
	}
	s.ok("write_file", write("c", "x"))
	s.end()
	healthy(t, state, "default", "other")
}

// besideState names a disk outside of a state directory, and a place for a copy of
// that.
func besideState(t testing.TB, state string) (file, copied string) {
	file = filepath.Join(passable(t), "own.vdisk")
	os.Chmod(filepath.Dir(file), 0o777)
	copied = filepath.Join(filepath.Dir(state), "copied")
	t.Cleanup(func() { stopDaemon(t, copied) })
	return file, copied
}

// copyInUse copies a state directory whose daemon is at work.
func copyInUse(t testing.TB, state, copied string) {
	t.Helper()
	copyTree(t, state, copied)
	os.RemoveAll(filepath.Join(copied, "run"))
}

// A copy of a state that was made while its daemon was at work knows of the token
// under which the daemon went on, and not of what it did.
func TestAStateThatWasCopiedWhileInUse(t *testing.T) {
	state := daemonState(t)
	token := operatorToken(t, state)
	file, copied := besideState(t, state)
	s := shared(t, state, "--image", file)
	s.hello()
	s.ok("write_file", write("a", "1"))
	copyInUse(t, state, copied)
	for i := range 5 {
		s.ok("write_file", write("b", fmt.Sprint(i)))
	}
	s.end()
	stopDaemon(t, state)

	c := shared(t, copied, "--image", file)
	c.hello()
	c.ok("read_file", object{"path": "b"})
	c.call("write_file", write("c", "x")).refusedAs(t, "FENCED", "version v7 of the disk is in no record", "older copy of the state directory", "lease adopt")
	c.call("run_script", object{"language": "bash", "source": "echo x > x"}).refusedAs(t, "FENCED")
	shared(t, copied, "--exclusive", "--image", file).refused(t, 4, "FENCED", "lease adopt")
	for _, args := range [][]string{{"image", "fsck", file}, {"image", "rm", "a", "--image", file}, {"image", "log", "--image", file}} {
		viaDaemon(t, copied, args...) // none of them makes the copy know it
	}
	c.call("write_file", write("c", "x")).refusedAs(t, "FENCED")
	if out := viaDaemon(t, copied, "lease", "adopt", file, "--why", "the first one is gone", "--operator-token", token); out.code != 0 {
		t.Fatalf("adopt: exit %d %s", out.code, out.stderr)
	}
	c.ok("write_file", write("c", "x"))
	c.end()
	adopted := logged(t, copied, "ev=lease.adopt")
	if len(adopted) != 1 || adopted[0].Args["version"] != "v7" || !strings.Contains(fmt.Sprint(adopted[0].Args["found"]), "in no record") {
		t.Errorf("the log has %v", adopted)
	}
	healthy(t, copied, file)
	stopDaemon(t, copied)

	// The other way round, and also when the first one had the same token to give.
	first := shared(t, state, "--image", file)
	first.hello()
	first.call("write_file", write("d", "x")).refusedAs(t, "FENCED", "lease adopt")
	if out := viaDaemon(t, state, "lease", "adopt", file, "--why", "no, it is not", "--operator-token", token); out.code != 0 {
		t.Fatalf("adopt: exit %d %s", out.code, out.stderr)
	}
	first.ok("write_file", write("d", "x"))
	first.end()
	healthy(t, state, file)
}

// The same of one that was made while a script ran that saved later than others: the
// copy knows the script's call, and not what came between.
func TestAStateThatWasCopiedDuringAScript(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	file, copied := besideState(t, state)
	s := shared(t, state, "--image", file)
	s.hello()
	s.ok("write_file", write("a", "1"))
	script := s.askCall("run_script", object{"language": "bash", "source": "sleep 4; echo x > late"})
	within(t, patience, "the script runs", func() bool { return daemonFactsOf(t, state).Scripts == 1 })
	copyInUse(t, state, copied)
	for i := range 5 {
		s.ok("write_file", write("b", fmt.Sprint(i)))
	}
	if r := s.answer(script).result(t); !strings.Contains(r.Text, "SAVED") {
		t.Fatalf("the script: %s", r.Text)
	}
	s.end()
	stopDaemon(t, state)
	c := shared(t, copied, "--image", file)
	c.hello()
	c.call("write_file", write("c", "x")).refusedAs(t, "FENCED", "in no record", "lease adopt")
	c.end()
	// Where it all happened nothing is odd about it.
	own := shared(t, state, "--image", file)
	own.hello()
	own.ok("write_file", write("c", "x"))
	own.end()
	healthy(t, state, file)
}

// However many others changed the disk while a script ran that saved last, the next
// daemon lets the first change in at once.
func TestAScriptThatSavesAfterManyOthers(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	script := s.askCall("run_script", object{"language": "bash", "timeout_s": 300, "source": "sleep 20; echo x > late"})
	within(t, patience, "the script runs", func() bool { return daemonFactsOf(t, state).Scripts == 1 })
	n := rounds(5000)
	ids := make([]string, n)
	for i := range ids {
		ids[i] = s.askCall("write_file", write(fmt.Sprint("f", i%50), fmt.Sprint(i)))
	}
	for _, id := range ids {
		s.answer(id)
	}
	s.answer(script)
	killDaemon(t, state)
	begin := time.Now()
	if out := viaDaemon(t, state, "call", "write_file", `{"path":"next","content":"x"}`); out.code != 0 {
		t.Errorf("the first change: exit %d after %s\n%s", out.code, time.Since(begin), out.stdout+out.stderr)
	}
	t.Logf("after %d commits beside a script the first change took %s", n, time.Since(begin))
	s.end()
	healthy(t, state, "default")
}

// An older copy that is put in the place of a disk is not changed before a person
// has said so, and the log tells of it.
func TestAnOlderDisk(t *testing.T) {
	for name, writes := range map[string]int{"new": 0, "used": 2} {
		t.Run(name, func(t *testing.T) {
			state := daemonState(t)
			token := operatorToken(t, state)
			must(t, state, "image", "create", "d")
			put := func(text string) output {
				return viaDaemon(t, state, "call", "--image", "d", "write_file", fmt.Sprintf(`{"path":"a","content":%q}`, text))
			}
			for i := range writes {
				if out := put(fmt.Sprint("early", i)); out.code != 0 {
					t.Fatal(out.stdout)
				}
			}
			disk, old := filepath.Join(state, "images", "d.vdisk"), filepath.Join(filepath.Dir(state), "old.vdisk")
			copyTree(t, disk, old)
			for i := range 3 {
				if out := put(fmt.Sprint("late", i)); out.code != 0 {
					t.Fatal(out.stdout)
				}
			}
			newer := disk + ".newer"
			if err := os.Rename(disk, newer); err != nil {
				t.Fatal(err)
			}
			copyTree(t, old, disk)
			if out := put("x"); out.code != 5 || !strings.Contains(out.stdout, "an older copy of the disk was put in its place") || !strings.Contains(out.stdout, fmt.Sprintf("which is at v%d,", writes+1)) {
				t.Errorf("exit %d %s", out.code, out.stdout)
			}
			// The newer one is as good as before.
			if err := os.Rename(newer, disk); err != nil {
				t.Fatal(err)
			}
			if out := put("later"); out.code != 0 {
				t.Error(out.stdout)
			}
			healthy(t, state, "d")
			if got := logged(t, state, "ev=lease.adopt"); len(got) != 0 {
				t.Errorf("the log has %v", got)
			}
			if err := os.Remove(disk); err != nil {
				t.Fatal(err)
			}
			copyTree(t, old, disk)
			if out := viaDaemon(t, state, "image", "fsck", "d", "--cross"); out.code != 10 {
				t.Errorf("commits that the disk lacks: exit %d %s", out.code, out.stdout)
			}
			if out := viaDaemon(t, state, "lease", "adopt", "d", "--why", "the backup", "--operator-token", token); out.code != 0 {
				t.Fatalf("adopt: exit %d %s", out.code, out.stderr)
			}
			if out := put("x"); out.code != 0 {
				t.Error(out.stdout)
			}
			if out := put("y"); out.code != 0 {
				t.Error(out.stdout)
			}
			if out := viaDaemon(t, state, "image", "fsck", "d", "--cross"); out.code != 0 || !strings.Contains(out.stdout, "note: 4 commits of this log not on the disk") {
				t.Errorf("fsck: exit %d %s", out.code, out.stdout)
			}
			if got := logged(t, state, "ev=lease.adopt"); len(got) != 1 || got[0].Args["why"] != "the backup" {
				t.Errorf("the log has %v", got)
			}
		})
	}
}

// Whatever changed a disk, the next daemon knows it.
func TestChangesThatTheNextDaemonKnows(t *testing.T) {
	state := daemonState(t)
	host := filepath.Join(passable(t), "file")
	if err := os.WriteFile(host, []byte("of the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"image", "create", "default"}, {"image", "put", host, "/workspace/f"}, {"call", "write_file", `{"path":"a","content":"1"}`},
		{"call", "run_script", `{"language":"bash","source":"echo x > x"}`}, {"image", "checkpoint", "now"}, {"image", "rm", "a"},
		{"image", "restore", "now"}, {"image", "undo", "v2"}, {"call", "read_file", `{"path":"x"}`}, {"call", "write_file", `{"path":"../x","content":"1"}`},
		{"image", "fsck", "--repair"}, {"image", "checkpoint", "now", "--drop"},
	} {
		out := viaDaemon(t, state, args...)
		if strings.Contains(out.stdout+out.stderr, "FENCED") || out.code > 5 {
			t.Fatalf("%s: exit %d %s", args, out.code, out.stdout+out.stderr)
		}
		s := shared(t, state)
		s.hello()
		s.ok("write_file", write("by-session", fmt.Sprint(args)))
		s.torn = true
		killDaemon(t, state)
		s.ok("list_files", object{}) // a change that meets the end of the daemon may be OUTCOME_UNKNOWN
		s.ok("write_file", write("after-kill", fmt.Sprint(args)))
		s.end()
		stopDaemon(t, state)
	}
	if got := logged(t, state, "ev=lease.adopt"); len(got) != 0 {
		t.Errorf("the log has %v", got)
	}
	healthy(t, state, "default")
}
