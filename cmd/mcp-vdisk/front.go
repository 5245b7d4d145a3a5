package main

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
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// request is what the front asks of the back.
type request struct {
	Verb       string          `json:"verb"`
	State      string          `json:"state"`       // absolute
	Config     string          `json:"config"`      // text of config.toml
	ConfigName string          `json:"config_name"` // what errors call it
	Image      imageRef        `json:"image"`
	Session    sessionFlags    `json:"session"`
	Args       json.RawMessage `json:"args,omitempty"` // of the verb
}

// imageRef names a disk: one of the state directory's by name, or a file, whose
// descriptor comes with the request.
type imageRef struct {
	Name string `json:"name,omitempty"`
	Path string `json:"path,omitempty"` // absolute; for messages and the lock's name
	New  bool   `json:"new,omitempty"`  // the file was just made and is empty
}

func (r imageRef) String() string {
	if r.Path != "" {
		return r.Path
	}
	return r.Name
}

// sessionFlags are what `serve` and `call` allow an agent.
type sessionFlags struct {
	ReadOnly bool     `json:"read_only,omitempty"`
	NoDelete bool     `json:"no_delete,omitempty"`
	Tools    []string `json:"tools,omitempty"`
	GetArgs  string   `json:"get_args,omitempty"`
}

const defaultImage = "default"

func (a *app) imageFlag(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&a.image, "image", defaultImage, "`NAME` of a disk, or the path of a .vdisk file")
}

func (a *app) jsonFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.json, "json", false, "print facts as JSON")
}

var imageName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// parseImage tells a name from a path.
func parseImage(spec string) (imageRef, error) {
	if strings.ContainsRune(spec, '/') || strings.HasSuffix(spec, ".vdisk") {
		abs, err := absolute("disk", spec)
		return imageRef{Path: abs}, err
	}
	if !imageName.MatchString(spec) {
		return imageRef{}, fail(exitUsage, "a path of a .vdisk file contains a '/' or ends in .vdisk",
			"%q is not a disk's name: letters, digits, '.', '_', '-', at most 64", spec)
	}
	return imageRef{Name: spec}, nil
}

// stateDir is where the state lies: the flag, the environment, or a fixed place
// below HOME. XDG_* and TMPDIR are not asked: desktop clients do not pass them,
// so a terminal and an editor would find two different disks.
func (a *app) stateDir() (string, error) {
	dir := a.state
	if dir == "" {
		dir = os.Getenv("MCP_VDISK_STATE")
	}
	if dir == "" {
		dir = defaultState()
	}
	if dir == "" {
		return "", fail(exitUsage, "pass --state DIR", "HOME is not set, so there is no default state directory")
	}
	return absolute("state directory", dir)
}

// absolute is the path of what as the request names it. JSON has only UTF-8: any
// other path would reach the back as a different one.
func absolute(what, path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", usage(err)
	}
	if !utf8.ValidString(abs) {
		return "", fail(exitUsage, "rename it, or reach it by a link whose path is", "the path %q of the %s is not valid UTF-8, and requests travel as JSON", abs, what)
	}
	return abs, nil
}

// defaultState is the fixed place, "" when HOME is not known.
func defaultState() string {
	if os.Geteuid() == 0 {
		return "/var/lib/mcp-vdisk"
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".local", "share", "mcp-vdisk")
}

// rootConfig is the configuration of a program that root starts: nothing in the
// state directory is trusted before root is given up.
const rootConfig = "/etc/mcp-vdisk/config.toml"

func configPath(state string) string {
	if os.Geteuid() == 0 {
		return rootConfig
	}
	return filepath.Join(state, "config.toml")
}

// readConfig reads a config.toml; one that is missing is empty.
func readConfig(name string) (string, error) {
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

// newRequest fills what every request holds.
func (a *app) newRequest(verb string, args any) (request, error) {
	state, err := a.stateDir()
	if err != nil {
		return request{}, err
	}
	r := request{Verb: verb, State: state, ConfigName: configPath(state)}
	if r.Config, err = readConfig(r.ConfigName); err != nil {
		return request{}, fail(exitState, "", "%s: %s", r.ConfigName, errText(err))
	}
	if _, _, err := parseSettings(r.Config, r.ConfigName); err != nil {
		return request{}, err
	}
	if a.image != "" {
		if r.Image, err = parseImage(a.image); err != nil {
			return request{}, err
		}
	}
	r.Session.GetArgs = a.getArgs()
	if args != nil {
		if r.Args, err = json.Marshal(args); err != nil {
			return request{}, err
		}
	}
	return r, nil
}

// ask runs a request in the back. What the back prints comes out at stdout and
// stderr; its failure is returned.
func (a *app) ask(ctx context.Context, r request, open openMode, stdin io.Reader, stdout io.Writer) error {
	image, err := r.Image.open(open)
	if err != nil {
		return err
	}
	if image != nil {
		defer image.Close()
		r.Image.New = isEmpty(image)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, wait, err := a.startBack(ctx, r)
	if err != nil {
		return err
	}
	defer wait()
	defer conn.Close()
	if err := conn.sendRequest(r, image); err != nil {
		return fmt.Errorf("ask the back: %w", err)
	}
	in := &input{Reader: stdin}
	if stdin != nil {
		go in.send(conn)
	}
	err = a.receive(conn, stdout)
	return cmp.Or(in.failed(), err)
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
func (in *input) send(conn *frames) {
	if _, err := io.CopyBuffer(stream{conn, frameStdin}, in, make([]byte, frameChunk)); err == nil {
		conn.write(frameStdinEnd, nil)
		return
	}
	if in.failed() != nil {
		conn.conn.CloseWrite()
	}
}

// receive passes output on until the back says how it ended.
func (a *app) receive(conn *frames, stdout io.Writer) error {
	var sinkErr error
	for {
		typ, payload, err := conn.read()
		if err != nil {
			return cmp.Or(sinkErr, errors.New("the back ended without an answer"))
		}
		switch typ {
		case frameStdout:
			if sinkErr == nil {
				_, sinkErr = stdout.Write(payload)
			}
			if sinkErr != nil {
				return sinkErr
			}
		case frameStderr:
			a.stderr.Write(payload)
		case frameExit:
			var f *failure
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

// openMode says how an image that is named by a path is opened.
type openMode int

const (
	noImage    openMode = iota // the request is about no image
	openRead                   // reading only
	openWrite                  // must exist
	openCreate                 // made if it is missing
	openNew                    // must not exist
)

// open opens the file of an image that is named by a path, as the caller. One
// that is named by its name belongs to the state directory and is the back's.
func (r imageRef) open(mode openMode) (*os.File, error) {
	if r.Path == "" || mode == noImage {
		return nil, nil
	}
	flags := map[openMode]int{openRead: os.O_RDONLY, openWrite: os.O_RDWR, openCreate: os.O_RDWR | os.O_CREATE, openNew: os.O_RDWR | os.O_CREATE | os.O_EXCL}[mode]
	f, err := os.OpenFile(r.Path, flags|syscall.O_NONBLOCK, 0o600) // a FIFO must not keep us waiting
	switch {
	case errors.Is(err, os.ErrNotExist) && (mode == openNew || mode == openCreate):
		return nil, fail(exitNotFound, "make the folder first", "there is no folder %s", filepath.Dir(r.Path))
	case errors.Is(err, os.ErrNotExist):
		return nil, fail(exitNotFound, "", "there is no disk at %s", r.Path)
	case errors.Is(err, os.ErrPermission) && mode != openRead:
		return nil, fail(exitRefused, "a session with --read-only needs no more than reading", "open %s: %s", r.Path, errText(err))
	case errors.Is(err, os.ErrExist):
		return nil, fail(exitRefused, "choose another name; an existing file is never overwritten", "%s is there already", r.Path)
	case err != nil:
		return nil, fail(exitFailed, "", "open %s: %s", r.Path, errText(err))
	}
	info, err := f.Stat()
	switch {
	case err != nil || !info.Mode().IsRegular():
		f.Close()
		return nil, fail(exitFailed, "", "%s is not a regular file", r.Path)
	case mode != openRead && info.Mode()&0o222 == 0: // root can write it all the same
		f.Close()
		return nil, fail(exitRefused, "serve it with --read-only, or give its owner the right to write", "%s is write-protected", r.Path)
	}
	return f, nil
}

func isEmpty(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Size() == 0
}

// errText is the reason of a system call's failure without its path.
func errText(err error) string {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// startBack starts the other half and returns the connection to it. wait
// returns when it has ended.
func (a *app) startBack(ctx context.Context, r request) (conn *frames, wait func(), err error) {
	front, back, err := pair()
	if err != nil {
		return nil, nil, err
	}
	if conn, err = newFrames(front); err != nil {
		back.Close()
		return nil, nil, err
	}
	if os.Geteuid() == 0 {
		wait, err = a.startDropped(ctx, r, back)
	} else {
		wait, err = startHere(ctx, back)
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, wait, nil
}

// startHere runs the back on a goroutine.
func startHere(ctx context.Context, sock *os.File) (func(), error) {
	conn, err := newFrames(sock)
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer conn.Close()
		serveBack(ctx, conn)
	}()
	return func() { <-done }, nil
}

// startDropped runs the back as another user: this program again, with a clean
// environment.
func (a *app) startDropped(ctx context.Context, r request, sock *os.File) (func(), error) {
	defer sock.Close()
	who, err := prepareState(r.State, a.runAs, !verbs()[r.Verb].noState)
	if err != nil {
		return nil, err
	}
	handOverGroups(who)
	cmd := exec.CommandContext(ctx, "/proc/self/exe", backArg)
	cmd.Args[0] = "mcp-vdisk"
	cmd.Env = backEnv()
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{sock}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = who.attr()
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Start(); err != nil {
		return nil, fail(exitFailed, "the program file must be readable and executable for all", "start as uid %d: %s", who.uid, errText(err))
	}
	return func() { cmd.Wait() }, nil
}

// backEnv is the whole environment of a process that gave root up.
func backEnv() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "LANG=C.UTF-8"}
}
