package main_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Who may use a daemon, and who is in its way.

// Where somebody else is in the way it is said, and nothing of theirs is used.
func TestPlantedSockets(t *testing.T) {
	if !isRoot() {
		t.Skip("SKIP planting what belongs to another user takes root")
	}
	const uid = 60733
	t.Run("the directory for long paths", func(t *testing.T) {
		private := fmt.Sprintf("/tmp/mcp-vdisk-%d", uid)
		for name, plant := range map[string]func() error{
			"of another user": func() error { return os.Mkdir(private, 0o777) },
			"a link":          func() error { return os.Symlink(t.TempDir(), private) },
			"open to everyone": func() error {
				return anyway(os.Mkdir(private, 0o777), os.Chown(private, uid, uid), os.Chmod(private, 0o777))
			},
			"a file": func() error { return os.WriteFile(private, nil, 0o600) },
		} {
			os.RemoveAll(private)
			t.Cleanup(func() { os.RemoveAll(private) })
			if err := plant(); err != nil {
				t.Fatal(err)
			}
			state := ownState(t, strings.Repeat("long", 30), uid)
			out := outputOf(t, as(uid, frontOf(state, "serve")))
			if out.code != 11 || !strings.Contains(out.stderr, private) {
				t.Errorf("%s: exit %d\n%s", name, out.code, out.stderr)
			}
			if len(daemonsOf(state)) > 0 {
				t.Errorf("%s: a daemon runs", name)
			}
		}
	})
	t.Run("run is a link", func(t *testing.T) {
		state := ownState(t, "s", uid)
		if err := os.Symlink("/tmp", filepath.Join(state, "run")); err != nil {
			t.Fatal(err)
		}
		failing(t, as(uid, frontOf(state, "serve")), 11, "listen for clients")
	})
	t.Run("another user listens", func(t *testing.T) {
		state := ownState(t, "s", uid)
		ln := listenAt(t, filepath.Join(state, "run", "daemon.sock"), uid)
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				io.Copy(io.Discard, c) // nothing must arrive
				c.Close()
			}
		}()
		failing(t, as(uid, frontOf(state, "serve")), 4, "listens a process of uid 0")
		failing(t, as(uid, frontOf(state, "image", "list")), 4, "listens a process of uid 0")
	})
}

func anyway(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// ownState makes an empty state directory of a user.
func ownState(t testing.TB, name string, uid int) string {
	t.Helper()
	state := filepath.Join(passable(t), name)
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if isRoot() {
		if err := os.Chown(state, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, pid := range daemonsOf(state) {
			syscall.Kill(pid, syscall.SIGTERM)
		}
	})
	return state
}

func listenAt(t testing.TB, path string, uid int) net.Listener {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	if isRoot() {
		if err := anyway(os.Chown(filepath.Dir(path), uid, uid), os.Chown(path, uid, uid)); err != nil {
			t.Fatal(err)
		}
	}
	return ln
}

// Root's fronts and those of the state's owner share a daemon; any other user is
// refused in words.
func TestUsersOfOneState(t *testing.T) {
	if !isRoot() {
		t.Skip("SKIP being several users takes root")
	}
	const uid = 60734
	state := ownState(t, "state", uid)
	own := serveVia(t, as(uid, frontOf(state, "serve")))
	own.hello()
	own.ok("write_file", object{"path": "a", "content": "x"})
	roots := serveVia(t, frontOf(state, "serve"))
	roots.hello()
	roots.ok("read_file", object{"path": "a"})
	f := daemonFactsOf(t, state)
	if len(f.Clients) != 2 || f.Clients[0].UID+f.Clients[1].UID != uid || f.UID != uid {
		t.Errorf("%+v", f)
	}
	failing(t, as(uid+1, frontOf(state, "serve")), 11, "permission denied")
	failing(t, as(uid+1, frontOf(state, "image", "list")), 11, "permission denied")
	failing(t, frontOf(state, "--run-as", fmt.Sprint(uid+1), "serve"), 11, "is not taken over")
	link := filepath.Join(passable(t), "link")
	if err := os.Symlink(state, link); err != nil {
		t.Fatal(err)
	}
	failing(t, frontOf(link, "serve"), 11, "symbolic link")
	third := serveVia(t, as(uid, frontOf(link, "serve")))
	third.hello()
	if now := daemonFactsOf(t, state); now.PID != f.PID || len(now.Clients) != 3 {
		t.Errorf("by a link: %+v", now)
	}
	for _, s := range []*server{own, roots, third} {
		s.end()
	}
}
