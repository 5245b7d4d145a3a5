package sandboxrun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// probeTime bounds each step of Probe.
const probeTime = 10 * time.Second

// Probe tries what a run needs, in parts, so that the cause can be told: the
// stage with its overlay alone, bubblewrap with the production options alone,
// a whole run, and, where groups can be made, a run that is looked at while it
// is in one. It leaves nothing on the host,
// and no stage for a run to come.
func (r *Runner) Probe(ctx context.Context) Report {
	rep := Report{Level: "L1", Kernel: kernel(), Upper: "tmpfs"}
	b, err := r.find(ctx)
	if err == nil {
		rep.Bwrap, rep.Version = b.path, b.version
	}
	if os.Geteuid() == 0 {
		err = fmt.Errorf("sandboxrun: %w", ErrRoot)
	}
	if err != nil {
		rep.blame("bubblewrap", err)
		rep.Limits = r.Limits()
		return rep
	}
	r.DropSpare() // what is tried is a start
	defer r.DropSpare()
	for _, step := range []struct {
		name string
		try  func(context.Context) error
	}{{"stage", r.tryStage}, {"bubblewrap", r.tryBwrap}, {"sandbox", r.tryRun}} {
		ctx, cancel := context.WithTimeout(ctx, probeTime)
		err := step.try(ctx)
		cancel()
		if err != nil {
			rep.blame(step.name, err)
			continue
		}
		rep.Checks = append(rep.Checks, Check{Name: step.name, OK: true})
	}
	if rep.Cause == "" && len(r.places()) > 0 {
		rep.Checks = append(rep.Checks, r.checkLimits(ctx))
	}
	rep.Limits = r.Limits()
	if r.onDisk() {
		rep.Upper = "disk"
	}
	if rep.Cause == "" {
		rep.OK, rep.Level = true, "L3"
	}
	return rep
}

// blame adds a failed check; the first one gives the cause.
func (rep *Report) blame(name string, err error) {
	c := Check{Name: name, Detail: err.Error()}
	var se *SetupError
	cause, remedy, steps := strings.TrimPrefix(err.Error(), "sandboxrun: "), "", ""
	if errors.As(err, &se) {
		cause, remedy, steps, c.Detail = se.Cause, se.Remedy, se.Steps, se.Stderr
	}
	if errors.Is(err, ErrRoot) {
		remedy = "run mcp-vdisk as an ordinary user, or with --run-as"
	}
	if rep.Cause == "" {
		rep.Cause, rep.Remedy, rep.Steps = cause, remedy, steps
	}
	if c.Detail == "" {
		c.Detail = cause
	}
	rep.Checks = append(rep.Checks, c)
}

func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// tryStage runs the self-test of the stage.
func (r *Runner) tryStage(ctx context.Context) error {
	err := r.selfTest(ctx)
	if helpedByDisk(err) && r.fallBack() {
		err = r.selfTest(ctx)
	}
	return err
}

func (r *Runner) selfTest(ctx context.Context) error {
	disk, drop, err := r.scratch(false)
	if err != nil {
		return setupFailed("the scratch directory cannot be used: "+errnoText(err), "", "")
	}
	defer drop()
	l := Limits{Timeout: probeTime}.Filled()
	stage, err := startStage(r.cfg.Self)
	if err != nil {
		return diagnoseStart(err, readFacts("/"))
	}
	s, err := openSession(stage, spec{Disk: disk, Bytes: 1 << 20, Inodes: 256}, bwrapInput{}, Run{}, l, nil)
	if err != nil {
		return diagnoseStart(err, readFacts("/"))
	}
	stop := context.AfterFunc(ctx, func() { s.abort(Cancelled) })
	kind, payload, err := newFrameReader(s.stage.socket).next()
	if !stop() {
		err = setupFailed("the sandbox did not start in time", "", "")
	}
	if err == nil && kind == frameFailed {
		var f failure
		if f, err = parseFailure(payload); err == nil {
			err = f
		}
	}
	close(s.done)
	crash := s.stage.crash()
	if cerr := s.close(); err == nil {
		err = cerr
	}
	if err != nil {
		return s.explain(err, crash)
	}
	return nil
}

// tryBwrap runs bubblewrap without the stage.
func (r *Runner) tryBwrap(ctx context.Context) error {
	var stderr bytes.Buffer
	err := r.runBare(ctx, Run{Argv: []string{"/usr/bin/env", "true"}}, &stderr)
	if err != nil {
		return diagnose(stderr.String(), "/usr/bin/env", readFacts("/"))
	}
	return nil
}

// tryRun runs everything as a script is run.
func (r *Runner) tryRun(ctx context.Context) error {
	res, err := r.Run(ctx, Run{Argv: []string{"/usr/bin/env", "true"}, Limits: Limits{Timeout: probeTime}}, func(Change) error { return nil })
	if err == nil && (res.Outcome != Exited || res.ExitCode != 0) {
		err = setupFailed(fmt.Sprintf("a test command in the sandbox ended with %s (exit %d)", res.Outcome, res.ExitCode), "", string(res.Stderr.Text))
	}
	return err
}

// checkLimits runs a command in a group and looks whether the group has it and
// is limited. If not, groups are given up: what does not hold is not said to.
func (r *Runner) checkLimits(ctx context.Context) Check {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	err := r.tryLimits(ctx)
	if err == nil {
		return Check{Name: "limits", OK: true}
	}
	text := strings.TrimPrefix(err.Error(), "sandboxrun: ")
	if ctx.Err() == nil {
		r.dropGroups("a test run was not held by its control group: " + text)
	}
	return Check{Name: "limits", Detail: text}
}

func (r *Runner) tryLimits(ctx context.Context) error {
	l := Limits{Timeout: probeTime}.Filled()
	g, err := r.newGroup(l)
	if err != nil {
		return bare(err)
	}
	defer g.remove()
	b, err := r.find(ctx)
	if err != nil {
		return err
	}
	// The command waits for its input, which is asked for once it runs.
	var held error
	run := Run{Argv: []string{"/usr/bin/env", "cat"}, Limits: l, Stdin: readerFunc(func([]byte) (int, error) {
		held = g.check(l)
		return 0, io.EOF
	})}
	res, err := r.in(ctx, g, b, run, nil)
	if err == nil && (res.Outcome != Exited || res.ExitCode != 0) {
		err = fmt.Errorf("a test command ended with %s (exit %d)", res.Outcome, res.ExitCode)
	}
	return errors.Join(err, held)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
