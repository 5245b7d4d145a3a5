package front

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Protocol is the revision of what front and daemon say to each other. It
// changes with the meaning of requests or frames, and only equals talk.
const Protocol = 3

// Hello is one line of JSON each way, the front's first, before any frame. It
// stays readable for every revision.
type Hello struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"`
	Build    string `json:"build"`  // tells two programs of one Version apart
	Config   string `json:"config"` // digest of the settings
	PID      int    `json:"pid"`
	Leaving  bool   `json:"leaving,omitempty"` // the daemon is about to end: dial again
}

// Limits of a greeting.
const (
	maxHello  = 4 << 10
	HelloTime = 10 * time.Second
)

func NewHello(config string) Hello {
	return Hello{Protocol: Protocol, Version: Version, Build: Build(), Config: DigestOf(config), PID: os.Getpid()}
}

func DigestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// Build names this very program: a release by its Version, and anything else by
// the file too, which is another one after each Build.
var Build = sync.OnceValue(func() string {
	if !strings.Contains(Version, "dev") && !strings.Contains(Version, "dirty") {
		return Version
	}
	info, err := os.Stat("/proc/self/exe")
	if err != nil {
		if self, serr := os.Executable(); serr == nil {
			info, err = os.Stat(self)
		}
	}
	if err != nil {
		return Version
	}
	return fmt.Sprintf("%s %x-%x", Version, info.Size(), info.ModTime().UnixNano())
})

// Greet sends a hello.
func Greet(c net.Conn, h Hello) error {
	line, err := json.Marshal(h)
	if err != nil {
		return err
	}
	c.SetWriteDeadline(time.Now().Add(HelloTime))
	defer c.SetWriteDeadline(time.Time{})
	_, err = c.Write(append(line, '\n'))
	return err
}

// Greeted reads a hello, byte for byte: what follows may carry a descriptor.
func Greeted(c net.Conn) (h Hello, err error) {
	c.SetReadDeadline(time.Now().Add(HelloTime))
	defer c.SetReadDeadline(time.Time{})
	var line bytes.Buffer
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(c, b); err != nil {
			return h, err
		}
		if b[0] == '\n' {
			return h, json.Unmarshal(line.Bytes(), &h)
		}
		if line.Len() == maxHello {
			return h, errors.New("the greeting is too long")
		}
		line.WriteByte(b[0])
	}
}

// Peer is the process that asks, for the log and for `daemon status`. What it
// says of itself is not checked; PID and UID are the kernel's word where a daemon
// was asked.
type Peer struct {
	PID    int    `json:"pid"`
	UID    int    `json:"uid"`
	Parent string `json:"parent,omitempty"` // program that started it
	TTY    string `json:"tty,omitempty"`
}

// Client names the peer's program for people.
func (p Peer) Client() string {
	if p.Parent == "" {
		return fmt.Sprintf("process %d", p.PID)
	}
	return fmt.Sprintf("%s (process %d)", p.Parent, p.PID)
}

// ourselves are the facts of this process as a peer.
func ourselves() Peer {
	p := Peer{PID: os.Getpid(), UID: os.Getuid()}
	if comm, err := os.ReadFile("/proc/" + strconv.Itoa(os.Getppid()) + "/comm"); err == nil {
		p.Parent = strings.ToValidUTF8(strings.TrimSpace(string(comm)), "?")
	}
	if tty, err := os.Readlink("/proc/self/fd/0"); err == nil && (strings.HasPrefix(tty, "/dev/pts/") || strings.HasPrefix(tty, "/dev/tty")) {
		p.TTY = tty
	}
	return p
}

// maxSocket is how long the path of a socket may be (sockaddr_un; 103 on macOS).
const maxSocket = 103

// socketPath is where the daemon of a state directory listens: below it, or in a
// directory of the daemon's user where that path is too long for a socket. It is
// the same for every path that leads to the directory.
func socketPath(state string, uid int) string {
	if real, err := filepath.EvalSymlinks(state); err == nil {
		state = real
	}
	path := filepath.Join(state, "run", "daemon.sock")
	if len(path) <= maxSocket {
		return path
	}
	return filepath.Join(privateDir(uid), DigestOf(state)+".sock")
}

func privateDir(uid int) string { return fmt.Sprintf("/tmp/mcp-vdisk-%d", uid) }

// checkPrivate says whether a directory is one user's alone.
func checkPrivate(dir string, uid int) error {
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir() || info.Mode().Perm() != 0o700 || OwnerOf(info) != uid:
		return fmt.Errorf("%s is not a directory of uid %d alone", dir, uid)
	}
	return nil
}

// Listener is a socket that a daemon listens on.
type Listener struct {
	*net.UnixListener
	Path string
	file os.FileInfo
}

// Listen makes the socket. One that is there was left by a daemon that is dead:
// the caller holds the lock of the state directory. Closing it leaves the file.
func Listen(state string) (*Listener, error) {
	path := socketPath(state, os.Getuid())
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return nil, err
	}
	if err := checkPrivate(dir, os.Getuid()); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false) // by then it may be another's: see Remove
	l := &Listener{UnixListener: ln, Path: path}
	if err := os.Chmod(path, 0o600); err != nil {
		ln.Close()
		return nil, err
	}
	if l.file, err = os.Lstat(path); err != nil {
		ln.Close()
		return nil, err
	}
	return l, nil
}

// Remove removes the socket's path, if it still leads to it. The caller holds the
// lock of the state directory.
func (l *Listener) Remove() {
	if l.Reachable() {
		os.Remove(l.Path)
	}
}

// Reachable says whether the socket's path still leads to it.
func (l *Listener) Reachable() bool {
	info, err := os.Lstat(l.Path)
	return err == nil && os.SameFile(info, l.file)
}

// Answers says whether a daemon serves a state directory.
func Answers(state, config string) bool {
	c, _, err := dialDaemon(state, os.Geteuid(), NewHello(config))
	if err == nil {
		c.Close()
	}
	return err == nil
}

// Displace asks the daemon of a state directory, if there is one, to make room for
// the caller, which is another process of its user. Who is connected goes on with
// the caller: nobody starts a daemon until it calls let. One that runs in the
// foreground does not leave for another.
func Displace(ctx context.Context, r Request) (let func(), err error) {
	let = func() {}
	if lock := holdStart(ctx, r.State); lock != nil {
		let = func() { lock.Close() }
	}
	if err := displace(r); err != nil {
		let()
		return func() {}, err
	}
	return let, nil
}

func displace(r Request) error {
	a := &Caller{Stderr: io.Discard}
	conn, theirs, err := a.Dial(r)
	if conn == nil || err != nil {
		return err
	}
	err = a.stop(r, conn, theirs, StopArgs{Replace: true})
	var f *exit.Failure
	if errors.As(err, &f) {
		err = exit.Fail(exit.Busy, "try again when that is over; mcp-vdisk daemon stop --force ends it all the same",
			"state directory %s is in use by process %d: %s", r.State, theirs.PID, f.Text)
	}
	return err
}

// dialDaemon connects to the daemon of a state directory that belongs to uid, and
// greets it.
func dialDaemon(state string, uid int, h Hello) (*net.UnixConn, Hello, error) {
	path := socketPath(state, uid)
	if filepath.Dir(path) == privateDir(uid) {
		if err := checkPrivate(privateDir(uid), uid); err != nil {
			return nil, Hello{}, err
		}
	}
	c, err := dialSocket(path)
	if err != nil {
		return nil, Hello{}, err
	}
	pid, who, known := hostos.Peer(c)
	if known && who != uid {
		c.Close()
		return nil, Hello{}, exit.Fail(exit.Refused, "choose another --state; each user has daemons of its own", "at %s listens a process of uid %d, not of uid %d", state, who, uid)
	}
	answer, err := Hello{}, Greet(c, h)
	if err == nil {
		answer, err = Greeted(c)
	}
	if err != nil {
		c.Close()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		hint := "if it was stopped, let it go on; else end it, and the next client starts another"
		if known {
			hint = fmt.Sprintf("kill -9 %d ends it, and the next client starts another", pid)
		}
		err = exit.Fail(exit.Busy, hint, "the daemon of %s does not answer", state)
	}
	return c, answer, err
}

// dialSocket connects to a socket. With one whose queue is full it is patient.
func dialSocket(path string) (*net.UnixConn, error) {
	for deadline := time.Now().Add(HelloTime); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if !errors.Is(err, syscall.EAGAIN) {
			return c, err
		}
		if time.Now().After(deadline) {
			return nil, exit.Fail(exit.Busy, "", "the daemon at %s has too many clients waiting", path)
		}
	}
}
