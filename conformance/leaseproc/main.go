package leaseproc

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"github.com/mcp-vdisk/mcp-vdisk/conformance"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// Arg is the first argument of a process that is the server or a client.
const Arg = "mcp-vdisk-lease"

// What the second one says that it is.
const (
	modeServe  = "serve"  // DIR SOCKET: of the store, and where to listen
	modeClient = "client" // CALL: as JSON
)

// Main is the life of such a process; args are those behind Arg. It returns the
// exit code.
func Main(args []string, open Opener) int {
	var err error
	switch {
	case len(args) == 3 && args[0] == modeServe:
		err = serve(args[1], args[2], open)
	case len(args) == 2 && args[0] == modeClient:
		err = ask(args[1])
	default:
		err = fmt.Errorf("%s is started by the program itself", Arg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Opener opens the provider on what it has stored in a directory. close is called
// once no call is running.
type Opener func(dir string, o Options) (p lease.Provider, close func() error, err error)

// Options are what the provider has to use.
type Options struct {
	Clock  lease.Clock
	Evict  func(context.Context, lease.Lease) error // see lease.Options
	Record func(context.Context, lease.Grant) error
	// Write makes one write of the store durable, by calling do; now and then it
	// reports an error, though it did or because it did not.
	Write func(do func() error) error
}

// host is the server's side.
type host struct {
	p      lease.Provider
	clock  conformance.ManualClock
	faults faults
}

// serve serves until it is told to close, is killed, or its input ends with the
// process that started it.
func serve(dir, socket string, open Opener) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	h := &host{}
	p, closeStore, err := open(dir, Options{Clock: &h.clock, Evict: evict, Record: record, Write: h.faults.write})
	if err != nil {
		return err
	}
	h.p = p
	os.Remove(socket) // a server that was killed leaves its own
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	fmt.Println(ready)
	var calls sync.WaitGroup
	for {
		c, err := l.Accept()
		if err != nil {
			calls.Wait()
			return closeStore()
		}
		calls.Go(func() {
			defer c.Close()
			if h.call(newLine(c)) {
				l.Close()
			}
		})
	}
}

// ready is the line that a process prints when it is.
const ready = "ready"

// call answers one call, and says whether it was the last one.
func (h *host) call(c line) (last bool) {
	var q question
	if c.in.Decode(&q) != nil {
		return false
	}
	var a answer
	var err error
	ctx := context.WithValue(context.Background(), lineKey{}, c)
	switch q.Op {
	case "acquire":
		a.Grant, err = h.p.Acquire(ctx, q.Request)
	case "renew":
		a.Grant, err = h.p.Renew(ctx, q.Grant, q.D)
	case "release":
		err = h.p.Release(ctx, q.Grant)
	case "guard":
		err = h.p.Guard(ctx, q.Grant, func(tx lease.Txn) error { return guard(c, tx) })
	case "last":
		a.Token, err = h.p.Last(ctx, q.Request.Key)
	case "info":
		a.Info = h.p.Info()
	case "advance":
		h.clock.Advance(q.D)
	case "step":
		h.clock.StepWall(q.D)
	case "suspend":
		h.clock.Suspend(q.D)
	case "interrupt":
		h.faults.add(q.Stored)
	}
	a.fail(err)
	_ = c.out.Encode(a)
	return q.Op == "close"
}

// guard lets the caller's function work on a transaction.
func guard(c line, tx lease.Txn) error {
	if err := c.out.Encode(answer{Op: "begin"}); err != nil {
		return err
	}
	for {
		var q, a answer
		if err := c.in.Decode(&q); err != nil {
			return err
		}
		var err error
		switch q.Op {
		case "commit":
			return nil
		case "abort":
			return errAborted
		case "get":
			a.Value, err = tx.Get(q.Name)
			a.Absent = a.Value == nil
		case "set":
			err = tx.Set(q.Name, q.Value)
		case "delete":
			err = tx.Delete(q.Name)
		}
		a.fail(err)
		if err := c.out.Encode(a); err != nil {
			return err
		}
	}
}

// lineKey leads to the connection of the call, for hooks.
type lineKey struct{}

func evict(ctx context.Context, l lease.Lease) error {
	return hook(ctx, answer{Op: "evict", Lease: l})
}

func record(ctx context.Context, g lease.Grant) error {
	return hook(ctx, answer{Op: "record", Grant: g})
}

// hook asks the caller's process.
func hook(ctx context.Context, q answer) error {
	c, ok := ctx.Value(lineKey{}).(line)
	if !ok {
		return nil
	}
	var a answer
	if err := c.out.Encode(q); err != nil {
		return err
	}
	if err := c.in.Decode(&a); err != nil {
		return err
	}
	return a.err()
}

// faults are the writes that are about to fail.
type faults struct {
	mu   sync.Mutex
	next []bool // was it stored
}

func (f *faults) add(stored bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next = append(f.next, stored)
}

func (f *faults) write(do func() error) error {
	f.mu.Lock()
	fails, stored := len(f.next) > 0, false
	if fails {
		stored, f.next = f.next[0], f.next[1:]
	}
	f.mu.Unlock()
	if !fails || stored {
		if err := do(); err != nil || !fails {
			return err
		}
	}
	return errInterrupted
}

// ask makes a call when the input ends, and prints its answer.
func ask(text string) error {
	var q question
	if err := json.Unmarshal([]byte(text), &q); err != nil {
		return err
	}
	fmt.Println(ready)
	_, _ = io.Copy(io.Discard, os.Stdin)
	got, err := (&Server{socket: q.Socket}).call(context.Background(), q)
	a := answer{Grant: got.Grant}
	a.fail(err)
	return json.NewEncoder(os.Stdout).Encode(a)
}
