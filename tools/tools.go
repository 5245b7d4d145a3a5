package tools

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/live"
)

// Config says which disk the tools work on and within what limits. The caller
// owns what it hands in and closes it after the last call returned.
type Config struct {
	Image *workspace.Image
	// Live is the directory that scripts see, Box what they run in, Python the
	// interpreter that they get. Without Live or Box no script runs, without
	// Python none of that language.
	Live   *live.View
	Box    *sandboxrun.Runner
	Python *pyenv.Env

	Log    *audit.Log
	Policy Policy
	Limits Limits
	// GetArgs are the flags that a person adds to `mcp-vdisk image get` to reach
	// this disk, when they are not the defaults; already quoted for a shell.
	GetArgs string
	Logger  *slog.Logger // nil discards
	Version string       // of the program, told to clients
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
	// Script bounds a script; its Timeout is default and maximum of timeout_s.
	Script sandboxrun.Limits
	// Queue is how long a script waits for the one before it; 10 s.
	Queue time.Duration
}

func (l Limits) withDefaults() Limits {
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&l.WriteBytes, 4<<20)
	def(&l.SourceBytes, 1<<20)
	def(&l.StdinBytes, 4<<20)
	def(&l.ReadLines, 2000)
	if l.ReadChars == 0 {
		l.ReadChars = MaxText
	}
	if l.ListEntries == 0 {
		l.ListEntries = 200
	}
	l.Script = l.Script.Filled()
	l.Script.Timeout = min(l.Script.Timeout, MaxScript)
	if l.Queue == 0 {
		l.Queue = 10 * time.Second
	}
	return l
}

// digest is the SHA-256 of all limits, hex: it tells in the log whether two calls
// had the same.
func (l Limits) digest() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%+v", l))
	return hex.EncodeToString(sum[:])
}

// MaxScript is the longest a run_script call takes from its receipt to its
// answer, waiting included.
const MaxScript = 45 * time.Second

// Tools are the seven tools over one disk. All methods may be called by many
// goroutines at once.
type Tools struct {
	cfg  Config
	gate *gate
	now  func() time.Time

	scripts atomic.Bool // they were seen to work on this host
	probing sync.Mutex  // one trial serves all who wait for it

	streamName string // of the disk in the audit log: its uuid
	capFacts   audit.Facts
	envFacts   audit.Facts
}

// New returns the tools of one disk. It starts nothing and writes nothing; it
// fails only when the image cannot be read.
func New(cfg Config) (*Tools, error) {
	cfg.Limits = cfg.Limits.withDefaults()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Python == nil {
		cfg.Python = pyenv.New("", nil)
	}
	info, err := cfg.Image.Info()
	if err != nil {
		return nil, fmt.Errorf("tools: %w", err)
	}
	may := cfg.Policy.facts()
	may["limits"] = cfg.Limits.digest()
	return &Tools{
		cfg: cfg, gate: newGate(), now: time.Now,
		streamName: info.UUID, capFacts: may, envFacts: audit.Facts{"python": cfg.Python.Path()},
	}, nil
}

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

// besideScripts is the work of a file tool: it waits for the script that runs.
func (t *Tools) besideScripts(w work) work {
	return func(ctx context.Context) (Result, error) {
		done, err := t.gate.file(ctx)
		if err != nil {
			return Result{}, busy(err)
		}
		defer done()
		return w(ctx)
	}
}

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

// gate lets file tools side by side and a script alone. Scripts queue among
// themselves, so a file tool waits for at most two of them, the one that runs and
// the one whose turn is next, however many are waiting.
type gate struct {
	turn *semaphore.Weighted // held by the script that is next or runs
	disk *semaphore.Weighted
}

const gateWidth = 1 << 20 // more file calls than ever run at once

func newGate() *gate {
	return &gate{turn: semaphore.NewWeighted(1), disk: semaphore.NewWeighted(gateWidth)}
}

// file waits until no script runs and returns what lets the next script in.
func (g *gate) file(ctx context.Context) (func(), error) { return take(ctx, g.disk, 1) }

// script waits for its turn among the scripts, and then until nothing else runs.
func (g *gate) script(ctx context.Context) (func(), error) {
	next, err := take(ctx, g.turn, 1)
	if err != nil {
		return nil, err
	}
	done, err := take(ctx, g.disk, gateWidth)
	if err != nil {
		next()
		return nil, err
	}
	return func() { done(); next() }, nil
}

func take(ctx context.Context, s *semaphore.Weighted, n int64) (func(), error) {
	if err := s.Acquire(ctx, n); err != nil {
		return nil, err
	}
	return func() { s.Release(n) }, nil
}
