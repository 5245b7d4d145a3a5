package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// The caller's pip configuration may hold credentials, and certificates that are
// larger than a request. It follows the request like a file, and is in no argument
// that anybody could print.

// fetchArgs are those of the commands that may fetch something. On the stream come
// Pip bytes of a resolve.Config, and then the wheel of pip, if there is one.
type fetchArgs struct {
	Pip      int64
	PipWheel *upload
	Relock   bool
	Repair   bool
	Columns  int // of the terminal that progress is shown on, 0 for none
	JSON     bool
}

// maxPipConfig is how large a pip configuration may be: two files of 4 MiB are
// among it, in base64.
const maxPipConfig = 16 << 20

func (a *app) envEnsureCmd() *cobra.Command {
	var q fetchArgs
	var pipWheel string
	cmd := &cobra.Command{
		Use:   "ensure",
		Short: "Make what Python scripts get: the interpreter and the base layer of packages",
		Long: `ensure makes the interpreter of scripts and the base layer, whose packages every
script can import. It fetches wheels from where pip of this user would get them: its
configuration (index, proxy, certificates, credentials) counts, and is kept nowhere.
What is there already is neither fetched nor built again: with a lock and all wheels
it asks no network. Nothing of a package runs on this host but in the sandbox. ^C ends
it and leaves nothing half made.`,
		Example: "  mcp-vdisk env ensure\n  mcp-vdisk env ensure --pip-wheel ./pip-26.2.1-py3-none-any.whl",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.fetch(cmd, "env.ensure", q, pipWheel, a.Stdout)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().BoolVar(&q.Relock, "relock", false, "look for the newest versions, also when there is a lock")
	cmd.Flags().BoolVar(&q.Repair, "repair", false, "read every file of the Python and the base layer, and make again what was changed")
	pipWheelFlag(cmd, &pipWheel)
	return cmd
}

func pipWheelFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "pip-wheel", "", "`FILE` that is a wheel of pip, to find packages with")
}

// fetch asks for a command that may need the network.
func (a *app) fetch(cmd *cobra.Command, verb string, q fetchArgs, pipWheel string, stdout io.Writer) error {
	if cmd.Flags().Changed("pip-wheel") {
		if err := front.CheckGiven("pip-wheel", pipWheel); err != nil {
			return err
		}
	}
	config, err := a.pipConfig()
	if err != nil {
		return err
	}
	q.Pip, q.JSON, q.Columns = int64(len(config)), a.json, columnsOf(a.Stderr)
	var stdin io.Reader = bytes.NewReader(config)
	if pipWheel != "" {
		f, u, err := openUpload(pipWheel, maxWheel)
		if err != nil {
			return err
		}
		defer f.Close()
		q.PipWheel, stdin = &u, io.MultiReader(stdin, u.send(f))
	}
	return a.askLong(cmd.Context(), verb, q, stdin, stdout)
}

// askLong asks for what takes long, and lets others use the state directory meanwhile.
func (a *app) askLong(ctx context.Context, verb string, q any, stdin io.Reader, stdout io.Writer) error {
	r, err := a.NewRequest(verb, q)
	if err != nil {
		return err
	}
	r.Image, r.Long = front.ImageRef{}, true
	return a.Ask(ctx, r, front.NoImage, stdin, stdout)
}

// pipConfig is the caller's pip configuration as it is sent, with all that is secret
// in it.
func (a *app) pipConfig() ([]byte, error) {
	home, _ := os.UserHomeDir() // without one the files below it are not read
	c, warnings, err := resolve.ReadConfig(os.Environ(), home)
	if err != nil {
		var e *resolve.Error
		if errors.As(err, &e) {
			return nil, exit.Fail(exit.Failed, "mend the configuration of pip: pip config debug shows where it comes from", "%s: %s", e.Code, e.Sentence)
		}
		return nil, err
	}
	for _, w := range warnings {
		fmt.Fprintf(a.Stderr, "mcp-vdisk: %s\n", w)
	}
	return json.Marshal(c)
}

// fetching is a request of such a command in the back.
type fetching struct {
	fetchArgs
	env  *pyenv.Env
	pip  resolve.Config
	bar  *progress
	drop func() // ends it
}

// beginFetch reads what follows the request and opens the environment for it.
func (b *back) beginFetch(ctx context.Context) (_ *fetching, err error) {
	f := &fetching{drop: func() {}}
	if err := b.args(&f.fetchArgs); err != nil {
		return nil, err
	}
	if f.pip, err = b.receivePip(f.Pip); err != nil {
		return nil, err
	}
	var file string
	if f.PipWheel != nil {
		if file, f.drop, err = b.keepUpload(*f.PipWheel, maxWheel); err != nil {
			return nil, err
		}
	}
	var change func(*pyenv.Options)
	if file != "" {
		change = func(o *pyenv.Options) { o.PipWheel = file }
	}
	env, drop, err := b.environment(ctx, change)
	if err != nil {
		f.drop()
		return nil, err
	}
	f.env, f.bar = env, &progress{w: b.stderr, columns: f.Columns}
	remove := f.drop
	f.drop = func() { f.bar.end(); drop(); remove() }
	return f, nil
}

// receivePip reads the pip configuration. No error shows anything of it.
func (b *back) receivePip(size int64) (c resolve.Config, err error) {
	if size <= 0 || size > maxPipConfig {
		return c, exit.Fail(exit.Usage, "", "a pip configuration of %d bytes is announced, and at most %d are taken", size, maxPipConfig)
	}
	text, err := io.ReadAll(&exactly{r: b.stdin, left: size, short: io.ErrUnexpectedEOF})
	if err != nil {
		return c, fmt.Errorf("read the pip configuration: %w", err)
	}
	if json.Unmarshal(text, &c) != nil {
		return c, exit.Fail(exit.Usage, "", "what arrived is no pip configuration")
	}
	return c, nil
}

// keepUpload writes an upload to a file of its name for as long as the request
// takes. What a killed process left is removed by the next.
func (b *back) keepUpload(u upload, most int64) (file string, drop func(), err error) {
	from, err := b.receive(u, most)
	if err != nil {
		return "", nil, err
	}
	dir, remove, err := sandboxrun.TempDir(b.st.path("scratch"), "upload-")
	if err != nil {
		return "", nil, fmt.Errorf("a directory for %s: %w", u.Name, err)
	}
	drop = func() {
		if err := remove(); err != nil {
			b.log.Warn("a file that was sent could not be removed", "error", err)
		}
	}
	file = filepath.Join(dir, u.Name)
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_, err = io.Copy(f, from)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		drop()
		return "", nil, fmt.Errorf("keep %s: %w", u.Name, err)
	}
	return file, drop, nil
}

// about is a fetch in the log: of the configuration only hosts.
func (f *fetching) about() audit.Facts {
	facts := audit.Facts{"relock": f.Relock, "repair": f.Repair, "from": f.pip.String()}
	if f.PipWheel != nil {
		facts["pip_wheel"] = f.PipWheel.Name
	}
	return facts
}

func (f *fetching) request() pyenv.EnsureRequest {
	return pyenv.EnsureRequest{Pip: f.pip, Relock: f.Relock, Repair: f.Repair, Progress: f.bar.show}
}

// ensureFacts is what `env ensure --json` tells.
type ensureFacts struct {
	Python       string          `json:"python"`
	Base         string          `json:"base"`
	Lock         string          `json:"lock"`
	Packages     []pyenv.Package `json:"packages"`
	Fetched      int             `json:"fetched"`
	FetchedBytes int64           `json:"fetched_bytes"`
	Built        bool            `json:"built"`
	Remade       bool            `json:"remade"` // the interpreter
	Notes        []string        `json:"notes"`
	Seconds      float64         `json:"seconds"`
}

func backEnvEnsure(ctx context.Context, b *back) error {
	f, err := b.beginFetch(ctx)
	if err != nil {
		return err
	}
	defer f.drop()
	var done pyenv.EnsureReport
	err = b.recorded(ctx, audit.EvEnvBuild, f.about(), func() ([]audit.Facts, error) {
		var err error
		if done, err = f.env.Ensure(ctx, f.request()); err != nil {
			return nil, err
		}
		return lockFacts(done.Lock, done.Base, done.Packages, audit.Facts{"python": done.Python, "built": done.Built, "remade": done.Remade, "fetched": done.Fetched, "fetched_bytes": done.FetchedBytes}), nil
	})
	f.bar.end()
	if err != nil {
		return b.envFailure(ctx, err)
	}
	facts := ensureFacts{done.Python, done.Base, done.Lock, append([]pyenv.Package{}, done.Packages...), done.Fetched, done.FetchedBytes, done.Built, done.Remade, append([]string{}, done.Notes...), done.Took.Seconds()}
	if f.JSON {
		return b.printJSON(facts)
	}
	b.printf("python    %s\nbase      %s, %s\nlock      %s\n", safe(facts.Python), facts.Base, plainCount(len(facts.Packages), "package"), facts.Lock)
	switch {
	case facts.Fetched > 0:
		b.printf("fetched   %s, %s\n", plainCount(facts.Fetched, "wheel"), showBytes(facts.FetchedBytes))
	case !facts.Built && !facts.Remade:
		b.printf("          all of it was there\n")
	}
	for _, n := range facts.Notes {
		b.printf("note      %s\n", harmless(n))
	}
	b.printf("took      %s\n", done.Took.Round(10*time.Millisecond))
	return nil
}

func (a *app) envLockCmd() *cobra.Command {
	var pipWheel, out string
	var force bool
	cmd := &cobra.Command{
		Use:   "lock",
		Short: "Find the newest versions for the base layer, and print the lock; nothing is built",
		Long: `lock looks for the newest packages of the base layer and keeps which wheels these are,
with their hashes; the next env ensure builds that. The lock is printed, or written to
the file that -o names, without the addresses that packages came from.`,
		Example: "  mcp-vdisk env lock -o base.json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("output") {
				return a.fetch(cmd, "env.lock", fetchArgs{Relock: true}, pipWheel, a.Stdout)
			}
			if err := front.CheckGiven("output", out); err != nil {
				return err
			}
			if err := canWrite(out, force); err != nil {
				return err
			}
			var text bytes.Buffer
			if err := a.fetch(cmd, "env.lock", fetchArgs{Relock: true}, pipWheel, &text); err != nil {
				return err
			}
			if err := writeWhole(out, text.Bytes(), force); err != nil {
				return err
			}
			fmt.Fprintf(a.Stderr, "wrote %s\n", out)
			return nil
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "write it to `FILE`, which must not exist")
	cmd.Flags().BoolVar(&force, "force", false, "overwrite the file if it is there")
	pipWheelFlag(cmd, &pipWheel)
	return cmd
}

func backEnvLock(ctx context.Context, b *back) error {
	f, err := b.beginFetch(ctx)
	if err != nil {
		return err
	}
	defer f.drop()
	var l lock.Lock
	var id string
	err = b.recorded(ctx, audit.EvEnvLock, f.about(), func() ([]audit.Facts, error) {
		var err error
		if l, err = f.env.Lock(ctx, f.request()); err != nil {
			return nil, err
		}
		if id, err = l.ID(); err != nil {
			return nil, err
		}
		base, err := l.LayerID()
		return lockFacts(id, base, wheelsOf(l), audit.Facts{}), err
	})
	f.bar.end()
	if err != nil {
		return b.envFailure(ctx, err)
	}
	text, err := pyenv.Portable(l).Encode()
	if err != nil {
		return err
	}
	fmt.Fprintf(b.stderr, "kept lock %s: %s\n", id, plainCount(len(l.Packages), "package"))
	_, err = b.stdout.Write(text)
	return err
}

func wheelsOf(l lock.Lock) []pyenv.Package {
	list := make([]pyenv.Package, 0, len(l.Packages))
	for _, p := range l.Packages {
		list = append(list, pyenv.Package{Name: p.Name, Version: p.Version, SHA256: p.SHA256})
	}
	return list
}

// canWrite says early that a file could not be written.
func canWrite(name string, force bool) error {
	info, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if dir, derr := os.Stat(filepath.Dir(name)); derr != nil || !dir.IsDir() {
			return exit.Fail(exit.NotFound, "make the folder first", "there is no folder %s", filepath.Dir(name))
		}
		return nil
	case err != nil:
		return exit.Fail(exit.Failed, "", "%s: %s", name, front.ErrText(err))
	case !info.Mode().IsRegular():
		return exit.Fail(exit.Refused, "choose another place", "%s is not a regular file; it is not replaced", name)
	case !force:
		return exit.Fail(exit.Refused, "pass --force to overwrite, or another name", "%s is there already", name)
	}
	return nil
}

// writeWhole writes a file of the caller whole or not at all.
func writeWhole(name string, text []byte, force bool) error {
	if err := canWrite(name, force); err != nil {
		return err
	}
	tmp := fmt.Sprintf("%s.%d.part", name, os.Getpid())
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		defer os.Remove(tmp)
		_, err = f.Write(text)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err == nil && force {
		err = os.Rename(tmp, name)
	} else if err == nil {
		err = os.Link(tmp, name)
	}
	if err != nil {
		return exit.Fail(exit.Failed, "", "write %s: %s", name, front.ErrText(err))
	}
	return nil
}
