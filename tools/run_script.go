package tools

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/live"
)

type scriptArgs struct {
	Language string   `json:"language"`
	Source   *string  `json:"source"`
	Path     string   `json:"path"`
	Args     []string `json:"args"`
	Stdin    string   `json:"stdin"`
	TimeoutS int      `json:"timeout_s"`
	Commit   string   `json:"commit"`
}

// runScript runs a script on a copy-on-write view of the disk and saves what it
// changed as one commit, or nothing.
func (t *Tools) runScript(c *call) (work, error) {
	a, err := decode[scriptArgs](c)
	if err == nil {
		err = t.checkScript(a)
	}
	if err != nil {
		return nil, err
	}
	if a.Source != nil { // the intent then says what is going to run
		sum := sha256.Sum256([]byte(*a.Source))
		c.source = hex.EncodeToString(sum[:])
	}
	return func(ctx context.Context) (Result, error) { return t.runAlone(ctx, c, a) }, nil
}

// runAlone waits for the script's turn and runs it.
func (t *Tools) runAlone(ctx context.Context, c *call, a scriptArgs) (Result, error) {
	// The answer is due a fixed time after the receipt, the queue included.
	due := c.started.Add(MaxScript)
	waiting, stop := context.WithTimeout(ctx, t.cfg.Limits.Queue)
	done, err := t.gate.script(waiting)
	stop()
	if err != nil {
		if ctx.Err() != nil {
			return Result{}, context.Cause(ctx)
		}
		return Result{}, refuse(Busy, "try again when it has ended; one script runs at a time", "another script has been running on this disk for the last %s", t.cfg.Limits.Queue)
	}
	defer done()
	s := script{t: t, c: c, args: a, due: due}
	return s.run(ctx)
}

// checkScript checks how the arguments go together and how large they are.
func (t *Tools) checkScript(a scriptArgs) error {
	switch {
	case (a.Source == nil) == (a.Path == ""):
		return refuse(InvalidArgument, "give the script's text in source, or name a script file in path", "give either source or path")
	case a.Source != nil && int64(len(*a.Source)) > t.cfg.Limits.SourceBytes:
		return refuse(TooLarge, "write it to a file with write_file and name it in path", "source: is %s, and at most %s are taken", size(int64(len(*a.Source))), size(t.cfg.Limits.SourceBytes))
	case int64(len(a.Stdin)) > t.cfg.Limits.StdinBytes:
		return refuse(TooLarge, "write it to a file and let the script read that", "stdin: is %s, and at most %s are taken", size(int64(len(a.Stdin))), size(t.cfg.Limits.StdinBytes))
	}
	for i, arg := range a.Args {
		if strings.IndexByte(arg, 0) >= 0 {
			return refuse(InvalidArgument, "pass binary data in a file", "args[%d]: contains a NUL byte, which no program can be passed", i)
		}
	}
	if len(a.Args) > maxScriptArgs || total(a.Args) > maxArgBytes {
		return refuse(TooLarge, "pass long lists in stdin or a file", "args: at most %s of together %s are taken", thousands(maxScriptArgs), size(maxArgBytes))
	}
	return nil
}

// Limits of a script's arguments, well below the kernel's (execve(2)).
const (
	maxScriptArgs = 1000
	maxArgBytes   = 100_000
)

func total(list []string) (n int) {
	for _, s := range list {
		n += len(s)
	}
	return n
}

// script is one run_script call that has its turn.
type script struct {
	t    *Tools
	c    *call
	args scriptArgs
	due  time.Time

	spec  sandboxrun.Run
	live  *live.Generation // what the script sees, held while it runs
	base  uint64           // its commit
	quota int64            // bytes that the disk may hold
	stage *workspace.Stage
	diff  []workspace.Change
	bytes int64 // of the files in it
	bad   error // why the diff cannot be committed, whatever the outcome
	res   sandboxrun.Result
}

// run runs it and decides what becomes of its changes.
func (s *script) run(ctx context.Context) (Result, error) {
	if err := s.prepare(ctx); err != nil {
		return Result{}, err
	}
	defer s.live.Release()
	s.stage = s.t.cfg.Image.Stage(ctx)
	defer s.stage.Discard()
	res, err := s.t.cfg.Box.Run(ctx, s.spec, s.collect)
	if err != nil {
		return Result{}, err
	}
	s.res = res
	s.c.out.Outcome, s.c.out.Exit = string(res.Outcome), exitOf(res)
	return s.settle(ctx), nil
}

func exitOf(r sandboxrun.Result) *int {
	if r.Outcome != sandboxrun.Exited {
		return nil
	}
	code := r.ExitCode
	return &code
}

// prepare pins a view equal to the disk and builds the command.
func (s *script) prepare(ctx context.Context) error {
	if s.t.cfg.Box == nil || s.t.cfg.Live == nil {
		return sandboxError(sandboxrun.ErrUnavailable, SandboxUnavailable, "scripts cannot run here")
	}
	argv, data, err := s.command()
	if err != nil {
		return err
	}
	info, err := s.t.cfg.Image.Info()
	if err != nil {
		return err
	}
	s.quota = info.QuotaBytes
	if s.live, err = s.t.cfg.Live.Pin(ctx); err != nil {
		return err
	}
	s.base = s.live.Seq()
	limits := s.t.cfg.Limits.Script
	limits.Timeout = s.timeout()
	s.spec = sandboxrun.Run{
		Lower: s.live.Dir(), Argv: argv, Data: data, Limits: limits,
		Env: []string{"PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"},
	}
	if s.args.Stdin != "" {
		s.spec.Stdin = strings.NewReader(s.args.Stdin)
	}
	return nil
}

// timeout is how long the script may run: as long as was asked for and as is
// left until the answer is due, but a second at least.
func (s *script) timeout() time.Duration {
	d := s.t.cfg.Limits.Script.Timeout
	if s.args.TimeoutS > 0 {
		d = min(d, time.Duration(s.args.TimeoutS)*time.Second)
	}
	return min(d, max(s.due.Sub(s.t.now()), time.Second))
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
	python := s.t.cfg.Python.Path()
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
	s.c.source = hexDigest(n)
	// The real path of the file: it names the file also when its name is not
	// plain, and it cannot be taken for an option.
	file := workspace.Mount + "/" + p.Rel()
	if s.args.Language == "bash" {
		return append([]string{"/bin/bash", "--noprofile", "--norc", file}, s.args.Args...), nil, nil
	}
	return append([]string{python, "-s", file}, s.args.Args...), nil, nil
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

// settle commits the changes or says what was dropped.
func (s *script) settle(ctx context.Context) Result {
	save := s.args.Commit == "always" || s.args.Commit != "never" && s.success()
	txn := workspace.Txn{
		Message: "run_script " + s.args.Language, Base: s.base, Stage: s.stage, Changes: s.diff, DryRun: !save,
	}
	err := s.bad
	var done workspace.Commit
	if err == nil {
		done, err = s.t.commit(ctx, s.c, txn)
	}
	rep := report{s: s, effects: done.Effects, saved: save && err == nil, seq: done.Seq}
	if !save { // only told: nothing was to be saved
		rep.barred = err
		if err == nil {
			rep.barred = s.t.cfg.Policy.admit(done.Effects)
		}
	}
	rep.log()
	if err == nil || !save {
		return rep.result()
	}
	e := asError(err)
	e.Sentence = fmt.Sprintf("nothing was saved (%s): %s", rep.ending(), e.Sentence)
	r := errorResult(e, rep.output()...)
	r.Facts = rep.facts()
	return r
}

func (s *script) success() bool {
	return s.res.Outcome == sandboxrun.Exited && s.res.ExitCode == 0
}
