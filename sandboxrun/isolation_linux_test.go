package sandboxrun

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const canary = "canary-7f3e1b0c"

// TestHostIsOutOfReach: a script tries to read what the host has, by every
// name that it could know.
func TestHostIsOutOfReach(t *testing.T) {
	r := newRunner(t)
	t.Setenv("MCP_VDISK_CANARY", canary)
	host := t.TempDir() // below the host's /tmp
	secret := filepath.Join(host, "secret")
	must(t, os.WriteFile(secret, []byte(canary), 0o644))
	must(t, os.Chmod(host, 0o755))
	// By standard input: as an argument the script would find itself in /proc.
	run := Run{Argv: []string{"/bin/bash", "--noprofile", "--norc", "-s"}}
	run.Stdin = strings.NewReader(fmt.Sprintf(`
		for root in '' /proc/self/root /proc/1/root /proc/1/cwd /oldroot /newroot /workspace/link; do cat $root%s 2>/dev/null; done
		ln -s / link; ln -s %s direct; cat link%s direct 2>/dev/null
		read -r _ </etc/shadow && echo SHADOW
		cat /proc/*/environ /proc/*/cmdline 2>/dev/null; env
		find / -xdev -not -path '/usr/*' -not -path '/proc/*' 2>/dev/null
		ls -a /root /home /var /run /mnt /media /srv /boot /sys /tmp/.. 2>/dev/null
		cat /proc/self/mountinfo
		exit 0`, secret, secret, secret))
	run.Lower = tree(t, nil)
	res, _ := mustExit(t, r, run)
	out := string(res.Stdout.Text)
	for _, word := range []string{canary, "MCP_VDISK", secret, host, run.Lower, filepath.Base(host), "SHADOW", "machine-id", "mcp-vdisk-stage"} {
		if strings.Contains(out, word) {
			t.Errorf("the output has %q:\n%s", word, out)
		}
	}
}

// TestEnvironment: exactly what is documented.
func TestEnvironment(t *testing.T) {
	r := newRunner(t)
	run := Run{Argv: []string{"/usr/bin/env"}, Env: []string{"GREETING=hello world", "EMPTY="}}
	res, _ := mustExit(t, r, run)
	got := strings.Split(strings.TrimSpace(string(res.Stdout.Text)), "\n")
	slices.Sort(got)
	want := []string{"EMPTY=", "GREETING=hello world", "HOME=/home/user", "LANG=C.UTF-8", "PATH=/usr/local/bin:/usr/bin:/bin", "PWD=/workspace", "TMPDIR=/tmp"}
	if !slices.Equal(got, want) {
		t.Errorf("environment %q, want %q", got, want)
	}
}

// TestIdentity: who and where the script is.
func TestIdentity(t *testing.T) {
	r := newRunner(t)
	for _, tc := range []struct{ name, script, want string }{
		{"ids", `id -u; id -g`, "1000\n1000\n"},
		{"user", `id -un; echo ~`, "sandbox\n/home/user\n"},
		{"directory", `pwd`, "/workspace\n"},
		{"host name", `cat /proc/sys/kernel/hostname`, "sandbox\n"},
		{"capabilities", `grep -h Cap /proc/self/status | sort -u -k2 | cut -f2`, "0000000000000000\n"},
		{"no new privileges", `grep NoNewPrivs /proc/self/status | cut -f2`, "1\n"},
		{"system call filter", `grep -h Seccomp: /proc/1/status /proc/self/status | cut -f2`, "2\n2\n"},
		{"descriptors", `cd /proc/self/fd && echo *`, "0 1 2 3\n"}, // 3 reads the directory
		{"own session", `read -r _ _ _ _ pgrp session _ </proc/$$/stat; echo $(( session > 0 ))`, "1\n"},
		{"no terminal", `exec 2>/dev/null; : </dev/tty || echo none`, "none\n"},
		{"processes", `set -- /proc/[0-9]*; echo $#`, "2\n"}, // bwrap and bash
		{"links", `ls /sys /var /root /boot 2>/dev/null | wc -l`, "0\n"},
		{"interfaces", `tail -n +3 /proc/net/dev | cut -d: -f1`, "    lo\n"},
		{"limits", `ulimit -Hu; ulimit -Hn; ulimit -Hc; ulimit -Hl`, "256\n1024\n0\n64\n"},
		{"first to go when memory runs out", `cat /proc/self/oom_score_adj`, "1000\n"},
		{"umask", `umask`, "0022\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			res, _ := mustRun(t, r, bash(tc.script))
			if got := string(res.Stdout.Text); got != tc.want {
				t.Errorf("got %q, want %q; stderr %s", got, tc.want, res.Stderr.Text)
			}
		})
	}
}

// TestWritablePlaces: /workspace, /tmp, /dev/shm and $HOME, and nothing else.
func TestWritablePlaces(t *testing.T) {
	r := newRunner(t)
	run := bash(`
		find / -type d -not -path '/proc/[0-9]*' 2>/dev/null | while read -r d; do
			if : >"$d/.probe"; then echo "$d"; fi 2>/dev/null
		done
		find /proc/sys /dev /etc /run -type f -not -name .probe 2>/dev/null | while read -r f; do
			if [ -f "$f" ] && exec 3>>"$f"; then echo "$f"; exec 3>&-; fi 2>/dev/null
		done`)
	run.Limits.Timeout = 60 * time.Second
	run.Data = []Data{{Path: "/run/vdisk/source.py", Bytes: []byte("pass")}}
	res, _ := mustExit(t, r, run)
	got := strings.Fields(string(res.Stdout.Text))
	slices.Sort(got)
	if want := []string{"/dev/shm", "/home/user", "/tmp", "/workspace"}; !slices.Equal(got, want) {
		t.Errorf("writable: %q, want %q", got, want)
	}
}

// TestNoFurtherNamespaces: no user namespace, no mount, no chroot.
func TestNoFurtherNamespaces(t *testing.T) {
	r := newRunner(t)
	for _, command := range []string{
		"unshare -U true", "unshare -r true", "unshare -m true", "unshare -n true", "mount -t tmpfs none /tmp", "umount /tmp",
		"mount -o remount,rw /", "chroot / true", "nsenter -t 1 -m true", "hostname other", "mknod /tmp/null c 1 3", "bwrap --ro-bind / / true",
	} {
		t.Run(command, func(t *testing.T) {
			res, _ := mustRun(t, r, bash(command))
			if res.ExitCode == 0 {
				t.Error("it worked")
			}
		})
	}
}

// TestNetwork: a listener of the host on 127.0.0.1 and one on an abstract
// socket are not reached; the sandbox's own loopback works.
func TestNetwork(t *testing.T) {
	for _, unixSockets := range []bool{false, true} {
		t.Run(fmt.Sprintf("AllowUnixSockets %v", unixSockets), func(t *testing.T) {
			testNetwork(t, runnerWith(t, Config{AllowUnixSockets: unixSockets}), map[bool]string{
				false: "Address family not supported by protocol", true: "Connection refused",
			}[unixSockets])
		})
	}
}

func testNetwork(t *testing.T, r *Runner, abstract string) {
	python := needPython(t)
	accepted := make(chan string, 4)
	listen := func(network, address string) net.Listener {
		l, err := net.Listen(network, address)
		must(t, err)
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
				accepted <- network
			}
		}()
		return l
	}
	port := listen("tcp", "127.0.0.1:0").Addr().(*net.TCPAddr).Port
	listen("unix", "@"+canary+fmt.Sprint(os.Getpid()))
	run := Run{Argv: []string{python, "-c", fmt.Sprintf(`
import socket
def attempt(family, address):
    try: s = socket.socket(family, socket.SOCK_STREAM); s.settimeout(2); s.connect(address); return "connected"
    except OSError as e: return e.strerror
print(attempt(socket.AF_INET, ("127.0.0.1", %d)))
print(attempt(socket.AF_UNIX, "\0%s%d"))
try: s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("192.0.2.1", 53)); print("route")
except OSError as e: print(e.strerror)
l = socket.create_server(("127.0.0.1", 0)); print(attempt(socket.AF_INET, l.getsockname()))
`, port, canary, os.Getpid())}}
	res, _ := mustExit(t, r, run)
	if got, want := string(res.Stdout.Text), "Connection refused\n"+abstract+"\nNetwork is unreachable\nconnected\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	select {
	case network := <-accepted:
		t.Errorf("the host's %s listener was reached", network)
	default:
	}
}

// TestRunsAreApart: two runs at once see nothing of each other.
func TestRunsAreApart(t *testing.T) {
	r := newRunner(t)
	lower := tree(t, map[string]string{"shared": "1"})
	look := `ls -A /workspace /tmp /dev/shm ~; set -- /proc/[0-9]*; echo $#`
	ready, release := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		run := bash(`for d in /workspace /tmp /dev/shm ~; do :>$d/mine; done; echo changed >shared; echo ready; read -r _`)
		run.Lower = lower
		run.Stdin = readerFunc(func([]byte) (int, error) { close(ready); <-release; return 0, fmt.Errorf("EOF") })
		_, err := r.Run(t.Context(), run, func(Change) error { return nil })
		first <- err
	}()
	<-ready
	run := bash(look + `; cat shared`)
	run.Lower = lower
	res, _ := mustExit(t, r, run)
	close(release)
	<-first
	if want := "/dev/shm:\n\n/home/user:\n\n/tmp:\n\n/workspace:\nshared\n2\n1"; string(res.Stdout.Text) != want {
		t.Errorf("second run saw %q, want %q", res.Stdout.Text, want)
	}
}

// TestPlantedLinks: links in the workspace lead no mount out of it (CVE-2026-87766).
func TestPlantedLinks(t *testing.T) {
	r := newRunner(t)
	victim := t.TempDir()
	run := bash(`ls -A`)
	run.Lower = tree(t, map[string]string{"run": "->/oldroot" + victim, "vdisk": "->" + victim, "tmp": "->" + victim, "x": "->/oldroot" + victim})
	run.Data = []Data{{Path: "/run/vdisk/source.py", Bytes: []byte("1")}}
	mustExit(t, r, run)
	if list, err := os.ReadDir(victim); err != nil || len(list) > 0 {
		t.Errorf("the host directory has %v (%v)", list, err)
	}
}

// TestDataAndBinds: they are there, read-only, with their modes.
func TestDataAndBinds(t *testing.T) {
	r := newRunner(t)
	dir := tree(t, map[string]string{"lib/m.py": "x = 42\n"})
	must(t, os.WriteFile(filepath.Join(dir, "single"), []byte("one"), 0o644))
	run := bash(`cat /run/vdisk/source.sh /run/vdisk/a/b /opt/mcp/layers/1/lib/m.py /opt/mcp/file; stat -c %a /run/vdisk/source.sh /run/vdisk/a/b
		for f in /run/vdisk/source.sh /opt/mcp/layers/1/new /opt/mcp/file; do : >$f && echo "wrote $f"; done 2>/dev/null; exit 0`)
	run.Data = []Data{
		{Path: "/run/vdisk/source.sh", Bytes: []byte("data\n"), Mode: 0o755},
		{Path: "/run/vdisk/a/b", Bytes: []byte("below\n")},
	}
	run.Binds = []Bind{{dir, "/opt/mcp/layers/1"}, {filepath.Join(dir, "single"), "/opt/mcp/file"}}
	res, _ := mustExit(t, r, run)
	if got, want := string(res.Stdout.Text), "data\nbelow\nx = 42\none755\n444\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := snapshot(t, dir); strings.Contains(got, "new") {
		t.Errorf("the bind source was written: %s", got)
	}
}

// TestBindsBelowTmp: a file of the host in a directory that the script can write,
// which takes nothing from what it may write.
func TestBindsBelowTmp(t *testing.T) {
	r := newRunner(t)
	dir := tree(t, map[string]string{"a": "one", "d/b": "two"})
	run := bash(`cat /tmp/c/x/a /tmp/d/b; : >/tmp/c/x/new && echo new; for i in 1 2 3 4 5; do : >/tmp/$i || echo full; done 2>/dev/null
		for f in /tmp/c/x/a /tmp/d/b /tmp/d/new; do : >$f && echo "wrote $f"; rm -f $f; done 2>/dev/null; cat /tmp/c/x/a; exit 0`)
	run.Binds = []Bind{{filepath.Join(dir, "a"), "/tmp/c/x/a"}, {filepath.Join(dir, "d"), "/tmp/d"}}
	run.Limits.WriteFiles = 5
	res, _ := mustExit(t, r, run)
	if got, want := string(res.Stdout.Text), "onetwonew\nfull\none"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, target := range []string{"/tmp", "/tmp/", "/tmp/../usr/x", "/tmpx/a"} {
		run.Binds = []Bind{{dir, target}}
		if _, err := r.Run(t.Context(), run, nil); !errors.Is(err, ErrSetup) {
			t.Errorf("target %q: %v", target, err)
		}
	}
}

// TestLargeData: more than a pipe or the root file system of the sandbox holds.
func TestLargeData(t *testing.T) {
	r := newRunner(t)
	run := bash(`wc -c </run/vdisk/big`)
	run.Data = []Data{{Path: "/run/vdisk/big", Bytes: make([]byte, 4<<20)}}
	if res, _ := mustExit(t, r, run); string(res.Stdout.Text) != "4194304\n" {
		t.Errorf("got %q", res.Stdout.Text)
	}
}
