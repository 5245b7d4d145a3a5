package tools

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
)

// peer is the client of a connection, which reads only when it is told to.
type peer struct {
	t      testing.TB
	in     *io.PipeWriter
	out    *io.PipeReader
	lines  *bufio.Reader
	served chan error
	cancel context.CancelCauseFunc
	sent   atomic.Int64 // lines that were taken
}

func (d *disk) connect() *peer {
	ctx, cancel := context.WithCancelCause(d.t.Context())
	in, toServer := io.Pipe()
	out, fromServer := io.Pipe()
	p := &peer{t: d.t, in: toServer, out: out, lines: bufio.NewReader(out), served: make(chan error, 1), cancel: cancel}
	go func() { p.served <- d.ServeStdio(ctx, in, fromServer) }()
	d.t.Cleanup(func() {
		toServer.Close()
		out.Close()
	})
	return p
}

// say sends a line, and tells whether it was taken.
func (p *peer) say(format string, a ...any) bool {
	_, err := fmt.Fprintf(p.in, format+"\n", a...)
	p.sent.Add(1)
	return err == nil
}

// ask sends a tools/call.
func (p *peer) ask(id int, tool string, a args) bool {
	return p.say(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, id, tool, rawJSON(p.t, a))
}

// flood asks n times for a page of a file, without reading, until nothing more is
// taken.
func (p *peer) flood(n int, a args) {
	p.t.Helper()
	go func() {
		for i := range n {
			if !p.ask(i, "read_file", a) {
				return
			}
		}
	}()
	p.stuck()
}

// stuck waits until nothing more is taken for a second.
func (p *peer) stuck() {
	p.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for before, same := int64(0), 0; same < 10; <-tick.C {
		same++
		if now := p.sent.Load(); now != before || now == 0 {
			before, same = now, 0
		}
	}
}

// reply is the next message.
func (p *peer) reply() (m struct {
	ID     json.RawMessage
	Result struct {
		IsError bool
		Content []struct{ Text string }
	}
	Error *struct{ Message string }
}, err error) {
	line, err := p.lines.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &m)
	}
	return m, err
}

// end waits for the end of the connection.
func (p *peer) end(limit time.Duration) error {
	p.t.Helper()
	select {
	case err := <-p.served:
		return err
	case <-time.After(limit):
		p.t.Fatalf("the connection has not ended after %s", limit)
		return nil
	}
}

// heap is what is in use after a collection, in bytes.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what pools hold goes with the second one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

var page = args{"path": "big", "encoding": "base64", "byte_limit": 60_000}

const pageBytes = 82_000 // of the answer

// TestFlood: a client that asks and does not read is not read from after a while, and
// gets every answer once when it does.
func TestFlood(t *testing.T) {
	const n = 3000
	d := newDisk(t)
	d.write("big", strings.Repeat("x", 60_000))
	before := heap()
	p := d.connect()
	p.flood(n, page)
	const readAhead = 64 << 10 / 100 // lines in the reader's buffer
	if got := p.sent.Load(); got > mostReads+maxUnsent/pageBytes+maxWaiting+readAhead {
		t.Errorf("%d lines are taken from a client that does not read", got)
	}
	if got := heap() - before; got > maxUnsent+maxHeld+mostReads*2*pageBytes {
		t.Errorf("%d bytes are in use for it", got)
	}
	t.Logf("%d lines taken, %d kB in use", p.sent.Load(), (heap()-before)>>10)
	seen := map[string]int{}
	for range n {
		m, err := p.reply()
		if err != nil || m.Error != nil || m.Result.IsError {
			t.Fatalf("%+v %v", m, err)
		}
		seen[string(m.ID)]++
	}
	if len(seen) != n {
		t.Errorf("%d requests are answered", len(seen))
	}
	p.in.Close()
	if err := p.end(10 * time.Second); err != nil {
		t.Error(err)
	}
}

// TestFloodThatEnds: what waited for a client that is gone never happens, and nothing
// of it is left.
func TestFloodThatEnds(t *testing.T) {
	for name, end := range map[string]func(p *peer){
		"its output breaks":    func(p *peer) { p.out.Close() },
		"its context ends":     func(p *peer) { p.cancel(errors.New("enough")); p.out.Close() },
		"its input ends badly": func(p *peer) { p.in.CloseWithError(io.ErrUnexpectedEOF); p.out.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			d.t = t
			d.write("big", strings.Repeat("x", 60_000))
			mem, routines := heap(), runtime.NumGoroutine()
			p := d.connect()
			p.flood(3000, page)
			end(p)
			if err := p.end(10 * time.Second); err == nil {
				t.Error("nothing is said of the end")
			}
			p.in.Close()
			deadline := time.Now().Add(20 * time.Second)
			for runtime.NumGoroutine() > routines+1 || heap() > mem+(2<<20) {
				if time.Now().After(deadline) {
					t.Fatalf("%d goroutines, %d before; %d bytes, %d before", runtime.NumGoroutine(), routines, heap(), mem)
				}
				runtime.Gosched()
			}
			if got := len(d.records(audit.Query{Match: map[string][]string{"tool": {"read_file"}}})); got > mostReads+maxUnsent/pageBytes {
				t.Errorf("%d calls are in the log", got)
			}
			if d.Active() != 0 {
				t.Errorf("%d calls are at work", d.Active())
			}
			d.verify()
		})
	}
}

// crowd is a connection with as many scripts at work as may be, which wait for their
// turn, and calls behind them.
func crowd(t *testing.T) (d *disk, p *peer, behind int) {
	d = setup{config: func(c *Config) { c.Limits.Queue, c.Limits.Answer = time.Hour, time.Hour }}.scripted(t)
	for range d.cfg.Limits.Scripts {
		leave, err := d.jobs.turns.take(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(leave)
	}
	p = d.connect()
	for i := range mostScripts {
		p.ask(i, "run_script", args{"language": "bash", "source": "echo x >x"})
	}
	d.until("they wait for their turn", func() bool { return d.jobs.Running() == mostScripts })
	const n = 200
	for i := range n {
		p.ask(1000+i, "run_script", args{"language": "bash", "source": "echo x >y"})
	}
	return d, p, n
}

// intents are those of the scripts that have begun.
func (d *disk) intents() []audit.Record {
	return d.records(audit.Query{Match: map[string][]string{"tool": {"run_script"}, "ev": {string(audit.EvCallIntent)}}})
}

// TestCancelBesideABacklog: neither a ping nor a file nor a cancel stands behind scripts
// that wait; a call that is cancelled while it waits never happens.
func TestCancelBesideABacklog(t *testing.T) {
	d, p, n := crowd(t)
	p.say(`{"jsonrpc":"2.0","id":"p","method":"ping"}`)
	if m, err := p.reply(); err != nil || string(m.ID) != `"p"` {
		t.Fatalf("%+v %v", m, err)
	}
	p.ask(900, "write_file", args{"path": "f0", "content": "x"})
	if m, err := p.reply(); err != nil || string(m.ID) != "900" || m.Result.IsError {
		t.Fatalf("%+v %v", m, err)
	}
	if got := d.Active(); got != mostScripts+n {
		t.Errorf("%d calls are at work or wait, want %d", got, mostScripts+n)
	}
	for i := 1; i < n; i++ { // all but the first
		p.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, 1000+i)
	}
	p.say(`{"jsonrpc":"2.0","id":1001,"method":"ping"}`) // whose id is free again
	if m, err := p.reply(); err != nil || string(m.ID) != `1001` || m.Error != nil {
		t.Fatalf("%+v %v", m, err)
	}
	p.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`)
	d.until("the one that waited has begun", func() bool { return len(d.intents()) == mostScripts+1 })
	p.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1000}}`)
	for i := range mostScripts {
		p.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, i)
	}
	p.in.Close()
	if err := p.end(10 * time.Second); err != nil {
		t.Error(err)
	}
	if got := d.tree(); strings.Count(got, "\n") > 1 || d.content("f0") != "x" {
		t.Errorf("the disk has\n%s", got)
	}
	if got := len(d.intents()); got != mostScripts+1 {
		t.Errorf("%d scripts have begun", got)
	}
	d.verify()
}

// TestLongLinesBesideABacklog: what waits is bounded by its bytes, too.
func TestLongLinesBesideABacklog(t *testing.T) {
	_, p, n := crowd(t)
	before := heap()
	content := strings.Repeat("x", 1<<20)
	go func() {
		for i := range 100 {
			if !p.ask(5000+i, "run_script", args{"language": "bash", "source": content}) {
				return
			}
		}
	}()
	p.stuck()
	if got := p.sent.Load() - int64(mostScripts+n); got > maxHeld>>20 {
		t.Errorf("%d lines of a megabyte are taken", got)
	}
	if got := heap() - before; got > 3*maxHeld {
		t.Errorf("%d bytes are in use", got)
	}
	p.cancel(nil)
	p.out.Close()
	p.end(10 * time.Second)
}

// TestEndOfInputBesideABacklog: a client that says no more but reads is told that what
// waited never began, which the log says too.
func TestEndOfInputBesideABacklog(t *testing.T) {
	d, p, n := crowd(t)
	p.in.Close()
	for range mostScripts + n {
		m, err := p.reply()
		if err != nil || len(m.Result.Content) == 0 || !strings.HasPrefix(m.Result.Content[0].Text, "CANCELLED: ") {
			t.Fatalf("%+v %v", m, err)
		}
	}
	if err := p.end(10 * time.Second); err != nil {
		t.Error(err)
	}
	refused := d.records(audit.Query{Match: map[string][]string{"ev": {string(audit.EvCallRefused)}, "err": {string(Cancelled)}}})
	if len(refused) != n || len(d.intents()) != mostScripts {
		t.Errorf("%d have begun, %d were refused", len(d.intents()), len(refused))
	}
	if d.tree() != "" {
		t.Errorf("the disk has\n%s", d.tree())
	}
	d.verify()
}

// TestEndOfInputOfASlowReader: the grace after the end of the input is not over
// while the client takes what it is sent.
func TestEndOfInputOfASlowReader(t *testing.T) {
	const n = 400
	d := newDisk(t)
	d.write("big", strings.Repeat("x", 60_000))
	p := d.connect()
	p.flood(n, page)
	p.in.Close()
	tick := time.NewTicker((eofGrace + time.Second) / (n / 4)) // more than the grace while some wait
	defer tick.Stop()
	for i := range n {
		if i < n/4 {
			<-tick.C
		}
		if m, err := p.reply(); err != nil || m.Error != nil || m.Result.IsError {
			t.Fatalf("answer %d: %+v %v", i, m, err)
		}
	}
	if err := p.end(10 * time.Second); err != nil {
		t.Error(err)
	}
}

// TestCauses: whatever ends a call is a cancellation, unless it has a code.
func TestCauses(t *testing.T) {
	for cause, want := range map[error]Code{
		errors.New("the daemon was stopped"): Cancelled, context.DeadlineExceeded: Busy, errEvicted: Fenced, errHungUp: Cancelled, nil: Cancelled,
	} {
		t.Run(fmt.Sprint(cause), func(t *testing.T) {
			d := newScripted(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() { d.running(1); cancel(cause) }()
			for _, c := range []struct {
				tool string
				a    args
			}{
				{"run_script", args{"language": "bash", "source": "echo x >x; sleep 60"}},
				{"run_script", args{"language": "bash", "source": "echo x >x"}}, // it has ended before these begin
				{"read_file", args{"path": "a"}},
				{"write_file", args{"path": "a", "content": "x"}},
			} {
				r := d.Call(ctx, c.tool, rawJSON(t, c.a))
				wantCode(t, r, want)
				d.checkRecords(c.tool, r)
			}
			if d.tree() != "" {
				t.Errorf("the disk has\n%s", d.tree())
			}
			d.verify()
		})
	}
}
