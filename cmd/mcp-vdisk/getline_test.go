package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// The command that a result prints gets the files that it names, pasted into a shell as
// it stands: whatever they are called, whoever runs the server, wherever state and disk
// lie, through a daemon while a script runs and without one.
func TestGetLines(t *testing.T) {
	t.Parallel()
	for _, who := range []struct {
		name string
		uid  int
	}{{"own user", os.Geteuid()}, {"ordinary user", ordinary}} {
		if who.uid == ordinary && !isRoot() {
			continue // is what own user is
		}
		for _, disk := range []string{"", "project", "path"} {
			for _, daemon := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, disk %q, daemon %t", who.name, disk, daemon), func(t *testing.T) {
					t.Parallel()
					newPasting(t, who.uid, disk, daemon).all()
				})
			}
		}
	}
}

// pasting is a person who pastes commands that a session's results print.
type pasting struct {
	t    *testing.T
	uid  int
	home string
	env  []string
	s    *server
	keep bool // the session stays while they are pasted
	few  bool // names
}

func newPasting(t *testing.T, uid int, disk string, daemon bool) *pasting {
	dir := passable(t)
	p := &pasting{t: t, uid: uid, home: filepath.Join(dir, "it's a $HOME"), keep: daemon}
	p.few = quick() || disk == "project" || !daemon
	bin := filepath.Join(dir, "bin")
	if err := anyway(os.Mkdir(bin, 0o755), os.Symlink(program, filepath.Join(bin, "mcp-vdisk")), os.Mkdir(p.home, 0o755)); err != nil {
		t.Fatal(err)
	}
	if isRoot() {
		if err := anyway(os.Chown(p.home, uid, uid), os.Chown(dir, uid, uid)); err != nil {
			t.Fatal(err)
		}
	}
	p.env = []string{"PATH=" + bin + ":/usr/bin:/bin", "HOME=" + p.home, "MCP_VDISK_ENVS=" + filepath.Join(dir, "envs")}
	if !daemon {
		p.env = append(p.env, "MCP_VDISK_NO_DAEMON=1")
	}
	state := filepath.Join(dir, "the \"state\"; 'here'")
	args := []string{"serve", "--state", state}
	switch disk {
	case "":
	case "path":
		args = append(args, "--image", "./my disk.vdisk")
	default:
		args = append(args, "--image", disk)
	}
	cmd := as(uid, exec.Command(program, args...))
	cmd.Dir, cmd.Env = p.home, p.env
	t.Cleanup(func() { stopDaemon(t, state) })
	p.s = serveCommand(t, cmd)
	go p.s.read()
	p.s.hello()
	return p
}

// got runs the command of a result in a new folder, which it returns.
func (p *pasting) got(r result) string {
	p.t.Helper()
	_, line, ok := strings.Cut(r.Text, "\nto get it")
	line = strings.TrimPrefix(strings.TrimPrefix(line, ", once this session has ended"), ": ")
	if !ok {
		p.t.Fatalf("no command in %s", r.Text)
	}
	dir, err := os.MkdirTemp(p.home, "got ")
	if err == nil && isRoot() {
		err = os.Chown(dir, p.uid, p.uid)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := as(p.uid, exec.Command("/bin/sh", "-c", line))
	cmd.Dir, cmd.Env = dir, p.env
	if out := outputOf(p.t, cmd); out.code != 0 {
		p.t.Errorf("%s\nexit %d: %s", line, out.code, out.stderr)
	}
	return dir
}

// oddNames are names that a shell, a terminal or an argument list could take for something.
var oddNames = []string{"a.txt", "a b", "it's", `"quoted"`, "-rf", "$(touch gone)", "`id`", "a;b&c|d>e", "*", "#x", "~", "new\nline", "tab\there",
	`back\slash`, "é", "\u202egnp.exe", "\xff\xfe", "-", "--force", "%s", "a=b", "!", "trailing ", "\x1b[31m", strings.Repeat("n", 255)}

func (p *pasting) all() {
	holds := func(dir, name, want string) {
		p.t.Helper()
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != want {
			p.t.Errorf("%q holds %.100q, not %q: %v", name, data, want, err)
		}
	}
	results := map[string]result{}
	for i, name := range oddNames {
		if p.few && i%5 != 0 && name != "\xff\xfe" {
			continue
		}
		if utf8.ValidString(name) && !strings.ContainsAny(name, "\\\"") {
			results["w/"+name] = p.s.ok("write_file", object{"path": "w/" + name, "content": "of " + name})
		}
		results["s/"+name] = p.s.call("run_script", object{"language": "bash", "source": `mkdir -p s; f=$(printf "$1"; echo .); printf 'of %s' "${f%.}" >"s/${f%.}"`, "args": []string{octal(name)}})
	}
	several := p.s.call("run_script", object{"language": "bash", "source": "echo 1 >one.txt; echo 2 >'two 2.txt'"})
	tree := p.s.call("run_script", object{"language": "bash", "source": "mkdir -p site/sub empty; echo i >site/index; echo s >site/sub/x; ln -s ../index site/sub/link; echo r >read.me"})
	many := p.s.call("run_script", object{"language": "bash", "source": "for i in 1 2 3 4 5; do echo $i >many$i; done"})
	same := p.s.call("run_script", object{"language": "bash", "source": "mkdir -p p q; echo p >p/x; echo q >q/x"})
	later := p.s.call("run_script", object{"language": "bash", "source": "echo late >late; exit 3"})
	later = p.s.ok("run_script", object{"job": later.Facts["job"], "commit": "always"})
	links := p.s.call("run_script", object{"language": "bash", "source": "ln -s nowhere dangling"})
	if strings.Contains(links.Text, "to get it") {
		p.t.Errorf("a link is to be got: %s", links.Text)
	}
	if p.keep {
		p.s.sleeper(unique())
	} else {
		p.s.end()
	}
	for path, r := range results {
		name := filepath.Base(path)
		holds(p.got(r), name, "of "+name)
	}
	dir := p.got(several)
	holds(dir, "one.txt", "1\n")
	holds(dir, "two 2.txt", "2\n")
	dir = p.got(tree)
	holds(dir, "site/index", "i\n")
	holds(dir, "site/sub/link", "i\n")
	holds(dir, "read.me", "r\n")
	holds(p.got(many), "workspace/many5", "5\n")
	holds(p.got(same), "q/x", "q\n")
	holds(p.got(later), "late", "late\n")
}

// octal is a name as printf(1) takes it, in any locale.
func octal(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, `\%03o`, c)
	}
	return b.String()
}
