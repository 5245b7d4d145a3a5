package main_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/dgraph-io/badger/v4"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
)

// TestCLI runs the scripts in testdata/script, one for each command or concern.
// `go test -run TestCLI/image` runs one of them. A script has a home, a state
// directory (MCP_VDISK_STATE) and the program on its PATH. Its commands beyond
// those of testscript:
//
//	exits N COMMAND…      runs a command that ends with exit code N
//	asuser N COMMAND…     the same as an ordinary user, also when root runs the tests
//	typed N WORD COMMAND… the same on a terminal, on which WORD is typed
//	give PATH…            makes files and folders that user's
//	serving [FLAG…]       starts `serve`, which runs until hangup or crash
//	ask TOOL JSON         calls a tool of that server
//	busy MARKER           starts a script in it that sleeps
//	hangup, crash         end it: by the end of its input, or by SIGKILL
//	tamper HOW [N]        edits the log as somebody with access to its files can
//	lines FILE N          FILE has N lines
//
// The condition [root] says who runs the tests.
func TestCLI(t *testing.T) {
	root := passable(t)
	bin := filepath.Join(root, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(bin, "mcp-vdisk")); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:         "testdata/script",
		WorkdirRoot: root,
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", bin+":/usr/bin:/bin")
			if !daemonMode() {
				e.Setenv("MCP_VDISK_NO_DAEMON", "1")
			}
			e.Setenv("HOME", filepath.Join(e.WorkDir, "home"))
			e.Setenv("MCP_VDISK_STATE", filepath.Join(e.WorkDir, "state"))
			e.Setenv("MCP_VDISK_ENVS", os.Getenv("MCP_VDISK_ENVS"))
			e.Setenv("BACK", map[bool]string{true: "1", false: "2"}[isRoot()]) // what the back answers to a person
			e.Values[serverKey{}] = &held{}
			return os.Mkdir(filepath.Join(e.WorkDir, "home"), 0o755)
		},
		Condition: func(cond string) (bool, error) {
			if cond == "root" {
				return isRoot(), nil
			}
			return false, fmt.Errorf("no condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "asuser": asUser, "typed": typed, "give": give, "lines": lines, "tamper": tamper,
			"serving": serving, "ask": ask, "busy": busy, "hangup": hangup, "crash": crash,
		},
	})
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, neg, len(args) >= 2)
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	ended(ts, ts.Exec(args[1], args[2:]...), want)
}

// ended checks an exit code.
func ended(ts *testscript.TestScript, err error, want int) {
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if code != want {
		ts.Fatalf("exit code %d, want %d", code, want)
	}
}

func plain(ts *testscript.TestScript, neg, enough bool) {
	if neg || !enough {
		ts.Fatalf("wrong use of a command: see TestCLI")
	}
}

// ordinary is the user of asuser, who exists on no system.
const ordinary = 60799

func asUser(ts *testscript.TestScript, neg bool, args []string) {
	if isRoot() {
		args = append([]string{args[0], "env", "-u", "MCP_VDISK_ENVS", "setpriv", "--reuid", fmt.Sprint(ordinary), "--regid", fmt.Sprint(ordinary), "--clear-groups"}, args[1:]...)
	}
	exits(ts, neg, args)
}

func give(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, neg, true)
	if !isRoot() {
		return
	}
	for _, name := range args {
		ts.Check(filepath.WalkDir(ts.MkAbs(name), func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, ordinary, ordinary))
		}))
	}
}

func lines(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, neg, len(args) == 2)
	if n := strings.Count(ts.ReadFile(args[0]), "\n"); fmt.Sprint(n) != args[1] {
		ts.Fatalf("%s has %d lines, want %s", args[0], n, args[1])
	}
}

// held is the server of a script.
type (
	held      struct{ s *server }
	serverKey struct{}
)

func (h *held) running(ts *testscript.TestScript) *server {
	if h.s == nil {
		ts.Fatalf("no server runs")
	}
	return h.s
}

func heldBy(ts *testscript.TestScript) *held { return ts.Value(serverKey{}).(*held) }

// scriptT lets a server report to a script.
type scriptT struct {
	testing.TB
	ts *testscript.TestScript
}

func (t scriptT) Helper()                      {}
func (t scriptT) Errorf(f string, a ...any)    { t.ts.Fatalf(f, a...) }
func (t scriptT) Fatalf(f string, a ...any)    { t.ts.Fatalf(f, a...) }
func (t scriptT) Fatal(a ...any)               { t.ts.Fatalf("%s", fmt.Sprint(a...)) }
func (t scriptT) Logf(format string, a ...any) { t.ts.Logf(format, a...) }
func (t scriptT) Cleanup(f func())             { t.ts.Defer(f) }

func serving(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, neg, true)
	s := serveUnread(scriptT{ts: ts}, ts.Getenv("MCP_VDISK_STATE"), nil, args...)
	s.torn = true
	go s.read()
	s.hello()
	heldBy(ts).s = s
}

func ask(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, false, len(args) == 2)
	s := heldBy(ts).running(ts)
	s.ids++
	id := fmt.Sprint(s.ids)
	s.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + args[0] + `","arguments":` + args[1] + `}}`)
	r := s.answer(id).result(s.t)
	ts.Logf("%s", r.Text)
	if r.IsError != neg {
		ts.Fatalf("isError is %t", r.IsError)
	}
}

func busy(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, neg, len(args) == 1)
	heldBy(ts).running(ts).sleeper(args[0])
}

func hangup(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, neg, len(args) == 0)
	heldBy(ts).running(ts).end()
}

func crash(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, neg, len(args) == 0)
	heldBy(ts).running(ts).kill()
}

// tamper edits the log of the only disk through Badger: `edit N` flips a letter in
// a record, `delete N` removes it, `swap N` exchanges it with the next, `cut`
// removes the newest, `forget` the head.
func tamper(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, neg, len(args) > 0)
	dir := filepath.Join(ts.Getenv("MCP_VDISK_STATE"), "db")
	info, err := os.Stat(dir)
	ts.Check(err)
	db, err := audit.OpenDB(dir, nil)
	ts.Check(err)
	ts.Check(errors.Join(db.Update(func(txn *badger.Txn) error { return tamperWith(txn, args) }), db.Close()))
	if isRoot() { // or its user could not open what we made
		uid, gid := ownerOf(info), int(info.Sys().(*syscall.Stat_t).Gid)
		ts.Check(filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, uid, gid))
		}))
	}
}

func tamperWith(txn *badger.Txn, args []string) error {
	var records [][]byte // keys, in order
	var heads [][]byte
	it := txn.NewIterator(badger.DefaultIteratorOptions)
	for it.Rewind(); it.Valid(); it.Next() {
		key := it.Item().KeyCopy(nil)
		switch {
		case strings.HasPrefix(string(key[1:]), "/"+audit.StreamSystem): // is about no disk
		case strings.HasPrefix(string(key), "r/"):
			records = append(records, key)
		case strings.HasPrefix(string(key), "h/"):
			heads = append(heads, key)
		}
	}
	it.Close()
	n := len(records)
	if len(args) > 1 {
		var err error
		if n, err = strconv.Atoi(args[1]); err != nil || n < 1 || n > len(records) {
			return fmt.Errorf("record %q of %d: %v", args[1], len(records), err)
		}
	}
	key := records[n-1]
	value := func(key []byte) []byte {
		item, err := txn.Get(key)
		if err != nil {
			return nil
		}
		v, _ := item.ValueCopy(nil)
		return v
	}
	switch args[0] {
	case "edit":
		return txn.Set(key, []byte(strings.Replace(string(value(key)), `"dec":"allow"`, `"dec":"deny"`, 1)))
	case "garble":
		return txn.Set(key, []byte("{garbled"))
	case "delete", "cut":
		return txn.Delete(key)
	case "swap":
		a, b := value(key), value(records[n])
		return errors.Join(txn.Set(key, b), txn.Set(records[n], a))
	case "forget":
		return txn.Delete(heads[0])
	}
	return fmt.Errorf("no way %q to tamper", args[0])
}
