package main

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// A connection between front and back carries frames: one byte of type, four
// bytes of length (big endian), the payload.
const (
	frameRequest  = 'R' // front: a request in JSON, always first, with up to one descriptor
	frameStdin    = '0' // front: bytes of standard input
	frameStdinEnd = 'E' // front: the end of it
	frameStdout   = '1' // back
	frameStderr   = '2' // back
	frameExit     = 'X' // back: a failure in JSON, or null; always last
)

const (
	maxFrame   = 256 << 10 // bytes of a payload
	frameChunk = 64 << 10  // bytes of a stream in one frame
)

// frames is one end of the connection. Writing is safe from many goroutines,
// reading is for one.
type frames struct {
	conn *net.UnixConn
	mu   sync.Mutex
}

// pair makes a connected pair.
func pair() (front, back *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "front"), os.NewFile(uintptr(fds[1]), "back"), nil
}

// newFrames takes a socket over; f is closed.
func newFrames(f *os.File) (*frames, error) {
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("not a unix socket")
	}
	return &frames{conn: u}, nil
}

func (f *frames) Close() error { return f.conn.Close() }

func (f *frames) write(typ byte, payload []byte) error {
	if len(payload) > maxFrame {
		return fmt.Errorf("frame of %d bytes is over the limit", len(payload))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.conn.Write(frame(typ, payload))
	return err
}

func frame(typ byte, payload []byte) []byte {
	b := make([]byte, 5, 5+len(payload))
	b[0] = typ
	binary.BigEndian.PutUint32(b[1:], uint32(len(payload)))
	return append(b, payload...)
}

func (f *frames) read() (typ byte, payload []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(f.conn, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("frame of %d bytes is over the limit", n)
	}
	payload = make([]byte, n)
	_, err = io.ReadFull(f.conn, payload)
	return head[0], payload, err
}

// sendRequest sends the request, with the open image file if there is one.
func (f *frames) sendRequest(r request, image *os.File) error {
	payload, err := json.Marshal(r)
	if err != nil {
		return err
	}
	var oob []byte
	if image != nil {
		oob = syscall.UnixRights(int(image.Fd()))
	}
	if len(payload) > maxFrame {
		return fmt.Errorf("request of %d bytes is over the limit", len(payload))
	}
	// The descriptor travels with the first byte.
	data := frame(frameRequest, payload)
	n, _, err := f.conn.WriteMsgUnix(data[:1], oob, nil)
	if err == nil {
		_, err = f.conn.Write(data[n:])
	}
	return err
}

// receiveRequest reads what sendRequest sent.
func (f *frames) receiveRequest() (r request, image *os.File, err error) {
	var first [1]byte
	oob := make([]byte, syscall.CmsgSpace(4))
	n, oobn, _, _, err := f.conn.ReadMsgUnix(first[:], oob)
	if err != nil || n != 1 || first[0] != frameRequest {
		return r, nil, fmt.Errorf("no request arrived: %w", cmp.Or(err, io.ErrUnexpectedEOF))
	}
	if image, err = passed(oob[:oobn]); err != nil {
		return r, nil, err
	}
	var size [4]byte
	if _, err = io.ReadFull(f.conn, size[:]); err != nil {
		return r, image, err
	}
	length := binary.BigEndian.Uint32(size[:])
	if length > maxFrame {
		return r, image, errors.New("request is over the limit")
	}
	payload := make([]byte, length)
	if _, err = io.ReadFull(f.conn, payload); err != nil {
		return r, image, err
	}
	return r, image, json.Unmarshal(payload, &r)
}

// passed takes the descriptor out of a control message.
func passed(oob []byte) (*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) != 1 {
		return nil, fmt.Errorf("bad control message: %w", cmp.Or(err, io.ErrUnexpectedEOF))
	}
	fds, err := syscall.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("bad descriptor message: %w", cmp.Or(err, io.ErrUnexpectedEOF))
	}
	syscall.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "image"), nil
}

// stream is an io.Writer that sends frames of one type.
type stream struct {
	f   *frames
	typ byte
}

func (s stream) Write(p []byte) (int, error) {
	sent := 0
	for len(p) > 0 {
		n := min(len(p), frameChunk)
		if err := s.f.write(s.typ, p[:n]); err != nil {
			return sent, err
		}
		p = p[n:]
		sent += n
	}
	return sent, nil
}
