package conformance

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// hooked is a backend with some of its methods replaced.
type hooked struct {
	sandboxrun.Backend
	caps      func(*caps)
	create    func(context.Context, sandboxrun.Spec) (sandboxrun.Handle, error)
	execute   func(context.Context, sandboxrun.Handle, sandboxrun.Request) (sandboxrun.Result, error)
	artifacts func(context.Context, sandboxrun.Handle) ([]sandboxrun.Artifact, error)
	close     func(context.Context, sandboxrun.Handle) error
}

func (h *hooked) Capabilities() caps {
	c := h.Backend.Capabilities()
	if h.caps != nil {
		h.caps(&c)
	}
	return c
}

func (h *hooked) Create(ctx context.Context, s sandboxrun.Spec) (sandboxrun.Handle, error) {
	if h.create != nil {
		return h.create(ctx, s)
	}
	return h.Backend.Create(ctx, s)
}

func (h *hooked) Execute(ctx context.Context, x sandboxrun.Handle, r sandboxrun.Request) (sandboxrun.Result, error) {
	if h.execute != nil {
		return h.execute(ctx, x, r)
	}
	return h.Backend.Execute(ctx, x, r)
}

func (h *hooked) Artifacts(ctx context.Context, x sandboxrun.Handle) ([]sandboxrun.Artifact, error) {
	if h.artifacts != nil {
		return h.artifacts(ctx, x)
	}
	return h.Backend.Artifacts(ctx, x)
}

func (h *hooked) Close(ctx context.Context, x sandboxrun.Handle) error {
	if h.close != nil {
		return h.close(ctx, x)
	}
	return h.Backend.Close(ctx, x)
}

type (
	handle   = sandboxrun.Handle
	spec     = sandboxrun.Spec
	request  = sandboxrun.Request
	result   = sandboxrun.Result
	artifact = sandboxrun.Artifact
)

// mutant makes a backend that breaks one rule out of a good one.
type mutant struct {
	rule string
	does string // what is wrong with it
	make func(t *testing.T, b sandboxrun.Backend) *hooked
}

// declares is a mutant that says something else of itself.
func declares(change func(*caps)) func(*testing.T, sandboxrun.Backend) *hooked {
	return func(_ *testing.T, b sandboxrun.Backend) *hooked { return &hooked{Backend: b, caps: change} }
}

// admits is a mutant that makes another handle than was asked for.
func admits(change func(*spec)) func(*testing.T, sandboxrun.Backend) *hooked {
	return func(_ *testing.T, b sandboxrun.Backend) *hooked {
		return &hooked{Backend: b, create: func(ctx context.Context, s spec) (handle, error) {
			change(&s)
			return b.Create(ctx, s)
		}}
	}
}

// asks is a mutant that runs another command than was asked for.
func asks(change func(*request)) func(*testing.T, sandboxrun.Backend) *hooked {
	return func(_ *testing.T, b sandboxrun.Backend) *hooked {
		return &hooked{Backend: b, execute: func(ctx context.Context, h handle, r request) (result, error) {
			change(&r)
			return b.Execute(ctx, h, r)
		}}
	}
}

// reports is a mutant that says something else of a command than what was.
func reports(change func(request, *result, *error)) func(*testing.T, sandboxrun.Backend) *hooked {
	return func(_ *testing.T, b sandboxrun.Backend) *hooked {
		return &hooked{Backend: b, execute: func(ctx context.Context, h handle, r request) (result, error) {
			res, err := b.Execute(ctx, h, r)
			change(r, &res, &err)
			return res, err
		}}
	}
}

// lists is a mutant that returns other artifacts than there are.
func lists(change func([]artifact) []artifact) func(*testing.T, sandboxrun.Backend) *hooked {
	return func(_ *testing.T, b sandboxrun.Backend) *hooked {
		return &hooked{Backend: b, artifacts: func(ctx context.Context, h handle) ([]artifact, error) {
			list, err := b.Artifacts(ctx, h)
			return change(list), err
		}}
	}
}

// leaves is a mutant that leaves a process of a command behind when the command
// ended in the given way.
func leaves(when func(request, result, error) bool) func(*testing.T, sandboxrun.Backend) *hooked {
	return func(t *testing.T, b sandboxrun.Backend) *hooked {
		return &hooked{Backend: b, execute: func(ctx context.Context, h handle, r request) (result, error) {
			res, err := b.Execute(ctx, h, r)
			if strings.HasPrefix(script(r), withChild) && when(r, res, err) {
				cmd := exec.Command("/bin/sh", "-c", "sleep 60; :", "sh", r.Argv[len(r.Argv)-1])
				if err := cmd.Start(); err != nil {
					t.Error(err)
				}
				t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			}
			return res, err
		}}
	}
}

// script is the script of a command of the shell.
func script(r request) string {
	if len(r.Argv) > 2 {
		return r.Argv[2]
	}
	return ""
}

// wrapped is a handle that tells something else of itself.
type wrapped struct {
	handle
	id     string
	closed func() bool
}

func (w wrapped) ID() string   { return w.id }
func (w wrapped) Closed() bool { return w.closed() }

// wraps is a mutant whose handles are wrapped.
func wraps(wrap func(handle) wrapped) func(*testing.T, sandboxrun.Backend) *hooked {
	unwrap := func(h handle) handle {
		if w, ok := h.(wrapped); ok {
			return w.handle
		}
		return h
	}
	return func(_ *testing.T, b sandboxrun.Backend) *hooked {
		return &hooked{Backend: b,
			create: func(ctx context.Context, s spec) (handle, error) {
				h, err := b.Create(ctx, s)
				if err != nil {
					return nil, err
				}
				return wrap(h), nil
			},
			execute: func(ctx context.Context, h handle, r request) (result, error) {
				return b.Execute(ctx, unwrap(h), r)
			},
			artifacts: func(ctx context.Context, h handle) ([]artifact, error) { return b.Artifacts(ctx, unwrap(h)) },
			close:     func(ctx context.Context, h handle) error { return b.Close(ctx, unwrap(h)) },
		}
	}
}

// mutants are one for each rule.
var mutants = []mutant{
	{"capabilities.backend_id", "has no name", declares(func(c *caps) { c.BackendID = " \t" })},
	{"capabilities.artifact_boundary", "collects artifacts from where nothing is isolated", declares(func(c *caps) { c.FilesystemIsolation = sandboxrun.FilesystemNone })},
	{"capabilities.reconnect_lifecycle", "reconnects, but does not clean up", declares(func(c *caps) { c.Reconnect, c.DeterministicCleanup = true, false })},
	{"capabilities.ownership_fencing", "fences what nobody can reconnect to", declares(func(c *caps) { c.OwnershipFencing = true })},
	{"capabilities.command_reconnect", "reconnects to commands, but not to handles", declares(func(c *caps) { c.CommandReconnect = true })},
	{"capabilities.values", "declares a limit that nobody knows", declares(func(c *caps) { c.HardLimits = append(c.HardLimits, "weather") })},

	{"execute.result_contract", "loses the output", reports(func(r request, res *result, _ *error) {
		if slices.Equal(r.Argv, DefaultCase().Smoke) {
			res.Stdout = sandboxrun.Output{}
		}
	})},
	{"execute.exit_codes", "has no exit code above 127", reports(func(_ request, res *result, _ *error) {
		if res.Outcome == sandboxrun.Exited {
			res.ExitCode &= 127
		}
	})},
	{"execute.signal", "takes a signal for an exit", reports(func(_ request, res *result, _ *error) {
		if res.Outcome == sandboxrun.Signaled {
			res.Outcome, res.Signal = sandboxrun.Exited, ""
		}
	})},
	{"execute.missing_program", "says 127, as a shell does", reports(func(r request, res *result, err *error) {
		if *err != nil && slices.Equal(r.Argv, []string{"/no/such/program"}) {
			*res, *err = result{Outcome: sandboxrun.Exited, ExitCode: 127}, nil
		}
	})},
	{"execute.bad_request", "has nothing against nothing", reports(func(r request, res *result, err *error) {
		if len(r.Argv) == 0 {
			*res, *err = result{Outcome: sandboxrun.Exited}, nil
		}
	})},
	{"execute.argv_literal", "joins the arguments for a shell", asks(func(r *request) {
		if slices.Contains(r.Argv, "$(touch planted)") {
			r.Argv = shell(strings.Join(r.Argv, " "))
		}
	})},
	{"execute.workspace_kept", "keeps nothing of a command that failed", func(_ *testing.T, b sandboxrun.Backend) *hooked {
		return &hooked{Backend: b, execute: func(ctx context.Context, h handle, r request) (result, error) {
			if strings.HasPrefix(script(r), `cat kept;`) {
				return b.Execute(ctx, h, request{Argv: shell(`echo one; echo two >gone; ls`), Timeout: r.Timeout})
			}
			return b.Execute(ctx, h, r)
		}}
	}},
	{"execute.same_handle", "is busy while a command runs", func(_ *testing.T, b sandboxrun.Backend) *hooked {
		var busy sync.Map
		return &hooked{Backend: b, execute: func(ctx context.Context, h handle, r request) (result, error) {
			if _, is := busy.LoadOrStore(h, true); is {
				return result{}, errors.New("busy")
			}
			defer busy.Delete(h)
			return b.Execute(ctx, h, r)
		}}
	}},
	{"execute.concurrent", "runs one command at a time", func(_ *testing.T, b sandboxrun.Backend) *hooked {
		var one sync.Mutex
		return &hooked{Backend: b, execute: func(ctx context.Context, h handle, r request) (result, error) {
			// Other rules hold one command to look at it with another.
			if s := script(r); s == `cat; echo first` || s == `echo second` {
				one.Lock()
				defer one.Unlock()
			}
			return b.Execute(ctx, h, r)
		}}
	}},
	{"execute.streams_apart", "has one stream", reports(func(r request, res *result, _ *error) {
		if bytes.Equal(res.Stderr.Text, []byte("to-err\n")) {
			res.Stdout.Text = append(res.Stdout.Text, res.Stderr.Text...)
		}
	})},
	{"execute.bytes_preserved", "ends a string at a NUL", reports(func(_ request, res *result, _ *error) {
		res.Stdout.Text, _, _ = bytes.Cut(res.Stdout.Text, []byte{0})
	})},
	{"execute.stdin", "passes on 64 KiB of input", asks(func(r *request) {
		if r.Stdin != nil {
			r.Stdin = io.LimitReader(r.Stdin, 64<<10)
		}
	})},
	{"execute.request_timeout", "takes a timeout for an exit", reports(func(_ request, res *result, _ *error) {
		if res.Outcome == sandboxrun.TimedOut {
			res.Outcome, res.ExitCode = sandboxrun.Exited, 124
		}
	})},
	{"execute.timeout_keeps_output", "drops the output with the command", reports(func(_ request, res *result, _ *error) {
		if res.Outcome == sandboxrun.TimedOut {
			res.Stdout, res.Stderr = sandboxrun.Output{}, sandboxrun.Output{}
		}
	})},
	{"execute.timeout_spares", "goes on with an earlier timeout", func(_ *testing.T, b sandboxrun.Backend) *hooked {
		var short sync.Map
		return &hooked{Backend: b, execute: func(ctx context.Context, h handle, r request) (result, error) {
			if r.Timeout == 50*time.Millisecond {
				short.Store(h, true)
			}
			if _, is := short.Load(h); is {
				r.Timeout = 50 * time.Millisecond
			}
			return b.Execute(ctx, h, r)
		}}
	}},
	{"execute.cooperative_cancellation", "hides why it stopped", func(_ *testing.T, b sandboxrun.Backend) *hooked {
		return &hooked{Backend: b, execute: func(ctx context.Context, h handle, r request) (result, error) {
			alive := ctx.Err() == nil
			res, err := b.Execute(ctx, h, r)
			if alive && errors.Is(err, errStop) {
				err = errors.New(err.Error())
			}
			return res, err
		}}
	}},
	{"execute.cancel_before_start", "looks at the context too late", func(_ *testing.T, b sandboxrun.Backend) *hooked {
		return &hooked{Backend: b, execute: func(ctx context.Context, h handle, r request) (result, error) {
			if ctx.Err() != nil {
				ctx = context.WithoutCancel(ctx)
			}
			return b.Execute(ctx, h, r)
		}}
	}},
	{"execute.handle_reusable", "loses the handle with the command", func(_ *testing.T, b sandboxrun.Backend) *hooked {
		var lost sync.Map
		return &hooked{Backend: b, execute: func(ctx context.Context, h handle, r request) (result, error) {
			if _, is := lost.Load(h); is {
				return result{}, sandboxrun.ErrClosed
			}
			alive := ctx.Err() == nil
			res, err := b.Execute(ctx, h, r)
			if alive && errors.Is(err, errStop) {
				lost.Store(h, true)
			}
			return res, err
		}}
	}},
	{"execute.exit_kills_tree", "kills only the command itself", leaves(func(r request, res result, err error) bool {
		return err == nil && succeeded(res) && r.Stdin != nil
	})},
	{"execute.timeout_kills_tree", "kills only the command itself at a timeout", leaves(func(_ request, res result, _ error) bool {
		return res.Outcome == sandboxrun.TimedOut
	})},
	{"execute.cancel_kills_tree", "kills only the command itself when it is cancelled", leaves(func(_ request, _ result, err error) bool {
		return errors.Is(err, errStop)
	})},
	{"execute.output_cap", "keeps more than it was asked to", admits(func(s *spec) { s.Limits.Head *= 5 })},
	{"execute.output_limit", "takes a flood for a crash", reports(func(_ request, res *result, _ *error) {
		if res.Outcome == sandboxrun.OutputLimit {
			res.Outcome, res.Signal = sandboxrun.Signaled, "SIGKILL"
		}
	})},

	{"env.scrubbed", "passes its environment on", admits(func(s *spec) {
		env := map[string]string{}
		for _, kv := range os.Environ() {
			k, v, _ := strings.Cut(kv, "=")
			env[k] = v
		}
		for k, v := range s.Env {
			env[k] = v
		}
		s.Env = env
	})},
	{"env.given", "has variables of one line", admits(func(s *spec) {
		env := map[string]string{}
		for k, v := range s.Env {
			env[k], _, _ = strings.Cut(v, "\n")
		}
		s.Env = env
	})},
	{"fs.read_only_enforced", "lets everybody write", admits(func(s *spec) { s.ReadOnly = false })},
	{"fs.source_untouched", "writes changes back", func(t *testing.T, b sandboxrun.Backend) *hooked {
		var source string
		return &hooked{Backend: b,
			create: func(ctx context.Context, s spec) (handle, error) { source = s.Workspace; return b.Create(ctx, s) },
			execute: func(ctx context.Context, h handle, r request) (result, error) {
				res, err := b.Execute(ctx, h, r)
				if strings.Contains(script(r), ">planted;") && os.WriteFile(source+"/planted", []byte("x\n"), 0o644) != nil {
					t.Error("the mutant could not write")
				}
				return res, err
			},
		}
	}},
	{"fs.host_invisible", "shows files of the host", reports(func(r request, res *result, _ *error) {
		if strings.Contains(script(r), "/proc/1/cwd") {
			secret, _ := os.ReadFile(r.Argv[len(r.Argv)-1])
			res.Stdout.Text = append(secret, res.Stdout.Text...)
		}
	})},
	{"fs.handles_apart", "has one /tmp for all", sees(`ls -A`)},
	{"proc.handles_apart", "has one /proc for all", sees(`cat /proc/`)},
	{"net.host_unreachable", "has the network of the host", func(_ *testing.T, b sandboxrun.Backend) *hooked {
		return &hooked{Backend: b, execute: func(ctx context.Context, h handle, r request) (result, error) {
			if !strings.Contains(script(r), "/dev/tcp/") {
				return b.Execute(ctx, h, r)
			}
			out, err := exec.CommandContext(ctx, r.Argv[0], r.Argv[1:]...).Output()
			return result{Outcome: sandboxrun.Exited, Stdout: sandboxrun.Output{Text: out}}, err
		}}
	}},
	{"policy.network_admission", "admits what it cannot give", admits(func(s *spec) { s.Egress = nil })},

	{"artifact.collection", "forgets a file", lists(func(list []artifact) []artifact {
		return slices.DeleteFunc(list, func(a artifact) bool { return a.Path == DefaultCase().ExpectArtifact })
	})},
	{"artifact.exact_set", "lists directories, too", listsMore("d/a", "d")},
	{"artifact.content", "has no digest", lists(func(list []artifact) []artifact {
		for i := range list {
			list[i].SHA256 = ""
		}
		return list
	})},
	{"artifact.declared_only", "collects everything", admits(func(s *spec) {
		if slices.Contains(s.Artifacts, "missing") {
			s.Artifacts = nil
		}
	})},
	{"artifact.declaration_checked", "forgets a declaration that it does not like", admits(func(s *spec) {
		if slices.Contains(s.Artifacts, "../out") {
			s.Artifacts = nil
		}
	})},
	{"artifact.no_symlinks", "follows links", listsMore("real", "inward")},
	{"artifact.special_files", "collects a pipe", listsMore("plain", "pipe")},
	{"artifact.bounded", "has no bound", admits(func(s *spec) { s.ArtifactBytes = 0 })},

	{"lifecycle.close_marks_handle", "does not mark its handles", wraps(func(h handle) wrapped {
		return wrapped{h, h.ID(), func() bool { return false }}
	})},
	{"lifecycle.closed_handle_rejected", "has another error for a closed handle", func(_ *testing.T, b sandboxrun.Backend) *hooked {
		return &hooked{Backend: b, execute: func(ctx context.Context, h handle, r request) (result, error) {
			if h != nil && h.Closed() {
				return result{}, errors.New("sandbox handle is closed")
			}
			return b.Execute(ctx, h, r)
		}}
	}},
	{"lifecycle.closed_handle_artifacts", "has no artifacts of a closed handle", func(_ *testing.T, b sandboxrun.Backend) *hooked {
		return &hooked{Backend: b, artifacts: func(ctx context.Context, h handle) ([]artifact, error) {
			if h != nil && h.Closed() {
				return nil, nil
			}
			return b.Artifacts(ctx, h)
		}}
	}},
	{"lifecycle.close_idempotent", "refuses to close what is closed", func(_ *testing.T, b sandboxrun.Backend) *hooked {
		return &hooked{Backend: b, close: func(ctx context.Context, h handle) error {
			if h != nil && h.Closed() {
				return sandboxrun.ErrClosed
			}
			return b.Close(ctx, h)
		}}
	}},
	{"lifecycle.foreign_handle_rejected", "closes anything", func(_ *testing.T, b sandboxrun.Backend) *hooked {
		return &hooked{Backend: b, close: func(ctx context.Context, h handle) error {
			if err := b.Close(ctx, h); !errors.Is(err, sandboxrun.ErrForeignHandle) {
				return err
			}
			return nil
		}}
	}},
	{"lifecycle.handle_ids", "names all handles alike", wraps(func(h handle) wrapped { return wrapped{h, "handle", h.Closed} })},
	{"lifecycle.close_during_execute", "takes a close for a crash", func(_ *testing.T, b sandboxrun.Backend) *hooked {
		return &hooked{Backend: b, execute: func(ctx context.Context, h handle, r request) (result, error) {
			open := h != nil && !h.Closed()
			res, err := b.Execute(ctx, h, r)
			if open && errors.Is(err, sandboxrun.ErrClosed) {
				return result{Outcome: sandboxrun.Signaled, Signal: "SIGKILL"}, nil
			}
			return res, err
		}}
	}},
	{"lifecycle.nothing_left", "leaves a pipe of each handle", func(t *testing.T, b sandboxrun.Backend) *hooked {
		return &hooked{Backend: b, create: func(ctx context.Context, s spec) (handle, error) {
			r, w, err := os.Pipe()
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { r.Close(); w.Close() })
			return b.Create(ctx, s)
		}}
	}},

	{"limits.processes", "does not limit processes", admits(func(s *spec) { s.Limits.Processes = 0 })},
	{"limits.open_files", "does not limit open files", admits(func(s *spec) { s.Limits.OpenFiles = 0 })},
	{"limits.write_bytes", "does not limit bytes", admits(func(s *spec) {
		if s.Limits.MemoryBytes == 0 { // else it would be more memory, too
			s.Limits.WriteBytes = 0
		}
	})},
	{"limits.write_files", "does not limit files", admits(func(s *spec) { s.Limits.WriteFiles = 0 })},
	{"limits.memory", "does not limit memory", admits(func(s *spec) { s.Limits.MemoryBytes = 0 })},
}

// sees is a mutant in which a command that begins so sees what another handle has.
func sees(begin string) func(*testing.T, sandboxrun.Backend) *hooked {
	return func(_ *testing.T, b sandboxrun.Backend) *hooked {
		var mu sync.Mutex
		var other string
		return &hooked{Backend: b, execute: func(ctx context.Context, h handle, r request) (result, error) {
			mu.Lock()
			if strings.HasPrefix(script(r), `: >"./$1"`) {
				other = r.Argv[len(r.Argv)-1]
			}
			seen := other
			mu.Unlock()
			res, err := b.Execute(ctx, h, r)
			if strings.HasPrefix(script(r), begin) && seen != "" {
				res.Stdout.Text = append([]byte(seen+"\n"), res.Stdout.Text...)
			}
			return res, err
		}}
	}
}

// listsMore is a mutant that returns one artifact more beside another.
func listsMore(beside, more string) func(*testing.T, sandboxrun.Backend) *hooked {
	return lists(func(list []artifact) []artifact {
		if has(list, beside) {
			list = append(list, artifact{Path: more})
		}
		return list
	})
}

// TestEveryRuleHasAMutant: and no mutant is without a rule.
func TestEveryRuleHasAMutant(t *testing.T) {
	count := map[string]int{}
	for _, m := range mutants {
		count[m.rule]++
	}
	for _, r := range backendRules() {
		if count[r.ID] != 1 {
			t.Errorf("%s has %d mutants", r.ID, count[r.ID])
		}
		delete(count, r.ID)
	}
	for id := range count {
		t.Errorf("%s has a mutant and is no rule", id)
	}
}

// TestMutants: on each mutant its rule fails, and every other rule ends as it
// does on the good backend. A rule that the mutant no longer declares is skipped
// for that. An eighth of the other rules is run on each mutant, another eighth
// on the next; with MCP_VDISK_SOAK all of them.
func TestMutants(t *testing.T) {
	good, _ := newBwrap(t, false)
	index := map[string]int{}
	for i, r := range backendRules() {
		index[r.ID] = i
	}
	for i, m := range mutants {
		t.Run(m.rule, func(t *testing.T) {
			c := Case{Grace: 5 * time.Second, Only: func(id string) bool {
				return id == m.rule || os.Getenv("MCP_VDISK_SOAK") != "" || (index[id]+i)%8 == 0
			}}
			if m.rule == memoryRule && !limitsMemory(good) {
				t.Skip("SKIP this host has no control group for the tests")
			}
			bad := m.make(t, good)
			rep := RunBackend(t.Context(), bad, spec{}, c)
			for _, f := range rep.Findings {
				want := Passed
				switch {
				case f.Rule == m.rule:
					want = Failed
				case (bad.caps != nil || f.Rule == memoryRule && !limitsMemory(good)) && f.Reason == Undeclared:
					want = Skipped
				}
				if f.Status != want {
					t.Errorf("a backend that %s: %s %s: %s", m.does, f.Rule, f.Status, f.Detail)
				}
			}
			if rep.OK() {
				t.Error("the report is OK")
			}
		})
	}
}
