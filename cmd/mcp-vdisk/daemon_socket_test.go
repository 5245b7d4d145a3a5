package main_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What comes to the socket of a daemon, and what stays of it.

// fakeDaemon makes the test program, run again, a daemon that speaks another
// revision.
const fakeDaemon = "MCP_VDISK_TEST_FAKE_DAEMON"

// TestADaemonOfAnotherRevision: what it is asked it cannot understand, so it is
// told of in words, whichever side is newer.
func TestADaemonOfAnotherRevision(t *testing.T) {
	if place := os.Getenv(fakeDaemon); place != "" {
		beDaemonOfAnotherRevision(t, place)
		return
	}
	const uid = 60738
	t.Run("a newer daemon", func(t *testing.T) {
		state := ownState(t, "state", uid)
		cmd := as(uid, exec.Command("/proc/self/exe", "-test.run=^TestADaemonOfAnotherRevision$"))
		cmd.Env, cmd.Dir = append(os.Environ(), fakeDaemon+"="+state, "MCP_VDISK_TEST_BIN="+program), "/"
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
		defer cmd.Process.Kill()
		line := make([]byte, len("listening\n"))
		if io.ReadFull(out, line); string(line) != "listening\n" {
			t.Fatalf("no daemon: %q", line)
		}
		failing(t, as(uid, frontOf(state, "image", "list")), 6, "9.9.9", "speaks revision 99", "daemon stop")
		failing(t, as(uid, frontOf(state, "serve")), 6, "it is needed")
	})
	t.Run("a newer front", func(t *testing.T) {
		state := daemonState(t)
		s := shared(t, state)
		s.hello()
		socket := daemonFactsOf(t, state).Socket
		for verb, want := range map[string]string{"image.list": "speaks another revision", "daemon.status": `"running": true`, "nothing": "speaks another revision"} {
			if got := askRaw(t, socket, 99, verb); !strings.Contains(got, want) {
				t.Errorf("%s: %q", verb, got)
			}
		}
		s.ok("list_files", object{})
		s.end()
	})
}

// askRaw asks as a front of some revision would, and returns all that is answered.
func askRaw(t testing.TB, socket string, revision int, verb string) string {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, `{"protocol":%d,"version":"9.9.9"}`+"\n", revision)
	body := fmt.Appendf(nil, `{"verb":%q,"unknown":{"of":"the future"}}`, verb)
	c.Write(binary.BigEndian.AppendUint32([]byte("R"), uint32(len(body))))
	c.Write(body)
	all, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(all)
}

// beDaemonOfAnotherRevision refuses to make room.
func beDaemonOfAnotherRevision(t *testing.T, state string) {
	if err := os.Mkdir(filepath.Join(state, "run"), 0o700); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", filepath.Join(state, "run", "daemon.sock"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("listening")
	for {
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer c.Close()
			fmt.Fprintf(c, `{"protocol":99,"version":"9.9.9","pid":%d}`+"\n", os.Getpid())
			var head [1]byte
			for head[0] != 'R' {
				if _, err := io.ReadFull(c, head[:]); err != nil {
					return
				}
			}
			body := []byte(`{"Code":6,"Text":"it is needed","Hint":""}`)
			c.Write(append(binary.BigEndian.AppendUint32([]byte("X"), uint32(len(body))), body...))
			io.Copy(io.Discard, c)
		}()
	}
}

// Whatever comes to the socket, the daemon lives, keeps nothing of it open, and
// serves everybody else.
func TestNonsenseAtTheSocket(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	f := daemonFactsOf(t, state)
	before := openCount(t, f.PID)
	hello := `{"protocol":1}` + "\n"
	frame := func(typ string, body string) string {
		return typ + string(binary.BigEndian.AppendUint32(nil, uint32(len(body)))) + body
	}
	for _, say := range []string{
		"", "\n", strings.Repeat("x", 8<<10), `{"protocol":"x"}` + "\n", hello, hello + "R", hello + "Q", hello + "R\xff\xff\xff\xff",
		hello + frame("R", "{"), hello + frame("R", "null"), hello + frame("R", `{"verb":"serve","image":{"name":"../../etc/passwd"}}`), hello + frame("R", `{"verb":"serve","image":{"path":"/etc/passwd"}}`),
		hello + frame("R", `{"verb":"daemon"}`), hello + frame("R", `{"verb":"daemon.run"}`), hello + frame("R", `{"verb":"image.cat","args":[1]}`),
		hello + frame("R", `{"verb":"daemon.stop","args":"x"}`), hello + frame("R", `{"verb":"serve"}`) + frame("Z", "x") + frame("0", "\x00\x01\n"),
	} {
		c, err := net.Dial("unix", f.Socket)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, say)
		c.(*net.UnixConn).CloseWrite()
		c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%.60q: %s", say, err)
		}
		c.Close()
	}
	// Descriptors that nobody asked for.
	for _, n := range []int{1, 2, 50} {
		c, err := net.Dial("unix", f.Socket)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, hello)
		var fds []int
		for range n {
			fds = append(fds, int(os.Stdin.Fd()))
		}
		c.(*net.UnixConn).WriteMsgUnix([]byte("R"), syscall.UnixRights(fds...), nil)
		io.WriteString(c, frame("R", `{"verb":"daemon.status"}`)[1:])
		c.SetReadDeadline(time.Now().Add(patience))
		io.Copy(io.Discard, c)
		c.Close()
	}
	s.ok("list_files", object{})
	within(t, patience, "nothing stays open", func() bool { return openCount(t, f.PID) <= before })
	if now := daemonFactsOf(t, state); now.PID != f.PID || len(now.Clients) != 1 {
		t.Errorf("%+v", now)
	}
	s.end()
}

// openFiles counts the descriptors of a process.
func openCount(t testing.TB, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// A daemon that many used, and that had many disks open, is as small as before.
func TestNothingOfASessionStays(t *testing.T) {
	state := daemonState(t)
	keep := shared(t, state)
	keep.hello()
	keep.ok("write_file", object{"path": "a", "content": "x"})
	keep.ok("python_env", object{"action": "status"}) // opens what is opened once
	pid := daemonFactsOf(t, state).PID
	input := requestLine("1", "initialize", object{"protocolVersion": "2025-11-25", "capabilities": object{}, "clientInfo": object{"name": "brief", "version": "1"}}) + "\n" +
		`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n" + requestLine("2", "tools/call", callParams("read_file", object{"path": "a"})) + "\n"
	session := func(i int, image string) {
		t.Helper()
		cmd := frontOf(state, "serve", "--image", image)
		cmd.Stdin = strings.NewReader(input)
		if i%3 == 2 { // killed, perhaps before it was answered
			cmd.Stdin = nil
			in, err := cmd.StdinPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(in, input)
			<-time.After(time.Duration(i%20) * time.Millisecond)
			cmd.Process.Kill()
			cmd.Wait()
			return
		}
		if out, err := cmd.Output(); err != nil || strings.Count(string(out), "\n") != 2 {
			t.Fatalf("session %d: %v %q", i, err, out)
		}
	}
	settled := func() (files, threads int) {
		within(t, patience, "all are gone", func() bool { return len(daemonFactsOf(t, state).Clients) == 1 })
		fmt.Sscan(status(pid, "Threads"), &threads)
		return openCount(t, pid), threads
	}
	for i := range 30 {
		session(i, "default")
	}
	files, threads := settled()
	rss := status(pid, "VmRSS")
	n := rounds(1000)
	for i := range n {
		session(i, "default")
	}
	for i := range rounds(100) {
		session(0, fmt.Sprint("disk", i))
	}
	nowFiles, nowThreads := settled()
	within(t, patience, "what was closed last is closed", func() bool {
		nowFiles = openCount(t, pid)
		return nowFiles <= files
	})
	t.Logf("after %d sessions and %d disks: %d files (%d before), %d threads (%d), resident %s (%s)", n, rounds(100), nowFiles, files, nowThreads, threads, status(pid, "VmRSS"), rss)
	if nowFiles > files || nowThreads > threads+8 {
		t.Errorf("%d files and %d threads, before %d and %d", nowFiles, nowThreads, files, threads)
	}
	keep.end()
}

// A client that leaves while its session begins, which makes what all share, takes
// nothing of that along.
func TestAClientThatLeavesWhileItsSessionBegins(t *testing.T) {
	state := daemonState(t)
	for round := range rounds(200) {
		if out := viaDaemon(t, state, "daemon", "restart"); out.code != 0 {
			t.Fatalf("restart: %s", out.stderr)
		}
		f := daemonFactsOf(t, state)
		var leavers []net.Conn
		for range 3 {
			c, err := net.Dial("unix", f.Socket)
			if err != nil {
				t.Fatal(err)
			}
			body := `{"verb":"serve","image":{"name":"default"}}`
			io.WriteString(c, `{"protocol":1}`+"\nR"+string(binary.BigEndian.AppendUint32(nil, uint32(len(body))))+body)
			leavers = append(leavers, c)
		}
		for i, c := range leavers {
			<-time.After(time.Duration(round%10) * time.Duration(i) * time.Millisecond)
			c.Close()
		}
		s := shared(t, state)
		s.hello()
		if r := s.bash("echo fine"); !strings.Contains(r.Text, "fine") {
			t.Errorf("round %d: %s", round, r.Text)
		}
		s.end()
		var pids []int // also of a child that is about to be another program
		within(t, patience, fmt.Sprintf("round %d: process %d is the one daemon", round, f.PID), func() bool {
			pids = daemonsOf(state)
			return len(pids) == 1 && pids[0] == f.PID
		})
		if t.Failed() {
			t.Fatalf("round %d: daemons %v, want %d", round, pids, f.PID)
		}
		stopDaemon(t, state) // the script's result is kept
	}
}
