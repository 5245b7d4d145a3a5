package tools

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/oklog/ulid/v2"
)

type scriptArgs struct {
	Language     string   `json:"language"`
	Source       *string  `json:"source"`
	Path         string   `json:"path"`
	Args         []string `json:"args"`
	Stdin        string   `json:"stdin"`
	TimeoutS     int      `json:"timeout_s"`
	Commit       string   `json:"commit"`
	Job          *string  `json:"job"`
	Cancel       bool     `json:"cancel"`
	OutputOffset *int64   `json:"output_offset"`
}

// runScript runs a script on a copy-on-write view of the disk and saves what it
// changed as one commit, or nothing. With a job it asks for, stops or saves a run
// that was started before.
func (t *Tools) runScript(c *call) (work, error) {
	a, err := decode[scriptArgs](c)
	switch {
	case err != nil:
		return nil, err
	case a.Job != nil:
		return t.aboutJob(c, a)
	}
	if err := t.checkScript(a); err != nil {
		return nil, err
	}
	if a.Source != nil { // the intent then says what is going to run
		sum := sha256.Sum256([]byte(*a.Source))
		c.source = hex.EncodeToString(sum[:])
	}
	c.env = pythonFacts(t.cfg.Python.Expected(t.streamName))
	c.script = &script{t: t, c: c, args: a}
	return nil, nil
}

// checkScript checks how the arguments go together and how large they are.
func (t *Tools) checkScript(a scriptArgs) error {
	switch {
	case a.Cancel:
		return refuse(InvalidArgument, `name the job to stop, as in {"job":"…","cancel":true}`, "cancel: goes only with job")
	case a.OutputOffset != nil:
		return refuse(InvalidArgument, `name the job, as in {"job":"…","output_offset":0}`, "output_offset: goes only with job")
	case a.Language == "":
		return refuse(InvalidArgument, `give language, "python" or "bash", with source or path; or job for a script that was started before`, "language: is missing")
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

// aboutJob is a call about a run that was started before.
func (t *Tools) aboutJob(c *call, a scriptArgs) (work, error) {
	if err := a.checkJob(); err != nil {
		return nil, err
	}
	id, err := ulid.ParseStrict(*a.Job)
	if err != nil {
		return nil, refuse(InvalidArgument, "give it as a result of run_script showed it", "job: %q is no id of a job", short(*a.Job))
	}
	job := id.String()
	switch {
	case a.Cancel:
		// Whoever started a script may stop it, also when others hold the
		// right to change the disk by now.
		j := t.jobs.find(job)
		c.beside = j == nil || j.t == t
		return func(ctx context.Context) (Result, error) { return t.cancelJob(ctx, c, job) }, nil
	case a.Commit != "":
		return func(ctx context.Context) (Result, error) { return t.saveJob(ctx, c, job) }, nil
	}
	from := int64(0)
	if a.OutputOffset != nil {
		from = *a.OutputOffset
	}
	c.asks = true
	return func(ctx context.Context) (Result, error) { return t.awaitJob(ctx, c, job, from) }, nil
}

// checkJob checks what goes with a job.
func (a scriptArgs) checkJob() error {
	for _, other := range []struct {
		name  string
		given bool
	}{
		{"language", a.Language != ""}, {"source", a.Source != nil}, {"path", a.Path != ""}, {"args", a.Args != nil},
		{"stdin", a.Stdin != ""}, {"timeout_s", a.TimeoutS != 0},
	} {
		if other.given {
			return refuse(InvalidArgument, "leave job out to start another script", "%s: does not go with job, which names a script that was started before", other.name)
		}
	}
	switch {
	case a.Cancel && a.Commit != "":
		return refuse(InvalidArgument, "stop the job first, or save the changes of one that has ended", "cancel and commit do not go together")
	case (a.Cancel || a.Commit != "") && a.OutputOffset != nil:
		return refuse(InvalidArgument, "leave output_offset out", "output_offset: goes only with waiting for a job")
	case a.Commit != "" && a.Commit != "always":
		return refuse(InvalidArgument, `commit:"always" saves what the job did not`, "commit: with job only \"always\" has a meaning")
	}
	return nil
}
