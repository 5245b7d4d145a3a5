package usertest

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Options say how the tests run for root.
type Options struct {
	// UID is the user, and the group, that root becomes.
	UID int
	// Env names the variables of the environment that the tests keep, besides
	// MCP_VDISK_SOAK: names, or patterns of path.Match such as "PIP_*". HOME, TMPDIR
	// and PATH are made for them in any case.
	Env []string
	// Update says that -update writes into testdata, which takes root and no sandbox.
	Update bool
	// Before is called with the command that runs the tests, and may add to it;
	// what it returns is called when that has ended. May be nil.
	Before func(cmd *exec.Cmd) (after func())
}

// Main runs the tests and returns the exit code: for root in this same test binary,
// started again as another user with a home and a temporary directory of its own
// and nothing of root's environment. Fuzzing, whose workers the user may not reach,
// stays root's, as it needs no sandbox.
func Main(m *testing.M, o Options) int {
	asRoot := slices.ContainsFunc(os.Args, func(a string) bool {
		return strings.HasPrefix(a, "-test.fuzz=") || strings.HasPrefix(a, "-test.fuzzworker") || o.Update && a == "-update"
	})
	if os.Geteuid() != 0 || asRoot {
		return m.Run()
	}
	code, err := asUser(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot drop root for the tests:", err)
		return 1
	}
	return code
}

func asUser(o Options) (int, error) {
	home, err := os.MkdirTemp("/tmp", "mcp-vdisk-test-")
	if err == nil {
		err = os.Chown(home, o.UID, o.UID)
	}
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(home)
	args, collect := movedFiles(home)
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = filepath.Base(os.Args[0])
	// Of two with one name the last counts.
	cmd.Env = append(kept(os.Environ(), append([]string{"MCP_VDISK_SOAK"}, o.Env...)), "HOME="+home, "TMPDIR="+home, "PATH=/usr/local/bin:/usr/bin:/bin")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: uint32(o.UID), Gid: uint32(o.UID), Groups: []uint32{}},
	}
	if o.Before != nil {
		if after := o.Before(cmd); after != nil {
			defer after()
		}
	}
	err = cmd.Run()
	collect()
	if cmd.ProcessState != nil {
		return cmd.ProcessState.ExitCode(), nil
	}
	return 0, err
}

// kept are the variables of an environment whose name is one of the patterns.
func kept(environ, patterns []string) (env []string) {
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if slices.ContainsFunc(patterns, func(p string) bool { ok, _ := path.Match(p, name); return ok }) {
			env = append(env, kv)
		}
	}
	return env
}

// movedFiles gives the files that go test asks for (logs, profiles) a place that
// the user can write, and returns what brings them where they belong.
func movedFiles(home string) (args []string, collect func()) {
	from := map[string]string{}
	for _, arg := range os.Args[1:] {
		flag, path, ok := strings.Cut(arg, "=")
		switch flag {
		case "-test.testlogfile", "-test.coverprofile", "-test.cpuprofile", "-test.memprofile", "-test.blockprofile", "-test.mutexprofile", "-test.trace":
			if ok && path != "" {
				moved := filepath.Join(home, flag)
				from[moved] = path
				arg = flag + "=" + moved
			}
		case "-test.gocoverdir":
			arg = flag + "=" + home
		}
		args = append(args, arg)
	}
	return args, func() {
		for moved, path := range from {
			if b, err := os.ReadFile(moved); err == nil {
				_ = os.WriteFile(path, b, 0o644)
			}
		}
	}
}
