package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/schemas"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
)

// session is the use of a disk's tools by one client.
type session struct {
	d     *disk
	tools *tools.Tools
	sole  *exclusive // nil unless the client has the disk for itself

	client atomic.Pointer[string] // what the client calls itself
	once   sync.Once
	err    error

	ended    chan struct{} // closed when the session ends
	watching sync.WaitGroup
}

// openSession opens the disk of the request, makes it if it is missing, and gives
// its tools as the request's flags allow them.
func (b *back) openSession(ctx context.Context, limits tools.Limits) (*session, error) {
	flags := b.req.Session
	if err := checkSession(flags); err != nil {
		return nil, err
	}
	d, err := b.open(ctx, want{readOnly: flags.ReadOnly, create: !flags.ReadOnly})
	if err != nil {
		return nil, err
	}
	s := &session{d: d, ended: make(chan struct{})}
	if err := s.begin(ctx, b, limits); err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}
	return s, nil
}

// begin makes the tools of a session.
func (s *session) begin(ctx context.Context, b *back, limits tools.Limits) error {
	if err := s.d.prepare(b.set.limits); err != nil {
		return err
	}
	box, python, err := b.hub.sandbox(ctx)
	if err != nil {
		return err
	}
	b.pip.tell(python)
	b.hub.resume(ctx, python)
	flags, who := b.req.Session, b.operator(audit.Facts{})
	if b.req.Verb == "serve" { // its first script need not wait for the interpreter then
		python.Warm()
	}
	if flags.Exclusive {
		if s.sole, err = b.claim(ctx, s.d, who); err != nil {
			return err
		}
		s.watch(b)
	}
	s.tools, err = tools.New(tools.Config{
		Image: s.d.image, Live: s.d.view, Box: box, Python: python, Pip: b.pip.get, Jobs: s.d.jobs, Lease: holder{s.d.right, s.sole, who}, Client: s.named,
		Log: b.st.log, Limits: limits, Scratch: b.st.path("scratch"), GetArgs: quoted(b.req.Get), GetLater: b.alone, EnvArgs: quoted(stateFlags(b.req.Get)), Logger: b.log, Version: version,
		Elicit: b.set.env.elicit, Disk: s.d.name, Outbox: flags.Outbox,
		Policy: tools.Policy{ReadOnly: flags.ReadOnly, NoDelete: flags.NoDelete, Tools: flags.Tools},
	})
	return err
}

// stateFlags are those of flags that lead to a disk that lead to its state directory.
func stateFlags(get []string) []string {
	if i := slices.Index(get, "--state"); i >= 0 && i+1 < len(get) {
		return get[i : i+2]
	}
	return nil
}

// claim gets the disk for the session alone. One that was there before the daemon
// ended, and whose place is taken or was lost before, goes on without the right to
// change anything: its client learns that from the first call that tries.
func (b *back) claim(ctx context.Context, d *disk, who audit.Facts) (*exclusive, error) {
	var had front.Hold
	if b.req.Again && b.req.Hold != nil {
		had = *b.req.Hold
	}
	if had.Lost {
		return lostBefore(had.Why), nil
	}
	x, err := d.right.claim(ctx, cut(b.peer.Client()), had.Token, who)
	var f *exit.Failure
	var taken *errTaken
	switch {
	case errors.As(err, &taken):
		b.lostHold(had.Token, taken.why)
		return lostBefore(taken.why), nil
	case b.req.Again && errors.As(err, &f) && f.Code == exit.Busy:
		b.lostHold(had.Token, f.Text)
		return lostBefore("somebody else had the disk when the next daemon began"), nil
	case err == nil:
		b.tellHold(front.Hold{Token: x.token()})
	}
	return x, err
}

// lostBefore is what a session has that lost its lease under another daemon.
func lostBefore(why string) *exclusive {
	x := &exclusive{gone: make(chan struct{})}
	x.lose(why)
	return x
}

// watch tells the client's front as soon as the session has lost its lease.
func (s *session) watch(b *back) {
	x := s.sole
	if x.held == nil { // it knows
		return
	}
	s.watching.Go(func() {
		select {
		case <-s.ended:
			return
		case <-x.gone:
		case <-x.held.Lost():
		}
		b.lostHold(x.token(), s.d.right.whyLost(x))
	})
}

// lostHold says, once in the life of a session, that it has lost its lease: to the
// person, and to the front, for the next daemon.
func (b *back) lostHold(token uint64, why string) {
	b.tellHold(front.Hold{Token: token, Lost: true, Why: why})
	fmt.Fprintf(b.stderr, "mcp-vdisk: this session was exclusive and can only read now: %s\nhint: connect the client again to change the disk; mcp-vdisk lease list shows who holds it\n", why)
}

// tellHold tells the front what lease the session has. One that is gone learns
// nothing.
func (b *back) tellHold(h front.Hold) {
	if payload, err := json.Marshal(h); err == nil && b.conn != nil {
		b.conn.Write(front.FrameHold, payload)
	}
}

// cut makes what a peer says of itself short enough for a lease.
func cut(s string) string {
	const most = 200
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "?")
}

// checkSession refuses flags that name no tool, or do not go together.
func checkSession(f front.SessionFlags) error {
	if f.ReadOnly && f.Exclusive {
		return exit.Fail(exit.Usage, "leave one of them out", "--exclusive keeps others from changing the disk, and a session with --read-only does not change it either")
	}
	for _, name := range f.Tools {
		if !slices.Contains(schemas.Names(), name) {
			return exit.Fail(exit.Usage, "the tools are "+strings.Join(schemas.Names(), ", "), "--tools: there is no tool %q", name)
		}
	}
	return nil
}

// named notes what the client calls itself.
func (s *session) named(client string) {
	s.client.Store(&client)
	if s.sole != nil {
		s.d.right.renamed(s.sole, client)
	}
}

// close ends the session; its last call must have returned. Scripts that were
// handed over go on.
func (s *session) close(ctx context.Context) error {
	s.once.Do(func() {
		close(s.ended)
		s.watching.Wait()
		if s.tools != nil {
			s.tools.Close()
		}
		var err error
		if s.sole != nil {
			err = s.d.right.yield(context.WithoutCancel(ctx), s.sole)
		}
		s.err = errors.Join(err, s.d.release())
	})
	return s.err
}
