package main_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The tests of this package are from outside: they build the program as the
// Makefile does, or take the one that MCP_VDISK_TEST_BIN names, and run it as a
// child, as root or as an ordinary user, whoever runs the tests. Root's servers
// give themselves up to another user, so whatever that user reads lies below
// directories that everybody may pass.

// program is the binary under test; scratch is the directory it lies in.
var program, scratch string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	syscall.Umask(0o022)
	// A server that is one process can be looked at as one. What the daemon does is
	// tested by those who ask for it, and by all in a run of their own.
	if !daemonMode() {
		os.Setenv("MCP_VDISK_NO_DAEMON", "1")
	}
	var err error
	if scratch, err = os.MkdirTemp("", "mcp-vdisk-test-"); err == nil {
		err = os.Chmod(scratch, 0o711)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer removeTree(scratch)
	defer endDaemons()
	if err := shareEnvs(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if program, err = built(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// shareEnvs lets all state directories have one environment root, so that the
// interpreter is made once and not by every test.
func shareEnvs() error {
	dir := filepath.Join(scratch, "envs")
	err := os.Mkdir(dir, 0o700)
	if err == nil && isRoot() {
		err = os.Chown(dir, 60700, 60700) // what servers of root become
	}
	if err == nil {
		err = os.Setenv("MCP_VDISK_ENVS", dir)
	}
	return err
}

// built returns the program. Where the Go tool or its caches are out of reach it
// comes built.
func built() (string, error) {
	if bin := os.Getenv("MCP_VDISK_TEST_BIN"); bin != "" {
		return filepath.Abs(bin)
	}
	bin := filepath.Join(scratch, "bin", "mcp-vdisk")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", bin, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return bin, nil
}

// removeTree removes a directory with what scripts left in it, directories
// without any rights included.
func removeTree(dir string) {
	filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	os.RemoveAll(dir)
}

// rounds is a count: the full one in a soak, a tenth by default, and a fortieth
// when the tests are run for the second time, as another user.
func rounds(full int) int {
	switch {
	case os.Getenv("MCP_VDISK_SOAK") == "1":
		return full
	case quick():
		return max(full/40, 1)
	}
	return max(full/10, 1)
}

func quick() bool { return os.Getenv("MCP_VDISK_QUICK") == "1" }

// daemonMode says that servers and commands go through daemons, as those of users do.
func daemonMode() bool { return os.Getenv("MCP_VDISK_TEST_DAEMON") == "1" }

// quiet ends the daemon of a state directory, if there is one, so that its files can
// be looked at.
func quiet(t testing.TB, state string) {
	t.Helper()
	if daemonMode() {
		stopDaemon(t, state)
	}
}

// endDaemons ends the daemons whose state directory lies below scratch.
func endDaemons() {
	for link := range openLinks() {
		file, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(file, scratch+"/") || filepath.Base(file) != "daemon.lock" {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(link, "/")[2]); err == nil && pid != os.Getpid() {
			syscall.Kill(pid, syscall.SIGTERM)
		}
	}
}

// openLinks gives the link in /proc of each file that a process of ours has open.
// Other programs are not looked at: they are many.
func openLinks() iter.Seq[string] {
	return func(yield func(string) bool) {
		lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, line := range lines {
			words, err := os.ReadFile(line)
			if err != nil || !bytes.HasPrefix(words, []byte("mcp-vdisk\x00")) && !bytes.HasPrefix(words, []byte(program+"\x00")) {
				continue
			}
			links, _ := filepath.Glob(filepath.Dir(line) + "/fd/*")
			for _, link := range links {
				if !yield(link) {
					return
				}
			}
		}
	}
}

func isRoot() bool { return os.Geteuid() == 0 }

// passable makes a directory that every user may pass and only we may list,
// unlike t.TempDir, which is ours alone.
func passable(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(scratch, "t-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			removeTree(dir)
		}
	})
	return dir
}

// newState names a state directory that does not exist yet.
func newState(t testing.TB) string {
	t.Helper()
	return filepath.Join(passable(t), "state")
}

// unique is a word that stands nowhere else on this host.
func unique() string { return "vdisk" + strings.ToLower(rand.Text()) }

// output is what a command of the program printed and how it ended.
type output struct {
	stdout, stderr string
	code           int
}

// command runs the program on a state directory and waits for it.
func command(t testing.TB, state string, args ...string) output {
	t.Helper()
	return commandWith(t, state, "", args...)
}

// commandWith is command with a standard input.
func commandWith(t testing.TB, state, stdin string, args ...string) output {
	t.Helper()
	cmd := exec.Command(program, append([]string{"--state", state}, args...)...)
	cmd.Dir = filepath.Dir(state)
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	return outputOf(t, cmd)
}

func outputOf(t testing.TB, cmd *exec.Cmd) output {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatalf("%v: %s", cmd.Args, err)
	}
	return output{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// asOwner makes a command, which may be root's, one of the owner of a state
// directory. That user's settings count then, and its environment reaches the back.
func asOwner(t testing.TB, state string, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	info, err := os.Stat(state)
	if err != nil {
		t.Fatal(err)
	}
	if isRoot() {
		id := uint32(ownerOf(info))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
	}
	return cmd
}

// must runs a command that has to succeed and returns its output.
func must(t testing.TB, state string, args ...string) string {
	t.Helper()
	out := command(t, state, args...)
	if out.code != 0 {
		t.Fatalf("mcp-vdisk %s: exit %d\n%s%s", strings.Join(args, " "), out.code, out.stdout, out.stderr)
	}
	return out.stdout
}

// within asks again and again until cond holds, and tells how long that took.
func within(t testing.TB, limit time.Duration, what string, cond func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Since(begin) > limit {
			t.Errorf("not within %s: %s", limit, what)
			break
		}
		<-tick.C
	}
	return time.Since(begin)
}

func uuidOf(t testing.TB, state, disk string) string {
	t.Helper()
	var f struct{ UUID string }
	if err := json.Unmarshal([]byte(must(t, state, "image", "show", disk, "--json")), &f); err != nil || f.UUID == "" {
		t.Fatal(f, err)
	}
	return f.UUID
}
