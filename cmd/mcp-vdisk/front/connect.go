package front

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Alone says that no daemon is used: this process opens the state directory by
// itself, and only while nobody else has it.
func (a *Caller) Alone() bool { return a.NoDaemon || os.Getenv("MCP_VDISK_NO_DAEMON") == "1" }

// reach gives a connection to whoever serves the request: the daemon, if there is
// one, else a back of its own.
func (a *Caller) reach(ctx context.Context, r Request) (*Frames, func(), error) {
	if a.Alone() || r.NoState {
		return a.startBack(ctx, r)
	}
	if r.Long {
		conn, err := a.Ensure(ctx, r, true)
		return conn, func() {}, err
	}
	conn, err := a.dialOurs(r)
	if conn != nil || err != nil {
		return conn, func() {}, err
	}
	return a.without(ctx, r)
}

// dialOurs is Dial for those who need a daemon that understands them.
func (a *Caller) dialOurs(r Request) (*Frames, error) {
	conn, theirs, err := a.Dial(r)
	if conn != nil && theirs.Protocol != Protocol {
		conn.Close()
		return nil, foreign(theirs)
	}
	return conn, err
}

func foreign(theirs Hello) error {
	return exit.Fail(exit.Busy, "mcp-vdisk daemon stop ends it; the next mcp-vdisk serve starts one of this program",
		"the daemon is mcp-vdisk %s (process %d), which speaks revision %d, and this program speaks %d", theirs.Version, theirs.PID, theirs.Protocol, Protocol)
}

// without serves a request while there is no daemon. A daemon that is being
// started is waited for, and one that somebody wants to start waits for us.
func (a *Caller) without(ctx context.Context, r Request) (*Frames, func(), error) {
	lock := holdStart(ctx, r.State)
	if lock == nil { // a new state, or one that the back finds wrong
		return a.startBack(ctx, r)
	}
	conn, err := a.dialOurs(r)
	if conn != nil || err != nil {
		lock.Close()
		return conn, func() {}, err
	}
	conn, wait, err := a.startBack(ctx, r)
	if err != nil {
		lock.Close()
		return nil, nil, err
	}
	return conn, func() { wait(); lock.Close() }, nil
}

// holdStart keeps others from starting the daemon; nil when that is not possible.
func holdStart(ctx context.Context, state string) *os.File {
	dir, err := os.OpenRoot(state)
	if err != nil {
		return nil
	}
	defer dir.Close()
	f, err := dir.OpenFile("start.lock", os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := hostos.Lock(ctx, f, false); err != nil {
		f.Close()
		return nil
	}
	return f
}

// Dial connects to the daemon of the state directory; nil when there is none. One
// that is there and does not answer is a failure.
func (a *Caller) Dial(r Request) (*Frames, Hello, error) {
	uid, err := daemonUser(r.State, a.RunAs)
	if err != nil {
		return nil, Hello{}, nil // the back says what is wrong with it
	}
	const tries = 5 // each time a daemon was about to leave
	for range tries {
		c, theirs, err := dialDaemon(r.State, uid, NewHello(r.Config))
		var f *exit.Failure
		switch {
		case errors.As(err, &f):
			return nil, Hello{}, err
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENOTDIR):
			return nil, Hello{}, nil
		case err == nil && !theirs.Leaving:
			return Wrap(c), theirs, nil
		case err == nil:
			c.Close()
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, Hello{}, nil
}

// daemonUser is whose daemon would serve a state directory: our own user's, or,
// for root, that of its owner.
func daemonUser(state, runAs string) (int, error) {
	if uid := os.Geteuid(); uid != 0 {
		return uid, nil
	}
	info, err := os.Lstat(state)
	if err != nil {
		return 0, err
	}
	uid := OwnerOf(info)
	if uid == 0 || !info.IsDir() {
		return 0, errors.New("nobody's yet")
	}
	if runAs == "" {
		return uid, nil
	}
	if who, err := lookupUser(runAs); err != nil || who.uid != uid {
		return 0, errors.New("another user's")
	}
	return uid, nil
}

// OwnerOf is the uid of a file's owner, -1 where files have none.
func OwnerOf(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

// Ensure connects to the daemon and starts it if there is none. fresh says that
// the caller begins now, and may have a daemon of another build replaced.
func (a *Caller) Ensure(ctx context.Context, r Request, fresh bool) (*Frames, error) {
	conn, theirs, err := a.Dial(r)
	switch {
	case err != nil:
		return nil, err
	case conn == nil:
	case fresh && outdated(theirs, r):
		conn.Close()
	case theirs.Protocol != Protocol:
		conn.Close()
		return nil, foreign(theirs)
	default:
		return conn, nil
	}
	return a.start(ctx, r, func(conn *Frames, theirs Hello) (*Frames, error) {
		switch {
		case fresh && outdated(theirs, r):
			return a.replace(r, conn, theirs)
		case theirs.Protocol != Protocol:
			conn.Close()
			return nil, foreign(theirs)
		}
		return conn, nil
	})
}

// Restart ends the daemon, if there is one, and starts the next.
func (a *Caller) Restart(ctx context.Context, r Request, force bool) error {
	conn, err := a.start(ctx, r, func(conn *Frames, theirs Hello) (*Frames, error) {
		return nil, a.stop(r, conn, theirs, StopArgs{Replace: true, Force: force})
	})
	if conn != nil {
		conn.Close()
	}
	return err
}

// outdated says whether the daemon is another program than this, or was started
// with other settings.
func outdated(theirs Hello, r Request) bool {
	ours := NewHello(r.Config)
	return theirs.Build != ours.Build || theirs.Protocol != ours.Protocol || theirs.Config != ours.Config
}

// replace asks an outdated daemon to make room. One that cannot do so now goes on
// if it can be talked to; nil says that it is gone.
func (a *Caller) replace(r Request, conn *Frames, theirs Hello) (*Frames, error) {
	err := a.stop(r, conn, theirs, StopArgs{Replace: true})
	if err == nil || theirs.Protocol != Protocol {
		return nil, err
	}
	fmt.Fprintf(a.Stderr, "mcp-vdisk: %s\nmcp-vdisk: it goes on with this session (program %q, ours %q)\n", err, theirs.Build, Build())
	return a.dialOurs(r)
}

// stop asks a daemon to end, and waits until it has. conn is used up.
func (a *Caller) stop(r Request, conn *Frames, theirs Hello, q StopArgs) error {
	defer conn.Close()
	r.Verb, r.Image = "daemon.stop", ImageRef{}
	var err error
	if r.Args, err = json.Marshal(q); err != nil {
		return err
	}
	if err = conn.SendRequest(r, nil); err == nil {
		err = a.Receive(conn, io.Discard)
	}
	var f *exit.Failure
	if errors.As(err, &f) {
		return err
	}
	return a.Gone(r, theirs.PID) // it ended before it answered, if it did not
}

// Gone waits until the daemon that was a process, and said that it ends, has
// ended.
func (a *Caller) Gone(r Request, pid int) error {
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		conn, theirs, err := a.Dial(r)
		if conn != nil {
			conn.Close()
		}
		if err == nil && conn != nil && theirs.PID != pid || isFree(r.State) {
			return nil
		}
	}
	return exit.Fail(exit.Busy, fmt.Sprintf("kill -9 %d ends it at once", pid), "the daemon (process %d) does not end", pid)
}

// isFree says whether no process has the state directory open.
func isFree(state string) bool {
	dir, err := os.OpenRoot(state)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer dir.Close()
	f, err := dir.OpenFile("daemon.lock", os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	now, cancel := context.WithCancel(context.Background())
	cancel() // one attempt
	return hostos.Lock(now, f, false) == nil
}

// start starts the daemon, as one of many who may do so at the same time, and
// connects to it. With one that is there, found decides: nil starts another.
func (a *Caller) start(ctx context.Context, r Request, found func(*Frames, Hello) (*Frames, error)) (*Frames, error) {
	who := identity{os.Geteuid(), os.Getegid()}
	if who.uid == 0 {
		var err error
		if who, err = prepareState(r.State, a.RunAs, true); err != nil {
			return nil, err
		}
	} else if err := os.MkdirAll(r.State, 0o700); err != nil {
		return nil, exit.Fail(exit.State, "choose another --state, or mend its rights", "state directory %s: %s", r.State, ErrText(err))
	}
	lock, err := startLock(ctx, r.State, who)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	conn, theirs, err := a.Dial(r)
	if conn != nil {
		conn, err = found(conn, theirs)
	}
	const tries = 2 // a daemon may be killed while it starts
	for range tries {
		if conn != nil || err != nil {
			return conn, err
		}
		// Also after a failure: a daemon in the foreground may be starting.
		failed := a.spawn(ctx, r, who)
		if conn, err = a.dialOurs(r); conn == nil && failed != nil && !errors.Is(failed, errNotReady) {
			return nil, failed
		}
	}
	if conn == nil && err == nil {
		err = exit.Fail(exit.Failed, "look into daemon.log in the state directory", "the daemon ends as soon as it is started")
	}
	return conn, err
}

// startPatience is how long a client waits for others that start the daemon, or
// keep it from being started.
const startPatience = time.Minute

// startLock lets one at a time start a daemon. For root the file is opened below
// the directory of another user, who cannot lead it out of there.
func startLock(ctx context.Context, state string, who identity) (*os.File, error) {
	broken := func(err error) error {
		return exit.Fail(exit.State, "", "state directory %s: start.lock: %s", state, ErrText(err))
	}
	dir, err := os.OpenRoot(state)
	if err != nil {
		return nil, broken(err)
	}
	defer dir.Close()
	f, err := dir.OpenFile("start.lock", os.O_RDWR|os.O_CREATE|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, broken(err)
	}
	if who.uid != os.Geteuid() {
		if err := dir.Lchown("start.lock", who.uid, who.gid); err != nil {
			f.Close()
			return nil, broken(err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := hostos.Lock(ctx, f, true); err != nil {
		f.Close()
		return nil, exit.Fail(exit.Busy, "wait until it is done, or use another --state",
			"a command has had state directory %s for itself for %s, or the daemon has been starting for so long", state, startPatience)
	}
	return f, nil
}

// spawn starts the daemon as a process of its own, out of reach of this one's
// terminal, directory and environment, and waits until it listens.
func (a *Caller) spawn(ctx context.Context, r Request, who identity) error {
	front, sock, err := Pair()
	if err != nil {
		return err
	}
	defer sock.Close()
	conn, err := NewFrames(front)
	if err != nil {
		return err
	}
	defer conn.Close()
	handOverIfRoot(who)
	cmd := exec.Command(SelfPath(), BackArg)
	cmd.Args[0], cmd.Env, cmd.Dir = "mcp-vdisk", backEnv(), "/"
	cmd.ExtraFiles = []*os.File{sock}
	if runtime.GOOS == "linux" { // where it gives it back for a log of its own
		cmd.Stderr = os.Stderr
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = who.attr()
	}
	cmd.SysProcAttr.Setsid = true
	if err := cmd.Start(); err != nil {
		return exit.Fail(exit.Failed, "the program file must be readable and executable for all", "start the daemon as uid %d: %s", who.uid, ErrText(err))
	}
	go cmd.Wait() // it may end before this process does
	sock.Close()
	r.Verb, r.Image = VerbDaemon, ImageRef{}
	if r.Args, err = json.Marshal(DaemonArgs{Idle: -1}); err != nil {
		return err
	}
	if err := conn.SendRequest(r, nil); err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	return a.awaitReady(ctx, conn)
}

func (a *Caller) awaitReady(ctx context.Context, conn *Frames) error {
	for {
		typ, payload, err := conn.Read()
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return errNotReady
		case typ == FrameStdout:
			return nil
		case typ == FrameStderr:
			a.Stderr.Write(payload)
		case typ == FrameExit:
			var f *exit.Failure
			if err := json.Unmarshal(payload, &f); err != nil || f == nil {
				return errNotReady
			}
			return f
		}
	}
}

var errNotReady = errors.New("the daemon ended before it was ready")

func handOverIfRoot(who identity) {
	if os.Geteuid() == 0 {
		handOverGroups(who)
	}
}

// SelfPath leads to this very program, also after its file was replaced.
func SelfPath() string {
	const self = "/proc/self/exe"
	if _, err := os.Stat(self); err == nil {
		return self
	}
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
}

// VerbDaemon is the request that makes a process the daemon.
const VerbDaemon = "daemon"

// DaemonReady is the line by which a daemon says that it listens.
const DaemonReady = "ready"

// DaemonArgs are the arguments of that request.
type DaemonArgs struct {
	Foreground bool
	Idle       time.Duration // 0: never, < 0: the setting
}

// StopArgs are those of the request that ends a daemon.
type StopArgs struct {
	Force   bool // also when scripts run
	Replace bool // fronts that are connected go on with the next daemon
}
