package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// daemon serves one state directory to all who connect, and is the only process
// that has it open. It ends when nobody needed it for a while.
type daemon struct {
	hub    *hub
	config string // the text of the settings
	began  time.Time
	idle   time.Duration // 0: it never ends by itself
	stays  bool          // in the foreground: whoever runs it decides on its end
	log    *slog.Logger
	stop   context.CancelCauseFunc
	work   sync.WaitGroup // of connections

	mu       sync.Mutex
	ln       *front.Listener
	conns    map[*back]bool
	greeting int        // connections whose request is on its way
	greeted  *sync.Cond // there is one less
	quiet    time.Time  // since when nobody is connected
	asking   int        // how many want it to leave, and are not answered yet
	leaving  bool
}

// Why a daemon ends. Who is connected is told of the first; of the others a
// client notices nothing, for its front connects to the next daemon.
var (
	errStopped  = errors.New("the daemon was stopped")
	errReplaced = errors.New("the daemon makes room for another one")
	errEnded    = fmt.Errorf("the process in the foreground was asked to end: %w", errReplaced)
	errIdle     = errors.New("nobody needed the daemon")
	errMoved    = errors.New("the state directory was removed or moved while the daemon had it open: what was done since may be lost")
)

// startWait is for how long a daemon waits for a command that has the state
// directory for itself, and startPoll after what time it looks whether that is
// another daemon.
const (
	startWait = 10 * time.Second
	startPoll = 300 * time.Millisecond
)

// backDaemon is the life of a daemon.
func backDaemon(ctx context.Context, b *back) error {
	var q front.DaemonArgs
	if err := b.args(&q); err != nil {
		return err
	}
	if q.Idle < 0 {
		q.Idle = b.set.idle
	}
	h, let, err := b.openShared(ctx, q.Foreground)
	defer func() { let() }()
	if err != nil {
		return err
	}
	d := &daemon{hub: h, config: b.req.Config, began: time.Now(), quiet: time.Now(), idle: q.Idle, stays: q.Foreground, log: b.log, conns: map[*back]bool{}}
	d.greeted = sync.NewCond(&d.mu)
	asked := ctx
	ctx, d.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	defer d.stop(nil)
	defer context.AfterFunc(asked, func() { d.stop(d.asked()) })()
	err = d.run(ctx, b, let)
	return errors.Join(err, h.Close())
}

// asked is why a daemon ends that is sent a signal. One that somebody runs is run
// again, or by a client that is still there; and whoever ends the other means that.
func (d *daemon) asked() error {
	if d.stays {
		return errEnded
	}
	return errStopped
}

// openShared opens the state directory as soon as nobody else has it. For a daemon
// in the foreground one that a client started makes room, and no other is started
// until let is called.
func (b *back) openShared(ctx context.Context, foreground bool) (h *hub, let func(), err error) {
	let = func() {}
	for deadline := time.Now().Add(startWait); ; {
		h, err = openHub(ctx, b.req, b.set, startPoll, b.log)
		if err == nil {
			h.shared = true
			return h, let, nil
		}
		var f *exit.Failure
		busy := errors.As(err, &f) && f.Code == exit.Busy
		if !busy || ctx.Err() != nil || time.Now().After(deadline) {
			return nil, let, err
		}
		if foreground {
			let()
			if let, err = front.Displace(ctx, b.req); err != nil {
				return nil, let, err
			}
		} else if front.Answers(b.req.State, b.req.Config) {
			return nil, let, err
		}
	}
}

// run listens, says so, and serves until it is stopped.
func (d *daemon) run(ctx context.Context, b *back, let func()) error {
	if d.stays {
		d.log = newLogger(b.stderr, slog.LevelInfo) // for whoever runs it
	} else {
		logs, err := openLogFile(d.hub.st.path("daemon.log"))
		if err != nil {
			return err
		}
		defer logs.Close()
		b.log = newLogger(logs, slog.LevelInfo)
		d.log, d.hub.log, d.hub.st.slog = b.log, b.log, b.log
	}
	if err := d.hub.st.record(ctx, audit.StreamSystem, d.fact(audit.EvDaemonStart, "")); err != nil {
		return err
	}
	if err := d.listen(ctx); err != nil {
		return err
	}
	let()
	d.log.Info("the daemon listens", "process", os.Getpid(), "version", version)
	b.printf("%s\n", front.DaemonReady)
	d.work.Go(func() { d.watch(ctx) })
	d.work.Go(func() { d.hub.pickUp(ctx) })
	<-ctx.Done()
	d.mu.Lock()
	d.leaving = true
	d.ln.Close()
	d.mu.Unlock()
	d.work.Wait()
	d.ln.Remove()
	d.log.Info("the daemon ends", "process", os.Getpid(), "reason", context.Cause(ctx).Error())
	return d.hub.st.record(context.WithoutCancel(ctx), audit.StreamSystem, d.fact(audit.EvDaemonStop, context.Cause(ctx).Error()))
}

// listen makes the socket, anew if it is gone, and accepts clients on it.
func (d *daemon) listen(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	ln, err := front.Listen(d.hub.st.dir)
	if err != nil {
		return exit.Fail(exit.State, "", "listen for clients: %s", front.ErrText(err))
	}
	if d.ln != nil {
		d.ln.Close()
	}
	d.ln = ln
	if ctx.Err() == nil {
		d.work.Go(func() { d.accept(ctx, ln) })
	}
	return nil
}

// accept serves who connects until the listener is closed.
func (d *daemon) accept(ctx context.Context, ln *front.Listener) {
	for {
		c, err := ln.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // such as too many open files
			d.log.Warn("a client could not connect", "error", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
		default:
			d.work.Go(func() { d.serve(ctx, c) })
		}
	}
}

func (d *daemon) fact(ev audit.Event, why string) audit.Record {
	return audit.Record{Ev: ev, Reason: why, Args: audit.Facts{"version": version, "pid": int64(os.Getpid()), "uid": int64(os.Getuid())}}
}

// watchEvery is how often the daemon looks after its state directory and itself.
const watchEvery = 2 * time.Second

// watch ends the daemon when nobody needed it for a while or its state directory
// is gone, makes a socket that somebody removed anew, and closes disks that were
// open for what scripts had left.
func (d *daemon) watch(ctx context.Context) {
	every := watchEvery
	if d.idle > 0 {
		every = min(every, max(d.idle/10, 20*time.Millisecond))
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !d.hub.st.inPlace() {
			d.stop(errMoved)
			return
		}
		d.mu.Lock()
		ln := d.ln
		d.mu.Unlock()
		if !ln.Reachable() {
			if err := d.listen(ctx); err != nil {
				d.log.Warn("the socket is gone and cannot be made anew", "error", err)
			}
		}
		if d.unneeded(ctx, d.hub.sweep()) {
			d.stop(errIdle)
			return
		}
	}
}

// unneeded says whether it is time to leave, and then lets nobody in any more. What is
// made for scripts, such as packages that a person has approved and nobody waits for,
// comes first.
func (d *daemon) unneeded(ctx context.Context, disks int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if disks > 0 || len(d.conns) > 0 || d.greeting > 0 {
		d.quiet = time.Now()
	}
	over := d.idle > 0 && time.Since(d.quiet) >= d.idle
	if over && d.hub.atWork(ctx) { // on packages that somebody has approved, say
		d.quiet, over = time.Now(), false
	}
	d.leaving = d.leaving || over
	return over
}

// serve is one connection: a greeting, a request, its answer.
func (d *daemon) serve(ctx context.Context, c *net.UnixConn) {
	conn := front.Wrap(c)
	defer conn.Close()
	pid, uid, known := hostos.Peer(c)
	if known && uid != os.Getuid() && uid != 0 {
		d.log.Warn("another user tried to connect", "uid", uid, "pid", pid)
		return
	}
	b, theirs := d.greet(ctx, c, conn)
	if b == nil {
		return
	}
	defer d.leave(b)
	defer func() {
		if p := recover(); p != nil { // a fault in one request is not the end of the others
			d.log.Error("a request failed", "verb", b.req.Verb, "panic", p, "stack", string(debug.Stack()))
			b.refuse(conn, exit.Fail(exit.Failed, "look into daemon.log in the state directory, and please report it", "something went wrong inside mcp-vdisk"))
		}
	}()
	if known {
		b.peer.PID, b.peer.UID = pid, uid
	}
	if theirs.Protocol != front.Protocol && !verbs()[b.req.Verb].always {
		b.refuse(conn, exit.Fail(exit.Busy, "stop it with mcp-vdisk daemon stop, and try again", "the daemon is mcp-vdisk %s (process %d), which speaks another revision", version, os.Getpid()))
		return
	}
	b.answer(ctx, conn)
	if b.image != nil {
		b.image.Close()
	}
}

// greet exchanges greetings and takes the request; nil when none comes. Whoever
// was greeted is served: the daemon does not leave meanwhile.
func (d *daemon) greet(ctx context.Context, c *net.UnixConn, conn *front.Frames) (*back, front.Hello) {
	stop := context.AfterFunc(ctx, func() { c.SetReadDeadline(time.Now().Add(time.Second)) })
	defer stop()
	theirs, err := front.Greeted(c)
	if err != nil {
		return nil, theirs
	}
	ours := front.NewHello(d.config)
	d.mu.Lock()
	ours.Leaving = d.leaving || d.asking > 0
	if !ours.Leaving {
		d.greeting++
	}
	d.mu.Unlock()
	if ours.Leaving {
		front.Greet(c, ours)
		return nil, theirs
	}
	b := &back{hub: d.hub, daemon: d, began: time.Now()}
	if err = front.Greet(c, ours); err == nil {
		c.SetReadDeadline(time.Now().Add(front.HelloTime))
		b.req, b.image, err = conn.ReceiveRequest()
	}
	b.peer = b.req.Front
	d.mu.Lock()
	defer d.mu.Unlock()
	d.greeting--
	d.greeted.Broadcast()
	if err != nil {
		return nil, theirs
	}
	c.SetReadDeadline(time.Time{})
	d.conns[b] = true
	return b, theirs
}

// refuse answers a request that is not served.
func (b *back) refuse(conn *front.Frames, f *exit.Failure) {
	if b.image != nil {
		b.image.Close()
	}
	if payload, err := json.Marshal(f); err == nil {
		conn.Write(front.FrameExit, payload)
	}
}

func (d *daemon) leave(b *back) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, b)
	d.quiet = time.Now()
}

// daemonFacts is what `daemon status` tells.
type daemonFacts struct {
	Running bool      `json:"running"`
	PID     int       `json:"pid,omitempty"`
	UID     int       `json:"uid"`
	Version string    `json:"version,omitempty"`
	Build   string    `json:"build,omitempty"`
	Since   time.Time `json:"since"`
	State   string    `json:"state"`
	Socket  string    `json:"socket,omitempty"`
	Log     string    `json:"log,omitempty"`
	Idle    string    `json:"idle_exit,omitempty"`
	OldConf bool      `json:"settings_changed,omitempty"` // since it was started
	Clients []about   `json:"clients"`
	Disks   []string  `json:"disks"`
	Scripts int       `json:"scripts_running"`
	Kept    int       `json:"results_kept"`
	Waiting int       `json:"requests_waiting"` // for a person
}

func (d *daemon) facts(asker *back) daemonFacts {
	f := daemonFacts{
		Running: true, PID: os.Getpid(), UID: os.Getuid(), Version: version, Build: front.Build(), Since: d.began, State: d.hub.st.dir,
		Log: d.hub.st.path("daemon.log"), OldConf: front.DigestOf(asker.req.Config) != front.DigestOf(d.config), Clients: []about{}, Disks: []string{},
	}
	if d.idle > 0 {
		f.Idle = d.idle.String()
	}
	d.mu.Lock()
	f.Socket = d.ln.Path
	for b := range d.conns {
		if b != asker {
			f.Clients = append(f.Clients, b.about())
		}
	}
	d.mu.Unlock()
	slices.SortFunc(f.Clients, func(x, y about) int { return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.PID, y.PID)) })
	for _, k := range d.hub.all() {
		f.Disks = append(f.Disks, k.label())
		for _, j := range k.jobList() {
			if j.Ended.IsZero() {
				f.Scripts++
			} else {
				f.Kept++
			}
		}
	}
	slices.Sort(f.Disks)
	var err error
	if f.Waiting, err = d.hub.waiting(); err != nil {
		d.log.Warn("not all requests for packages can be read", "error", err)
	}
	return f
}

// about is what `daemon status` tells of a connection.
type about struct {
	Verb      string    `json:"verb"`
	Image     string    `json:"image,omitempty"`
	PID       int       `json:"pid"`
	UID       int       `json:"uid"`
	Parent    string    `json:"parent,omitempty"`
	Client    string    `json:"client,omitempty"` // as it calls itself
	Since     time.Time `json:"since"`
	Exclusive bool      `json:"exclusive,omitempty"`
	ReadOnly  bool      `json:"read_only,omitempty"`
}

func (b *back) about() about {
	a := about{Verb: b.req.Verb, PID: b.peer.PID, UID: b.peer.UID, Parent: b.peer.Parent, Since: b.began,
		Exclusive: b.req.Session.Exclusive, ReadOnly: b.req.Session.ReadOnly}
	if s := b.session.Load(); s != nil && s.client.Load() != nil {
		a.Client = *s.client.Load()
	}
	if b.req.Image != (front.ImageRef{}) {
		a.Image = b.req.Image.String()
	}
	return a
}

func backDaemonStatus(_ context.Context, b *back) error {
	return b.printJSON(b.daemon.facts(b))
}

// backDaemonStop asks the daemon to end. It is refused while somebody would lose
// something by it.
func backDaemonStop(ctx context.Context, b *back) error {
	var q front.StopArgs
	if err := b.args(&q); err != nil {
		return err
	}
	d := b.daemon
	if q.Replace && d.stays {
		return exit.Fail(exit.Refused, "restart it there, such as by systemctl --user restart mcp-vdisk; who is connected stays so",
			"the daemon is mcp-vdisk %s (process %d), which runs in the foreground for somebody else", version, os.Getpid())
	}
	d.mu.Lock()
	d.asking++
	for d.greeting > 0 && !q.Force { // they become requests, or are no more
		d.greeted.Wait()
	}
	d.mu.Unlock()
	f := d.facts(b)
	d.mu.Lock()
	busy := ""
	if !q.Force {
		busy = d.unfinished(f)
	}
	d.leaving = d.leaving || busy == ""
	d.asking--
	d.mu.Unlock()
	if busy != "" {
		return exit.Fail(exit.Busy, "wait for it, or pass --force", "the daemon (process %d, mcp-vdisk %s) is needed: %s", os.Getpid(), version, busy)
	}
	why := errStopped
	if q.Replace {
		why = errReplaced
	}
	b.ends = func() { d.stop(why) }
	return b.printJSON(f)
}

// unfinished says what would be lost if the daemon ended now. mu is held.
func (d *daemon) unfinished(f daemonFacts) string {
	switch {
	case f.Scripts > 0:
		return plainCount(f.Scripts, "script") + " running"
	case f.Kept > 0:
		return "results or changes of " + plainCount(f.Kept, "script") + " can still be asked for"
	}
	for b := range d.conns {
		if b.busy() {
			return fmt.Sprintf("%s of process %d", b.req.Verb, b.peer.PID)
		}
	}
	return ""
}
