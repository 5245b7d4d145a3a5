package sandboxrun

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Bare returns a command that runs r.Argv by bubblewrap with the options of a
// real run, but without the stage: no copy-on-write (Lower is shown as it is,
// writable; without one there is a tmpfs), no rlimits, no timeout. The system
// call filter is there. It is the yardstick of benchmarks and a step of Probe. release closes its descriptors
// and is called after the command has ended. The goroutine that starts the
// command must stay locked to its thread until then: its end kills the sandbox.
func (r *Runner) Bare(ctx context.Context, run Run) (cmd *exec.Cmd, release func(), err error) {
	if os.Geteuid() == 0 {
		return nil, nil, fmt.Errorf("sandboxrun: %w", ErrRoot)
	}
	if err := run.check(); err != nil {
		return nil, nil, setupFailed("the run is not valid: "+err.Error(), "", "")
	}
	b, err := r.find(ctx)
	if err != nil {
		return nil, nil, err
	}
	var files []*os.File
	release = func() {
		for _, f := range files {
			f.Close()
		}
	}
	add := func(b []byte) {
		if err == nil {
			var f *os.File
			if f, err = memFile("bare", b); err == nil {
				files = append(files, f)
			}
		}
	}
	data := append(etcData(), run.Data...)
	v := view{workspace: run.Lower, data: data, filter: bwrapArgsFD + 1, firstData: bwrapArgsFD + 2, root: hostRoot("/"), none: os.DevNull, masked: hostSecrets("/proc")}
	for _, bind := range run.Binds {
		v.binds = append(v.binds, bind.Source)
	}
	add(joinArgs(bwrapArgs(run, run.Limits.Filled(), v)))
	add(r.filter)
	for _, d := range data {
		add(d.Bytes)
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	cmd = exec.CommandContext(ctx, b.path, append([]string{"--args", fmt.Sprint(bwrapArgsFD), "--"}, run.Argv...)...)
	cmd.Env = []string{}
	cmd.ExtraFiles = files
	cmd.Stdin = run.Stdin
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	return cmd, release, nil
}

// runBare runs a bare command to its end.
func (r *Runner) runBare(ctx context.Context, run Run, stderr *bytes.Buffer) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd, release, err := r.Bare(ctx, run)
		if err == nil {
			cmd.Stderr = stderr
			err = cmd.Run()
			release()
		}
		done <- err
	}()
	return <-done
}

// joinArgs is the format of bwrap --args.
func joinArgs(args []string) []byte {
	var b bytes.Buffer
	for _, a := range args {
		b.WriteString(a)
		b.WriteByte(0)
	}
	return b.Bytes()
}
