package front

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
)

// shim passes the messages of one client to the daemon and back, line by line.
// When the daemon dies it answers what was not answered, connects to the next one
// and repeats the client's handshake, so that the client's session goes on.
type shim struct {
	a     *Caller
	r     Request
	image *os.File // of a disk that is named by its path; kept for the next daemon

	outMu   sync.Mutex // held while the client is written to
	out     io.Writer
	writing atomic.Int64  // since when that lasts, 0 when it does not
	deaf    chan struct{} // closed when the client hung up and does not read

	// sending is held while the daemon is sent a line, and by whoever ends that.
	// It comes before mu.
	sending sync.Mutex
	piped   *Frames // the connection that has the pip configuration; under sending

	mu     sync.Mutex
	conn   *Frames    // where messages go; nil while there is none
	moved  *Frames    // where none go any more
	served *Frames    // where answers come from
	hungUp bool       // the client is to be served no more
	back   *sync.Cond // somebody waits for conn
	over   bool       // nothing is passed on any more
	ended  bool       // the client's input has
	pending
}

// shim serves the client on standard input and output through the daemon. When
// ctx ends it hangs up, and returns when the daemon has ended the session, or soon:
// what waits for a client that does not read or a daemon that does not answer ends
// with the process.
func (a *Caller) shim(ctx context.Context, r Request, image *os.File) error {
	// A client that is gone is an error of a write, not the end of the process.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	s := &shim{a: a, r: r, image: image, out: a.Stdout, deaf: make(chan struct{})}
	s.back = sync.NewCond(&s.mu)
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	select {
	case err := <-ended:
		if errors.Is(err, syscall.EPIPE) {
			return nil // nobody listens any more
		}
		return err
	case <-s.deaf:
	case <-ctx.Done(): // asked to stop
		s.hangUp()
		select {
		case <-ended:
		case <-time.After(hangUpGrace):
		}
	}
	return nil
}

// hangUpGrace is how long a daemon has to end a session.
const hangUpGrace = 2 * time.Second

func (s *shim) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hungUp = true
	if s.served != nil {
		s.served.conn.CloseWrite()
	}
}

// run passes on what the daemon says until it says how the session ended.
func (s *shim) run(ctx context.Context) error {
	conn, err := s.a.Ensure(ctx, s.r, true)
	if err == nil && s.use(conn) != nil { // it died since
		conn.Close()
		conn, err = s.again(ctx, 1)
	}
	if err != nil {
		return err
	}
	go s.input(s.a.Stdin)
	for useless := 0; ; {
		began, answers := time.Now(), 0
		over, err := s.receive(conn, &answers)
		if over {
			return err
		}
		if err := s.lost(); err != nil {
			return err
		}
		if useless++; answers > 0 || time.Since(began) > lives {
			useless = 0
		}
		if conn, err = s.again(ctx, useless); conn == nil {
			return errors.Join(err, s.abandon())
		}
	}
}

// lives is after what time a daemon that never said anything is taken for one
// that works: a session may be idle.
const lives = 10 * time.Second

// reconnects is how often in a row the shim looks for a daemon that answers.
const reconnects = 5

// again connects to the next daemon; nil when that is for nobody any more.
func (s *shim) again(ctx context.Context, useless int) (*Frames, error) {
	var last error = exit.Fail(exit.Failed, "look into daemon.log in the state directory", "the daemon ended %d times before it answered anything", useless)
	for ; useless <= reconnects; useless++ {
		s.mu.Lock()
		nobody := s.ended && len(s.open) == 0
		s.mu.Unlock()
		if nobody {
			return nil, nil
		}
		if useless > 0 {
			time.Sleep(25 * time.Millisecond << useless)
		}
		// The settings may be others now, and it is we who may start the daemon.
		if text, err := ReadConfig(s.r.ConfigName); err == nil {
			s.r.Config = text
		}
		s.r.Again = true
		conn, err := s.a.Ensure(ctx, s.r, false)
		if err == nil {
			if err = s.use(conn); err == nil {
				return conn, nil
			}
			conn.Close()
		}
		last = fmt.Errorf("the daemon is gone: %w", err)
	}
	return nil, last
}

// use begins with a connection: the request and the handshake go first, and the
// rest when that is answered, so that the daemon knows whose calls they are.
func (s *shim) use(conn *Frames) error {
	s.r.Image.New = s.image != nil && isEmpty(s.image)
	err := conn.SendRequest(s.r, s.image)
	s.mu.Lock()
	greeting := s.greeting()
	s.mu.Unlock()
	if err == nil && greeting != nil {
		_, err = Stream{Conn: conn, Type: FrameStdin}.Write(greeting)
	}
	if err != nil {
		return fmt.Errorf("talk to the daemon: %w", err)
	}
	if greeting == nil {
		s.begin(conn)
	}
	return nil
}

// begin makes a connection the one that messages go to; what can be asked again
// goes first. That the daemon is gone sees the one who receives.
func (s *shim) begin(conn *Frames) {
	s.pipAgain(conn)
	s.mu.Lock()
	lines := s.repeat()
	s.mu.Unlock()
	for _, line := range lines {
		Stream{Conn: conn, Type: FrameStdin}.Write(line)
	}
	s.mu.Lock()
	ended := s.ended
	if s.moved != conn {
		s.conn = conn
		s.back.Broadcast()
	}
	s.mu.Unlock()
	if ended {
		conn.Write(FrameStdinEnd, nil)
	}
}

// pipAgain sends the pip configuration to the next daemon when the one before had it: it
// may have been at work on what somebody waits for.
func (s *shim) pipAgain(conn *Frames) {
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.piped != nil && s.piped != conn {
		s.piped = conn
		conn.sendPip(s.a.PipConfig())
	}
}

// receive passes on the lines of one connection, and counts them. over says that
// the session is; otherwise the daemon is gone. A line that is not whole is
// dropped: it is asked for again, or answered as lost.
func (s *shim) receive(conn *Frames, lines *int) (over bool, err error) {
	defer conn.Close()
	s.mu.Lock()
	s.served = conn
	s.mu.Unlock()
	if s.isHungUp() {
		return true, nil
	}
	var line []byte
	told := false // of the session's lease
	for {
		typ, payload, err := conn.Read()
		if err != nil {
			return s.isHungUp(), nil
		}
		switch typ {
		case FrameStdout:
			if !told {
				s.untold()
				told = true
			}
			for {
				i := bytes.IndexByte(payload, '\n') + 1
				if i == 0 {
					break
				}
				if err := s.deliver(conn, append(line, payload[:i]...)); err != nil {
					return true, err
				}
				line, payload = nil, payload[i:]
				*lines++
			}
			line = append(line, payload...)
		case FrameStderr:
			s.a.Stderr.Write(payload)
		case FrameMove:
			go s.move(conn)
		case FrameHold:
			s.keep(payload)
			told = true
		case FrameExit:
			var f *exit.Failure
			if err := json.Unmarshal(payload, &f); err != nil {
				return true, fmt.Errorf("the daemon's answer: %w", err)
			}
			return true, NotNil(f)
		}
	}
}

// keep notes what the next daemon has to know of the session's lease.
func (s *shim) keep(payload []byte) {
	h := new(Hold)
	if json.Unmarshal(payload, h) == nil {
		s.r.Hold = h
	}
}

// untold notes that a daemon serves the session and did not tell of its lease, as
// those of earlier releases do: the token is another one than that of the daemon
// before.
func (s *shim) untold() {
	if h := s.r.Hold; h != nil && !h.Lost {
		s.r.Hold = new(Hold)
	}
}

func (s *shim) isHungUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hungUp
}

// deliver writes one message to the client.
func (s *shim) deliver(conn *Frames, line []byte) error {
	e := envelopeOf(line)
	if string(e.id) == againID {
		s.begin(conn)
		return nil
	}
	s.mu.Lock()
	if e.id != nil && e.method == "" {
		s.answered(string(e.id))
	}
	s.hear(e)
	s.mu.Unlock()
	return s.tell(line)
}

func (s *shim) tell(line []byte) error {
	s.outMu.Lock()
	defer s.outMu.Unlock()
	s.writing.Store(time.Now().UnixNano())
	defer s.writing.Store(0)
	_, err := s.out.Write(line)
	return err
}

// lost answers the requests whose outcome is not known, and takes back what the daemon
// asked: it died. What the client still answers to that goes to the next one, which drops
// it.
func (s *shim) lost() error {
	s.mu.Lock()
	s.conn = nil
	ids, questions := s.pending.lost(), s.orphaned()
	s.mu.Unlock()
	for _, id := range questions {
		if err := s.tell(takenBack(id)); err != nil {
			return err
		}
	}
	return s.tellLost(ids)
}

// abandon answers whatever is open: no daemon will.
func (s *shim) abandon() error {
	s.mu.Lock()
	s.over = true
	ids := s.all()
	s.back.Broadcast()
	s.mu.Unlock()
	return s.tellLost(ids)
}

func (s *shim) tellLost(ids []string) error {
	for _, id := range ids {
		if err := s.tell(lostAnswer(id)); err != nil {
			return err
		}
	}
	return nil
}

// move ends what is sent to a daemon that makes room. What it was sent it
// answers; the rest waits for the next one.
func (s *shim) move(conn *Frames) {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.mu.Lock()
	s.moved = conn
	if s.conn == conn {
		s.conn = nil
	}
	s.mu.Unlock()
	conn.Write(FrameStdinEnd, nil)
}
