package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// trial is one rule being tried on a backend. As with a test, a rule ends where
// it calls fail, broken or unsupported; one that returns has passed. All three
// are for the goroutine of the rule only.
type trial struct {
	*backendSuite
	ctx     context.Context
	cleanup []func()

	status Status
	reason Reason
	detail string
}

// trial runs the check of a rule in a goroutine of its own.
func (s *backendSuite) trial(ctx context.Context, r backendRule) (Status, Reason, string) {
	if ctx.Err() != nil {
		return Broken, "", context.Cause(ctx).Error()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, ruleTime, errors.New("the rule took too long"))
	defer cancel()
	t := &trial{backendSuite: s, ctx: ctx, status: Broken, detail: "the rule did not end"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer t.tidy()
		defer func() {
			if p := recover(); p != nil {
				t.status, t.detail = Broken, fmt.Sprint("panic: ", p)
			}
		}()
		r.check(t)
		t.status, t.detail = Passed, ""
	}()
	// A rule waits for nothing without end, and neither does this.
	hung := time.NewTimer(2 * ruleTime)
	defer hung.Stop()
	select {
	case <-done:
		return t.status, t.reason, oneLine(t.detail)
	case <-hung.C:
		return Broken, "", "the rule did not end"
	}
}

// tidy undoes what the rule has set up, the last first.
func (t *trial) tidy() {
	for i := len(t.cleanup) - 1; i >= 0; i-- {
		t.cleanup[i]()
	}
}

// fail ends the rule: the backend breaks it.
func (t *trial) fail(format string, args ...any) { t.stop(Failed, "", format, args...) }

// broken ends the rule: it could not be tried.
func (t *trial) broken(format string, args ...any) { t.stop(Broken, "", format, args...) }

// unsupported ends the rule: this host cannot show it.
func (t *trial) unsupported(format string, args ...any) {
	t.stop(Skipped, UnsupportedHere, format, args...)
}

func (t *trial) stop(s Status, r Reason, format string, args ...any) {
	t.status, t.reason, t.detail = s, r, fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// must breaks the rule on an error of the suite's own.
func (t *trial) must(err error) {
	if err != nil {
		t.broken("%v", err)
	}
}

// maxDetail is the most bytes of a detail; what a command wrote is part of it.
const maxDetail = 400

func oneLine(s string) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "?")), " ")
	if len(s) > maxDetail {
		s = strings.ToValidUTF8(s[:maxDetail], "") + " ..."
	}
	return s
}

// errHung is the error of a call that did not return.
var errHung = errors.New("the call did not return in time")

// guard makes a call of the backend. A panic becomes an error, and so does a
// call that has not returned after limit, which is left behind.
func guard[T any](limit time.Duration, call func() (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	c := make(chan answer, 1)
	go func() {
		var a answer
		defer func() {
			if p := recover(); p != nil {
				a.err = fmt.Errorf("panic: %v", p)
			}
			c <- a
		}()
		a.err = errors.New("the call ended its goroutine")
		a.v, a.err = call()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a := <-c:
		return a.v, a.err
	case <-timer.C:
		var none T
		return none, errHung
	}
}

// tryCreate makes a handle, which is closed when the rule ends.
func (t *trial) tryCreate(s sandboxrun.Spec) (sandboxrun.Handle, error) {
	h, err := guard(t.c.Grace, func() (sandboxrun.Handle, error) { return t.b.Create(t.ctx, s) })
	if err == nil && h == nil {
		err = errors.New("no handle and no error")
	}
	if err == nil {
		t.cleanup = append(t.cleanup, func() { _ = t.close(h) })
	}
	return h, err
}

// create makes a handle or breaks the rule. change may be nil.
func (t *trial) create(change func(*sandboxrun.Spec)) sandboxrun.Handle {
	s := t.spec
	if change != nil {
		change(&s)
	}
	h, err := t.tryCreate(s)
	if err != nil {
		t.broken("create: %v", err)
	}
	return h
}

// close closes a handle, also when ctx of the rule has ended.
func (t *trial) close(h sandboxrun.Handle) error {
	_, err := guard(t.c.Grace, func() (struct{}, error) {
		return struct{}{}, t.b.Close(context.WithoutCancel(t.ctx), h)
	})
	return err
}

// usualTimeout is the timeout of commands that are to end by themselves.
const usualTimeout = 20 * time.Second

// try runs a command and gives its error back.
func (t *trial) try(ctx context.Context, h sandboxrun.Handle, r sandboxrun.Request) (sandboxrun.Result, error) {
	if r.Timeout == 0 {
		r.Timeout = usualTimeout
	}
	return guard(r.Timeout+t.c.Grace, func() (sandboxrun.Result, error) { return t.b.Execute(ctx, h, r) })
}

// run runs a command. An error breaks the rule.
func (t *trial) run(h sandboxrun.Handle, r sandboxrun.Request) sandboxrun.Result {
	res, err := t.try(t.ctx, h, r)
	if err != nil {
		t.broken("execute: %v", err)
	}
	return res
}

// sh runs a shell script. An error breaks the rule.
func (t *trial) sh(h sandboxrun.Handle, script string, args ...string) sandboxrun.Result {
	return t.run(h, sandboxrun.Request{Argv: shell(script, args...)})
}

// ok runs a shell script that must succeed for the rule to mean something, and
// returns its standard output.
func (t *trial) ok(h sandboxrun.Handle, script string, args ...string) string {
	res := t.sh(h, script, args...)
	if !succeeded(res) {
		t.broken("control: %q ended with %s", script, ending(res))
	}
	return string(res.Stdout.Text)
}

// artifacts collects. An error breaks the rule.
func (t *trial) artifacts(h sandboxrun.Handle) []sandboxrun.Artifact {
	list, err := t.tryArtifacts(h)
	if err != nil {
		t.broken("artifacts: %v", err)
	}
	return list
}

func (t *trial) tryArtifacts(h sandboxrun.Handle) ([]sandboxrun.Artifact, error) {
	return guard(t.c.Grace, func() ([]sandboxrun.Artifact, error) { return t.b.Artifacts(t.ctx, h) })
}

// pending is a command under way.
type pending struct {
	done chan struct{}
	res  sandboxrun.Result
	err  error
}

// start runs a command in the background. The handle is closed, and the command
// waited for, when the rule ends.
func (t *trial) start(ctx context.Context, h sandboxrun.Handle, r sandboxrun.Request) *pending {
	p := &pending{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.res, p.err = t.try(ctx, h, r)
	}()
	t.cleanup = append(t.cleanup, func() {
		_ = t.close(h)
		<-p.done
	})
	return p
}

// ended reports whether the command has ended. Before that its result must not
// be looked at.
func (p *pending) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// wait waits for a command under way, for at most the grace.
func (t *trial) wait(p *pending) bool { return t.within(p.ended) }

// join waits for a command under way, or breaks the rule.
func (t *trial) join(p *pending) {
	if !t.wait(p) {
		t.broken("the command did not end")
	}
}

// within asks every few milliseconds until the answer is yes, for at most the grace.
func (t *trial) within(yes func() bool) bool {
	end := time.NewTimer(t.c.Grace)
	defer end.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !yes() {
		select {
		case <-tick.C:
		case <-end.C:
			return yes()
		case <-t.ctx.Done():
			return false
		}
	}
	return true
}

// tempDir makes a directory of the host that sandboxes may be able to read.
func (t *trial) tempDir() string {
	dir, drop, err := sandboxrun.TempDir("", "mcp-vdisk-conformance-")
	t.must(err)
	t.cleanup = append(t.cleanup, func() { _ = drop() })
	t.must(os.Chmod(dir, 0o755))
	return dir
}

// shell is a command line for a script of the shell.
func shell(script string, args ...string) []string {
	return append([]string{"/bin/sh", "-c", script, "sh"}, args...)
}

func succeeded(r sandboxrun.Result) bool { return r.Outcome == sandboxrun.Exited && r.ExitCode == 0 }

// ending tells how a command ended.
func ending(r sandboxrun.Result) string {
	return fmt.Sprintf("%s, exit %d, signal %q, stdout %.80q, stderr %.80q", r.Outcome, r.ExitCode, r.Signal, r.Stdout.Text, r.Stderr.Text)
}
