//go:build linux && (amd64 || arm64)

package prober

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// init is where the prober runs: before compilers of schemas and the like have
// cost each of its many children their time.
func init() { Main() }

// Main is the whole life of a process that is the prober; in any other it
// returns at once. Importing this package is enough to have it called.
func Main() {
	if len(os.Args) < 3 || os.Args[1] != Arg {
		return
	}
	code := 0
	if err := play(os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	syscall.Exit(code) // not os.Exit: nothing is to be flushed
}

func play(mode string, args []string) error {
	switch mode {
	case ModeProbe:
		return probe(os.Stdin, os.Stdout)
	case modeCall:
		return callOnce(args)
	case ModeForks:
		return forks()
	case ModeBomb:
		return bomb()
	case ModeFill:
		return fill(args)
	case ModeCrowd:
		return crowd(args)
	case ModeMemory:
		return memory(args)
	case ModeType:
		return typeInto()
	case modeTake:
		return take(args)
	}
	return fmt.Errorf("no mode %q", mode)
}

// Names returns the names of all probes, sorted.
func Names() []string {
	names := slices.Collect(maps.Keys(looks()))
	return slices.Sorted(slices.Values(slices.AppendSeq(names, maps.Keys(calls()))))
}

// probe makes the probes of an order in their order.
func probe(in io.Reader, out io.Writer) error {
	// Before anything else opens descriptors or reads the input.
	inherited := descriptors()
	b, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	var o Order
	if err := json.Unmarshal(b, &o); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	e := json.NewEncoder(out)
	l := &look{Order: o, descriptors: inherited}
	for _, id := range o.Probes {
		if err := e.Encode(l.try(id)); err != nil {
			return err
		}
	}
	return nil
}

// look is one round of probes.
type look struct {
	Order
	descriptors string
}

// errBroke is wrapped by what kept a probe from being made.
var errBroke = errors.New("the probe broke")

func broke(what string, err error) error { return fmt.Errorf("%w: %s: %w", errBroke, what, err) }

// try makes one probe. A panic in it is that probe's, not the end of the round.
func (l *look) try(id string) (o Observation) {
	o.ID = id
	defer func() {
		if p := recover(); p != nil {
			o.Broke = fmt.Sprint(p)
		}
	}()
	if f, ok := looks()[id]; ok {
		got, err := f(l)
		if err != nil {
			o.Broke = err.Error()
		}
		o.Got = got
		return o
	}
	if _, ok := calls()[id]; !ok {
		o.Broke = "there is no such probe"
		return o
	}
	o.Got, o.Broke = inChild(id)
	return o
}

// inChild makes a call in a child of its own.
func inChild(id string) (got, broken string) {
	var out, complaint limited
	cmd := exec.Command("/proc/self/exe", Arg, modeCall, id)
	cmd.Env = []string{}
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		if ws := exit.Sys().(syscall.WaitStatus); ws.Signaled() {
			return unix.SignalName(ws.Signal()), ""
		}
		return "", string(complaint)
	case err != nil:
		return "", err.Error()
	}
	return string(out), ""
}

// callOnce is that child.
func callOnce(args []string) error {
	if len(args) != 1 || calls()[args[0]] == nil {
		return errors.New("no such call")
	}
	err := calls()[args[0]]()
	if errors.Is(err, errBroke) {
		return err
	}
	fmt.Print(errnoName(err))
	return nil
}

// errnoName is the word for how a call ended.
func errnoName(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "OK"
	case errors.As(err, &errno):
		if name := unix.ErrnoName(errno); name != "" {
			return name
		}
		return fmt.Sprintf("errno %d", int(errno))
	}
	return err.Error()
}

// limited keeps the first bytes of an output.
type limited []byte

func (l *limited) Write(p []byte) (int, error) {
	*l = append(*l, p[:min(len(p), 4096-len(*l))]...)
	return len(p), nil
}

// Inherited makes a copy of the descriptor of f that children of this process
// inherit, as one that a library or our own parent forgot to close would be.
// It is for the proof that a sandbox does not get it.
func Inherited(f *os.File) (release func(), err error) {
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return func() { unix.Close(fd) }, nil
}
