package main_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// terminal opens a pseudo-terminal: what is written to the first is typed on the
// second (pty(7)).
func terminal() (keyboard, screen *os.File, err error) {
	keyboard, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	if err = unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err == nil {
		var n int
		if n, err = unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN); err == nil {
			screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
		}
	}
	if err != nil {
		keyboard.Close()
		return nil, nil, err
	}
	return keyboard, screen, nil
}

// typing runs a command whose standard input is a terminal on which somebody
// types a word.
func typing(cmd *exec.Cmd, word string) error {
	keyboard, screen, err := terminal()
	if err != nil {
		return err
	}
	defer keyboard.Close()
	defer screen.Close()
	if _, err := io.WriteString(keyboard, word+"\n"); err != nil {
		return err
	}
	cmd.Stdin = screen
	return cmd.Run()
}

// typed is asuser on a terminal: typed N WORD COMMAND…
func typed(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, neg, len(args) >= 3)
	argv := args[2:]
	if isRoot() {
		argv = append([]string{"setpriv", "--reuid", fmt.Sprint(ordinary), "--regid", fmt.Sprint(ordinary), "--clear-groups"}, argv...)
	}
	cmd := exec.Command("/usr/bin/env", argv...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = nil
	for _, key := range []string{"PATH", "HOME", "MCP_VDISK_STATE", "MCP_VDISK_NO_DAEMON"} {
		cmd.Env = append(cmd.Env, key+"="+ts.Getenv(key))
	}
	out, errs := &strings.Builder{}, &strings.Builder{}
	cmd.Stdout, cmd.Stderr = io.MultiWriter(out, ts.Stdout()), io.MultiWriter(errs, ts.Stderr())
	err := typing(cmd, args[1])
	ts.Logf("%s%s", out, errs)
	want := 0
	fmt.Sscan(args[0], &want)
	ended(ts, err, want)
}

// A word that is typed on a terminal makes a token, and the token stands in for
// it, whoever does the work.
func TestOperatorsConfirm(t *testing.T) {
	for _, daemon := range []bool{true, false} {
		t.Run(map[bool]string{true: "daemon", false: "direct"}[daemon], func(t *testing.T) {
			state := daemonState(t)
			if daemon {
				s := shared(t, state)
				s.hello()
				s.ok("list_files", object{})
			}
			operatorsConfirm(t, state)
			healthy(t, state)
		})
	}
}

func operatorsConfirm(t *testing.T, state string) {
	token := passable(t) + "/token"
	must := func(code int, says string, out output) {
		t.Helper()
		if out.code != code || !strings.Contains(out.stdout+out.stderr, says) {
			t.Errorf("exit %d, want %d and %q\n%s%s", out.code, code, says, out.stdout, out.stderr)
		}
	}
	run := func(args ...string) output { t.Helper(); return viaDaemon(t, state, args...) }
	must(0, "", run("image", "create", "d"))
	must(4, "terminal", run("operator", "token", token))
	must(4, "not confirmed", typedBy(t, state, "tokn", "operator", "token", token))
	must(4, "not confirmed", typedBy(t, state, "\x04", "operator", "token", token)) // the end of the input
	must(4, "not confirmed", typedBy(t, state, strings.Repeat("token", 500), "operator", "token", token))
	if _, err := os.Stat(token); err == nil {
		t.Error("a token was made that nobody confirmed")
	}
	must(0, "wrote", typedBy(t, state, "token", "operator", "token", token))
	info, err := os.Stat(token)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token's file: %v, %v", info, err)
	}
	must(4, "exists", typedBy(t, state, "token", "operator", "token", token))
	must(4, "", typedBy(t, state, "token", "operator", "token", token+"/below/a/file"))

	// Nobody holds the lease: what is asked is found out after who asks.
	broken := func(file string) output {
		t.Helper()
		return run("lease", "break", "d", "--why", "a test", "--operator-token", file)
	}
	must(3, "nobody holds", broken(token))
	for name, c := range map[string]struct {
		code int
		says string
		make func(path string) error
	}{
		"missing":     {3, "operator token FILE makes one", func(string) error { return nil }},
		"directory":   {1, "not a regular file", func(p string) error { return os.Mkdir(p, 0o700) }},
		"fifo":        {1, "not a regular file", func(p string) error { return unix.Mkfifo(p, 0o600) }},
		"empty":       {4, "holds no operator token", file("")},
		"binary":      {4, "holds no operator token", file("\x00\xff\xfe")},
		"prefix":      {4, "holds no operator token", file("mcpvdisk_op_")},
		"long":        {4, "", file("mcpvdisk_op_" + strings.Repeat("a", 1<<20))},
		"other":       {4, "not one of this state directory", file("mcpvdisk_op_" + strings.Repeat("a", 26))},
		"link to it":  {3, "nobody holds", func(p string) error { return os.Symlink(token, p) }},
		"broken link": {3, "operator token FILE makes one", func(p string) error { return os.Symlink(p+"-nowhere", p) }},
	} {
		path := passable(t) + "/" + name
		if err := c.make(path); err != nil {
			t.Fatal(err)
		}
		if out := broken(path); out.code != c.code || !strings.Contains(out.stderr, c.says) {
			t.Errorf("%s: exit %d %s", name, out.code, out.stderr)
		}
	}
	must(2, "--operator-token is empty", run("config", "set", "script.timeout", "5m", "--operator-token", ""))
	elsewhere := operatorToken(t, daemonState(t))
	must(4, "not one of this state directory", broken(elsewhere))

	// A token that others can read is good for one thing: to be revoked.
	if err := os.Chmod(token, 0o644); err != nil {
		t.Fatal(err)
	}
	must(4, "chmod 600", broken(token))
	second, third := operatorToken(t, state), operatorToken(t, state)
	must(0, "", run("operator", "revoke", token, "--operator-token", second))
	must(3, "no such token", run("operator", "revoke", token, "--operator-token", second))
	must(3, "no such token", run("operator", "revoke", elsewhere, "--operator-token", second))
	if err := os.Chmod(token, 0o600); err != nil {
		t.Fatal(err)
	}
	must(4, "revoked", broken(token))
	must(2, "", run("operator", "revoke", "--operator-token", second))
	must(2, "", run("operator", "revoke", third, "--all", "--operator-token", second))
	must(4, "terminal", run("operator", "revoke", "--all"))
	must(3, "nobody holds", broken(third))
	must(0, "", run("operator", "revoke", "--all", "--operator-token", second))
	must(4, "revoked", broken(second))
	must(4, "revoked", broken(third))

	var log strings.Builder
	proofs := map[string]int{}
	for _, r := range logged(t, state) {
		log.WriteString(r.line)
		if r.Ev != "operator.token" {
			continue
		}
		r.byWhom(t)
		proof, _, _ := strings.Cut(fmt.Sprint(r.Args["op_proof"]), " ")
		proofs[proof]++
		if tty := fmt.Sprint(r.Args["op_tty"]); proof == "typed" && !strings.HasPrefix(tty, "/dev/pts/") {
			t.Errorf("typed on %q: %s", tty, r.line)
		}
	}
	if proofs["typed"] != 3 || proofs["token"] != 2 || len(proofs) != 2 {
		t.Errorf("the log has %v", proofs)
	}
	for _, name := range []string{token, second, third, elsewhere} {
		secret, err := os.ReadFile(name)
		if err != nil || strings.Contains(log.String(), strings.TrimSpace(string(secret))) {
			t.Errorf("%s is in the log, or %v", name, err)
		}
	}
}

// file makes a file that only its owner can read.
func file(content string) func(path string) error {
	return func(path string) error { return os.WriteFile(path, []byte(content), 0o600) }
}

// What changes what is allowed is confirmed, and the log says by whom.
func TestConfigSetIsConfirmed(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	if isRoot() {
		t.Skip("SKIP as root it would write the configuration of this host")
	}
	token := operatorToken(t, state)
	if out := viaDaemon(t, state, "config", "set", "script.timeout", "5m"); out.code != 4 {
		t.Errorf("unasked: exit %d %s", out.code, out.stderr)
	}
	for _, out := range []output{
		viaDaemon(t, state, "config", "set", "script.timeout", "5m", "--operator-token", token), typedBy(t, state, "set", "config", "set", "script.timeout", "6m"),
	} {
		if out.code != 0 || !strings.Contains(out.stderr, "daemon restart") {
			t.Errorf("exit %d %s", out.code, out.stderr)
		}
	}
	set := logged(t, state, "ev=config.set")
	if len(set) != 2 || set[0].Args["key"] != "script.timeout" || set[1].Args["value"] != "6m0s" {
		t.Errorf("the log has %v", set)
	}
	for _, r := range set {
		r.byWhom(t)
	}
}
