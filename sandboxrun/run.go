package sandboxrun

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
)

// Run is one script.
type Run struct {
	// Lower is the host directory shown as /workspace. It is never written:
	// what the script changes arrives at the callback of Runner.Run. It must
	// not change while the run lasts, and its files must belong to the uid of
	// this process (others cannot be written by the script). Empty: an empty
	// workspace.
	Lower string
	// ReadOnly shows Lower as it is: a write gives EROFS, and there are no changes.
	ReadOnly bool
	// Argv is the command. Argv[0] is an absolute path inside the sandbox.
	Argv []string
	// Env is added to PATH, HOME, TMPDIR and LANG, each as KEY=VALUE, or set in
	// their place.
	Env []string
	// Data are small files shown read-only below /run/vdisk.
	Data []Data
	// Binds are host files or directories shown read-only below /opt, /run/vdisk or
	// /tmp, in this order: one may have its target within another's, where a file or
	// directory of that kind must be. Below /tmp the directories above a target are
	// the script's own, and neither they nor it count as Limits.WriteFiles.
	Binds []Bind
	// Stdin is streamed to the script, which need not read it. Nil: end of
	// file at once. Its Read must return by itself: Run waits a second for a
	// Read under way and then leaves it to end alone.
	Stdin io.Reader
	// Tap, if set, is called with each piece of output as it arrives, up to
	// Limits.OutputMax bytes of both streams together. Calls never overlap, so
	// that their order is one order: within a stream that of the script,
	// between the streams that in which they were read. They come from
	// goroutines of Run, and none after Run has returned. p is valid until Tap
	// returns. A script that writes faster than Tap takes it waits, and so does
	// Run at the end: Tap must not block for long, and must not panic.
	//
	// Tap is given what Result counts as output, with one exception: a stderr
	// that begins with "bwrap: " comes in one piece at the end, when it is known
	// to be the script's, and not at all when Run returns an error.
	Tap func(s Stream, p []byte)
	// Trace, if set, is told when each step of the run was done; see Mark.
	Trace func(m Mark, at time.Time)
	// Limits that are zero take their value from DefaultLimits.
	Limits Limits

	jail *Jail // what the run is the inside of; nil for a script
}

// Data is a file given by its bytes.
type Data struct {
	Path  string // absolute, below /run/vdisk
	Mode  uint32 // permission bits; 0 means 0444
	Bytes []byte
}

// Bind is a host file or directory, read-only in the sandbox.
type Bind struct {
	Source string // absolute path on the host
	Target string // absolute path in the sandbox, below /opt, /run/vdisk or /tmp
}

// Outcome says how a run ended.
type Outcome string

// The outcomes. A script that ran to its end has exited, whatever its code.
const (
	Exited      Outcome = "exited"
	Signaled    Outcome = "signaled"
	TimedOut    Outcome = "timed_out"
	OutputLimit Outcome = "output_limit"
	// MemoryLimit: the processes used more memory than they may, and all were
	// killed. It needs a control group: see Runner.Limits.
	MemoryLimit Outcome = "memory_limit"
	// PidsLimit: the command failed and had been refused another process or
	// thread. One that copes and exits with 0 has Exited. It needs a control group.
	PidsLimit Outcome = "pids_limit"
	// DiskLimit: the command failed and there was no room left where it
	// writes. A command that handles ENOSPC and exits with 0 has Exited.
	DiskLimit   Outcome = "disk_limit"
	Cancelled   Outcome = "cancelled"
	SetupFailed Outcome = "setup_failed"
)

// Result is what is known of a run besides its changes.
type Result struct {
	Outcome Outcome
	// ExitCode is the exit status of the command, or 128 + the number of the
	// signal that ended it. A command that was killed by a limit has -1.
	ExitCode int
	// Signal is set with Signaled: "SIGSEGV".
	Signal         string
	Stdout, Stderr Output
	// Duration is the time from the start of the command to the death of the
	// last process of the sandbox.
	Duration time.Duration
	// Skipped counts what cannot be kept, by kind: "fifo", "socket", "device".
	Skipped map[string]int
}

// Output is one stream of a script.
type Output struct {
	// Text is the beginning and the end of the stream as written, with one
	// line between them that says how many bytes were left out.
	Text  []byte
	Total int64 // bytes written by the script
	Cut   int64 // bytes that are not in Text
}

// dataRoot is where data files are; nothing else is mounted there.
const dataRoot = "/run/vdisk"

// check refuses what would be a mistake of the caller, before anything starts.
func (r Run) check() error {
	switch {
	case len(r.Argv) == 0:
		return errors.New("no command")
	case !path.IsAbs(r.Argv[0]):
		return fmt.Errorf("command %q is not an absolute path", r.Argv[0])
	case r.Lower != "" && !path.IsAbs(r.Lower):
		return errors.New("lower directory is not an absolute path")
	}
	for _, s := range append(append([]string{r.Lower}, r.Argv...), r.Env...) {
		if strings.IndexByte(s, 0) >= 0 {
			return errors.New("a NUL byte in the command or its environment")
		}
	}
	for _, kv := range r.Env {
		if i := strings.IndexByte(kv, '='); i < 1 {
			return fmt.Errorf("environment entry %q is not KEY=VALUE", kv)
		}
	}
	return r.checkMounts()
}

func (r Run) checkMounts() error {
	seen := map[string]bool{}
	place := func(p string, roots ...string) error {
		if seen[p] || strings.IndexByte(p, 0) >= 0 || path.Clean(p) != p {
			return fmt.Errorf("mount target %q is double or not clean", p)
		}
		seen[p] = true
		for _, root := range roots {
			if strings.HasPrefix(p, root+"/") {
				return nil
			}
		}
		return fmt.Errorf("mount target %q is not below %s", p, strings.Join(roots, " or "))
	}
	for _, d := range r.Data {
		if err := place(d.Path, dataRoot); err != nil {
			return err
		}
		if d.Mode > 0o777 {
			return fmt.Errorf("mode %o of %q has more than permission bits", d.Mode, d.Path)
		}
	}
	for _, b := range r.Binds {
		if err := place(b.Target, dataRoot, "/opt", "/tmp"); err != nil {
			return err
		}
		if !path.IsAbs(b.Source) || bytes.IndexByte([]byte(b.Source), 0) >= 0 {
			return fmt.Errorf("bind source %q is not an absolute path", b.Source)
		}
	}
	return nil
}
