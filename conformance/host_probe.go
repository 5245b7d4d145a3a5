package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun/prober"
)

// insidePath is where the prober stands in a sandbox.
const insidePath = "/run/vdisk/prober"

// proberTime is the time for all probes. They take less than a second.
const proberTime = 30 * time.Second

// probeSandbox runs the prober in the sandbox under test.
func (h *host) probeSandbox(ctx context.Context, rules []hostRule) (map[string]prober.Observation, error) {
	order, err := h.marshalOrder(rules)
	if err != nil {
		return nil, err
	}
	run, err := h.proberRun(prober.ModeProbe)
	if err != nil {
		return nil, err
	}
	run.Lower = h.lower
	run.Stdin = bytes.NewReader(order)
	run.Limits.Timeout = proberTime
	// A descriptor that our parent forgot to close is there to be inherited.
	release, err := h.forgotten()
	if err != nil {
		return nil, err
	}
	defer release()
	res, err := h.Runner.Run(ctx, run, nil)
	if err != nil {
		return nil, err
	}
	seen, err := observations(res.Stdout.Text)
	if err == nil && (res.Outcome != sandboxrun.Exited || res.ExitCode != 0) {
		err = fmt.Errorf("the prober ended with %s, exit %d: %s", res.Outcome, res.ExitCode, firstLine(res.Stderr.Text))
	}
	return seen, err
}

// proberRun is a run of the prober.
func (h *host) proberRun(args ...string) (sandboxrun.Run, error) {
	self, err := h.self()
	return sandboxrun.Run{
		Argv: append([]string{insidePath, prober.Arg}, args...),
		Data: []sandboxrun.Data{{Path: insidePath, Mode: 0o555, Bytes: self}},
	}, err
}

func (h *host) marshalOrder(rules []hostRule) ([]byte, error) {
	var names []string
	for _, r := range rules {
		names = append(names, r.probe())
	}
	o, err := h.order(names)
	if err != nil {
		return nil, err
	}
	return json.Marshal(o)
}

// forgotten leaves a descriptor open across an exec until it is released.
func (h *host) forgotten() (release func(), err error) {
	f, err := os.Open(h.canary)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return prober.Inherited(f)
}

// observations reads what the prober said, up to the first line that is not his.
func observations(out []byte) (map[string]prober.Observation, error) {
	seen := map[string]prober.Observation{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var o prober.Observation
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return seen, fmt.Errorf("the prober wrote %s", strconv.Quote(firstLine(lines.Bytes())))
		}
		seen[o.ID] = o
	}
	return seen, lines.Err()
}

func firstLine(b []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return line[:min(len(line), 200)]
}

// naivePath is where the prober stands in the naive sandbox: the only directory
// that bubblewrap can put something into without making a name on the host.
const naivePath = "/dev/mcp-vdisk-prober"

// ofRoot are files that only root can get at. Root's naive sandbox would show
// them, an ordinary user's never does, so that there something of the user's own
// stands in their place.
var ofRoot = map[string]string{"files.shadow": "/etc/shadow", "proc.core_pattern": "/proc/sys/kernel/core_pattern"}

// naiveFlags are those of a sandbox as it is often made: it has a look of one.
func naiveFlags(fd int, standIn string) []string {
	args := []string{"--bind", "/", "/", "--dev", "/dev", "--unshare-pid", "--proc", "/proc", "--die-with-parent"}
	for _, path := range ofRoot {
		if exists(path) {
			args = append(args, "--bind", standIn, path)
		}
	}
	return append(args,
		"--perms", "0555", "--ro-bind-data", strconv.Itoa(fd), naivePath,
		"--", naivePath, prober.Arg, prober.ModeProbe)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// ofKernel are the controlled probes of calls that a host may refuse to
// everybody: its kernel has them not, or a container around us forbids them.
var ofKernel = []string{"call.keyctl", "net.socket_vsock"}

// controllable says whether a probe can fail on this host at all; the error is
// notHere if it cannot. The program that tries it outside of any sandbox is this
// one, whatever the prober is.
func (h *host) controllable(ctx context.Context, name string) error {
	if path, ok := ofRoot[name]; ok && !exists(path) {
		return notHere("this host has no " + path)
	}
	if !slices.Contains(ofKernel, name) {
		return nil
	}
	rule, err := ruleOf(name)
	if err != nil {
		return err
	}
	order, err := h.marshalOrder([]hostRule{rule})
	if err != nil {
		return err
	}
	var out bounded
	cmd := exec.CommandContext(ctx, "/proc/self/exe", prober.Arg, prober.ModeProbe)
	cmd.Env = []string{}
	cmd.Stdin, cmd.Stdout = bytes.NewReader(order), &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the probe %s outside of a sandbox: %w", name, err)
	}
	seen, err := observations(out)
	if err == nil && rule.observed(seen, nil).Status == Passed {
		err = notHere("this host refuses it outside of a sandbox, too: " + seen[name].Got)
	}
	return err
}

// naiveOnce runs the controlled probes in the naive sandbox, once in a round.
func (h *host) naiveOnce(ctx context.Context) (map[string]prober.Observation, error) {
	if !h.naiveDone {
		h.naiveDone = true
		var rules []hostRule
		for _, name := range controlled {
			r, err := ruleOf(name)
			if err != nil {
				return nil, err
			}
			rules = append(rules, r)
		}
		h.naive, h.naiveErr = h.probeNaive(ctx, rules)
	}
	return h.naive, h.naiveErr
}

// probeNaive runs the prober in the naive sandbox.
func (h *host) probeNaive(ctx context.Context, rules []hostRule) (map[string]prober.Observation, error) {
	order, err := h.marshalOrder(rules)
	if err != nil {
		return nil, err
	}
	program, err := h.proberFile()
	if err != nil {
		return nil, err
	}
	defer program.Close()
	forgotten, err := os.Open(h.canary)
	if err != nil {
		return nil, err
	}
	defer forgotten.Close()
	ctx, cancel := context.WithTimeout(ctx, proberTime)
	defer cancel()
	var out, complaint bounded
	done := make(chan error, 1)
	go func() {
		// The sandbox dies with the thread that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd := exec.CommandContext(ctx, h.bwrap, naiveFlags(3, h.canary)...)
		cmd.Env = append(os.Environ(), "MCP_VDISK_CONTROL="+h.mark)
		cmd.Dir = "/"
		cmd.ExtraFiles = []*os.File{program, forgotten}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(order), &out, &complaint
		cmd.WaitDelay = time.Second
		done <- cmd.Run()
	}()
	if err := <-done; err != nil {
		return nil, fmt.Errorf("the control did not run: %w: %s", err, firstLine(complaint))
	}
	return observations(out)
}

// bounded keeps the output of a process that should not say much, and makes the
// next write fail when it does.
type bounded []byte

func (b *bounded) Write(p []byte) (int, error) {
	if len(*b)+len(p) > 1<<20 {
		return 0, errors.New("it writes without end")
	}
	*b = append(*b, p...)
	return len(p), nil
}

// proberFile is the program as a file to read.
func (h *host) proberFile() (*os.File, error) {
	self, err := h.self()
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(h.dir, "prober-")
	if err != nil {
		return nil, err
	}
	_, err = f.Write(self)
	if err == nil {
		_, err = f.Seek(0, 0)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
