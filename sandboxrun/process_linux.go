package sandboxrun

import (
	"errors"
	"io"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// stageEnv is the whole environment of the stage. It needs no garbage collection
// unless a scan of very many names does, and it does not have to find out, from
// files that stay open, how many processors its control group may use.
var stageEnv = []string{"GOGC=off", "GOMEMLIMIT=64MiB", "GODEBUG=containermaxprocs=0"}

// stageProcess is a stage as its parent has it. It waits for its orders, which
// are the same whether it was just started or has been waiting for a while.
type stageProcess struct {
	started chan struct{} // closed when process and err are set
	process *os.Process
	err     error // why it could not be started

	exited chan struct{} // closed when the stage, and so all below it, is gone
	socket *os.File      // orders down, frames up
	log    *os.File      // what the stage itself wrote to stderr
}

// startStage starts a stage on a thread of its own, and does not wait until it
// runs. The kernel kills the stage when that thread ends (PDEATHSIG), so the
// goroutine keeps it until then. The process must be closed, whatever becomes of it.
func startStage(self string) (*stageProcess, error) {
	p := &stageProcess{started: make(chan struct{}), exited: make(chan struct{})}
	theirs, err := p.open()
	if err != nil {
		return nil, err
	}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.exited)
		// Go gives a process that has no stdin and stdout the null device for them.
		p.process, p.err = os.StartProcess(self, []string{stageName}, &os.ProcAttr{
			Dir: "/", Env: stageEnv, Files: []*os.File{nil, nil, p.log, theirs}, Sys: stageAttr(),
		})
		theirs.Close()
		close(p.started)
		if p.err == nil {
			_, _ = p.process.Wait()
		}
	}()
	return p, nil
}

// open makes the files and returns the other end of the socket.
func (p *stageProcess) open() (theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	theirs = os.NewFile(uintptr(pair[1]), "socket")
	// This end uses the poller, so that closing it ends a read.
	if err = unix.SetNonblock(pair[0], true); err == nil {
		p.socket = os.NewFile(uintptr(pair[0]), "socket")
		p.log, err = emptyFile("stage-log")
	}
	if err != nil {
		unix.Close(pair[0])
		theirs.Close()
		return nil, err
	}
	return theirs, nil
}

// stageAttr puts the stage into namespaces of its own, as the only user there
// is, outside of the terminal's reach.
func stageAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:                 syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		UidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		GidMappingsEnableSetgroups: false,
		Pdeathsig:                  syscall.SIGKILL,
		Setsid:                     true,
	}
}

// ready waits until the stage has been started.
func (p *stageProcess) ready() error {
	<-p.started
	return p.err
}

// order hands the stage the descriptors of a run, the first of which is its
// spec, and lets it go to work. The stage has copies; the files stay the caller's.
func (p *stageProcess) order(files []*os.File) error {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	for len(fds) > maxRights {
		if err := p.tell(orderKeep, fds[:maxRights]...); err != nil {
			return err
		}
		fds = fds[maxRights:]
	}
	return p.tell(orderRun, fds...)
}

// isGone tells whether the other end of a socket is closed.
func isGone(err error) bool { return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) }

// maxRights is how many descriptors go with one order; the kernel takes 253.
const maxRights = 250

// tell sends one order. The socket has room for all that a stage is ever sent.
func (p *stageProcess) tell(order byte, fds ...int) error {
	raw, err := p.socket.SyscallConn()
	if err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	werr := raw.Write(func(fd uintptr) bool {
		for err = unix.EINTR; err == unix.EINTR; {
			err = unix.Sendmsg(int(fd), []byte{order}, rights, nil, unix.MSG_NOSIGNAL)
		}
		return err != unix.EAGAIN
	})
	if err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	return werr
}

// kill kills the stage and with it everything; it does not wait.
func (p *stageProcess) kill() {
	if p.ready() == nil {
		_ = p.process.Kill()
	}
}

// ended tells whether the stage is gone.
func (p *stageProcess) ended() bool { return isClosed(p.exited) }

// close ends the stage if it still runs, waits for its end, and closes the files.
func (p *stageProcess) close() {
	p.kill()
	<-p.exited
	p.socket.Close()
	p.log.Close()
}

// crash is what the stage wrote to its own stderr: nothing unless it panicked.
func (p *stageProcess) crash() string {
	b := make([]byte, 8<<10)
	n, err := p.log.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return string(b[:n])
}
