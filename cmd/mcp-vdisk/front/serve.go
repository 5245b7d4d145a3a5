package front

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// SessionFlags are what `serve` and `call` allow an agent.
type SessionFlags struct {
	ReadOnly bool     `json:"read_only,omitempty"`
	NoDelete bool     `json:"no_delete,omitempty"`
	Tools    []string `json:"tools,omitempty"`
	// Exclusive holds the disk for the session alone.
	Exclusive bool `json:"exclusive,omitempty"`
	// Outbox and Inbox say that a folder of the person's is joined to the session; which
	// one the front alone knows, and the log.
	Outbox bool `json:"outbox,omitempty"`
	Inbox  bool `json:"inbox,omitempty"`
}

// Serve connects the client on standard input and output with the daemon, or
// makes this process the server.
func (a *Caller) Serve(ctx context.Context, s SessionFlags) error {
	r, err := a.NewRequest("serve", nil)
	if err != nil {
		return err
	}
	r.Session = s
	image, err := r.Image.Open(ModeOf(s))
	if err != nil {
		return err
	}
	if image != nil {
		r.Image.New = isEmpty(image)
	}
	if a.Alone() {
		return a.Become(ctx, r, image)
	}
	if s.Exclusive {
		r.Hold = new(Hold)
	}
	return a.shim(ctx, r, image)
}

// Become makes this process what the request asks for. Root gives itself up for
// good first.
func (a *Caller) Become(ctx context.Context, r Request, image *os.File) error {
	if os.Geteuid() != 0 {
		return a.Here(ctx, r, image)
	}
	who, err := prepareState(r.State, a.RunAs, true)
	if err != nil {
		return err
	}
	handOverGroups(who)
	ours, sock, err := Pair()
	if err != nil {
		return err
	}
	conn, err := NewFrames(ours)
	if err != nil {
		return err
	}
	// The request waits in the socket's buffer for the program that this
	// process becomes.
	if err := conn.SendRequest(r, image); err != nil {
		return err
	}
	if r.HasTools() {
		if raw, err := conn.conn.SyscallConn(); err == nil {
			raw.Control(func(fd uintptr) { enlarge(fd, bufferSize) })
		}
		conn.Hurry(bufferTime)
		if conn.sendPip(a.PipConfig()) != nil {
			fmt.Fprintln(a.Stderr, "mcp-vdisk: the pip configuration is too long for a session of root without a daemon, which goes on without it")
		}
	}
	return becomeBack(who, sock)
}

// What a socket is to hold that nobody reads yet: the largest pip configuration, with what
// the kernel adds. After bufferTime something that is written has no room in it.
const (
	bufferSize = 32 << 20
	bufferTime = 200 * time.Millisecond
)

// StopSignals end the program in good order. A hangup does not, where whoever
// started it asked for that (nohup).
func StopSignals() []os.Signal {
	list := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		list = append(list, syscall.SIGHUP)
	}
	return list
}
