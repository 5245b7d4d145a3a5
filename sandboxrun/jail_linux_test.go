package sandboxrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// jail is a jail that runs a script by bash.
func jail(script string) Jail {
	return Jail{Argv: []string{"/bin/bash", "--noprofile", "--norc", "-c", script}, Timeout: 20 * time.Second}
}

// mustJail runs a jail and fails the test unless the command exits with 0.
func mustJail(t *testing.T, r *Runner, j Jail) (JailResult, *changes) {
	t.Helper()
	var c changes
	j.Out = c.add
	res, err := r.Jail(t.Context(), j)
	if err != nil || res.Outcome != Exited || res.ExitCode != 0 {
		t.Fatalf("outcome %s, exit %d, error %v\nstdout: %s\nstderr: %s", res.Outcome, res.ExitCode, err, res.Stdout.Text, res.Stderr.Text)
	}
	return res, &c
}

// TestJailArgs keeps what the isolation rests on.
func TestJailArgs(t *testing.T) {
	j := Jail{Argv: []string{"/bin/true"}, Env: []string{"A=b"}, Binds: []Bind{{"/host/pip", "/opt/mcp/pip"}}}
	v := view{workspace: "/tmp/merged", binds: []string{"/tmp/b/0"}, data: []Data{{Path: "/run/vdisk/s", Mode: 0o400}}, firstData: 7, filter: 6,
		root: []string{"--ro-bind", "/usr", "/usr"}, rooms: []string{"/tmp/r/0"}, none: "/tmp/none", masked: []string{"/proc/keys"}}
	run := j.run()
	got := strings.Join(bwrapArgs(run, run.Limits.Filled(), v), " ")
	want := "--unshare-user --unshare-ipc --unshare-pid --unshare-uts --unshare-cgroup" +
		" --disable-userns --assert-userns-disabled --uid 1000 --gid 1000 --hostname sandbox" +
		" --die-with-parent --new-session --cap-drop ALL --clearenv" +
		" --setenv PATH /usr/local/bin:/usr/bin:/bin --setenv HOME /tmp --setenv TMPDIR /tmp --setenv LANG C.UTF-8 --setenv A b" +
		" --perms 0755 --size 1048576 --tmpfs / --ro-bind /usr /usr --perms 0400 --ro-bind-data 7 /run/vdisk/s" +
		" --dev /dev --bind /tmp/r/0 /tmp --ro-bind /tmp/b/0 /opt/mcp/pip --bind /tmp/merged /out" +
		" --remount-ro /dev --remount-ro / --chdir /out --seccomp 6"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if !slices.Contains(isolation, "--unshare-net") {
		t.Error("making the arguments of a jail has taken the network away from scripts")
	}
}

// TestJailSeesNothingOfTheHost: what a command in a jail looks for and may not find.
func TestJailSeesNothingOfTheHost(t *testing.T) {
	r := newRunner(t)
	t.Setenv("MCP_VDISK_CANARY", canary)
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte(canary), 0o644))
	res, _ := mustJail(t, r, jail(fmt.Sprintf(`
		for d in /root /home /var /run/user /run/systemd /mnt /media /srv /boot /sys /proc /workspace /etc/ssl/private /etc/pki/tls/private; do
			if [ -e $d ]; then echo SEEN $d; fi
		done
		cat %s 2>/dev/null
		read -r _ </etc/shadow && echo SHADOW
		env
		ls -A / /etc /run /tmp /dev/shm
		for p in 1 2 %d; do kill -0 $p 2>/dev/null && [ $p != $$ ] && [ $p != 1 ] && echo PROCESS $p; done
		id -u; exit 0`, secret, os.Getpid())))
	out := string(res.Stdout.Text)
	for _, word := range []string{canary, "MCP_VDISK", "SEEN", "SHADOW", "PROCESS", "machine-id"} {
		if strings.Contains(out, word) {
			t.Errorf("the output has %q:\n%s", word, out)
		}
	}
	if !strings.Contains(out, "HOME=/tmp\n") || !strings.HasSuffix(out, "1000\n") {
		t.Errorf("not the environment that is documented:\n%s", out)
	}
}

// TestJailWrites: nowhere but in /out and /tmp, and there no more than it may.
func TestJailWrites(t *testing.T) {
	r := newRunner(t)
	j := jail(`
		for d in / /etc /usr /usr/bin /run /run/vdisk /opt /opt/x /dev /dev/shm /etc/ssl/certs /out /tmp; do
			: 2>/dev/null >$d/new && echo $d
		done
		exit 0`)
	j.Binds = []Bind{{tree(t, map[string]string{"f": "x"}), "/opt/x"}}
	res, c := mustJail(t, r, j)
	if got := string(res.Stdout.Text); got != "/out\n/tmp\n" {
		t.Errorf("it can write to %q", got)
	}
	if want := []string{`file new 644 0 ""`}; !slices.Equal(c.lines, want) {
		t.Errorf("left %q, want %q", c.lines, want)
	}
	for name, script := range map[string]string{
		"bytes":    `head -c 3M /dev/zero >a`,
		"one file": `truncate -s 3M a`,
		"files":    `for i in {1..60}; do : >f$i || exit 1; done`,
		"tmp":      `head -c 17M /dev/zero >/tmp/a`,
	} {
		j := jail(script)
		j.OutBytes, j.OutFiles = 2<<20, 50
		if res, err := r.Jail(t.Context(), j); err != nil || res.Outcome == Exited && res.ExitCode == 0 {
			t.Errorf("%s: outcome %s, exit %d, error %v", name, res.Outcome, res.ExitCode, err)
		}
	}
}

// TestJailRefuses: what the filter and the namespaces keep from it.
func TestJailRefuses(t *testing.T) {
	needPython(t)
	// Scripts may have sockets of AF_UNIX here; a jail, in the network of the host, not.
	r := runnerWith(t, Config{AllowUnixSockets: true})
	listener, err := net.Listen("unix", "@"+canary)
	must(t, err)
	defer listener.Close()
	j := Jail{Argv: []string{"/usr/bin/python3", "-I", "-c", `
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(name, f):
    ctypes.set_errno(0)
    print(name, "ALLOWED" if f() >= 0 else os.strerror(ctypes.get_errno()))
call("ptrace", lambda: libc.ptrace(0, 0, 0, 0))
call("mount", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
call("unshare", lambda: libc.unshare(0x10000000))
call("setns", lambda: libc.setns(0, 0))
call("chroot", lambda: libc.chroot(b"/tmp"))
for family in (socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET):
    try:
        socket.socket(family, socket.SOCK_RAW if family != socket.AF_UNIX else socket.SOCK_STREAM).connect("\0` + canary + `")
        print("ALLOWED", family)
    except OSError as e:
        print(family.name, e.strerror)
`}}
	res, _ := mustJail(t, r, j)
	if out := string(res.Stdout.Text); strings.Contains(out, "ALLOWED") || strings.Count(out, "\n") != 8 {
		t.Errorf("%s", out)
	}
}

// TestJailNetwork: it reaches what the host reaches, and has the files for names
// and certificates.
func TestJailNetwork(t *testing.T) {
	needPython(t)
	r := newRunner(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { io.WriteString(w, "hello "+q.URL.Path) }))
	defer srv.Close()
	res, _ := mustJail(t, r, Jail{Argv: []string{"/usr/bin/python3", "-I", "-c", `
import socket, ssl, sys, urllib.request
print(urllib.request.urlopen(sys.argv[1] + "/x").read().decode())
print(socket.getaddrinfo("localhost", 80)[0][4][0] in ("127.0.0.1", "::1"))
print(open("/etc/nsswitch.conf").read().count("dns"))
`, srv.URL}})
	if got, want := string(res.Stdout.Text), "hello /x\nTrue\n1\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := os.Stat("/etc/ssl/certs/ca-certificates.crt"); err == nil {
		mustJail(t, r, jail(`test -s /etc/ssl/certs/ca-certificates.crt`))
	}
}

// TestNameData: resolv.conf may be a link into /run, be absent or be no file.
func TestNameData(t *testing.T) {
	for _, tc := range []struct {
		name string
		root map[string]string
		want string
	}{
		{"file", map[string]string{"etc/resolv.conf": "nameserver 9.9.9.9\n"}, "nameserver 9.9.9.9\n"},
		{"link", map[string]string{"run/systemd/resolve/stub-resolv.conf": "nameserver 127.0.0.53\n", "etc/resolv.conf": "->../run/systemd/resolve/stub-resolv.conf"}, "nameserver 127.0.0.53\n"},
		{"dangling", map[string]string{"etc/resolv.conf": "->../run/none"}, ""},
		{"absent", map[string]string{"etc/": ""}, ""},
		{"directory", map[string]string{"etc/resolv.conf/": ""}, ""},
		{"huge", map[string]string{"etc/resolv.conf": strings.Repeat("#", 1<<20+1)}, ""},
	} {
		data := nameData(tree(t, tc.root))
		if got := string(data[1].Bytes); data[1].Path != "/etc/resolv.conf" || got != tc.want {
			t.Errorf("%s: %s is %q, want %q", tc.name, data[1].Path, got, tc.want)
		}
		if string(data[0].Bytes) != etcHosts {
			t.Errorf("%s: hosts is %q", tc.name, data[0].Bytes)
		}
	}
}

// TestJailOnDisk: a large /out does not have to be memory.
func TestJailOnDisk(t *testing.T) {
	scratch := filepath.Join(t.TempDir(), "scratch")
	r := runnerWith(t, Config{Scratch: scratch})
	j := jail(`echo x >a; df --output=size -B1 . | tail -n 1`)
	j.OutBytes = jailMemory + 1
	res, c := mustJail(t, r, j)
	if strings.TrimSpace(string(res.Stdout.Text)) == fmt.Sprint(j.OutBytes) || len(c.lines) != 1 {
		t.Errorf("size %s, left %q", res.Stdout.Text, c.lines)
	}
	empty(t, scratch)
	if rep := r.Probe(t.Context()); rep.Upper != "tmpfs" {
		t.Errorf("scripts write to %s now", rep.Upper)
	}
}

// TestJailEnds: however it ends, at once and with nothing left.
func TestJailEnds(t *testing.T) {
	r := newRunner(t)
	before := footprintOf(t, r)
	j := jail(`(setsid sleep 300 &) ; sleep 300 & trap '' TERM; sleep 300`)
	j.Timeout = 300 * time.Millisecond
	if res, err := r.Jail(t.Context(), j); err != nil || res.Outcome != TimedOut {
		t.Errorf("outcome %s, error %v", res.Outcome, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	j.Timeout = 0
	if res, err := r.Jail(ctx, j); !errors.Is(err, context.DeadlineExceeded) || res.Outcome != Cancelled {
		t.Errorf("outcome %s, error %v", res.Outcome, err)
	}
	if res, err := r.Jail(t.Context(), jail(`yes`)); err != nil || res.Outcome != OutputLimit {
		t.Errorf("outcome %s, error %v", res.Outcome, err)
	}
	sameFootprint(t, r, before)
}

// TestJailIsRefused: what is a mistake of the caller, and a host without bubblewrap.
func TestJailIsRefused(t *testing.T) {
	r := newRunner(t)
	for name, j := range map[string]Jail{
		"no command":       {},
		"relative command": {Argv: []string{"true"}},
		"bind on usr":      {Argv: []string{"/bin/true"}, Binds: []Bind{{"/tmp", "/usr/x"}}},
		"bind on tmp":      {Argv: []string{"/bin/true"}, Binds: []Bind{{"/usr/share", "/tmp/x"}}},
		"data in out":      {Argv: []string{"/bin/true"}, Data: []Data{{Path: "/out/x"}}},
		"negative":         {Argv: []string{"/bin/true"}, OutBytes: -1},
		"no source":        {Argv: []string{"/bin/true"}, Binds: []Bind{{"/nowhere/at/all", "/opt/x"}}},
	} {
		if _, err := r.Jail(t.Context(), j); !errors.Is(err, ErrSetup) {
			t.Errorf("%s: %v", name, err)
		}
	}
	none := runnerWith(t, Config{Bwrap: "/nowhere/bwrap"})
	if _, err := none.Jail(t.Context(), jail(`true`)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without bubblewrap: %v", err)
	}
}

// TestJailerIsKilled: kill -9 of the process that runs a jail ends all of it, at
// whatever moment.
func TestJailerIsKilled(t *testing.T) {
	newRunner(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"=reaper", jailEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%s", out)
	r := newRunner(t)
	if left := runGroups(t); len(left) > 0 {
		t.Errorf("groups %q are left; %+v", left, r.Limits())
	}
}
