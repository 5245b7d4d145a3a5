//go:build !linux

package sandboxrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
)

const remedyOther = "scripts need Linux: run mcp-vdisk in a Linux container, a virtual machine or WSL 2"

func noLinux() error {
	return unavailable("scripts cannot run on "+runtime.GOOS, remedyOther, "")
}

// StageMain returns at once: there is no stage on this system.
func StageMain() {}

// Run returns ErrUnavailable: there is no sandbox on this system.
func (r *Runner) Run(context.Context, Run, func(Change) error) (Result, error) {
	return Result{Outcome: SetupFailed, ExitCode: -1}, noLinux()
}

// Jail returns ErrUnavailable: there is no sandbox on this system.
func (r *Runner) Jail(context.Context, Jail) (JailResult, error) {
	return JailResult{Outcome: SetupFailed, ExitCode: -1}, noLinux()
}

// Close does nothing: there is no stage on this system.
func (r *Runner) Close() {}

// DropSpare does nothing: there is no stage on this system.
func (r *Runner) DropSpare() {}

type spares struct{}

func newSpares(string) *spares { return nil }

// Probe reports that there is no sandbox on this system.
func (r *Runner) Probe(context.Context) Report {
	return Report{Level: "L1", Cause: "scripts cannot run on " + runtime.GOOS, Remedy: remedyOther}
}

// MemoryTotal returns errors.ErrUnsupported: nothing here needs to know.
func MemoryTotal() (int64, error) {
	return 0, fmt.Errorf("sandboxrun: size of the memory: %w", errors.ErrUnsupported)
}

// HandOver returns errors.ErrUnsupported: there are no control groups here.
func HandOver(string, int, int) error {
	return fmt.Errorf("sandboxrun: control groups: %w", errors.ErrUnsupported)
}

func findGroups(string, string) groups {
	return groups{noMemory: "control groups need Linux", noPids: "control groups need Linux"}
}

func sweepGroups(groups) {}

func sweepScratch(string) error { return nil }

const scratchPrefix = "run-"

func makeLocked(string, string) (dir string, drop func() error, err error) { return "", nil, noLinux() }

// TempDir makes a directory in parent, or in os.TempDir if that is empty, whose
// name begins with prefix, for this user only. drop removes it with all that is in
// it. What killed processes left stays on this system.
func TempDir(parent, prefix string) (dir string, drop func() error, err error) {
	dir, err = os.MkdirTemp(parent, prefix)
	return dir, func() error { return os.RemoveAll(dir) }, err
}
