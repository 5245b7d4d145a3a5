package sandboxrun

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Run runs one script and then calls each for every change that it made, in
// the order of a depth-first walk, directories before what is in them. By then
// every process of the sandbox is dead. It is called after a failure, a
// timeout or a kill as well. A nil each drops the changes.
//
// The error is nil when the script ran to an Outcome, also TimedOut or
// Signaled. Otherwise it is, and nothing may be kept of what each was given:
//   - a *SetupError: ErrSetup or ErrUnavailable;
//   - ErrRoot;
//   - ErrCutOff, wrapped: the command was started and did not get to its end. The
//     Result has its output and, as a Signaled: SIGKILL, or what it was being
//     killed for, its outcome; each was not called;
//   - what each returned, wrapped;
//   - context.Cause(ctx), wrapped, when ctx ended;
//   - an error of Run.Stdin, wrapped;
//   - ErrTooDeep or ErrStream.
//
// Run returns only when no process, mount, descriptor or file of the run is
// left. If this process dies, the kernel sees to the same.
//
// Once a command was started, Run leaves a stage for the next run: see Close.
func (r *Runner) Run(ctx context.Context, run Run, each func(Change) error) (Result, error) {
	res := Result{Outcome: SetupFailed, ExitCode: -1, Skipped: map[string]int{}}
	if os.Geteuid() == 0 {
		return res, fmt.Errorf("sandboxrun: %w", ErrRoot)
	}
	if err := run.check(); err != nil {
		return res, setupFailed("the run is not valid: "+err.Error(), "", "")
	}
	if err := ctx.Err(); err != nil {
		res.Outcome = Cancelled
		return res, fmt.Errorf("sandboxrun: %w", context.Cause(ctx))
	}
	b, err := r.find(ctx)
	if err != nil {
		return res, err
	}
	res, err = r.once(ctx, b, run, each)
	// The kernel lets nothing be started in a group: do without from now on.
	if helpedByNoGroup(err) {
		r.dropGroups(err.(*SetupError).Cause)
		res, err = r.once(ctx, b, run, each)
	}
	// Memory cannot hold the changes on this kernel: use the scratch directory
	// from now on. Another run may have found that out meanwhile.
	if helpedByDisk(err) && r.fallBack() {
		res, err = r.once(ctx, b, run, each)
	}
	return res, err
}

// once runs the script with the place for its changes as it is set, in a group
// if there is a place for one. A group that cannot be made is missed, and said
// so by Limits: the next run tries again.
func (r *Runner) once(ctx context.Context, b *bwrap, run Run, each func(Change) error) (Result, error) {
	g, err := r.newGroup(run.Limits.Filled())
	fault := ""
	if err != nil {
		fault = "the last run could not have a control group: " + errnoText(err)
	}
	r.noteGroup(fault)
	defer g.remove()
	return r.in(ctx, g, b, run, each)
}

// in runs the script in a group; nil is none. A stage that waited may have died
// before it did anything (the kernel kills one when memory runs out), or been
// stopped, which is nothing that a run need know of: it gets a new one.
func (r *Runner) in(ctx context.Context, g *group, b *bwrap, run Run, each func(Change) error) (Result, error) {
	stage, waited, err := r.stages.take()
	if err != nil {
		return Result{Outcome: SetupFailed, ExitCode: -1}, diagnoseStart(err, readFacts("/"))
	}
	word := setupTime
	if waited {
		word = wordTime
	}
	res, unheard, err := r.on(ctx, stage, word, g, b, run, each)
	if !waited || !unheard {
		return res, err
	}
	if stage, err = startStage(r.cfg.Self); err != nil {
		return res, diagnoseStart(err, readFacts("/"))
	}
	res, _, err = r.on(ctx, stage, setupTime, g, b, run, each)
	return res, err
}

// on runs the script on a stage, which it closes, and which has as long as word to
// say that it has its orders. unheard tells that the stage did not get further, so
// that nothing was done.
func (r *Runner) on(ctx context.Context, stage *stageProcess, word time.Duration, g *group, b *bwrap, run Run, each func(Change) error) (res Result, unheard bool, err error) {
	l := run.Limits.Filled()
	none := Result{Outcome: SetupFailed, ExitCode: -1}
	disk, drop, err := r.scratch(run.large())
	if err != nil {
		stage.close()
		return none, false, setupFailed("the scratch directory cannot be used: "+errnoText(err), "", "")
	}
	defer drop()
	data := append(run.etc(), run.Data...)
	sp := spec{
		Lower: run.Lower, Disk: disk, Bytes: uint64(l.WriteBytes), Inodes: uint64(l.WriteFiles),
		Bwrap: b.path, Command: append([]string{"bwrap", "--args", fmt.Sprint(bwrapArgsFD), "--"}, run.Argv...),
		Data: len(data), Rlimits: run.rlimits(l, g), Diff: each != nil,
	}
	v := view{workspace: mergedDir, data: data, firstData: bwrapDataFD, filter: bwrapFilterFD, root: run.root("/"), none: nonePath, masked: hostSecrets("/proc")}
	for i, p := range run.places(l) {
		sp.Rooms = append(sp.Rooms, room{uint64(p.perms), uint64(p.bytes), uint64(p.files + run.pointsBelow(p.path))})
		v.rooms = append(v.rooms, fmt.Sprintf("%s/%d", roomDir, i))
	}
	for i, bind := range run.Binds {
		sp.Binds = append(sp.Binds, bind.Source)
		v.binds = append(v.binds, fmt.Sprintf("%s/%d", bindDir, i))
	}
	args := append(bwrapArgs(run, l, v), "--info-fd", fmt.Sprint(bwrapInfoFD),
		"--json-status-fd", fmt.Sprint(bwrapStatusFD), "--block-fd", fmt.Sprint(bwrapBlockFD))
	s, err := openSession(stage, sp, bwrapInput{args, r.filterOf(run), data}, run, l, g)
	if err != nil {
		return none, stage.err == nil, diagnoseStart(err, readFacts("/"))
	}
	res, err = s.run(ctx, word, run, l, each)
	if s.hasStarted() {
		r.stages.leave()
	}
	return res, err != nil && !s.heard && s.why() == "", err
}

// leastSpace is the least limit on address space: programs reserve far more
// than they use.
const leastSpace = 4 << 30

// rlimits are set on the first process of the sandbox and inherited by all.
// The CPU limit can only be reached by a process that outlived the timeout.
// Address space is limited only where no group limits memory.
func rlimits(l Limits, memory bool) []rlimit {
	cpu := uint64(l.Timeout.Seconds())*uint64(max(1, runtime.NumCPU())) + 1
	list := []rlimit{
		{unix.RLIMIT_NPROC, l.Processes},
		{unix.RLIMIT_NOFILE, l.OpenFiles},
		{unix.RLIMIT_CORE, 0},
		{unix.RLIMIT_MEMLOCK, 64 << 10},
		{unix.RLIMIT_CPU, cpu},
	}
	if !memory {
		list = append(list, rlimit{unix.RLIMIT_AS, uint64(max(l.MemoryBytes, leastSpace))})
	}
	return list
}

// run follows the session to its end.
func (s *session) run(ctx context.Context, word time.Duration, run Run, l Limits, each func(Change) error) (Result, error) {
	supervised := make(chan struct{})
	go func() {
		defer close(supervised)
		s.supervise(ctx, word, l.Timeout)
	}()
	ended := false
	defer func() {
		if !ended { // each has panicked
			close(s.done)
			<-supervised
			_ = s.close()
		}
	}()
	g, e, err := s.follow(each)
	ended = true
	if err == nil {
		// The stage has said all; what is left of it is taking its mounts down.
		<-s.stage.exited
		s.mark(MarkGone, time.Now)
	}
	close(s.done)
	<-supervised
	crash := s.stage.crash()
	stdinErr := s.close()
	res := Result{
		Outcome: SetupFailed, ExitCode: -1, Duration: g.Took, Skipped: map[string]int{},
		Stdout: s.output[Stdout].output(), Stderr: s.output[Stderr].output(),
	}
	if s.why() == Cancelled {
		res.Outcome = Cancelled
		return res, fmt.Errorf("sandboxrun: %w", context.Cause(ctx))
	}
	oom := s.group.outOfMemory()
	if err != nil {
		if oom && !s.hasStarted() {
			res.Outcome = MemoryLimit // not even the sandbox fitted
			return res, nil
		}
		err = s.explain(err, crash)
		if errors.Is(err, ErrCutOff) {
			s.cutOff(&res)
		}
		return res, err
	}
	if !g.Execed && !g.Killed && !g.Crashed && !oom {
		text := string(res.Stderr.Text)
		res.Stderr = Output{}
		return res, diagnose(text, run.Argv[0], readFacts("/"))
	}
	s.tap.finish()
	s.settle(&res, g, e, oom)
	if stdinErr != nil {
		return res, fmt.Errorf("sandboxrun: %w", stdinErr)
	}
	if e.TooDeep {
		return res, fmt.Errorf("sandboxrun: %w", ErrTooDeep)
	}
	return res, nil
}

// follow reads the report of the stage and calls each.
func (s *session) follow(each func(Change) error) (g gone, e end, err error) {
	f := newFrameReader(s.stage.socket)
	for wait := true; wait; {
		kind, payload, err := f.next()
		if err != nil {
			return g, e, err
		}
		s.heard = s.heard || kind != frameTaken
		switch kind {
		case frameTaken:
			s.take.Do(func() { close(s.taken) })
		case frameMark:
			m, at, err := parseMark(payload)
			if err != nil {
				return g, e, err
			}
			s.mark(m, func() time.Time { return fromMonotonic(at) })
		case frameReleased:
			s.release.Do(func() {
				s.letGo = time.Now()
				close(s.released)
			})
		case frameGone:
			if g, err = parseGone(payload); err != nil {
				return g, e, err
			}
			wait = false
		case frameFailed:
			fl, err := parseFailure(payload)
			if err != nil {
				return g, e, err
			}
			return g, e, fl
		default:
			return g, e, fmt.Errorf("%w: unexpected frame %q", ErrStream, kind)
		}
	}
	close(s.gone)
	d := diffReader{f: f}
	for {
		c, e, more, err := d.next()
		if err != nil || !more {
			s.mark(MarkRead, time.Now)
			return g, e, err
		}
		if each == nil {
			return g, e, fmt.Errorf("%w: changes that nobody asked for", ErrStream)
		}
		if err := each(c); err != nil {
			return g, e, &callerError{err}
		}
	}
}

// callerError is an error of the callback.
type callerError struct{ err error }

func (e *callerError) Error() string { return "change refused: " + e.err.Error() }
func (e *callerError) Unwrap() error { return e.err }

// explain turns what ended the report into the error of Run.
func (s *session) explain(err error, crash string) error {
	var caller *callerError
	var setup *SetupError
	var fl failure
	switch {
	case errors.As(err, &caller):
		return fmt.Errorf("sandboxrun: %w", err)
	case errors.As(err, &setup):
		return err
	case s.hasStarted() && !s.hasGone():
		return fmt.Errorf("sandboxrun: %w (%s): %s", ErrCutOff, cmp.Or(string(s.why()), "nobody asked for it"), cmp.Or(crash, err.Error()))
	case s.stuck:
		return setupFailed("the sandbox did not start or did not end in time", "look for processes that hang in the kernel (state D)", crash)
	case errors.As(err, &fl):
		return diagnoseStep(fl, readFacts("/"))
	}
	if !s.hasGone() {
		return setupFailed("the stage of the sandbox ended without a report", "if memory ran out, free some and try again", crash)
	}
	return fmt.Errorf("sandboxrun: %w", err)
}

// cutOff is the outcome of a command whose end nobody saw: that for which it was
// being killed, else that it was killed.
func (s *session) cutOff(res *Result) {
	res.Duration = time.Since(s.letGo)
	if res.Outcome = s.why(); res.Outcome == "" || res.Outcome == SetupFailed {
		res.Outcome, res.Signal, res.ExitCode = Signaled, "SIGKILL", 128+int(syscall.SIGKILL)
	}
}

// settle decides the outcome. The flood of output is judged by the count, so
// that it does not depend on who was faster, the script or the kill; so is the
// lack of memory, whatever the script made of it.
func (s *session) settle(res *Result, g gone, e end, oom bool) {
	for kind, n := range map[string]uint64{"fifo": e.FIFO, "socket": e.Socket, "device": e.Devices} {
		if n > 0 {
			res.Skipped[kind] = int(n)
		}
	}
	switch {
	case s.drained.Load() > s.outputMax:
		res.Outcome = OutputLimit
	case oom:
		res.Outcome = MemoryLimit
	case g.DiskFull:
		res.Outcome = DiskLimit
	case g.Killed:
		res.Outcome = s.why()
	case g.Crashed:
		res.Outcome, res.Signal, res.ExitCode = Signaled, "SIGKILL", 128+int(syscall.SIGKILL)
	default:
		s.settleCode(res, int(g.Code), e.Full)
	}
}

// settleCode decides the outcome of a command that ended by itself. A lack of
// room is the outcome only when the command failed: one that coped has exited.
// It shows in a file system that is full to the last page, or, where the
// kernel took a file back that did not fit, only in what the command says. A
// lack of processes is judged alike, by the count of the group.
func (s *session) settleCode(res *Result, code int, full bool) {
	res.Outcome, res.ExitCode = Exited, code
	if sig := fatalSignal(code); sig != "" {
		res.Outcome, res.Signal = Signaled, sig
	}
	switch {
	case code == 0:
	case full || bytes.Contains(res.Stderr.Text, []byte(noSpace)):
		res.Outcome = DiskLimit
	case s.group.outOfPids():
		res.Outcome = PidsLimit
	}
}

// hasStarted tells whether the command was let go.
func (s *session) hasStarted() bool { return isClosed(s.released) }

// hasGone tells whether the stage has said how the command ended.
func (s *session) hasGone() bool { return isClosed(s.gone) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// noSpace is how programs word ENOSPC, with a capital N or without.
const noSpace = "o space left on device"

// notFatal are signals that end no process.
var notFatal = []syscall.Signal{syscall.SIGCHLD, syscall.SIGCONT, syscall.SIGSTOP, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGURG, syscall.SIGWINCH}

// fatalSignal returns the name of the signal that an exit code of 128 + n
// stands for, "" if there is none. bwrap and shells report a death by signal
// like this, so a command that says "exit 139" cannot be told from one.
func fatalSignal(code int) string {
	sig := syscall.Signal(code - 128)
	if sig < 1 || sig > 31 || slices.Contains(notFatal, sig) {
		return ""
	}
	return unix.SignalName(sig)
}
