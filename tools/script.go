package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/live"
)

// script is the work of a job.
type script struct {
	t    *Tools
	c    *call
	job  *job
	args scriptArgs

	setup pyenv.Setup // its Python
	spec  sandboxrun.Run
	base  uint64 // the commit that the script sees, and its id
	at    string
	quota int64 // bytes that the disk may hold
	stage *workspace.Stage
	diff  []workspace.Change
	bytes int64 // of the files in it
	bad   error // why the diff cannot be committed, whatever the outcome
	res   sandboxrun.Result
	ran   bool // the sandbox was set up
	file  *workspace.File
}

// run waits for its turn, runs the script and decides what becomes of its
// changes.
func (s *script) run(ctx context.Context) (Result, error) {
	defer func() {
		if s.stage != nil {
			_ = s.stage.Discard() // which does nothing once it was committed
		}
	}()
	err := s.execute(ctx)
	if ctx.Err() != nil {
		s.ran = true // it can be asked what it printed
		s.c.out.Outcome = string(sandboxrun.Cancelled)
		kept, lost := s.job.out.length()
		s.c.out.Bytes = kept + lost
	}
	if err != nil {
		return Result{}, err
	}
	s.c.out.Outcome, s.c.out.Exit = string(s.res.Outcome), exitOf(s.res)
	s.job.enter(jobLooks)
	r := s.settle(ctx)
	s.t.mark(MarkSettled)
	return r, nil
}

func exitOf(r sandboxrun.Result) *int {
	if r.Outcome != sandboxrun.Exited {
		return nil
	}
	code := r.ExitCode
	return &code
}

// execute runs the script on a directory that stays as it was at its start.
func (s *script) execute(ctx context.Context) error {
	if s.t.cfg.Box == nil || s.t.cfg.Live == nil {
		return sandboxError(sandboxrun.ErrUnavailable, SandboxUnavailable, "scripts cannot run here")
	}
	// Before its turn: while Python is being made, others may run.
	drop, err := s.getPython(ctx)
	if err != nil {
		return err
	}
	defer drop()
	leave, err := s.turn(ctx)
	if err != nil {
		return err
	}
	defer leave()
	s.job.enter(jobStarts)
	gen, err := s.prepare(ctx)
	if err != nil {
		return err
	}
	defer gen.Release()
	s.job.enter(jobRuns)
	s.stage = s.t.cfg.Image.Stage(ctx)
	s.stage.Hold(s.base) // also while its changes are kept
	s.t.mark(MarkPinned)
	s.res, err = s.t.cfg.Box.Run(ctx, s.spec, s.collect)
	s.t.mark(MarkRan)
	if errors.Is(err, sandboxrun.ErrCutOff) {
		s.t.cfg.Logger.Warn("a script was cut off", "err", err)
		s.spoil(&Error{Code: SetupFailed, Sentence: sandboxrun.ErrCutOff.Error() + "; what it had changed is lost, and nothing of it was saved",
			Hint: "run it again; if that happens again, tell the person: something on the host ends or stops the processes of mcp-vdisk", cause: err})
		err = nil
	}
	s.ran = err == nil
	return err
}

// getPython finds out which Python the script gets, whatever its language. It stays
// until drop is called.
func (s *script) getPython(ctx context.Context) (drop func(), err error) {
	if s.setup, drop, err = s.t.cfg.Python.Setup(ctx, s.t.streamName); err != nil {
		return nil, noPython(err)
	}
	s.c.env = pythonFacts(s.setup)
	return drop, nil
}

// noPython is why a script does not run where the operator wants its Python compared with
// what was made (env.verify).
func noPython(err error) error {
	var e *pyenv.Error
	if !errors.As(err, &e) {
		return err
	}
	hint := e.Hint
	if hint == "" || e.Code == pyenv.ErrChanged {
		hint = `the file tools work; tell the person to run "mcp-vdisk env ensure --repair", which makes it again, and "mcp-vdisk env doctor" to see what differs`
	}
	return &Error{Code: NotReady, Sentence: e.Sentence, Hint: hint, cause: err}
}

// pythonFacts is what the log says of a script's Python.
func pythonFacts(p pyenv.Setup) audit.Facts {
	f := audit.Facts{"python": cmp.Or(p.ID, p.Python)}
	if p.Base != "" {
		f["base"] = p.Base
	}
	if p.Lock != "" {
		f["lock"] = p.Lock
	}
	own := slices.DeleteFunc(slices.Clone(p.Layers), func(id string) bool { return id == p.Base })
	if len(own) > 0 { // the disk's, or in the place of the base
		f["layers"] = own
	}
	if len(p.Locks) > 0 {
		f["locks"] = p.Locks
	}
	return f
}

// turn waits until the script may run.
func (s *script) turn(ctx context.Context) (leave func(), err error) {
	waiting, stop := context.WithTimeout(ctx, s.t.cfg.Limits.Queue)
	defer stop()
	leave, err = s.t.jobs.turns.take(waiting, s.t.cfg.Box.Memory(s.t.cfg.Limits.Script))
	switch {
	case err == nil:
		return sync.OnceFunc(leave), nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, refuse(Busy, "wait for one of them to end, or stop one, and try again", "as many scripts as may run at once have been running here for the last %s", s.t.cfg.Limits.Queue)
}

// prepare pins the view of the disk and builds the command.
func (s *script) prepare(ctx context.Context) (*live.Generation, error) {
	info, err := s.t.cfg.Image.Info()
	if err != nil {
		return nil, err
	}
	s.quota = info.QuotaBytes
	gen, argv, data, err := s.pin(ctx)
	if err != nil {
		return nil, err
	}
	s.base, s.at = gen.Seq(), gen.Commit()
	limits := s.t.cfg.Limits.Script
	limits.Timeout = s.timeout()
	s.spec = sandboxrun.Run{
		Lower: gen.Dir(), Argv: argv, Data: append(data, s.setup.Data...), Limits: limits, Tap: s.job.out.tap,
		Binds: s.setup.Binds, Env: append([]string{"PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"}, s.setup.Env...),
	}
	if trace := s.t.cfg.Trace; trace != nil {
		s.spec.Trace = func(m sandboxrun.Mark, at time.Time) { trace(string(m), at) }
	}
	if s.args.Stdin != "" {
		s.spec.Stdin = strings.NewReader(s.args.Stdin)
	}
	return gen, nil
}

// pin finds a generation and the command to run on it. A script file is found in
// the newest commit; when that is ahead of the generation there is a newer one.
func (s *script) pin(ctx context.Context) (*live.Generation, []string, []sandboxrun.Data, error) {
	for range attempts {
		gen, err := s.t.cfg.Live.Pin(ctx)
		if err != nil {
			return nil, nil, nil, err
		}
		argv, data, err := s.command()
		if err == nil && (s.file == nil || s.file.Node().Version <= gen.Seq()) {
			return gen, argv, data, nil
		}
		gen.Release()
		if err != nil {
			return nil, nil, nil, err
		}
	}
	return nil, nil, nil, refuse(Busy, "try again", "other calls keep changing the script file")
}

// timeout is how long the script may run.
func (s *script) timeout() time.Duration {
	l := s.t.cfg.Limits
	if s.args.TimeoutS > 0 {
		return min(time.Duration(s.args.TimeoutS)*time.Second, l.MaxTimeout)
	}
	return l.Script.Timeout
}

// Where the source of a script that is no file of the disk lies in the sandbox.
const (
	pythonSource = "/run/vdisk/source.py"
	bashSource   = "/run/vdisk/source.sh"
)

// asIfInWorkspace runs the source as if it were a file in /workspace: that
// directory is first on sys.path, and the globals are those of a main module.
const asIfInWorkspace = `import sys
sys.argv[0] = __file__ = "` + pythonSource + `"
sys.path[0] = "/workspace"
with open(__file__, "rb") as f:
    source = f.read()
del f, sys
exec(compile(globals().pop("source"), __file__, "exec"))
`

// command is what runs in the sandbox and the data bound into it.
func (s *script) command() ([]string, []sandboxrun.Data, error) {
	python := s.setup.Python
	if s.args.Language == "python" && python == "" {
		return nil, nil, refuse(NotReady, "use language \"bash\", or tell the person to install Python 3 below /usr", "there is no Python on this host that the sandbox can see")
	}
	if s.args.Path != "" {
		return s.fileCommand(python)
	}
	if s.args.Language == "bash" {
		return append([]string{"/bin/bash", "--noprofile", "--norc", bashSource}, s.args.Args...),
			[]sandboxrun.Data{{Path: bashSource, Mode: 0o444, Bytes: []byte(*s.args.Source)}}, nil
	}
	return append([]string{python, "-s", "-c", asIfInWorkspace}, s.args.Args...),
		[]sandboxrun.Data{{Path: pythonSource, Mode: 0o444, Bytes: []byte(*s.args.Source)}}, nil
}

// fileCommand runs a file of the disk in place.
func (s *script) fileCommand(python string) ([]string, []sandboxrun.Data, error) {
	p, n, err := s.t.source(s.args.Path)
	if err != nil {
		return nil, nil, err
	}
	if n.Kind == workspace.KindDir {
		return nil, nil, refuse(IsADirectory, "name a script file in it", "%s is a directory", p)
	}
	if s.file, err = s.t.cfg.Image.OpenNode(p, n); err != nil {
		return nil, nil, err
	}
	s.c.source = hexDigest(n)
	// The real path of the file: it names the file also when its name is not
	// plain, and it cannot be taken for an option.
	file := workspace.Mount + "/" + p.Rel()
	if s.args.Language == "bash" {
		return append([]string{"/bin/bash", "--noprofile", "--norc", file}, s.args.Args...), nil, nil
	}
	return append([]string{python, "-s", file}, s.args.Args...), nil, nil
}

// source is the text that ran, for the commit. A file that is longer than a
// source may be is found in the disk's history.
func (s *script) source() ([]byte, error) {
	switch {
	case s.args.Source != nil:
		return []byte(*s.args.Source), nil
	case s.file == nil || s.file.Node().Size > s.t.cfg.Limits.SourceBytes:
		return nil, nil
	}
	return io.ReadAll(s.file.Reader())
}

// collect turns one entry of the overlay's upper directory into a change of the
// image. An entry that the image may not hold spoils the commit, not the run.
func (s *script) collect(ch sandboxrun.Change) error {
	p, err := workspace.FromBytes(ch.Path)
	if err != nil {
		s.spoil(err)
	}
	if s.bad != nil { // nothing can be committed any more
		return nil
	}
	w := workspace.Change{Path: p, Mode: ch.Mode | workspace.ModeSet, ModTime: ch.ModTime, Replace: true, Recursive: true}
	switch ch.Kind {
	case sandboxrun.Removed:
		w.Op = workspace.OpRemove
	case sandboxrun.Dir, sandboxrun.OpaqueDir:
		w.Op, w.Opaque = workspace.OpMkdir, ch.Kind == sandboxrun.OpaqueDir
	case sandboxrun.Symlink:
		w.Op, w.Target = workspace.OpSymlink, string(ch.Target)
	case sandboxrun.File:
		w.Op = workspace.OpPut
		// Sparse files and second links cost a script nothing, so the sizes
		// are checked before anything is read.
		if s.bytes += ch.Size; s.bytes > s.quota {
			s.spoil(&workspace.Error{Op: "commit", Path: p, Kind: workspace.ErrQuota, Detail: "what the script wrote is larger than the disk"})
			return nil
		}
		if w.Content, err = s.stage.Add(ch.Body); err != nil {
			s.spoil(err)
			return nil
		}
	default:
		return fmt.Errorf("unknown kind of change %v", ch.Kind)
	}
	s.diff = append(s.diff, w)
	return nil
}

// spoil keeps the first reason why the changes cannot be committed.
func (s *script) spoil(err error) {
	if s.bad == nil {
		s.bad = err
	}
}

// settle commits the changes, or keeps them for a while and says so.
func (s *script) settle(ctx context.Context) Result {
	rep := report{s: s, asked: s.args.Commit == "always" || s.args.Commit != "never" && s.success()}
	k, err := s.commit(ctx, &rep)
	if rep.saved = rep.asked && err == nil; rep.saved {
		s.job.savedAs(rep.change)
		return rep.result(nil)
	}
	var clash *conflict
	conflicts := errors.As(err, &clash)
	if conflicts && !rep.asked {
		rep.effects, err = clash.effects, nil // told when somebody asks to save them
	}
	if s.bad == nil && mayKeep(err) && (err != nil || rep.changed() > 0) {
		k.paths = cmp.Or(int(rep.changed()), len(k.changes))
		rep.kept = s.keep(k)
		rep.tooMuch = !rep.kept
	}
	return rep.result(err)
}

// commit saves the changes, or only looks what they would do.
func (s *script) commit(ctx context.Context, rep *report) (*kept, error) {
	k := &kept{
		stage: s.stage, changes: s.diff, base: s.base,
		message: "run_script " + s.args.Language, ending: s.ending(), digest: s.c.source,
	}
	if s.bad != nil {
		return k, s.bad
	}
	if len(s.diff) == 0 {
		if rep.asked {
			s.c.before, s.c.after = s.at, s.at
		}
		return k, nil
	}
	var err error
	if k.source, err = s.source(); err != nil {
		return k, err
	}
	rep.change, err = k.commit(ctx, s.t, s.c, !rep.asked)
	if err == nil && !rep.asked {
		err = s.t.cfg.Policy.admit(rep.effects)
	}
	return k, err
}

// keep leaves the changes to the job; it tells whether they are not too much.
func (s *script) keep(k *kept) bool {
	s.job.hold(k)
	s.stage, s.diff = nil, nil
	if s.t.jobs.keep(s.job, s.bytes+int64(len(k.changes))*keptEntry) {
		return true
	}
	s.job.discard()
	return false
}

// mayKeep tells whether changes that were not saved could be saved later.
func mayKeep(err error) bool {
	return err == nil || errors.Is(err, workspace.ErrVersionConflict) || errors.Is(err, workspace.ErrQuota) || errors.Is(err, workspace.ErrFenced)
}

func (s *script) success() bool {
	return s.res.Outcome == sandboxrun.Exited && s.res.ExitCode == 0
}

// ending is the outcome in words.
func (s *script) ending() string {
	res := s.res
	switch res.Outcome {
	case sandboxrun.Exited:
		return fmt.Sprintf("exit %d", res.ExitCode)
	case sandboxrun.Signaled:
		return "killed by " + res.Signal
	case sandboxrun.TimedOut:
		return "timed out after " + s.spec.Limits.Timeout.Round(10*time.Millisecond).String()
	case sandboxrun.OutputLimit:
		return "killed: more than " + size(s.spec.Limits.OutputMax) + " of output"
	case sandboxrun.MemoryLimit:
		return "killed: more than " + size(s.spec.Limits.MemoryBytes) + " of memory"
	case sandboxrun.PidsLimit:
		return fmt.Sprintf("exit %d, out of processes: at most %s processes and threads at a time", res.ExitCode,
			thousands(int64(s.spec.Limits.Processes)))
	case sandboxrun.DiskLimit:
		how := "killed"
		if res.ExitCode >= 0 {
			how = fmt.Sprintf("exit %d", res.ExitCode)
		}
		return fmt.Sprintf("%s, out of disk: at most %s and %s may be written in one run", how,
			size(s.spec.Limits.WriteBytes), plural(s.spec.Limits.WriteFiles, "file"))
	}
	return strings.ReplaceAll(string(res.Outcome), "_", " ")
}
