package main_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// session starts a client with the environment of the test.
func (e *envTest) session(flags ...string) *server {
	e.t.Helper()
	s := serveCommand(e.t, e.command(append([]string{"serve"}, flags...)...))
	go s.read()
	return s
}

// The pip configuration of a session reaches the server, and the next one after a kill,
// and is nowhere but in its memory: in no file, no output, no record, no command line.
func TestPipConfigIsKeptNowhere(t *testing.T) {
	modes(t, func(t *testing.T, daemon bool) {
		canary := unique()
		e := newEnvs(t, daemon, indextest.Options{})
		e.env = append(e.env, "PIP_INDEX_URL=http://reader:"+canary+"@127.0.0.1:1/simple", "PIP_PROXY=http://p:"+canary+"@127.0.0.1:1")
		s := e.session()
		s.hello()
		s.ok("list_files", object{})
		s.ok("python_env", object{"action": "status"})
		s.bash("env; echo done > a.txt")
		said := ""
		if daemon {
			said += e.must("daemon", "status", "--json").stdout
			pid := daemonFactsOf(t, e.state).PID
			reached(t, pid, canary)
			killNow(t, pid)
			s.ok("list_files", object{})
			pid = daemonFactsOf(t, e.state).PID
			reached(t, pid, canary)
			for _, file := range []string{"environ", "cmdline"} {
				if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file)); err != nil || bytes.Contains(text, []byte(canary)) {
					t.Errorf("%s of the daemon has it, or %v", file, err)
				}
			}
		} else { // that of root, too, becomes the server
			reached(t, s.cmd.Process.Pid, canary)
		}
		for _, m := range s.all() {
			said += m.line
		}
		s.end()
		out := e.must("call", "python_env", `{"action":"status"}`)
		said += out.stdout + out.stderr + s.words() + e.must("audit", "query", "--all", "-o", "raw").stdout + e.must("env", "status", "--json").stdout
		if strings.Contains(said, canary) {
			t.Error("a password was printed")
		}
		quiet(t, e.state)
		if daemon {
			stopDaemon(t, e.state)
		}
		nowhere(t, canary, e.state, e.root)
	})
}

// reached checks that a process has a text in its memory, which takes root, or its user.
func reached(t testing.TB, pid int, text string) {
	t.Helper()
	within(t, patience, "the configuration arrives", func() bool { return inMemory(t, pid, text) })
}

func inMemory(t testing.TB, pid int, text string) bool {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if errors.Is(err, fs.ErrPermission) {
		t.Skip("SKIP the memory of the daemon cannot be read by its user here: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		from, to, _ := strings.Cut(f[0], "-")
		start, err1 := strconv.ParseUint(from, 16, 63)
		end, err2 := strconv.ParseUint(to, 16, 63)
		const most = 256 << 20
		if err1 != nil || err2 != nil || !strings.HasPrefix(f[1], "rw") || end-start > most {
			continue
		}
		b := make([]byte, end-start)
		n, _ := mem.ReadAt(b, int64(start)) // what is not there is not it
		if bytes.Contains(b[:n], []byte(text)) {
			return true
		}
	}
	return false
}

// A configuration that cannot be read keeps no session from its work, and no word of it
// is said.
func TestASessionWithABrokenPipConfig(t *testing.T) {
	modes(t, func(t *testing.T, daemon bool) {
		canary := unique()
		e := newEnvs(t, daemon, indextest.Options{})
		conf := filepath.Join(filepath.Dir(e.state), "pip.conf")
		if err := os.WriteFile(conf, []byte("index-url = http://u:"+canary+"@host/\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		e.env = append(e.env, "PIP_INDEX_URL=", "PIP_CONFIG_FILE="+conf)
		s := e.session()
		s.hello()
		s.ok("write_file", write("a.txt", "x"))
		s.end()
		out := e.must("call", "read_file", `{"path":"a.txt"}`)
		for _, said := range []string{s.words(), out.stderr} {
			if strings.Count(said, "goes on without the pip configuration: "+conf+" is no configuration file") != 1 || strings.Contains(said, canary) {
				t.Errorf("it says %q", said)
			}
		}
	})
}

// A large configuration, as one with certificates is, passes as well.
func TestASessionWithALargePipConfig(t *testing.T) {
	canary := unique()
	e := newEnvs(t, true, indextest.Options{})
	cert := filepath.Join(filepath.Dir(e.state), "ca.pem")
	if err := os.WriteFile(cert, bytes.Repeat([]byte("0123456789abcde\n"), 4<<20/16), 0o644); err != nil {
		t.Fatal(err)
	}
	e.env = append(e.env, "PIP_CERT="+cert, "PIP_CLIENT_CERT="+cert, "PIP_INDEX_URL=http://reader:"+canary+"@127.0.0.1:1/simple")
	s := e.session()
	s.hello()
	s.ok("list_files", object{})
	reached(t, daemonFactsOf(t, e.state).PID, canary)
	s.end()
	if said := s.words(); said != "" {
		t.Errorf("it says %q", said)
	}
	nowhere(t, "0123456789abcde\n0123", filepath.Join(e.state, "db"), filepath.Join(e.state, "images"), e.root)
}

// withQueue gives the queue of a state directory that no process has open. The files stay
// those of the state's user.
func withQueue(t testing.TB, state string, fn func(*badger.DB, *queue.Queue)) {
	t.Helper()
	info, err := os.Stat(state)
	if err != nil {
		t.Fatal(err)
	}
	db, err := audit.OpenDB(filepath.Join(state, "db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	q, err := queue.Open(db, queue.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fn(db, q)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(state, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && isRoot() {
			err = os.Lchown(path, ownerOf(info), ownerOf(info))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A request that a killed daemon was at work on is picked up by the next one, also when
// nobody connects.
func TestADaemonPicksUpRequests(t *testing.T) {
	e := newEnvs(t, true, indextest.Options{})
	e.must("image", "create", "project")
	ws := uuidOf(t, e.state, "project")
	stopDaemon(t, e.state)
	var id string
	withQueue(t, e.state, func(_ *badger.DB, q *queue.Queue) {
		r, _, err := q.Submit(t.Context(), queue.Request{Workspace: ws, Specs: []string{"foo"}})
		if err == nil {
			r, err = q.Move(t.Context(), r.ID, queue.Received, func(r *queue.Request) error { r.State = queue.Resolving; return nil })
		}
		if err != nil {
			t.Fatal(err)
		}
		id = r.ID
	})
	s := e.session() // starts it
	s.hello()
	log := filepath.Join(e.state, "daemon.log")
	within(t, patience, "the request is picked up", func() bool {
		text, err := os.ReadFile(log)
		return err == nil && strings.Contains(string(text), "a request for packages was interrupted") && strings.Contains(string(text), id)
	})
	s.end()
}

// What a disk that is gone was bound to is kept until the operator says that it does not
// come back.
func TestEnvGCForget(t *testing.T) {
	modes(t, func(t *testing.T, daemon bool) {
		const gone, other = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff", "0b2e7a53-41a4-4b58-9a0e-5f6f1a3a7c11"
		e := newEnvs(t, daemon, indextest.Options{})
		e.must("image", "create", "project")
		here := uuidOf(t, e.state, "project")
		if daemon {
			stopDaemon(t, e.state)
		}
		quiet(t, e.state)
		layer := "x-00112233445566cc"
		withQueue(t, e.state, func(_ *badger.DB, q *queue.Queue) {
			for _, ws := range []string{gone, here} {
				if err := q.Bind(t.Context(), ws, 0, queue.Binding{Base: "base-00112233445566ff", Layers: []string{layer}}); err != nil {
					t.Fatal(err)
				}
			}
		})
		e.must("env", "gc", "--dry-run").says(t, "bound     "+gone+"  its disk is not here: "+layer, "bound     "+here+"  disk project: "+layer)
		e.must("env", "gc", "--dry-run", "--json").says(t, `"workspace": "`+gone+`"`)
		e.fails(2, "env", "gc", "--forget", gone, "--dry-run")
		e.fails(2, "env", "gc", "--forget", "")
		e.fails(2, "env", "gc", "--forget", "../x").says(t, "is not the uuid of a disk")
		e.fails(3, "env", "gc", "--forget", other).says(t, "nothing is kept")
		if out := e.run("env", "gc", "--forget", here); out.code == 0 || !strings.Contains(out.stderr, "disk project has the uuid") {
			t.Errorf("exit %d\n%s", out.code, out.stderr)
		}
		out := e.must("env", "gc", "--forget", gone)
		if out.says(t, "bound     "+here); strings.Contains(out.stdout, gone) {
			t.Errorf("it is bound:\n%s", out.stdout)
		}
		e.fails(3, "env", "gc", "--forget", gone)
		e.must("audit", "query", "--all", "-o", "ndjson", "ev=env.bind").says(t, `"forget":true`, `"layers":["`+layer+`"]`, `"img":"`+gone+`"`, `"op_uid":`)
		e.must("audit", "verify", "--all")
	})
}

// A record of another version keeps nobody from work, and doctor tells of it.
func TestUnreadableBinding(t *testing.T) {
	modes(t, func(t *testing.T, daemon bool) {
		e := newEnvs(t, daemon, indextest.Options{})
		e.must("env", "ensure")
		e.must("image", "create", "project")
		e.must("env", "doctor").says(t, "all is well")
		if daemon {
			stopDaemon(t, e.state)
		}
		quiet(t, e.state)
		const ws = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"
		withQueue(t, e.state, func(db *badger.DB, _ *queue.Queue) {
			err := db.Update(func(txn *badger.Txn) error {
				return errors.Join(txn.Set([]byte("env/bind/"+ws), []byte(`{"schema":9}`)), txn.Set([]byte("env/req/01KBA4T3M0000000000000000A"), []byte("\x00")))
			})
			if err != nil {
				t.Fatal(err)
			}
		})
		e.fails(1, "env", "doctor").says(t, "PROBLEM   what a disk is bound to cannot be read", "env/bind/"+ws, "PROBLEM   not all requests for packages can be read")
		e.imports("docx").says(t, "imported")
		s := e.session()
		s.hello()
		s.ok("write_file", write("a.txt", "x"))
		s.end()
		e.fails(11, "env", "gc", "--forget", ws).says(t, "mcp-vdisk env doctor says which")
	})
}
