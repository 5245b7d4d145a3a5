package front

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// A connection between front and back carries Frames: one byte of type, four
// bytes of length (big endian), the payload.
const (
	frameRequest  = 'R' // front: a request in JSON, always first, with up to one descriptor
	FrameStdin    = '0' // front: bytes of standard input
	FrameStdinEnd = 'E' // front: the end of it
	FramePip      = 'P' // front: a piece of the caller's pip configuration in JSON, the empty one ends it; to whoever gives tools
	FrameStdout   = '1' // back
	FrameStderr   = '2' // back
	FrameMove     = 'M' // back: no more stdin here, go on with the next daemon; to a session
	FrameHold     = 'L' // back: a Hold in JSON, each time it changes; to an exclusive session
	FrameBox      = 'B' // back: what an outbox is to hold, in JSON; to the front of one
	FrameExit     = 'X' // back: a failure in JSON, or null; always last
)

const (
	maxFrame   = 256 << 10 // bytes of a payload
	frameChunk = 64 << 10  // bytes of a stream in one frame
)

// Frames is one end of the connection. Writing is safe from many goroutines,
// reading is for one.
type Frames struct {
	conn *net.UnixConn
	mu   sync.Mutex
}

// Pair makes two sockets that are connected, for a child to inherit one.
func Pair() (front, back *os.File, err error) {
	syscall.ForkLock.RLock() // or a child that is started meanwhile has them too
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "front"), os.NewFile(uintptr(fds[1]), "back"), nil
}

// NewFrames takes a socket over; f is closed.
func NewFrames(f *os.File) (*Frames, error) {
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
	return &Frames{conn: u}, nil
}

// Wrap makes a connection of a socket that is connected.
func Wrap(c *net.UnixConn) *Frames { return &Frames{conn: c} }

func (f *Frames) Close() error { return f.conn.Close() }

// Hurry makes what is written fail from then on, also what waits for a reader
// now.
func (f *Frames) Hurry(d time.Duration) { f.conn.SetWriteDeadline(time.Now().Add(d)) }

// HungUp says whether the other end is gone, or sends no more, also while there is
// something to read.
func (f *Frames) HungUp() bool { return hostos.HungUp(f.conn) }

func (f *Frames) Write(typ byte, payload []byte) error {
	if len(payload) > maxFrame {
		return fmt.Errorf("frame of %d bytes is over the limit", len(payload))
	}
	return f.send(frame(typ, payload))
}

func (f *Frames) send(frame []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.conn.Write(frame)
	return err
}

func frame(typ byte, payload []byte) []byte {
	return appendFrame(make([]byte, 0, 5+len(payload)), typ, payload)
}

func appendFrame(b []byte, typ byte, payload []byte) []byte {
	b = binary.BigEndian.AppendUint32(append(b, typ), uint32(len(payload)))
	return append(b, payload...)
}

func (f *Frames) Read() (typ byte, payload []byte, err error) {
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
func (f *Frames) SendRequest(r Request, image *os.File) error {
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
func (f *Frames) ReceiveRequest() (r Request, image *os.File, err error) {
	var first [1]byte
	oob := make([]byte, syscall.CmsgSpace(4*maxPassed))
	n, oobn, _, _, err := f.conn.ReadMsgUnix(first[:], oob)
	if err != nil {
		return r, nil, fmt.Errorf("no request arrived: %w", err)
	}
	if image, err = passed(oob[:oobn]); err != nil {
		return r, nil, err
	}
	defer func() {
		if err != nil && image != nil {
			image.Close()
			image = nil
		}
	}()
	if n != 1 || first[0] != frameRequest {
		return r, image, errors.New("what arrived is no request")
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

// maxPassed is how many descriptors a control message is looked through for. The
// kernel drops the rest.
const maxPassed = 8

// passed takes the descriptor out of a control message. Where there are others
// none of them stays open.
func passed(oob []byte) (*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("bad control message: %w", err)
	}
	var files []*os.File
	for _, m := range msgs {
		fds, _ := syscall.ParseUnixRights(&m) // others have none
		for _, fd := range fds {
			syscall.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "image"))
		}
	}
	if len(files) == 1 {
		return files[0], nil
	}
	for _, f := range files {
		f.Close()
	}
	return nil, fmt.Errorf("%d descriptors came with a request", len(files))
}

// Stream is an io.Writer that sends Frames of one type.
type Stream struct {
	Conn *Frames
	Type byte
}

func (s Stream) Write(p []byte) (int, error) {
	sent := 0
	for len(p) > 0 {
		n := min(len(p), frameChunk)
		if err := s.Conn.Write(s.Type, p[:n]); err != nil {
			return sent, err
		}
		p = p[n:]
		sent += n
	}
	return sent, nil
}
