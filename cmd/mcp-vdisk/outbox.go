package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/hostbox"
)

// boxes are the folders of the person that are joined to a session: what the disk has in
// /workspace/out goes to one, and what is in the other to /workspace/in. They run beside
// the session and never end it.
type boxes struct {
	outbox, inbox string // folders; "" is none
}

// serveWith serves the client while the folders are kept.
func (a *app) serveWith(ctx context.Context, s front.SessionFlags, x boxes) error {
	if x == (boxes{}) {
		return a.Serve(ctx, s)
	}
	if err := a.checkBoxes(&x, s); err != nil {
		return err
	}
	s.Outbox, s.Inbox = x.outbox != "", x.inbox != ""
	var ends []func()
	defer func() {
		for _, end := range ends {
			end()
		}
	}()
	a.Stderr = &oneAtATime{w: a.Stderr}
	if x.outbox != "" {
		end, err := a.openOutbox(ctx, s, x.outbox)
		if err != nil {
			return err
		}
		ends = append(ends, end)
	}
	if x.inbox != "" {
		end, err := a.openInbox(ctx, s, x.inbox)
		if err != nil {
			return err
		}
		ends = append(ends, end)
	}
	return a.Serve(ctx, s)
}

// oneAtATime is standard error, to which the session and its folders write.
type oneAtATime struct {
	mu sync.Mutex
	w  io.Writer
}

func (w *oneAtATime) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(p)
}

// checkBoxes makes the folders absolute, and refuses what does not go together.
func (a *app) checkBoxes(x *boxes, s front.SessionFlags) error {
	for _, dir := range []*string{&x.outbox, &x.inbox} {
		if *dir == "" {
			continue
		}
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return exit.BadUsage(err)
		}
		*dir = abs
	}
	switch {
	case a.Alone():
		return exit.Fail(exit.Usage, "leave --no-daemon out (and MCP_VDISK_NO_DAEMON); without an outbox mcp-vdisk image get copies what the disk has",
			"--outbox and --inbox need the daemon: without it the process that serves the disk does not touch your files")
	case x.inbox != "" && s.ReadOnly:
		return exit.Fail(exit.Usage, "leave one of them out", "--inbox changes the disk, which a session with --read-only does not")
	case x.outbox != "" && x.inbox != "" && (contains(x.outbox, x.inbox) || contains(x.inbox, x.outbox)):
		return exit.Fail(exit.Usage, "choose two folders that lie side by side", "--outbox and --inbox: what comes out would go in again")
	}
	return nil
}

// contains says whether a folder is another one, or holds it.
func contains(dir, other string) bool {
	rel, err := filepath.Rel(real(dir), real(other))
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

// real is a path without links, as far as it leads anywhere.
func real(dir string) string {
	if r, err := filepath.EvalSymlinks(dir); err == nil {
		return r
	}
	return filepath.Join(real(filepath.Dir(dir)), filepath.Base(dir))
}

// Times of an outbox.
const (
	boxRetry    = 3 * time.Second // after a failure, doubled up to boxRetryMax
	boxRetryMax = time.Minute
	boxFinish   = 5 * time.Second // for what is left at the end of the session
)

// outbox is the front of one.
type outbox struct {
	a      *app
	r      front.Request
	mode   front.OpenMode
	dir    string
	disk   string // its uuid
	mirror *hostbox.Mirror

	conn *boxConn
	want map[string]*hostbox.Item
	todo map[string]bool // names that are not as they should be, or not known to be
	told map[string]bool // kinds of failures, until it is well again, and notes
	wait time.Duration   // until what failed is tried again; 0: nothing did

	finishing chan struct{} // closed when the session has ended
}

// openOutbox begins to keep the folder. Failures before that are the session's; those
// that come later are told. end gives it the time to take what is left.
func (a *app) openOutbox(ctx context.Context, s front.SessionFlags, dir string) (end func(), err error) {
	o := &outbox{a: a, mode: front.ModeOf(s), dir: dir, want: map[string]*hostbox.Item{}, todo: map[string]bool{}, told: map[string]bool{}, finishing: make(chan struct{})}
	if o.r, err = a.NewRequest("box.out", boxArgs{Folder: strings.ToValidUTF8(dir, "?")}); err != nil {
		return nil, err
	}
	o.r.Session = s
	if o.mirror, err = hostbox.OpenMirror(dir, true, a.Stderr); err != nil {
		return nil, err
	}
	conn, err := a.Ahead(ctx, o.r, o.mode)
	if err == nil {
		err = o.begin(conn)
	}
	if err != nil {
		o.mirror.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.run(ctx)
	}()
	return func() {
		close(o.finishing)
		late := time.AfterFunc(boxFinish, cancel)
		<-done
		late.Stop()
		cancel()
		o.mirror.Close()
	}, nil
}

// begin takes up a connection: the first message says which disk it is about.
func (o *outbox) begin(frames *front.Frames) error {
	conn := &boxConn{frames: frames, stderr: o.a.Stderr}
	m, err := conn.read()
	if err == nil && o.disk != "" && m.Disk != o.disk {
		err = errOtherDisk
	}
	if err == nil {
		err = o.mirror.Claim(m.Disk)
	}
	if err != nil {
		frames.Close()
		return err
	}
	o.disk, o.conn = m.Disk, conn
	return nil
}

var errOtherDisk = errors.New("the name of the disk leads to another disk now; the outbox is of the former")

// run keeps the folder until the session ends or ctx does, with one daemon after the
// other.
func (o *outbox) run(ctx context.Context) {
	const first, most = 20 * time.Millisecond, 2 * time.Second
	for pause := first; ; pause = min(2*pause, most) {
		if o.conn != nil {
			began := time.Now()
			err := o.follow(ctx)
			o.conn.frames.Close()
			if o.conn = nil; err == nil || ctx.Err() != nil {
				break
			}
			o.say(err)
			if time.Since(began) > most {
				pause = first
			}
		}
		select {
		case <-ctx.Done():
		case <-o.finishing: // who would start the next daemon?
		case <-time.After(pause):
			frames, err := o.a.Beside(o.r, o.mode)
			if err == nil {
				err = o.begin(frames)
			}
			if errors.Is(err, errOtherDisk) {
				fmt.Fprintf(o.a.Stderr, "mcp-vdisk: outbox: %s\n", err)
				return
			}
			if o.say(err); err == nil {
				pause = first
			}
			continue
		}
		break
	}
	if len(o.todo) > 0 || ctx.Err() != nil {
		fmt.Fprintf(o.a.Stderr, "mcp-vdisk: outbox: not everything was copied to %s; the next session with it does that\n", o.dir)
	}
}

// follow keeps the folder as one daemon tells. It returns nil at the end of the session.
func (o *outbox) follow(ctx context.Context) error {
	conn := o.conn
	stop := context.AfterFunc(ctx, func() { conn.frames.Close() })
	defer stop()
	over := make(chan struct{})
	defer close(over)
	go func() { // ends what waits in the daemon
		select {
		case <-o.finishing:
			conn.ask(boxAsk{Poke: true})
		case <-over:
		}
	}()
	for {
		news, err := o.hear(conn)
		if err != nil {
			return err
		}
		if err := o.round(conn); err != nil {
			return err
		}
		select {
		case <-o.finishing:
			if !news {
				return nil
			}
		default:
		}
	}
}

// hear waits for what is new, and says whether anything is.
func (o *outbox) hear(conn *boxConn) (news bool, err error) {
	ask := boxAsk{Next: true, Wait: o.wait.Milliseconds()}
	select {
	case <-o.finishing:
		ask.Wait = 1
	default:
	}
	if err := conn.ask(ask); err != nil {
		return false, err
	}
	for {
		m, err := conn.read()
		switch {
		case err != nil:
			return news, err
		case m.Done:
			return news, nil
		}
		news = true
		if m.Whole {
			for name := range o.want {
				o.todo[name] = true
			}
			for _, name := range o.mirror.Held() {
				o.todo[name] = true
			}
			clear(o.want)
		}
		if m.Note != "" {
			o.once("note "+m.Note, m.Note)
		}
		for _, e := range m.Items {
			if err := o.hearOf(e); err != nil {
				return news, err
			}
		}
	}
}

func (o *outbox) hearOf(e boxEntry) error {
	it, err := e.item()
	if err != nil {
		return err
	}
	name := string(e.Name)
	if it == nil {
		delete(o.want, name)
	} else if o.want[name] == nil && len(o.want) >= outboxEntries {
		o.once("many", fmt.Sprintf("more than %d entries; the rest is left out", outboxEntries))
		return nil
	} else {
		o.want[name] = it
	}
	o.todo[name] = true
	return nil
}

// round makes the folder as it should be. An error is one of the connection.
func (o *outbox) round(conn *boxConn) error {
	if len(o.todo) == 0 && o.wait == 0 {
		return nil
	}
	if err := o.stay(); err != nil {
		o.failed(err)
		return nil
	}
	left, err := o.mirror.Settle(slices.Collect(maps.Keys(o.todo)), func(name string) *hostbox.Item { return o.want[name] }, conn.fetch)
	clear(o.todo)
	for _, name := range left {
		o.todo[name] = true
	}
	if conn.broken != nil {
		return conn.broken
	}
	if err != nil {
		o.failed(err)
	} else if o.wait > 0 {
		o.wait = 0
		fmt.Fprintf(o.a.Stderr, "mcp-vdisk: outbox: %s is up to date again\n", o.dir)
		clear(o.told)
	}
	return nil
}

// stay takes the folder up anew when another one is in its place.
func (o *outbox) stay() error {
	if o.mirror.Here() == nil {
		return nil
	}
	o.mirror.Close() // or its own lock would be in the way
	next, err := hostbox.OpenMirror(o.dir, false, o.a.Stderr)
	if err == nil {
		if err = next.Claim(o.disk); err != nil {
			next.Close()
		}
	}
	if err != nil {
		return err
	}
	o.mirror = next
	for name := range o.want {
		o.todo[name] = true
	}
	return nil
}

// failed tells a failure of the folder, once for each kind, and sees to it that what it
// kept from being done is tried again.
func (o *outbox) failed(err error) {
	o.wait = min(max(2*o.wait, boxRetry), boxRetryMax)
	o.once(kindOf(err), fmt.Sprintf("%s: %s; tried again with the next change", o.dir, err))
}

// say tells a failure of the daemon, but for that it is gone, which the session tells.
func (o *outbox) say(err error) {
	var f *exit.Failure
	if errors.As(err, &f) && f.Code != exit.Interrupted {
		o.once(f.Text, f.Text)
	}
}

func (o *outbox) once(kind, text string) {
	if !o.told[kind] {
		o.told[kind] = true
		fmt.Fprintf(o.a.Stderr, "mcp-vdisk: outbox: %s\n", harmless(text))
	}
}

// kindOf is the system's reason of a failure, else its text.
func kindOf(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

// boxConn is a connection to the back of an outbox.
type boxConn struct {
	frames *front.Frames
	stderr io.Writer
	broken error // it is of no use any more
}

func (c *boxConn) ask(a boxAsk) error {
	line, err := json.Marshal(a)
	if err == nil {
		_, err = front.Stream{Conn: c.frames, Type: front.FrameStdin}.Write(append(line, '\n'))
	}
	return err
}

// read returns the next message. Errors: that of the back, or of the connection.
func (c *boxConn) read() (boxTold, error) {
	m, _, err := c.either()
	return m, err
}

// either returns the next message, or the next piece of a content.
func (c *boxConn) either() (m boxTold, content []byte, err error) {
	for {
		typ, payload, err := c.frames.Read()
		switch {
		case err != nil:
			return m, nil, err
		case typ == front.FrameBox:
			return m, nil, json.Unmarshal(payload, &m)
		case typ == front.FrameStdout:
			return m, payload, nil
		case typ == front.FrameStderr:
			c.stderr.Write(payload)
		case typ == front.FrameExit:
			var f *exit.Failure
			if err := json.Unmarshal(payload, &f); err != nil {
				return m, nil, err
			}
			return m, nil, cmp.Or(front.NotNil(f), io.EOF)
		}
	}
}

// fetch is a [hostbox.Fetch].
func (c *boxConn) fetch(items []hostbox.Item, put func(hostbox.Item, io.Reader)) error {
	c.broken = c.take(items, put)
	return c.broken
}

func (c *boxConn) take(items []hostbox.Item, put func(hostbox.Item, io.Reader)) error {
	byName, ask := map[string]hostbox.Item{}, boxAsk{}
	for _, it := range items {
		byName[it.Name] = it
		ask.Take = append(ask.Take, boxWant{Name: []byte(it.Name), Sum: hex.EncodeToString(it.SHA256[:])})
	}
	if err := c.ask(ask); err != nil {
		return err
	}
	for {
		m, err := c.read()
		if err != nil || m.Done {
			return err
		}
		it, ok := byName[string(m.File)]
		if !ok {
			return fmt.Errorf("the daemon sent %q, which nobody asked for", m.File)
		}
		if m.End {
			put(it, bytes.NewReader(m.Data))
			continue
		}
		content := &boxContent{c: c}
		put(it, content)
		if _, err := io.Copy(io.Discard, content); content.broken {
			return err
		}
	}
}

// boxContent reads one content.
type boxContent struct {
	c      *boxConn
	rest   []byte
	err    error
	broken bool // the connection is
}

func (r *boxContent) Read(p []byte) (int, error) {
	for len(r.rest) == 0 && r.err == nil {
		m, content, err := r.c.either()
		switch {
		case err != nil:
			r.err, r.broken = err, true
		case content != nil:
			r.rest = content
		case m.End && m.Fail != "":
			r.err = errors.New(m.Fail)
		case m.End:
			r.err = io.EOF
		default:
			r.err, r.broken = errors.New("the daemon mixed up a content"), true
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	if n == 0 {
		return 0, r.err
	}
	return n, nil
}
