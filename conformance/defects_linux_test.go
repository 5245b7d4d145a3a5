package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"

	"golang.org/x/sys/unix"
)

// A defect is a sandbox with one defence taken out. It is made by a bubblewrap
// that edits the options before it becomes the real one, so that nothing of the
// program under test has to know of it.

// defectArg is the first argument of this test binary when it is that bubblewrap.
const defectArg = "mcp-vdisk-defect"

// defect says what is taken out, and which rules must see it.
type defect struct {
	name  string
	edit  func(args []string) []string
	env   []string             // of bubblewrap
	leak  bool                 // a descriptor is left open
	told  bool                 // a path of the host is among the arguments
	only  func(id string) bool // the rules to run; nil: those in fails
	fails []string             // these must fail
}

func defects() []defect {
	return []defect{
		{name: "none", edit: keep, fails: nil, only: func(id string) bool { return strings.HasPrefix(id, "host.proc.") }},

		// What must never come back. /proc/sys/kernel/core_pattern can only be opened
		// in a sandbox that root made: TestCorePattern of cmd/mcp-vdisk does.
		{name: "CVE-2026-87766", edit: add("--dir", "/workspace/planted/made"), fails: []string{"host.setup.planted_link"}},
		// /proc/1/environ
		{name: "environment of the server", edit: keep, env: []string{"SERVER_SECRET=1"}, fails: []string{"host.proc.environ"}},
		{name: "inherited descriptor", edit: keep, leak: true, fails: []string{"host.fd.inherited"}},
		{name: "socket in the workspace", edit: shareWorkspace, fails: []string{"host.net.workspace_socket"}},
		{name: "keys of the host", edit: without("--ro-bind", "/tmp/none", "/proc/keys"), fails: []string{"host.proc.host"}},
		{name: "command line of the boot", edit: without("--ro-bind", "/tmp/none", "/proc/cmdline"), fails: []string{"host.proc.host"}},
		{name: "writable proc", edit: without("--remount-ro", "/proc"), fails: []string{"host.proc.readonly"}},

		{name: "host network", edit: without("--unshare-net"), fails: []string{"host.ns.net", "host.net.interfaces", "host.net.host_listener", "host.net.contacts"}},
		{name: "host ipc", edit: without("--unshare-ipc"), fails: []string{"host.ns.ipc"}},
		{name: "host cgroup", edit: without("--unshare-cgroup"), fails: []string{"host.ns.cgroup"}},
		{name: "host name", edit: chain(without("--unshare-uts"), without("--hostname", "sandbox")), fails: []string{"host.ns.uts", "host.ns.hostname"}},
		{name: "further namespaces", edit: chain(unfiltered, without("--disable-userns"), without("--assert-userns-disabled")), fails: []string{"host.ns.unshare_user", "host.ns.clone_user"}},
		{name: "session of the stage", edit: without("--new-session"), fails: []string{"host.tty.session"}},
		{name: "other ids", edit: chain(without("--uid", "1000"), without("--gid", "1000")), fails: []string{"host.id.uid"}},
		{name: "capabilities", edit: chain(without("--cap-drop", "ALL"), add("--cap-add", "ALL")), fails: []string{"host.id.capabilities"}},
		{name: "writable root", edit: without("--remount-ro", "/"), fails: []string{"host.files.create"}},
		{name: "writable dev", edit: without("--remount-ro", "/dev"), fails: []string{"host.files.create"}},
		{name: "tmpfs without a size", edit: withoutSizes, fails: []string{"host.mount.sized", "host.limit.room"}},
		{name: "tmpfs of bubblewrap", edit: sizedTmpfs, fails: []string{"host.limit.tmp_files", "host.limit.shm_files", "host.limit.home_files"}},
		{name: "no home", edit: chain(without("--bind", "/tmp/r/2", "/home/user")), fails: []string{"host.files.writable"}},
		{name: "libraries of the host", edit: add("--ro-bind", "/var/lib", "/var/lib"), fails: []string{"host.files.var_lib"}},
		{name: "sys", edit: add("--ro-bind", "/sys", "/sys"), fails: []string{"host.files.sys"}},
		{name: "paths in the arguments", edit: keep, told: true, fails: []string{"host.proc.paths"}},
		{name: "no filter", edit: unfiltered, fails: []string{
			"host.id.seccomp", "host.ns.clone3", "host.call.keyctl", "host.call.io_uring_setup", "host.call.ptrace", "host.call.int80",
			"host.net.socket_unix", "host.net.pair_dgram", "host.tty.tioclinux", "host.files.setuid_chmod", "host.files.setuid_open",
		}},
	}
}

func keep(args []string) []string { return args }

func chain(edits ...func([]string) []string) func([]string) []string {
	return func(args []string) []string {
		for _, e := range edits {
			args = e(args)
		}
		return args
	}
}

func add(more ...string) func([]string) []string {
	return func(args []string) []string {
		// Before the mounts become read-only.
		i := slices.Index(args, "--remount-ro")
		return slices.Insert(args, max(i, 0), more...)
	}
}

// without takes words that stand side by side out.
func without(words ...string) func([]string) []string {
	return func(args []string) []string { return replace(args, words) }
}

// rooms are what the stage makes for a script besides the workspace.
var rooms = map[string]string{"/tmp/r/0": "/dev/shm", "/tmp/r/1": "/tmp", "/tmp/r/2": "/home/user"}

// withoutSizes has bubblewrap make a tmpfs for each of them, of any size.
func withoutSizes(args []string) []string {
	for room, path := range rooms {
		args = replace(args, []string{"--bind", room, path}, "--tmpfs", path)
	}
	return args
}

// sizedTmpfs does the same with a size in bytes.
func sizedTmpfs(args []string) []string {
	for room, path := range rooms {
		args = replace(args, []string{"--bind", room, path}, "--size", "1048576", "--tmpfs", path)
	}
	return args
}

// replace puts words in the place of others. The naive sandbox of the control does
// not have them all; that the sandbox has, the rules that must fail show.
func replace(args, words []string, by ...string) []string {
	for i := range args {
		if i+len(words) <= len(args) && slices.Equal(args[i:i+len(words)], words) {
			return slices.Replace(args, i, i+len(words), by...)
		}
	}
	return args
}

// unfiltered takes the system call filter out, where there is one.
func unfiltered(args []string) []string {
	if i := slices.Index(args, "--seccomp"); i >= 0 {
		return slices.Delete(args, i, i+2)
	}
	return args
}

// shareWorkspace shows the directory of the host itself instead of the overlay
// on it, and lets sockets be made.
func shareWorkspace(args []string) []string {
	dir := sharedWorkspace()
	if dir == "" {
		return args
	}
	args = unfiltered(args)
	i := slices.Index(args, "/workspace")
	args[i-1] = dir
	return args
}

// sharedWorkspace is the directory of the host, "" before the bait is laid out.
func sharedWorkspace() string {
	found, err := filepath.Glob("/var/tmp/mcp-vdisk-conform-*/workspace/" + baitSocket)
	if err != nil || len(found) == 0 {
		return ""
	}
	return filepath.Dir(found[0])
}

// init is where such a bubblewrap runs.
func init() {
	if len(os.Args) > 2 && os.Args[1] == defectArg {
		defectMain(os.Args[2], os.Args[3:])
	}
}

// defectMain edits the options and becomes bubblewrap.
func defectMain(name string, args []string) {
	err := func() error {
		i := slices.IndexFunc(defects(), func(m defect) bool { return m.name == name })
		if i < 0 {
			return errors.New("no such defect")
		}
		m := defects()[i]
		if len(args) > 2 && args[0] == "--args" {
			if err := editOptions(m); err != nil {
				return err
			}
			if dir := sharedWorkspace(); m.told && dir != "" {
				args = append([]string{"--ro-bind", dir, "/workspace"}, args...)
			}
		}
		return syscall.Exec("/usr/bin/bwrap", append([]string{"bwrap"}, args...), m.env)
	}()
	fmt.Fprintln(os.Stderr, "defect:", err)
	os.Exit(1)
}

// optionsFD is where the stage gives bubblewrap its options.
const optionsFD = 3

func editOptions(m defect) error {
	b, err := io.ReadAll(os.NewFile(optionsFD, "options"))
	if err != nil {
		return err
	}
	options := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
	var out bytes.Buffer
	for _, o := range m.edit(options) {
		out.WriteString(o + "\x00")
	}
	fd, err := unix.MemfdCreate("options", 0)
	if err == nil {
		_, err = unix.Write(fd, out.Bytes())
	}
	if err == nil {
		_, err = unix.Seek(fd, 0, io.SeekStart)
	}
	if err == nil && fd != optionsFD {
		err = unix.Dup3(fd, optionsFD, 0)
	}
	if !m.leak {
		unix.CloseOnExec(fd)
	}
	return err
}

// defectDir holds the wrappers. The stage mounts a tmpfs on /tmp, so that they
// have to be elsewhere.
var defectDir = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("/var/tmp", "defects-")
	if err != nil {
		return "", err
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "self"), self, 0o755)
})

// runner returns a sandbox whose bubblewrap has the defect.
func (m defect) runner(t *testing.T) *sandboxrun.Runner {
	t.Helper()
	dir, err := defectDir()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, strings.ReplaceAll(m.name, " ", "-"))
	script := fmt.Sprintf("#!/bin/sh\nexec %s/self %s '%s' \"$@\"\n", dir, defectArg, m.name)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	r, err := sandboxrun.New(t.Context(), sandboxrun.Config{Bwrap: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// TestDefencesTakenOut: each of them is missed by the rules that are about it,
// and a sandbox with all of them by none of these.
func TestDefencesTakenOut(t *testing.T) {
	needSandbox(t)
	t.Cleanup(func() {
		if dir, err := defectDir(); err == nil {
			os.RemoveAll(dir)
		}
	})
	for _, m := range defects() {
		t.Run(m.name, func(t *testing.T) {
			only := m.only
			if only == nil {
				only = func(id string) bool { return slices.Contains(m.fails, id) }
			}
			rep, err := RunHost(t.Context(), HostCase{Runner: m.runner(t), Only: only})
			if err != nil {
				t.Fatal(err)
			}
			if m.name == "CVE-2026-87766" && status(rep, "host.setup.planted_link") == Broken {
				t.Skipf("SKIP this bubblewrap refuses the mount by itself: %s", detail(rep, "host.setup.planted_link"))
			}
			for _, f := range rep.Findings {
				want := Passed
				if slices.Contains(m.fails, f.Rule) {
					want = Failed
				}
				if f.Status != want {
					t.Errorf("%s is %s, want %s: observed %q, %s", f.Rule, f.Status, want, f.Observed, f.Detail)
				}
			}
			if len(rep.Findings) < max(1, len(m.fails)) || rep.OK() != (len(m.fails) == 0) {
				t.Errorf("%d findings, OK is %t", len(rep.Findings), rep.OK())
			}
		})
	}
}

func finding(rep Report, id string) Finding {
	i := slices.IndexFunc(rep.Findings, func(f Finding) bool { return f.Rule == id })
	if i < 0 {
		return Finding{}
	}
	return rep.Findings[i]
}

func status(rep Report, id string) Status { return finding(rep, id).Status }

func detail(rep Report, id string) string { return finding(rep, id).Detail }

// needSandbox skips a test on a host without sandboxes.
func needSandbox(t *testing.T) *sandboxrun.Runner {
	t.Helper()
	r, err := sandboxrun.New(t.Context(), sandboxrun.Config{Group: testGroup})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	if rep := r.Probe(t.Context()); !rep.OK {
		t.Skipf("SKIP no sandbox on this host: %s; %s", rep.Cause, rep.Remedy)
	}
	return r
}
