package main_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// What Must hold 5 asks of a script. The sandbox has its own, deeper tests in
// sandboxrun; these hold the whole program to it, from the client's end.

// canary is a secret that lies where no script may see it. The script is told
// its halves, so that its own source and command line do not hold it.
type canary struct{ a, b string }

func newCanary() canary { return canary{unique(), unique()} }

func (c canary) String() string { return c.a + c.b }

// plant writes the canary into a new file of a directory of the host and returns
// its name, "" when the directory is not ours to write to.
func (c canary) plant(t *testing.T, dir string) string {
	t.Helper()
	name := filepath.Join(dir, "."+c.a)
	if err := os.WriteFile(name, []byte(c.String()+"\n"), 0o644); err != nil {
		t.Logf("no canary in %s: %s", dir, err)
		return ""
	}
	t.Cleanup(func() { os.Remove(name) })
	return name
}

func TestAScriptSeesNothingOfTheHost(t *testing.T) {
	c := newCanary()
	home, _ := os.UserHomeDir()
	state := newState(t)
	beside := filepath.Dir(state)
	var planted []string
	for _, dir := range []string{"/tmp", "/root", "/home", "/var/tmp", "/dev/shm", home, beside} {
		if name := c.plant(t, dir); name != "" && !slices.Contains(planted, name) {
			planted = append(planted, name)
		}
	}
	if len(planted) < 2 {
		t.Fatalf("too few places for canaries: %v", planted)
	}
	// Another disk of the same state directory holds one as well.
	if out := command(t, state, "image", "put", planted[0], "/workspace/secret", "--image", "other"); out.code != 0 {
		t.Fatal(out.stderr)
	}
	s := serveUnread(t, state, []string{"VDISK_CANARY=" + c.String()})
	go s.read()
	s.hello()

	r := s.bash(`
		secret=` + c.a + `; secret=${secret}` + c.b + `
		for f in ` + strings.Join(planted, " ") + ` /etc/shadow /etc/gshadow /etc/ssh/ssh_host_rsa_key ` + state + `/VERSION; do
			for via in "" /proc/self/root /proc/1/root /proc/1/cwd /proc/self/cwd/..; do
				cat "$via$f" >/dev/null 2>&1 && echo "READ $via$f"
			done
		done
		all=$(cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\0' '\n')
		[[ $all == *PATH=* && $all == *source.sh* ]] && echo "looked into proc"
		[[ $all == *"$secret"* ]] && echo "IN PROC"
		grep -rIlF --exclude-dir=proc --exclude-dir=usr "$secret" / 2>/dev/null && echo "IN A FILE"
		ls -d /oldroot /newroot /var/lib /root /boot /mnt /opt /srv /home/* /run/* 2>/dev/null
		echo environment:; env | cut -d= -f1 | sort | tr '\n' ' '
		echo; echo processes:; ls -d /proc/[0-9]* | wc -l
		exit 0`)
	if r.IsError || !strings.Contains(r.Text, "looked into proc") {
		t.Fatal(r.Text)
	}
	for _, bad := range []string{"READ /", "IN PROC", "IN A FILE", c.String(), "/oldroot", "/newroot", "/var/lib", "/root", "/boot"} {
		if strings.Contains(r.Text, bad) {
			t.Errorf("a script sees %q:\n%s", bad, r.Text)
		}
	}
	t.Logf("canaries in %v; the script saw:\n%s", planted, r.Text)
	s.end()
}

func TestAScriptReachesNoSocketOfTheHost(t *testing.T) {
	s := serve(t, newState(t))
	s.hello()
	contacts := make(chan string, 100)
	listen := func(network, addr string) net.Listener {
		l, err := net.Listen(network, addr)
		if err != nil {
			t.Skipf("listen on %s: %s", addr, err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				contacts <- network + " " + addr
				conn.Close()
			}
		}()
		return l
	}
	port := listen("tcp", "127.0.0.1:0").Addr().(*net.TCPAddr).Port
	any := listen("tcp", "0.0.0.0:0").Addr().(*net.TCPAddr).Port
	abstract := unique()
	listen("unix", "@"+abstract)
	path := filepath.Join(passable(t), "sock")
	listen("unix", path)
	os.Chmod(path, 0o777)

	r := s.bash(fmt.Sprintf(`
		for a in 127.0.0.1/%d localhost/%d ::1/%d 127.0.0.1/%d 192.0.2.1/80; do
			(exec 3<>/dev/tcp/$a) 2>/dev/null && echo "REACHED $a"
		done; echo tried`, port, port, port, any))
	if r.IsError || strings.Contains(r.Text, "REACHED") || !strings.Contains(r.Text, "tried") {
		t.Error(r.Text)
	}
	r = s.call("run_script", object{"language": "python", "source": fmt.Sprintf(`
import socket
def reach(family, address):
    try:
        s = socket.socket(family)
        s.settimeout(3)
        s.connect(address)
        print("REACHED", address)
    except OSError as e:
        print("refused:", e)
reach(socket.AF_INET, ("127.0.0.1", %d))
reach(socket.AF_UNIX, "\0%s")
reach(socket.AF_UNIX, %q)
`, port, abstract, path)})
	switch {
	case strings.HasPrefix(r.Text, "NOT_READY"):
		t.Log("no Python here: the unix sockets were not tried")
	case r.IsError || strings.Contains(r.Text, "REACHED") || strings.Count(r.Text, "refused:") != 3:
		t.Error(r.Text)
	}
	s.end()
	select {
	case who := <-contacts:
		t.Errorf("a listener of the host was reached: %s", who)
	default:
	}
}

func TestAScriptWritesOnlyWhereItMay(t *testing.T) {
	s := serve(t, newState(t))
	s.hello()
	name := unique()
	r := s.call("run_script", object{"language": "bash", "timeout_s": 45, "source": `
		may() { case $1 in /workspace|/workspace/*|/tmp|/tmp/*|/dev/shm|/dev/shm/*|$HOME|$HOME/*|/dev/pts) return 0; esac; return 1; }
		for d in / /usr /usr/bin /usr/local /usr/lib /etc /bin /lib /dev /dev/pts /proc /proc/sys /proc/sys/kernel /sys /run /run/vdisk /home /root /var /var/tmp /opt; do
			(: > $d/` + name + `) 2>/dev/null && echo "WROTE $d"
			mkdir $d/` + name + `.d 2>/dev/null && echo "MADE $d"
		done
		find / -path /proc -prune -o -type d -writable -print 2>/dev/null | while read -r d; do may "$d" || echo "WRITABLE DIRECTORY $d"; done
		find / -path /proc -prune -o -path /dev -prune -o -type f -writable -print 2>/dev/null | while read -r f; do may "$f" || echo "WRITABLE FILE $f"; done
		find /proc/sys -type f -writable 2>/dev/null | sed 's/^/WRITABLE SYSCTL /'
		for f in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /proc/self/uid_map /proc/1/mem; do (: > $f) 2>/dev/null && echo "OPENED $f"; done
		for d in /workspace /tmp /dev/shm $HOME; do echo x > $d/` + name + ` && echo "may write to $d"; done
		mount -t tmpfs none /tmp 2>/dev/null && echo "MOUNTED"
		umount /workspace 2>/dev/null && echo "UNMOUNTED"
		mknod /tmp/null c 1 3 2>/dev/null && echo "MADE A DEVICE"
		exit 0`})
	if r.IsError || strings.Count(r.Text, "may write to") != 4 {
		t.Fatal(r.Text)
	}
	for _, bad := range []string{"WROTE", "MADE", "WRITABLE", "OPENED", "MOUNTED"} {
		if strings.Contains(r.Text, bad) {
			t.Errorf("a script may do what it must not:\n%s", r.Text)
		}
	}
	if r := s.bash("ls -A /tmp /dev/shm $HOME; [ -z \"$(ls -A /tmp /dev/shm $HOME | grep " + name + ")\" ]"); !strings.Contains(r.Text, "exit 0") {
		t.Errorf("what a script left outside /workspace is there in the next: %s", r.Text)
	}
	s.end()
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
		if found, _ := filepath.Glob(filepath.Join(dir, name+"*")); len(found) > 0 {
			t.Errorf("a script wrote to the host: %v", found)
		}
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	state := newState(t)
	mounts := func() string {
		data, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		// The tests of package pyenv, which may run now, have a disk to fill.
		return regexp.MustCompile(`(?m)^.* /tmp/mcp-vdisk-small-.*\n`).ReplaceAllString(string(data), "")
	}
	before := mounts()
	s := serve(t, state)
	s.hello()
	s.ok("write_file", object{"path": "base.txt", "content": "base\n"})
	// What the server itself needs is counted before, and again at the end.
	s.bash("true")
	s.rest()
	files := descriptors(t, s.worker())
	for _, c := range []struct{ name, source string }{
		{"exit 0", "echo x > f; mkdir -p d/e; echo y > d/e/g; cat /dev/zero | head -c 1000000 > /tmp/z"},
		{"exit 1", "echo x > f2; exit 1"},
		{"a signal", "echo x > f3; kill -9 $$"},
		{"an unreadable directory", "mkdir -p locked/in; echo x > locked/in/f; chmod 0 locked/in locked"},
		{"a child that stays", "sleep $1 & disown; echo started"},
		{"a daemon", "setsid -f bash -c 'trap \"\" TERM HUP INT; sleep $0; sleep $0' $1 </dev/null >/dev/null 2>&1; echo started"},
		{"a daemon that holds the output", "setsid sleep $1 & echo started"},
		{"a stopped child", "sleep $1 & kill -STOP $!; echo started"},
		{"many children", "for i in $(seq 40); do (setsid sleep $1 &) ; done; echo started"},
	} {
		begin := time.Now()
		marker := fmt.Sprintf("300.%09d", rand.IntN(1e9)) // how long they sleep, which no other process does
		r := s.call("run_script", object{"language": "bash", "source": c.source, "args": []string{marker}, "timeout_s": 20})
		if r.IsError || strings.Contains(c.source, "started") && !strings.Contains(r.Text, "started") {
			t.Errorf("%s: %s", c.name, r.Text)
		}
		// At the moment of the answer, not some time after it.
		if left := append(s.scripts(), marked(t, marker)...); len(left) > 0 {
			t.Errorf("%s: left behind: %v", c.name, left)
		}
		if d := time.Since(begin); d > 10*time.Second {
			t.Errorf("%s: the call took %s", c.name, d)
		}
		if left := entries(t, filepath.Join(state, "scratch")); len(left) > 0 {
			t.Errorf("%s: left in scratch: %v", c.name, left)
		}
	}
	if now := mounts(); now != before {
		t.Errorf("mounts before:\n%s\nand after:\n%s", before, now)
	}
	s.rest()
	if now := descriptors(t, s.worker()); now > files+3 {
		t.Errorf("the server has %d descriptors open, had %d", now, files)
	}
	s.end()
	if left := entries(t, filepath.Join(state, "live")); len(left) != 1 {
		t.Errorf("in live: %v", left)
	}
	must(t, state, "audit", "verify")
}

func entries(t testing.TB, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func descriptors(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil && isRoot() {
		t.Fatal(err)
	}
	return len(list)
}

func TestNoScriptRunsAsRootOfTheHost(t *testing.T) {
	t.Parallel()
	state := newState(t)
	s := serve(t, state)
	s.hello()
	if uid := status(s.worker(), "Uid"); slices.Contains(strings.Fields(uid), "0") {
		t.Errorf("the server runs as %s", uid)
	}
	_, tree := s.sleeper(unique())
	for _, p := range tree {
		for _, key := range []string{"Uid", "Gid"} {
			if ids := strings.Fields(status(p.pid, key)); len(ids) != 4 || slices.Contains(ids, "0") {
				t.Errorf("%s %v of %q", key, ids, p.cmdline)
			}
		}
		if groups := strings.Fields(status(p.pid, "Groups")); isRoot() && slices.Contains(groups, "0") {
			t.Errorf("groups %v of %q", groups, p.cmdline)
		}
		if strings.HasPrefix(p.cmdline, "sleep ") || strings.Contains(p.cmdline, "/run/vdisk/") {
			for _, key := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
				if v := status(p.pid, key); v != "0000000000000000" {
					t.Errorf("%s of %q is %s", key, p.cmdline, v)
				}
			}
			if v := status(p.pid, "NoNewPrivs"); v != "1" {
				t.Errorf("NoNewPrivs of %q is %s", p.cmdline, v)
			}
		}
	}
	s.stdin.Close()
	s.wait(patience)
	if isRoot() {
		for _, name := range entries(t, state) {
			info, err := os.Lstat(filepath.Join(state, name))
			if err != nil {
				t.Fatal(err)
			}
			if owner := ownerOf(info); owner == 0 {
				t.Errorf("%s belongs to root", name)
			}
		}
	}
}
