package tools

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/live"
)

// Config says which disk the tools work on and within what limits. The caller
// owns what it hands in and closes it after [Tools.Close] and [Jobs.Close], when
// the last call has returned.
type Config struct {
	Image *workspace.Image
	// Live is the directory that scripts see, Box what they run in, Python where
	// their interpreter and packages come from. Without Live or Box no script runs;
	// without Python they get that of the host.
	Live   *live.View
	Box    *sandboxrun.Runner
	Python *pyenv.Env
	// Pip is the pip configuration of whoever started the session: where packages come
	// from that the session asks for; nil while none is known. It is called for each
	// request. Nil is a session that has none.
	Pip func() *resolve.Config

	// Scratch is a directory for what scripts print, when that is more than
	// memory should hold; a process that dies leaves nothing in it. Empty is the
	// system's temporary directory.
	Scratch string

	// Jobs are the scripts of the disk, which its sessions share: a job goes on
	// when the session that started it ends, and any of them can ask for it. Nil:
	// the tools have jobs of their own, which end with them.
	Jobs *Jobs
	// Lease is asked for the right to change the disk. Nil: none is needed, and
	// an image that was once changed under a lease refuses every change.
	Lease Lease

	// Elicit lets the person at the client decide about requests for packages, too, by
	// MCP elicitation. A client may answer without asking anybody, so the decision is
	// recorded as asserted by it. False: only the operator decides.
	Elicit bool

	Log    *audit.Log
	Policy Policy
	Limits Limits
	// GetArgs are the flags that a person adds to `mcp-vdisk image get` to reach
	// this disk, when they are not the defaults; already quoted for a shell.
	GetArgs string
	// GetLater says that the command cannot reach the disk while the session lasts.
	GetLater bool
	// Disk is what its person calls the disk, for the form that asks them.
	Disk string
	// Outbox says that what is in /workspace/out is copied to the person, as the
	// session's instructions then tell.
	Outbox bool
	// EnvArgs are the flags that a person adds to `mcp-vdisk env` to reach this
	// server's requests for packages, in the same form.
	EnvArgs string
	Logger  *slog.Logger // nil discards
	// Client is told what a client calls itself, when it does; nil is nobody.
	Client func(name string)
	// Trace, if set, is told when each step of a script's call was done: the
	// marks of this package, and between them those of sandboxrun. It is for
	// measurements of one call at a time, and must not block.
	Trace   func(mark string, at time.Time)
	Version string // of the program, told to clients
}

// The marks of a call of run_script, in their order. Those of sandboxrun come
// between pinned and ran.
const (
	MarkChecked   = "checked"   // its arguments are valid
	MarkIntended  = "intended"  // the intent is durable
	MarkPinned    = "pinned"    // the view of the disk is as it has to be, and stays so
	MarkRan       = "ran"       // nothing of the sandbox is left
	MarkSettled   = "settled"   // the changes are saved, or kept
	MarkConcluded = "concluded" // the outcome is in the log
)

func (t *Tools) mark(mark string) {
	if t.cfg.Trace != nil {
		t.cfg.Trace(mark, time.Now())
	}
}

// Limits bound what one call may do. A zero field takes the default of
// docs/limits.md.
type Limits struct {
	WriteBytes  int64 // content of one write_file, decoded; 4 MiB
	SourceBytes int64 // source of one script; 1 MiB
	StdinBytes  int64 // standard input of one script; 4 MiB
	ReadLines   int64 // lines of one page of read_file; 2,000
	ReadChars   int   // bytes of one page unless asked otherwise, so as many characters at most; 40,000
	ListEntries int   // entries of one page of list_files; 200
	// Script bounds a script; its Timeout, 600 s, is what a call gets that does
	// not ask for another.
	Script     sandboxrun.Limits
	MaxTimeout time.Duration // largest timeout_s; 1 h, which it cannot pass
	// Scripts is how many run at once; 4. ScriptMemory bounds what they may take
	// together in bytes of memory for what they write; a quarter of this host's. One
	// always runs. A further one waits for Queue, 10 s.
	Scripts      int
	ScriptMemory int64
	Queue        time.Duration
	// Answer is when a call of run_script is answered at the latest, counted from
	// its receipt; 45 s. Negative: whenever the script has ended.
	Answer time.Duration
	// KeepJobs is how long the result of a script, its output and changes that
	// were not saved are kept after its end; 1 h.
	KeepJobs time.Duration
}

func (l Limits) withDefaults() Limits {
	def(&l.WriteBytes, 4<<20)
	def(&l.SourceBytes, 1<<20)
	def(&l.StdinBytes, 4<<20)
	def(&l.ReadLines, 2000)
	def(&l.ReadChars, MaxText)
	def(&l.ListEntries, 200)
	def(&l.MaxTimeout, MaxScript)
	def(&l.Scripts, 4)
	def(&l.Queue, 10*time.Second)
	def(&l.Answer, 45*time.Second)
	def(&l.KeepJobs, time.Hour)
	if l.ScriptMemory == 0 {
		l.ScriptMemory = math.MaxInt64 // where nothing is known of it
		if total, err := sandboxrun.MemoryTotal(); err == nil {
			l.ScriptMemory = total / 4
		}
	}
	l.Script = l.Script.Filled()
	l.MaxTimeout = min(l.MaxTimeout, MaxScript)
	l.Script.Timeout = min(l.Script.Timeout, l.MaxTimeout)
	return l
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// digest is the SHA-256 of all limits, hex: it tells in the log whether two calls
// had the same.
func (l Limits) digest() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%+v", l))
	return hex.EncodeToString(sum[:])
}

// MaxScript is the longest that a script may run, whatever the limits say.
const MaxScript = time.Hour

// Tools are the seven tools over one disk, for one session: each has a policy, a
// lease and a way to its person of its own. All methods may be called by many
// goroutines at once.
type Tools struct {
	cfg     Config
	jobs    *Jobs
	now     func() time.Time
	table   map[string]handler // by the name of the tool
	decider decider            // of Config.Python
	askFor  time.Duration      // the constant, except in tests

	active atomic.Int64 // calls that run

	scripts atomic.Bool // they were seen to work on this host
	probing sync.Mutex  // one trial serves all who wait for it

	streamName string // of the disk in the audit log: its uuid
	capFacts   audit.Facts
}

// New returns the tools of one disk. It starts nothing and writes nothing; it
// fails only when the image cannot be read.
func New(cfg Config) (*Tools, error) {
	cfg.Limits = cfg.Limits.withDefaults()
	if cfg.Pip == nil {
		cfg.Pip = func() *resolve.Config { return nil }
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	info, err := cfg.Image.Info()
	if err == nil && cfg.Python == nil {
		cfg.Python, err = pyenv.Open(pyenv.Options{Box: cfg.Box})
	}
	if err != nil {
		return nil, fmt.Errorf("tools: %w", err)
	}
	may := cfg.Policy.facts()
	may["limits"] = cfg.Limits.digest()
	t := &Tools{
		cfg: cfg, now: time.Now,
		streamName: info.UUID, capFacts: may,
		decider: cfg.Python, askFor: askFor,
	}
	t.table = t.handlers()
	if t.jobs = cfg.Jobs; t.jobs == nil {
		t.jobs = NewJobs(JobsConfig{Limits: cfg.Limits, Logger: cfg.Logger})
		t.jobs.own = true
	}
	return t, nil
}

// Close is [Jobs.Close] for tools that have jobs of their own. With Config.Jobs it
// does nothing: the calls of the session end with their contexts, its jobs go on.
// Closing twice is no error.
func (t *Tools) Close() {
	if t.cfg.Jobs == nil {
		t.jobs.Close()
	}
}

// Active is how many calls are not answered yet.
func (t *Tools) Active() int { return int(t.active.Load()) }

// Dispatch runs a tool and answers with text, whatever happens: an unknown
// tool, unreadable arguments and a failure are text too. It is for agent loops
// that take the result of a tool as a string.
func (t *Tools) Dispatch(ctx context.Context, tool string, args []byte) string {
	return t.Call(ctx, tool, args).String()
}

// handler is one tool. It reads the arguments of a call and refuses, before
// anything is done, what they alone show to be impossible; else it returns what
// does the work.
type handler func(c *call) (work, error)

// work gives a result or an error for the caller; what it adds to the call's log
// record goes through the call.
type work func(ctx context.Context) (Result, error)

// handlers is the dispatcher's table; schemas holds the same names, which a
// test compares.
func (t *Tools) handlers() map[string]handler {
	return map[string]handler{
		"write_file":     t.writeFile,
		"read_file":      t.readFile,
		"list_files":     t.listFiles,
		"make_directory": t.makeDirectory,
		"delete_file":    t.deleteFile,
		"run_script":     t.runScript,
		"python_env":     t.pythonEnv,
	}
}

// decode reads the validated arguments of a call into a struct. The schema has
// checked names and types before, so a failure here is a fault of ours.
func decode[T any](c *call) (T, error) {
	var v T
	err := json.Unmarshal(c.args, &v)
	return v, err
}

// scriptsWork tells whether scripts can run on this host, by trying. A yes is
// remembered; a no is tried again, because bubblewrap may be installed since.
func (t *Tools) scriptsWork(ctx context.Context) bool {
	if t.scripts.Load() {
		return true
	}
	t.probing.Lock()
	defer t.probing.Unlock()
	if !t.scripts.Load() && t.cfg.Box != nil && t.cfg.Live != nil {
		t.scripts.Store(t.cfg.Box.Probe(ctx).OK)
	}
	return t.scripts.Load()
}
