package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun/prober"
)

const (
	shortTime = 300 * time.Millisecond // timeout of a script that is to reach it
	longTime  = 20 * time.Second       // of one that is not
	// graceTime is what an end may take beyond what it must. A kill takes some
	// 40 ms, and that of a fork bomb seconds where many others want the CPU, too.
	// A call that waits for what it left takes an hour.
	graceTime = 10 * time.Second
)

// daemons is a script that leaves five of them, each in a session of its own.
const daemons = `for i in 1 2 3 4 5; do (setsid sh -c 'trap "" TERM HUP INT; sleep $0; sleep $0' $0 &) ; done`

// script is a run of /bin/sh. $0 in it is a number of seconds, about an hour,
// that no other process of the host sleeps: by it what is left is found.
func (h *host) script(text string) sandboxrun.Run {
	return sandboxrun.Run{
		Argv:   []string{"/bin/sh", "-c", text, h.seconds()},
		Limits: sandboxrun.Limits{Timeout: longTime},
	}
}

// seconds is the mark of this round as a duration for sleep(1).
func (h *host) seconds() string { return "3600." + h.number }

// ends runs a script to an end that it does not choose and looks at once for
// what is left of it.
func ends(text string) func(context.Context, *host) (string, error) {
	return func(ctx context.Context, h *host) (string, error) {
		run := h.script(text)
		run.Limits.Timeout = shortTime
		return h.ending(ctx, run, shortTime)
	}
}

// ending runs and says how the run ended, that it was late if it was, and what
// it left.
func (h *host) ending(ctx context.Context, run sandboxrun.Run, most time.Duration) (string, error) {
	began := time.Now()
	res, err := h.Runner.Run(ctx, run, nil)
	took := time.Since(began)
	if err != nil && res.Outcome != sandboxrun.Cancelled {
		return "", err
	}
	got := string(res.Outcome)
	if took > most+graceTime {
		got += fmt.Sprintf(" after %.1f s", took.Seconds())
	}
	left, err := h.left()
	return fmt.Sprintf("%s, %d left", got, left), err
}

// left counts the processes of the host with our mark in their command line.
func (h *host) left() (int, error) {
	all, err := processes()
	n := 0
	for _, p := range all {
		if p.pid != os.Getpid() && strings.Contains(p.command, h.number) && !p.dead() {
			n++
		}
	}
	return n, err
}

func cancelled(ctx context.Context, h *host) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	run := h.script(daemons + `; echo ready; sleep $0`)
	run.Tap = func(sandboxrun.Stream, []byte) { cancel() }
	return h.ending(ctx, run, longTime)
}

func forkBomb(ctx context.Context, h *host) (string, error) {
	run, err := h.proberRun(prober.ModeBomb, h.number)
	if err != nil {
		return "", err
	}
	run.Limits.Timeout = shortTime
	return h.ending(ctx, run, shortTime)
}

// bystanders is how many processes of the same user run beside a script.
const bystanders = 60

// beside starts processes of the host that sleep. stop ends them and says how
// many were alive until then.
func beside(ctx context.Context, n int) (stop func() (int, error), err error) {
	var started []*exec.Cmd
	stop = func() (int, error) {
		all, err := processes()
		alive := 0
		for _, cmd := range started {
			if slices.ContainsFunc(all, func(p process) bool { return p.pid == cmd.Process.Pid && !p.dead() }) {
				alive++
			}
			cmd.Process.Kill()
			cmd.Wait()
		}
		return alive, err
	}
	for range n {
		cmd := exec.CommandContext(ctx, "sleep", "3600")
		cmd.Env = []string{}
		if err := cmd.Start(); err != nil {
			stop()
			return nil, err
		}
		started = append(started, cmd)
	}
	return stop, nil
}

// killAll has a process of the host beside a script that kills what it can.
func killAll(ctx context.Context, h *host) (string, error) {
	stop, err := beside(ctx, 1)
	if err != nil {
		return "", err
	}
	_, err = h.Runner.Run(ctx, h.script(`kill -9 -1; exit 0`), nil)
	alive, serr := stop()
	if alive == 1 {
		return "alive", errors.Join(err, serr)
	}
	return "killed", errors.Join(err, serr)
}

func floods(text string) func(context.Context, *host) (string, error) {
	return func(ctx context.Context, h *host) (string, error) {
		run := h.script(text)
		run.Limits.OutputMax = 1 << 20
		return h.ending(ctx, run, 0)
	}
}

func binaryOutput(ctx context.Context, h *host) (string, error) {
	res, err := h.Runner.Run(ctx, h.script(`printf '\000\377\001'`), nil)
	return strconv.Quote(string(res.Stdout.Text)), err
}

// exits runs a script and says how it ended.
func exits(text string) func(context.Context, *host) (string, error) {
	return func(ctx context.Context, h *host) (string, error) {
		res, err := h.Runner.Run(ctx, h.script(text), nil)
		if res.Outcome == sandboxrun.Signaled {
			return fmt.Sprintf("%s %s", res.Outcome, res.Signal), err
		}
		return fmt.Sprintf("%s %d", res.Outcome, res.ExitCode), err
	}
}

// setup says which kind of error a run that must not start has.
func (h *host) setup(ctx context.Context, r *sandboxrun.Runner, run sandboxrun.Run) (string, error) {
	res, err := r.Run(ctx, run, nil)
	switch {
	case errors.Is(err, sandboxrun.ErrSetup):
		return "setup failed", nil
	case errors.Is(err, sandboxrun.ErrUnavailable):
		return "unavailable", nil
	}
	return fmt.Sprintf("%s %d", res.Outcome, res.ExitCode), err
}

func missing(ctx context.Context, h *host) (string, error) {
	return h.setup(ctx, h.Runner, sandboxrun.Run{Argv: []string{"/usr/bin/no-such-interpreter"}})
}

func linkedWorkspace(ctx context.Context, h *host) (string, error) {
	link := filepath.Join(h.dir, "link")
	if err := os.Symlink(h.lower, link); err != nil {
		return "", err
	}
	run := h.script(`true`)
	run.Lower = link
	return h.setup(ctx, h.Runner, run)
}

func setuidBwrap(ctx context.Context, h *host) (string, error) {
	path := filepath.Join(h.dir, "bwrap")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
		return "", err
	}
	if err := os.Chmod(path, 0o755|os.ModeSetuid); err != nil {
		return "", err
	}
	r, err := sandboxrun.New(ctx, sandboxrun.Config{Bwrap: path})
	if err != nil {
		return "", err
	}
	defer r.Close()
	return h.setup(ctx, r, h.script(`true`))
}

// planted runs with everything that is mounted, over a workspace with links that
// lead out of it.
func planted(ctx context.Context, h *host) (string, error) {
	if strings.HasPrefix(h.dir, "/tmp/") {
		return "", errors.New("the stage hides /tmp, and there is no other directory to lead a link to")
	}
	run := h.script(`true`)
	run.Lower = h.lower
	run.Data = []sandboxrun.Data{{Path: "/run/vdisk/source.sh", Bytes: []byte("true\n")}}
	run.Binds = []sandboxrun.Bind{{Source: h.tmp, Target: "/opt/mcp/layer"}}
	if _, err := h.Runner.Run(ctx, run, nil); err != nil {
		return "", err
	}
	return names(h.victim)
}

// names lists a directory.
func names(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return strings.Join(list, ", "), err
}

// setuidLeft looks at what a script that makes such files has changed.
func setuidLeft(ctx context.Context, h *host) (string, error) {
	var found []string
	files := 0
	run := h.script(`for m in 4755 2755 6755; do echo x >f$m; chmod $m f$m; mkdir d$m; chmod $m d$m; done; exit 0`)
	_, err := h.Runner.Run(ctx, run, func(c sandboxrun.Change) error {
		files++
		if c.Mode&^0o777 != 0 {
			found = append(found, fmt.Sprintf("%s %o", c.Path, c.Mode))
		}
		return nil
	})
	if err == nil && files != 6 {
		err = fmt.Errorf("%d changes instead of 6", files)
	}
	return strings.Join(found, ", "), err
}

// apart lists where one run sees another: what it made, what it changed, its
// processes.
func apart(ctx context.Context, h *host) (string, error) {
	ready, release := make(chan struct{}), make(chan struct{})
	first := h.script(`for d in /workspace /tmp /dev/shm ~; do : >$d/mine; done; echo ready; read -r x; exit 0`)
	first.Lower, first.Stdin = h.lower, readerFunc(func([]byte) (int, error) { <-release; return 0, io.EOF })
	first.Tap = func(sandboxrun.Stream, []byte) { close(ready) }
	done := make(chan error, 1)
	go func() { _, err := h.Runner.Run(ctx, first, nil); done <- err }()
	var err error
	select {
	case <-ready:
	case err = <-done:
		close(release)
		return "", fmt.Errorf("the first of two runs ended: %w", err)
	}
	second := h.script(`for d in /workspace /tmp /dev/shm ~; do [ -e $d/mine ] && echo $d; done; cat /proc/[0-9]*/cmdline | grep -q ready && echo processes; exit 0`)
	second.Lower = h.lower
	second.Argv[2] = strings.ReplaceAll(second.Argv[2], "ready", "read[y]")
	res, err := h.Runner.Run(ctx, second, nil)
	close(release)
	return strings.Join(strings.Fields(string(res.Stdout.Text)), ", "), errors.Join(err, <-done)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// small are limits that are soon reached.
func small() sandboxrun.Limits {
	const mib = 1 << 20
	return sandboxrun.Limits{
		Timeout: longTime, WriteBytes: 2 * mib, WriteFiles: crowdLimit,
		TmpBytes: mib, ShmBytes: mib, HomeBytes: mib,
	}
}

// forks counts the processes that can be made, beside others.
func forks(ctx context.Context, h *host) (string, error) {
	stop, err := beside(ctx, bystanders)
	if err != nil {
		return "", err
	}
	defer stop()
	return h.answer(ctx, sandboxrun.Limits{Timeout: longTime}, prober.ModeForks)
}

// memory takes more than a run may have, where a control group counts it. Where
// only rlimits do, nothing is tried: it would be the host's memory.
func memory(kind string, mib, children int) func(context.Context, *host) (string, error) {
	return func(ctx context.Context, h *host) (string, error) {
		run, err := h.proberRun(prober.ModeMemory, kind, strconv.Itoa(mib), strconv.Itoa(children))
		if err != nil {
			return "", err
		}
		run.Limits = small()
		run.Limits.MemoryBytes = 64 << 20
		for _, l := range h.Runner.Limits() {
			if l.Resource == "memory" && l.By == sandboxrun.ByRlimit {
				return l.By, nil
			}
		}
		res, err := h.Runner.Run(ctx, run, nil)
		if res.Outcome == sandboxrun.Exited {
			return fmt.Sprintf("%s %d, %s of %d got it", res.Outcome, res.ExitCode, strings.TrimSpace(string(res.Stdout.Text)), children), err
		}
		return string(res.Outcome), err
	}
}

// answer is what the prober prints.
func (h *host) answer(ctx context.Context, l sandboxrun.Limits, args ...string) (string, error) {
	run, err := h.proberRun(args...)
	if err != nil {
		return "", err
	}
	run.Limits = l
	res, err := h.Runner.Run(ctx, run, nil)
	if err == nil && len(bytes.TrimSpace(res.Stdout.Text)) == 0 {
		err = fmt.Errorf("the prober ended with %s, exit %d: %s", res.Outcome, res.ExitCode, firstLine(res.Stderr.Text))
	}
	return strings.TrimSpace(string(res.Stdout.Text)), err
}

// watched stands for a limit on /workspace that is looked at ten times a second,
// because changes are kept on disk. That it ends a script is the rule host.limit.written.
const watched = "/workspace is watched"

// room lists the places that took more than they should, or that did not end
// with ENOSPC.
func room(ctx context.Context, h *host) (string, error) {
	l := small()
	sizes := map[string]int64{"/tmp": l.TmpBytes, "/dev/shm": l.ShmBytes, "/home/user": l.HomeBytes, "/workspace": l.WriteBytes}
	if h.onDisk {
		delete(sizes, "/workspace")
	}
	args := []string{prober.ModeFill}
	for dir := range sizes {
		args = append(args, dir)
	}
	out, err := h.answer(ctx, l, args...)
	if err != nil {
		return "", err
	}
	var found []string
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 3 {
			return "", fmt.Errorf("the prober wrote %q", line)
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil || n <= 0 || n > sizes[f[0]] || f[2] != "ENOSPC" {
			found = append(found, strings.Join(f, " "))
		}
		delete(sizes, f[0])
	}
	for dir := range sizes {
		return "", fmt.Errorf("the prober said nothing of %s", dir)
	}
	if len(found) == 0 && h.onDisk {
		return watched, nil
	}
	return strings.Join(found, ", "), nil
}

const (
	crowdLimit = 128  // files that may be made
	crowdSpare = 16   // that the overlay itself may take besides
	crowdMax   = 8192 // that are tried
)

func crowd(dir string) func(context.Context, *host) (string, error) {
	return func(ctx context.Context, h *host) (string, error) {
		out, err := h.answer(ctx, small(), prober.ModeCrowd, dir, strconv.Itoa(crowdMax))
		return strings.TrimPrefix(out, dir+" "), err
	}
}

// files makes more files in /workspace than a run may leave. Where their number is
// watched, the script must then be killed while it does nothing.
func files(ctx context.Context, h *host) (string, error) {
	if !h.onDisk {
		return crowd("/workspace")(ctx, h)
	}
	run := h.script(fmt.Sprintf(`i=0; while [ $i -lt %d ]; do : >f$i; i=$((i+1)); done; sleep $0`, 2*crowdLimit))
	run.Limits = small()
	res, err := h.Runner.Run(ctx, run, nil)
	if res.Outcome == sandboxrun.DiskLimit {
		return watched, err
	}
	return string(res.Outcome), err
}

func written(ctx context.Context, h *host) (string, error) {
	run := h.script(`i=0; while head -c 100000 /dev/zero >f$i; do i=$((i+1)); done; exit 1`)
	run.Limits = small()
	res, err := h.Runner.Run(ctx, run, nil)
	return string(res.Outcome), err
}

// notHere says why this host cannot show a rule either way. It is then skipped,
// and the run is OK without it.
type notHere string

func (n notHere) Error() string { return string(n) }

// control runs a probe in the naive sandbox and says "a failure" when the suite
// takes what was seen there for one.
func control(name string) func(context.Context, *host) (string, error) {
	return func(ctx context.Context, h *host) (string, error) {
		rule, err := ruleOf(name)
		if err != nil {
			return "", err
		}
		if err := h.controllable(ctx, name); err != nil {
			return "", err
		}
		seen, err := h.naiveOnce(ctx)
		if err != nil {
			return "", err
		}
		switch f := rule.observed(seen, nil); f.Status {
		case Failed:
			return "a failure", nil
		case Broken:
			return "", errors.New(f.Detail)
		default:
			return fmt.Sprintf("%s on %q", f.Status, f.Observed), nil
		}
	}
}

// ruleOf is the rule of a probe.
func ruleOf(name string) (hostRule, error) {
	for _, r := range hostRules() {
		if r.ID == "host."+name {
			return r, nil
		}
	}
	return hostRule{}, fmt.Errorf("no rule host.%s", name)
}
