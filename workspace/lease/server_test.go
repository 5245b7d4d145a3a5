package lease_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/conformance"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// A provider in a process of its own, and clients in others, over a socket: one
// connection for each call, a line of JSON each way.

const (
	serveEnv  = "MCP_VDISK_LEASE_SERVE"  // the directory of the database; the socket is in it
	clientEnv = "MCP_VDISK_LEASE_CLIENT" // a call
)

func init() {
	roles[serveEnv] = serveProcess
	roles[clientEnv] = clientProcess
}

type call struct {
	Op      string // acquire renew release guard info · advance step suspend · close
	Request lease.Request
	Grant   lease.Grant
	D       time.Duration
	Socket  string // of a client's process
}

// answer is also what is asked within a guard, and answered there.
type answer struct {
	Grant lease.Grant
	Info  lease.Info
	Kind  string
	Text  string

	Op, Name string
	Value    []byte
	Absent   bool
}

var kinds = map[string]error{
	"conflict": lease.ErrConflict, "invalid": lease.ErrInvalid, "unavailable": lease.ErrUnavailable, "canceled": context.Canceled,
	"aborted": errAborted,
}

var errAborted = errors.New("the client has ended the transaction")

func (a *answer) fail(err error) {
	if err == nil {
		return
	}
	a.Kind, a.Text = "other", err.Error()
	for name, kind := range kinds {
		if errors.Is(err, kind) {
			a.Kind = name
		}
	}
}

func (a *answer) err() error {
	switch kind := kinds[a.Kind]; {
	case a.Kind == "":
		return nil
	case kind == nil:
		return errors.New(a.Text)
	default:
		return fmt.Errorf("%w: %s", kind, a.Text)
	}
}

// line is a connection that carries lines of JSON.
type line struct {
	net.Conn
	in  *json.Decoder
	out *json.Encoder
}

func newLine(c net.Conn) line { return line{c, json.NewDecoder(c), json.NewEncoder(c)} }

// serveProcess serves until it is told to close, or killed.
func serveProcess(dir string) {
	if err := serve(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(dir string) error {
	db, err := audit.OpenDB(filepath.Join(dir, "db"), nil)
	if err != nil {
		return err
	}
	clock := new(conformance.ManualClock)
	p, err := lease.New(db, lease.Options{Clock: clock})
	if err != nil {
		return err
	}
	os.Remove(filepath.Join(dir, "s"))
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	var calls sync.WaitGroup
	for {
		c, err := l.Accept()
		if err != nil {
			calls.Wait()
			return db.Close()
		}
		calls.Go(func() {
			defer c.Close()
			if serveCall(newLine(c), p, clock) {
				l.Close()
			}
		})
	}
}

// serveCall answers one call, and says whether it was the last one.
func serveCall(c line, p lease.Provider, clock *conformance.ManualClock) bool {
	var q call
	if c.in.Decode(&q) != nil {
		return false
	}
	var a answer
	var err error
	ctx := context.Background()
	switch q.Op {
	case "acquire":
		a.Grant, err = p.Acquire(ctx, q.Request)
	case "renew":
		a.Grant, err = p.Renew(ctx, q.Grant, q.D)
	case "release":
		err = p.Release(ctx, q.Grant)
	case "guard":
		err = p.Guard(ctx, q.Grant, func(tx lease.Txn) error { return serveGuard(c, tx) })
	case "info":
		a.Info = p.Info()
	case "advance":
		clock.Advance(q.D)
	case "step":
		clock.StepWall(q.D)
	case "suspend":
		clock.Suspend(q.D)
	}
	a.fail(err)
	_ = c.out.Encode(a)
	return q.Op == "close"
}

// serveGuard does what the client's function asks for.
func serveGuard(c line, tx lease.Txn) error {
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

// remote is the provider of another process.
type remote struct{ socket string }

func (r remote) call(ctx context.Context, q call) (a answer, err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", r.socket)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return a, err
	}
	defer conn.Close()
	c := newLine(conn)
	if err := c.out.Encode(q); err != nil {
		return a, err
	}
	err = c.in.Decode(&a)
	return a, errors.Join(err, a.err())
}

func (r remote) Acquire(ctx context.Context, q lease.Request) (lease.Grant, error) {
	a, err := r.call(ctx, call{Op: "acquire", Request: q})
	return a.Grant, err
}

func (r remote) Renew(ctx context.Context, g lease.Grant, ttl time.Duration) (lease.Grant, error) {
	a, err := r.call(ctx, call{Op: "renew", Grant: g, D: ttl})
	return a.Grant, err
}

func (r remote) Release(ctx context.Context, g lease.Grant) error {
	_, err := r.call(ctx, call{Op: "release", Grant: g})
	return err
}

func (r remote) Info() lease.Info {
	a, _ := r.call(context.Background(), call{Op: "info"})
	return a.Info
}

func (r remote) Guard(ctx context.Context, g lease.Grant, fn func(lease.Txn) error) error {
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	c := newLine(conn)
	if err := c.out.Encode(call{Op: "guard", Grant: g}); err != nil {
		return err
	}
	var failed error
	for {
		var a answer
		if err := c.in.Decode(&a); err != nil {
			return err
		}
		if a.Op != "begin" {
			if failed != nil && a.Kind == "aborted" {
				return failed
			}
			return a.err()
		}
		end := "commit"
		if failed = fn(remoteTxn{c}); failed != nil {
			end = "abort"
		}
		if err := c.out.Encode(answer{Op: end}); err != nil {
			return err
		}
	}
}

type remoteTxn struct{ c line }

func (t remoteTxn) ask(q answer) (a answer, err error) {
	if err := t.c.out.Encode(q); err != nil {
		return a, err
	}
	err = t.c.in.Decode(&a)
	return a, errors.Join(err, a.err())
}

func (t remoteTxn) Get(name string) ([]byte, error) {
	a, err := t.ask(answer{Op: "get", Name: name})
	if a.Absent {
		return nil, err
	}
	return append([]byte{}, a.Value...), err
}

func (t remoteTxn) Set(name string, value []byte) error {
	_, err := t.ask(answer{Op: "set", Name: name, Value: value})
	return err
}

func (t remoteTxn) Delete(name string) error {
	_, err := t.ask(answer{Op: "delete", Name: name})
	return err
}

// server is the process that has the database open.
type server struct {
	remote
	t   testing.TB
	dir string
	cmd *exec.Cmd
}

func startServer(t testing.TB) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "lease") // short, for the socket
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, dir: dir, remote: remote{filepath.Join(dir, "s")}}
	t.Cleanup(func() {
		s.kill()
		os.RemoveAll(dir)
	})
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *server) start() error {
	s.cmd = exec.Command(os.Args[0])
	s.cmd.Env = append(os.Environ(), serveEnv+"="+s.dir)
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	if text, err := bufio.NewReader(out).ReadString('\n'); text != "ready\n" {
		return fmt.Errorf("the server said %q, %v", text, err)
	}
	return nil
}

func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func (s *server) crash(context.Context) (lease.Provider, error) {
	s.kill()
	return s.remote, s.start()
}

func (s *server) restart(ctx context.Context) (lease.Provider, error) {
	if _, err := s.call(ctx, call{Op: "close"}); err != nil {
		return nil, err
	}
	if err := s.cmd.Wait(); err != nil {
		return nil, err
	}
	return s.remote, s.start()
}

func (s *server) move(op string, d time.Duration) {
	if _, err := s.call(context.Background(), call{Op: op, D: d}); err != nil {
		s.t.Error(err)
	}
}

func (s *server) Advance(d time.Duration)  { s.move("advance", d) }
func (s *server) StepWall(d time.Duration) { s.move("step", d) }
func (s *server) Suspend(d time.Duration)  { s.move("suspend", d) }

// clientProcess makes one call when its input ends.
func clientProcess(text string) {
	var q call
	if err := json.Unmarshal([]byte(text), &q); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	var a answer
	got, err := remote{q.Socket}.call(context.Background(), q)
	a.Grant = got.Grant
	a.fail(err)
	_ = json.NewEncoder(os.Stdout).Encode(a)
}

// clients lets processes make the same request at once.
func (s *server) clients(ctx context.Context, n int, r lease.Request) ([]conformance.Attempt, error) {
	all := make([]conformance.Attempt, n)
	var starts []io.Closer
	var ends []func(*conformance.Attempt) error
	for i := range n {
		r := r
		r.Owner = fmt.Sprint(r.Owner, "-", i)
		text, err := json.Marshal(call{Op: "acquire", Request: r, Socket: s.socket})
		if err != nil {
			return nil, err
		}
		start, end, err := startClient(ctx, string(text))
		if err != nil {
			return nil, err
		}
		starts, ends = append(starts, start), append(ends, end)
	}
	for _, c := range starts {
		c.Close()
	}
	for i, end := range ends {
		if err := end(&all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// startClient returns when the process waits for the end of its input.
func startClient(ctx context.Context, q string) (start io.Closer, end func(*conformance.Attempt) error, err error) {
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), clientEnv+"="+q)
	cmd.Stderr = os.Stderr
	if start, err = cmd.StdinPipe(); err != nil {
		return nil, nil, err
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	out := bufio.NewReader(pipe)
	if text, err := out.ReadString('\n'); text != "ready\n" {
		return nil, nil, fmt.Errorf("a client said %q, %v", text, err)
	}
	return start, func(to *conformance.Attempt) error {
		var a answer
		if err := json.NewDecoder(out).Decode(&a); err != nil {
			return err
		}
		to.Grant, to.Err = a.Grant, a.err()
		return cmd.Wait()
	}, nil
}
