package front

import (
	"bufio"
	"io"
	"time"
)

// maxMessage is the longest line that is kept as a whole. What is longer passes
// in pieces, and the daemon refuses it.
const maxMessage = 16 << 20

// input passes the client's messages to the daemon until they end.
func (s *shim) input(in io.Reader) {
	r := bufio.NewReaderSize(in, 64<<10)
	for s.message(r) {
	}
	s.mu.Lock()
	s.ended = true
	conn := s.conn
	s.mu.Unlock()
	if conn != nil {
		conn.Write(FrameStdinEnd, nil)
	}
	for range time.Tick(unreadGrace / 10) {
		if since := s.writing.Load(); since != 0 && time.Since(time.Unix(0, since)) > unreadGrace {
			close(s.deaf)
			return
		}
	}
}

// unreadGrace is for how long a client that hung up may leave an answer unread.
const unreadGrace = 5 * time.Second

// message passes one message on; false says that it was the last.
func (s *shim) message(r *bufio.Reader) bool {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if err == bufio.ErrBufferFull && len(line) <= maxMessage {
			continue
		}
		more := err == bufio.ErrBufferFull
		if len(line) > 0 && !s.pass(line, more, r) {
			return false
		}
		return err == nil || more
	}
}

// pass hands a line to the daemon, and waits for one if there is none. false says
// that nothing is passed on any more.
func (s *shim) pass(line []byte, more bool, r *bufio.Reader) bool {
	for {
		s.mu.Lock()
		for s.conn == nil && !s.over {
			s.back.Wait()
		}
		conn, over := s.conn, s.over
		s.mu.Unlock()
		if over {
			return false
		}
		if s.send(conn, line, more, r) {
			return true
		}
	}
}

// send sends a line, with the rest of it when there is more; false when messages
// go elsewhere by now.
func (s *shim) send(conn *Frames, line []byte, more bool, r *bufio.Reader) bool {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.mu.Lock()
	current := s.conn == conn
	if current && !more {
		s.say(line)
	}
	s.mu.Unlock()
	if !current {
		return false
	}
	if s.piped != conn && (more || mayAsk(line)) {
		s.piped = conn
		conn.sendPip(s.a.PipConfig()) // a daemon that is gone takes the line as little
	}
	_, err := Stream{Conn: conn, Type: FrameStdin}.Write(line)
	if err != nil && !more && len(line) <= frameChunk && s.unsent(conn, line) {
		return false
	}
	if !more && isBroken(line) {
		s.mu.Lock()
		s.unsay(line)
		s.mu.Unlock()
	}
	for more {
		var part []byte
		part, rerr := r.ReadSlice('\n')
		more = rerr == bufio.ErrBufferFull
		if err == nil {
			_, err = Stream{Conn: conn, Type: FrameStdin}.Write(part)
		}
		if !more && err != nil {
			s.tell(errorAnswer("null", invalidRequest, "the message is longer than the server takes"))
		}
	}
	return true
}

// unsent takes back a call that did not reach the daemon, which is gone, so that it
// is made by the next. false says that it was answered already, or is repeated
// anyway.
func (s *shim) unsent(conn *Frames, line []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == conn {
		s.conn = nil
	}
	return s.takeBack(line)
}

const invalidRequest = -32600 // JSON-RPC 2.0 §5.1
