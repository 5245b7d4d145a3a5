package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// checkArg makes a process the one that checks the file of a disk which came from
// elsewhere: its own descriptor 3. Whatever that file does to it, it happens there.
const checkArg = "check-foreign"

// What such a process may use. A check takes about 150 bytes per chunk and per path.
const (
	checkMemory  = 2 << 30    // bytes
	checkSeconds = 30 * 60    // of processor time
	checkAnswer  = 64 << 10   // bytes of what it says
	checkFD      = 3          // of the file
	checkSoft    = 256 << 20  // of memory, from where it is collected eagerly
	checkFiles   = uint64(64) // open at once
)

// checkAnswered is what it says.
type checkAnswered struct {
	Findings int64
	First    string // of them
	Why      string // it could not be checked at all
}

// checkMain is the program of such a process. It ends with the end of its input: then its
// parent is gone.
func checkMain() int {
	debug.SetMemoryLimit(checkSoft)
	for what, most := range map[int]uint64{unix.RLIMIT_DATA: checkMemory, unix.RLIMIT_CPU: checkSeconds, unix.RLIMIT_FSIZE: 0, unix.RLIMIT_CORE: 0, unix.RLIMIT_NOFILE: checkFiles} {
		if err := limit(what, most); err != nil {
			fmt.Fprintf(os.Stderr, "mcp-vdisk: limit what a check may use: %s\n", err)
			return exit.Failed
		}
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(exit.Interrupted)
	}()
	var a checkAnswered
	rep, err := workspace.Check(context.Background(), "", workspace.CheckOptions{File: os.NewFile(checkFD, "image")})
	switch {
	case err != nil:
		a.Why = err.Error()
	case len(rep.Findings) > 0:
		a.Findings, a.First = int64(len(rep.Findings))+rep.More, rep.Findings[0].String()
	}
	if json.NewEncoder(os.Stdout).Encode(a) != nil {
		return exit.Failed
	}
	return exit.OK
}

// limit lowers what this process may use; a limit that is lower already stays.
func limit(what int, most uint64) error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(what, &l); err != nil {
		return err
	}
	most = min(most, uint64(l.Max))
	l.Cur, l.Max = most, most
	return syscall.Setrlimit(what, &l)
}

// checkForeign checks all of a file that came from elsewhere, and refuses it for the
// least damage: nothing says what it should be.
func checkForeign(ctx context.Context, f *os.File) error {
	cmd := exec.CommandContext(ctx, front.SelfPath(), checkArg)
	cmd.Args[0] = "mcp-vdisk"
	cmd.Env, cmd.Dir, cmd.ExtraFiles = []string{}, "/", []*os.File{f}
	alive, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	defer alive.Close()
	var said, trouble bytes.Buffer
	cmd.Stdout, cmd.Stderr = &capped{&said, checkAnswer}, &capped{&trouble, checkAnswer}
	err = cmd.Run()
	var a checkAnswered
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && cmd.ProcessState == nil:
		return exit.Fail(exit.Failed, "the program file must be readable and executable for all", "start the check of the disk: %s", front.ErrText(err))
	case err != nil, json.Unmarshal(said.Bytes(), &a) != nil:
		return exit.Fail(exit.Verify, "", "the file cannot be taken for a disk: checking it was ended, with more than %s of memory or %d minutes of work, or by a fault", showSize(checkMemory), checkSeconds/60)
	case a.Why != "":
		return exit.Fail(exit.Verify, "", "the file cannot be taken for a disk: %s", a.Why)
	case a.Findings > 0:
		return exit.Fail(exit.Verify, "export it anew, or mend it where it came from: mcp-vdisk image fsck --repair",
			"the disk in the file is damaged: %s, the first: %s", plainCount(int(a.Findings), "finding"), harmless(a.First))
	}
	return nil
}

// capped is a buffer that takes so many bytes.
type capped struct {
	b    *bytes.Buffer
	left int
}

func (c *capped) Write(p []byte) (int, error) {
	if c.left -= len(p); c.left < 0 {
		return 0, errors.New("it says too much")
	}
	return c.b.Write(p)
}
