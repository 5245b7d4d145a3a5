package resolve

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// Pip is a pip that can be run in a jail; see FindTool. It may be used by any number
// of goroutines at once: each of their jails is another.
type Pip struct {
	Box     *sandboxrun.Runner
	Python  *python.Interpreter
	Dir     string // on the host, with the package pip in it; "" for one of the host's own
	Version string
	Lacks   string // a sentence on what an older pip cannot do, "" for nothing

	Temp string // directory for files that are on their way; "" is os.TempDir

	host    *hostPip      // for Dir == ""
	timeout time.Duration // of a resolution; 0 is resolveTime
}

// hostPip is a pip below /usr, which a jail shows.
type hostPip struct {
	python string // absolute path
	where  string // what to import it from, "" for what that Python has itself
}

const (
	jailPip = "/opt/mcp/pip"
	runPath = "/run/vdisk/run.py"
	askPath = "/run/vdisk/ask.py"

	// resolveTime is how long a resolution may take.
	resolveTime = 180 * time.Second
	maxReport   = 64 << 20
)

//go:embed run.py
var runPy []byte

//go:embed ask.py
var askPy []byte

// limit is how long a resolution may take.
func (p *Pip) limit() time.Duration {
	if p.timeout > 0 {
		return p.timeout
	}
	return resolveTime
}

// Name is "pip/26.2.1", as locks have it.
func (p *Pip) Name() string { return "pip/" + p.Version }

// atLeast says whether the version is that or a newer one.
func (p *Pip) atLeast(version string) bool {
	have, err := spec.ParseVersion(p.Version)
	want, werr := spec.ParseVersion(version)
	return err == nil && werr == nil && have.Compare(want) >= 0
}

// job is one command in a jail.
type job struct {
	script  string // runPath or askPath
	args    []string
	data    []sandboxrun.Data
	config  Config
	timeout time.Duration
	space   int64
	out     func(name string, size int64, body io.Reader) error // each file below /out
}

// run runs a job. The error is an *Error, or wraps the cause of ctx.
func (p *Pip) run(ctx context.Context, j job) (sandboxrun.JailResult, error) {
	if err := j.config.check(); err != nil {
		return sandboxrun.JailResult{}, err
	}
	jail := sandboxrun.Jail{
		Env: j.config.env(), Timeout: j.timeout, OutBytes: j.space, OutFiles: 20_000, Head: 64 << 10, Tail: 256 << 10,
		Data: append([]sandboxrun.Data{
			{Path: runPath, Bytes: runPy}, {Path: askPath, Bytes: askPy},
			{Path: confPath, Mode: 0o400, Bytes: j.config.file()},
		}, j.data...),
		Out: func(c sandboxrun.Change) error {
			if c.Kind != sandboxrun.File || j.out == nil {
				return nil
			}
			return j.out(string(c.Path), c.Size, c.Body)
		},
	}
	interpreter, where := python.Executable, jailPip
	if p.Dir != "" {
		jail.Binds = append(jail.Binds, sandboxrun.Bind{Source: p.Dir, Target: jailPip})
	} else {
		interpreter, where = p.host.python, p.host.where
	}
	if p.Python != nil {
		jail.Binds = append(jail.Binds, sandboxrun.Bind{Source: p.Python.Dir, Target: python.Prefix})
	}
	if err := j.config.readable(); err != nil {
		return sandboxrun.JailResult{}, err
	}
	for i, dir := range j.config.dirs() {
		jail.Binds = append(jail.Binds, sandboxrun.Bind{Source: dir, Target: fmt.Sprintf("%s/%d", linksPath, i)})
	}
	for path, b := range map[string][]byte{certPath: j.config.Cert, clientPath: j.config.ClientCert} {
		if b != nil {
			jail.Data = append(jail.Data, sandboxrun.Data{Path: path, Mode: 0o400, Bytes: b})
		}
	}
	jail.Argv = append([]string{interpreter, "-I", j.script, where}, j.args...)
	res, err := p.Box.Jail(ctx, jail)
	if err != nil {
		return res, jailError(ctx, err)
	}
	return res, nil
}

// common are the options of every pip command. Options of the configuration are in
// its file, where no other user of the host can read them.
func common(command string, more ...string) []string {
	return append([]string{"--isolated", "--disable-pip-version-check", "--no-input", "--no-color", "--no-cache-dir",
		command, "--only-binary", ":all:", "--progress-bar", "off"}, more...)
}

// keep returns a function for job.out that keeps one file of /out in memory.
func keep(want string, into *[]byte) func(string, int64, io.Reader) error {
	return func(name string, size int64, body io.Reader) error {
		if name != want || size > maxReport {
			return nil
		}
		b, err := io.ReadAll(io.LimitReader(body, maxReport))
		*into = b
		return err
	}
}

// ended is an error if the command did not end by itself.
func ended(res sandboxrun.JailResult, what string, limit time.Duration) error {
	switch res.Outcome {
	case sandboxrun.Exited:
		return nil
	case sandboxrun.TimedOut:
		e := fail(ErrResolverTimeout, "pip did not %s within %d seconds; it was stopped", what, int(limit.Seconds()))
		e.Suggestions = []string{"Ask for fewer packages, or with narrower versions.", "If the index is slow, try again later."}
		return e
	}
	return fail(ErrResolverFailed, "pip was stopped before it could %s (%s)", what, strings.ReplaceAll(string(res.Outcome), "_", " "))
}

// tempFile makes a file without a name.
func (p *Pip) tempFile() (*os.File, error) {
	f, err := os.CreateTemp(p.Temp, tmpPrefix+"wheel-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
