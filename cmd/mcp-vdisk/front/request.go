package front

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
)

// Request is what the front asks of the back.
type Request struct {
	Verb       string          `json:"verb"`
	State      string          `json:"state"`          // absolute
	Config     string          `json:"config"`         // text of config.toml
	ConfigName string          `json:"config_name"`    // what errors call it
	Envs       string          `json:"envs,omitempty"` // where Python environments are, unless the configuration says so
	Image      ImageRef        `json:"image"`
	Session    SessionFlags    `json:"session"`
	Get        []string        `json:"get,omitempty"`      // flags by which `image get` reaches the same disk
	NoState    bool            `json:"no_state,omitempty"` // the verb works without the state directory
	Again      bool            `json:"again,omitempty"`    // the session was served before, by a daemon that is gone
	Hold       *Hold           `json:"hold,omitempty"`     // of an exclusive session; nil from a front that keeps none
	Front      Peer            `json:"front"`              // who asks, as it says itself
	Args       json.RawMessage `json:"args,omitempty"`     // of the verb

	// Long says that it takes so long that others must be able to use the state
	// directory meanwhile: a daemon is started for it, unless none is wanted.
	Long bool `json:"-"`
}

// Hold is the lease of an exclusive session. Its daemon tells the front, which tells
// the next daemon: what was lost under the one is not given back by the other.
type Hold struct {
	Token uint64 `json:"token,omitempty"` // 0: none was granted yet
	Lost  bool   `json:"lost,omitempty"`  // for good, and the client has been told
	Why   string `json:"why,omitempty"`   // it was lost
}

// ImageRef names a disk: one of the state directory's by name, or a file, whose
// descriptor comes with the request.
type ImageRef struct {
	Name string `json:"name,omitempty"`
	Path string `json:"path,omitempty"` // absolute; for messages and the lock's name
	New  bool   `json:"new,omitempty"`  // the file was just made and is empty
}

func (r ImageRef) String() string {
	if r.Path != "" {
		return r.Path
	}
	return r.Name
}

const DefaultImage = "default"

var imageName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// ParseImage tells a name from a path.
func ParseImage(spec string) (ImageRef, error) {
	if strings.ContainsRune(spec, '/') || strings.HasSuffix(spec, ".vdisk") {
		abs, err := absolute("disk", spec)
		return ImageRef{Path: abs}, err
	}
	if !imageName.MatchString(spec) {
		return ImageRef{}, exit.Fail(exit.Usage, "a path of a .vdisk file contains a '/' or ends in .vdisk",
			"%q is not a disk's name: letters, digits, '.', '_', '-', at most 64", spec)
	}
	return ImageRef{Name: spec}, nil
}

// StateDir is where the state lies: the flag, the environment, or a fixed place
// below HOME. XDG_* and TMPDIR are not asked: desktop clients do not pass them,
// so a terminal and an editor would find two different disks.
func (a *Caller) StateDir() (string, error) {
	dir := a.State
	if dir == "" {
		dir = os.Getenv("MCP_VDISK_STATE")
	}
	if dir == "" {
		dir = DefaultState()
	}
	if dir == "" {
		return "", exit.Fail(exit.Usage, "pass --state DIR", "HOME is not set, so there is no default state directory")
	}
	return absolute("state directory", dir)
}

// envsDir is where Python environments are by the environment, "" when it says
// nothing.
func (a *Caller) envsDir() (string, error) {
	dir := cmp.Or(a.Envs, os.Getenv("MCP_VDISK_ENVS"))
	if dir == "" {
		return "", nil
	}
	return absolute("directory of Python environments", dir)
}

// absolute is the path of what as the request names it. JSON has only UTF-8: any
// other path would reach the back as a different one.
func absolute(what, path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", exit.BadUsage(err)
	}
	if !utf8.ValidString(abs) {
		return "", exit.Fail(exit.Usage, "rename it, or reach it by a link whose path is", "the path %q of the %s is not valid UTF-8, and requests travel as JSON", abs, what)
	}
	return abs, nil
}

// DefaultState is the fixed place, "" when HOME is not known.
func DefaultState() string {
	if os.Geteuid() == 0 {
		return "/var/lib/mcp-vdisk"
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".local", "share", "mcp-vdisk")
}

// RootConfig is the configuration of a program that root starts: nothing in the
// state directory is trusted before root is given up.
const RootConfig = "/etc/mcp-vdisk/config.toml"

func ConfigPath(state string) string {
	if os.Geteuid() == 0 {
		return RootConfig
	}
	return filepath.Join(state, "config.toml")
}

// ReadConfig reads a config.toml; one that is missing is empty.
func ReadConfig(name string) (string, error) {
	// A device is not even opened, and a pipe that gets in its place is not
	// waited for.
	info, err := os.Stat(name)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("is not a regular file")
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	return string(text), err
}

// NewRequest fills what every request holds.
func (a *Caller) NewRequest(verb string, args any) (Request, error) {
	state, err := a.StateDir()
	if err != nil {
		return Request{}, err
	}
	r := Request{Verb: verb, State: state, ConfigName: ConfigPath(state), Front: ourselves()}
	if r.Config, err = ReadConfig(r.ConfigName); err != nil {
		return Request{}, exit.Fail(exit.State, "", "%s: %s", r.ConfigName, ErrText(err))
	}
	if r.Envs, err = a.envsDir(); err != nil {
		return Request{}, err
	}
	if a.Image != "" {
		if r.Image, err = ParseImage(a.Image); err != nil {
			return Request{}, err
		}
	}
	r.Get = getFlags(r)
	if args != nil {
		if r.Args, err = json.Marshal(args); err != nil {
			return Request{}, err
		}
	}
	return r, nil
}

// getFlags are the flags that lead to the same disk, as far as they are not the
// defaults.
func getFlags(r Request) (flags []string) {
	if r.State != DefaultState() {
		flags = append(flags, "--state", r.State)
	}
	if r.Image != (ImageRef{}) && r.Image.Name != DefaultImage {
		flags = append(flags, "--image", r.Image.String())
	}
	return flags
}

// Ask runs a request in the back. What the back prints comes out at stdout and
// stderr; its failure is returned.
func (a *Caller) Ask(ctx context.Context, r Request, open OpenMode, stdin io.Reader, stdout io.Writer) error {
	image, err := r.Image.Open(open)
	if err != nil {
		return err
	}
	if image != nil {
		defer image.Close()
		r.Image.New = isEmpty(image)
	}
	caller := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, wait, err := a.reach(ctx, r)
	if err != nil {
		return err
	}
	defer wait()
	defer conn.Close()
	if err := conn.SendRequest(r, image); err != nil {
		return fmt.Errorf("ask the back: %w", err)
	}
	return a.converse(caller, conn, r, stdin, stdout)
}

// interruptPatience is how long a back has to end what it was doing.
const interruptPatience = 10 * time.Second

// interrupt hangs up, upon which the back ends what it does and says so.
func (f *Frames) interrupt() {
	f.conn.CloseWrite()
	time.AfterFunc(interruptPatience, func() { f.Close() })
}

// input is what a front passes on. It hides WriteTo, so that a copy goes through
// the buffer.
type input struct {
	io.Reader
	mu  sync.Mutex
	err error // why it could not be read to its end
}

func (in *input) Read(p []byte) (int, error) {
	n, err := in.Reader.Read(p)
	if err != nil && err != io.EOF {
		in.mu.Lock()
		in.err = err
		in.mu.Unlock()
	}
	return n, err
}

func (in *input) failed() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.err
}

// send passes the input on. Its end is told as such; an input that fails is cut,
// from which the back knows that it is not whole.
func (in *input) send(conn *Frames) {
	if _, err := io.CopyBuffer(Stream{conn, FrameStdin}, in, make([]byte, frameChunk)); err == nil {
		conn.Write(FrameStdinEnd, nil)
		return
	}
	if in.failed() != nil {
		conn.conn.CloseWrite()
	}
}

// Receive passes output on until the back says how it ended.
func (a *Caller) Receive(conn *Frames, stdout io.Writer) error {
	var sinkErr error
	for {
		typ, payload, err := conn.Read()
		if err != nil {
			return cmp.Or(sinkErr, errors.New("the server ended before it answered: whether it was done is not known"))
		}
		switch typ {
		case FrameStdout:
			if sinkErr == nil {
				_, sinkErr = stdout.Write(payload)
			}
			if sinkErr != nil {
				return sinkErr
			}
		case FrameStderr:
			a.Stderr.Write(payload)
		case FrameExit:
			var f *exit.Failure
			if err := json.Unmarshal(payload, &f); err != nil {
				return fmt.Errorf("the back's answer: %w", err)
			}
			if f != nil {
				return f
			}
			return nil
		}
	}
}

// OpenMode says how an image that is named by a path is opened.
type OpenMode int

const (
	NoImage    OpenMode = iota // the request is about no image
	OpenRead                   // reading only
	OpenWrite                  // must exist
	OpenCreate                 // made if it is missing
	OpenNew                    // must not exist
)

// Open opens the file of an image that is named by a path, as the caller. One
// that is named by its name belongs to the state directory and is the back's.
func (r ImageRef) Open(mode OpenMode) (*os.File, error) {
	if r.Path == "" || mode == NoImage {
		return nil, nil
	}
	flags := map[OpenMode]int{OpenRead: os.O_RDONLY, OpenWrite: os.O_RDWR, OpenCreate: os.O_RDWR | os.O_CREATE, OpenNew: os.O_RDWR | os.O_CREATE | os.O_EXCL}[mode]
	f, err := os.OpenFile(r.Path, flags|syscall.O_NONBLOCK, 0o600) // a FIFO must not keep us waiting
	switch {
	case errors.Is(err, os.ErrNotExist) && (mode == OpenNew || mode == OpenCreate):
		return nil, exit.Fail(exit.NotFound, "make the folder first", "there is no folder %s", filepath.Dir(r.Path))
	case errors.Is(err, os.ErrNotExist):
		return nil, exit.Fail(exit.NotFound, "", "there is no disk at %s", r.Path)
	case errors.Is(err, os.ErrPermission) && mode != OpenRead:
		return nil, exit.Fail(exit.Refused, "a session with --read-only needs no more than reading", "open %s: %s", r.Path, ErrText(err))
	case errors.Is(err, os.ErrExist):
		return nil, exit.Fail(exit.Refused, "choose another name; an existing file is never overwritten", "%s is there already", r.Path)
	case err != nil:
		return nil, exit.Fail(exit.Failed, "", "open %s: %s", r.Path, ErrText(err))
	}
	info, err := f.Stat()
	switch {
	case err != nil || !info.Mode().IsRegular():
		f.Close()
		return nil, exit.Fail(exit.Failed, "", "%s is not a regular file", r.Path)
	case mode != OpenRead && info.Mode()&0o222 == 0: // root can write it all the same
		f.Close()
		return nil, exit.Fail(exit.Refused, "serve it with --read-only, or give its owner the right to write", "%s is write-protected", r.Path)
	}
	return f, nil
}

func isEmpty(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Size() == 0
}

// ErrText is the reason of a system call's failure without its path.
func ErrText(err error) string {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// startBack starts the other half and returns the connection to it. wait
// returns when it has ended.
func (a *Caller) startBack(ctx context.Context, r Request) (conn *Frames, wait func(), err error) {
	front, back, err := Pair()
	if err != nil {
		return nil, nil, err
	}
	if conn, err = NewFrames(front); err != nil {
		back.Close()
		return nil, nil, err
	}
	if os.Geteuid() == 0 {
		wait, err = a.startDropped(ctx, r, back)
	} else {
		wait, err = a.startHere(ctx, back)
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, wait, nil
}

// startHere runs the back on a goroutine.
func (a *Caller) startHere(ctx context.Context, sock *os.File) (func(), error) {
	conn, err := NewFrames(sock)
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer conn.Close()
		a.Back(ctx, conn)
	}()
	return func() { <-done }, nil
}

// startDropped runs the back as another user: this program again, with a clean
// environment.
func (a *Caller) startDropped(ctx context.Context, r Request, sock *os.File) (func(), error) {
	defer sock.Close()
	who, err := prepareState(r.State, a.RunAs, !r.NoState)
	if err != nil {
		return nil, err
	}
	handOverGroups(who)
	cmd := exec.CommandContext(ctx, SelfPath(), BackArg)
	cmd.Args[0] = "mcp-vdisk"
	cmd.Env = backEnv()
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{sock}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = who.attr()
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Start(); err != nil {
		return nil, exit.Fail(exit.Failed, "the program file must be readable and executable for all", "start as uid %d: %s", who.uid, ErrText(err))
	}
	return func() { cmd.Wait() }, nil
}

// backEnv is the whole environment of a process that gave root up.
func backEnv() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "LANG=C.UTF-8"}
}
