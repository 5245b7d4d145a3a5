package main_test

import (
	"fmt"
	"os"
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

// An old state is told by what it gave out for this disk, whatever others it has
// given out tokens for.
func TestAnOldStateThatWasBusyElsewhere(t *testing.T) {
	state := daemonState(t)
	token := operatorToken(t, state)
	must(t, state, "call", "write_file", `{"path":"a","content":"1"}`)
	stopDaemon(t, state)
	db, old := filepath.Join(state, "db"), filepath.Join(filepath.Dir(state), "old")
	copyTree(t, db, old)
	for i := range 3 {
		must(t, state, "call", "write_file", fmt.Sprintf(`{"path":"b","content":"%d"}`, i))
	}
	if err := os.RemoveAll(db); err != nil {
		t.Fatal(err)
	}
	copyTree(t, old, db)
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

// A copy of a state that was made while its daemon was at work knows of the token
// under which the daemon went on, and not of what it did.
func TestAStateThatWasCopiedWhileInUse(t *testing.T) {
	state := daemonState(t)
	token := operatorToken(t, state)
	file := filepath.Join(passable(t), "own.vdisk")
	os.Chmod(filepath.Dir(file), 0o777)
	copied := filepath.Join(filepath.Dir(state), "copied")
	t.Cleanup(func() { stopDaemon(t, copied) })
	s := shared(t, state, "--image", file)
	s.hello()
	s.ok("write_file", write("a", "1"))
	copyTree(t, state, copied)
	os.RemoveAll(filepath.Join(copied, "run"))
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
	file := filepath.Join(passable(t), "own.vdisk")
	os.Chmod(filepath.Dir(file), 0o777)
	copied := filepath.Join(filepath.Dir(state), "copied")
	t.Cleanup(func() { stopDaemon(t, copied) })
	s := shared(t, state, "--image", file)
	s.hello()
	s.ok("write_file", write("a", "1"))
	script := s.askCall("run_script", object{"language": "bash", "source": "for i in $(seq 400); do [ -e go ] && break; sleep 0.01; done; echo x > late"})
	within(t, patience, "the script runs", func() bool { return daemonFactsOf(t, state).Scripts == 1 })
	copyTree(t, state, copied)
	os.RemoveAll(filepath.Join(copied, "run"))
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
	script := s.askCall("run_script", object{"language": "bash", "timeout_s": 300, "source": "trap 'echo x > late; exit' USR1; echo $$ > /tmp/pid; i=0; while [ $i -lt 400 ]; do sleep 0.05; i=$((i+1)); done; echo x > late"})
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
		s.ok("write_file", write("after-kill", fmt.Sprint(args)))
		s.end()
		stopDaemon(t, state)
	}
	if got := logged(t, state, "ev=lease.adopt"); len(got) != 0 {
		t.Errorf("the log has %v", got)
	}
	healthy(t, state, "default")
}
