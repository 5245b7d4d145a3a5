package leaseproc

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/conformance"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// Server is a provider in a process of its own, as this one sees it. The methods
// of lease.Provider and conformance.LeaseClock may be called at the same time, and
// fail while the process is gone.
type Server struct {
	program string
	dir     string // of the store
	private string // of the socket
	socket  string
	hooks   *conformance.LeaseHooks
	cmd     *exec.Cmd
	life    io.Closer // the process ends with it
}

var (
	_ lease.Provider         = (*Server)(nil)
	_ conformance.LeaseClock = (*Server)(nil)
)

// Start starts a server on a store in dir. program is one that calls Main.
func Start(program, dir string) (*Server, error) {
	s := &Server{program: program, dir: dir, hooks: new(conformance.LeaseHooks)}
	for _, parent := range []string{"", "/tmp"} {
		private, err := os.MkdirTemp(parent, "lease-")
		if err != nil {
			return nil, fmt.Errorf("a directory for a socket: %w", err)
		}
		s.private, s.socket = private, filepath.Join(private, "s")
		if len(s.socket) <= maxSocket {
			break
		}
		os.Remove(private)
	}
	if err := s.start(); err != nil {
		os.RemoveAll(s.private)
		return nil, err
	}
	return s, nil
}

// maxSocket is how long the path of a socket may be everywhere.
const maxSocket = 100

func (s *Server) start() error {
	s.cmd = exec.Command(s.program, Arg, modeServe, s.dir, s.socket)
	s.cmd.Env = []string{}
	s.cmd.Stderr = os.Stderr
	in, err := s.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.life = in
	if text, err := bufio.NewReader(out).ReadString('\n'); text != ready+"\n" {
		s.Kill()
		return fmt.Errorf("the process of the provider said %q, %v", text, err)
	}
	return nil
}

// Kill ends the process as kill -9 does, and waits until it is gone.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.life.Close()
}

// Close kills the process, and removes what was made beside the store.
func (s *Server) Close() error {
	s.Kill()
	return os.RemoveAll(s.private)
}

// Crash kills the process and starts it again on what it has stored.
func (s *Server) Crash() error {
	s.Kill()
	return s.start()
}

// Restart ends the process in good order and starts it again.
func (s *Server) Restart(ctx context.Context) error {
	if _, err := s.call(ctx, question{Op: "close"}); err != nil {
		return err
	}
	err := s.cmd.Wait()
	s.life.Close()
	if err != nil {
		return err
	}
	return s.start()
}

// Case is all that can be done to the provider. The suite needs a Resource
// besides, which has nothing to do with it.
func (s *Server) Case() conformance.LeaseCase {
	return conformance.LeaseCase{
		Clock: s, Hooks: s.hooks, Clients: s.clients, Interrupt: s.interrupt,
		Reopen: func(ctx context.Context) (lease.Provider, error) { return s, s.Restart(ctx) },
		Crash:  func(context.Context) (lease.Provider, error) { return s, s.Crash() },
	}
}

func (s *Server) Acquire(ctx context.Context, r lease.Request) (lease.Grant, error) {
	a, err := s.call(ctx, question{Op: "acquire", Request: r})
	return a.Grant, err
}

func (s *Server) Renew(ctx context.Context, g lease.Grant, ttl time.Duration) (lease.Grant, error) {
	a, err := s.call(ctx, question{Op: "renew", Grant: g, D: ttl})
	return a.Grant, err
}

func (s *Server) Release(ctx context.Context, g lease.Grant) error {
	_, err := s.call(ctx, question{Op: "release", Grant: g})
	return err
}

func (s *Server) Last(ctx context.Context, k lease.Key) (uint64, error) {
	a, err := s.call(ctx, question{Op: "last", Request: lease.Request{Key: k}})
	return a.Token, err
}

func (s *Server) Info() lease.Info {
	a, _ := s.call(context.Background(), question{Op: "info"})
	return a.Info
}

func (s *Server) Guard(ctx context.Context, g lease.Grant, fn func(lease.Txn) error) error {
	c, err := s.dial(ctx, question{Op: "guard", Grant: g})
	if err != nil {
		return err
	}
	defer c.Close()
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
		if failed = fn(txn{c}); failed != nil {
			end = "abort"
		}
		if err := c.out.Encode(answer{Op: end}); err != nil {
			return err
		}
	}
}

// Advance, StepWall and Suspend move the clock of the provider.
func (s *Server) Advance(d time.Duration)  { s.move("advance", d) }
func (s *Server) StepWall(d time.Duration) { s.move("step", d) }
func (s *Server) Suspend(d time.Duration)  { s.move("suspend", d) }

func (s *Server) move(op string, d time.Duration) {
	_, _ = s.call(context.Background(), question{Op: op, D: d}) // a rule then fails for what the clock shows
}

func (s *Server) interrupt(stored bool) {
	_, _ = s.call(context.Background(), question{Op: "interrupt", Stored: stored}) // the rule sees that nothing was
}

func (s *Server) dial(ctx context.Context, q question) (line, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", s.socket)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return line{}, err
	}
	c := newLine(conn)
	if err := c.out.Encode(q); err != nil {
		conn.Close()
		return line{}, err
	}
	return c, nil
}

// call makes a call, and answers what the provider asks its hooks meanwhile.
func (s *Server) call(ctx context.Context, q question) (answer, error) {
	c, err := s.dial(ctx, q)
	if err != nil {
		return answer{}, err
	}
	defer c.Close()
	for {
		var a, reply answer
		if err := c.in.Decode(&a); err != nil {
			return a, err
		}
		switch {
		case a.Op == "":
			return a, a.err()
		case a.Op == "evict" && s.hooks != nil:
			reply.fail(s.hooks.Evict(ctx, a.Lease))
		case a.Op == "record" && s.hooks != nil:
			reply.fail(s.hooks.Record(ctx, a.Grant))
		}
		if err := c.out.Encode(reply); err != nil {
			return a, err
		}
	}
}

// txn is what the function of a Guard works on.
type txn struct{ c line }

func (t txn) ask(q answer) (a answer, err error) {
	if err := t.c.out.Encode(q); err != nil {
		return a, err
	}
	if err := t.c.in.Decode(&a); err != nil {
		return a, err
	}
	return a, a.err()
}

func (t txn) Get(name string) ([]byte, error) {
	a, err := t.ask(answer{Op: "get", Name: name})
	if a.Absent {
		return nil, err
	}
	return append([]byte{}, a.Value...), err
}

func (t txn) Set(name string, value []byte) error {
	_, err := t.ask(answer{Op: "set", Name: name, Value: value})
	return err
}

func (t txn) Delete(name string) error {
	_, err := t.ask(answer{Op: "delete", Name: name})
	return err
}

// clients lets processes make the same request at once.
func (s *Server) clients(ctx context.Context, n int, r lease.Request) ([]conformance.Attempt, error) {
	all := make([]*client, 0, n)
	defer func() {
		for _, c := range all {
			c.stop()
		}
	}()
	for i := range n {
		r := r
		r.Owner = fmt.Sprint(r.Owner, "-", i)
		c, err := s.client(ctx, question{Op: "acquire", Request: r, Socket: s.socket})
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	for _, c := range all {
		c.start.Close()
	}
	got := make([]conformance.Attempt, n)
	for i, c := range all {
		var a answer
		if err := json.NewDecoder(c.out).Decode(&a); err != nil {
			return nil, err
		}
		got[i] = conformance.Attempt{Grant: a.Grant, Err: a.err()}
	}
	return got, nil
}

// client is a process that makes a call when start is closed.
type client struct {
	cmd   *exec.Cmd
	start io.Closer
	out   *bufio.Reader
}

func (s *Server) client(ctx context.Context, q question) (*client, error) {
	text, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	c := &client{cmd: exec.CommandContext(ctx, s.program, Arg, modeClient, string(text))}
	c.cmd.Env = []string{}
	c.cmd.Stderr = os.Stderr
	if c.start, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	pipe, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(pipe)
	if text, err := c.out.ReadString('\n'); text != ready+"\n" {
		c.stop()
		return nil, fmt.Errorf("a client said %q, %v", text, err)
	}
	return c, nil
}

func (c *client) stop() {
	c.start.Close()
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}
