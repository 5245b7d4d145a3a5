package sandboxrun

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stageName is argv[0] of the stage, by which StageMain knows it.
const stageName = "mcp-vdisk-stage"

// The descriptors of the stage. Its own stdout does not exist and its stderr
// is a memory file, so that nothing of it gets into the output of a script.
const (
	fdStdin   = 0 // of the script
	fdStdout  = 1 // of the script
	fdControl = 3 // orders of the parent: orderKill; end of file means that the parent is dead
	fdReport  = 4 // frames to the parent
	fdSpec    = 5 // memory file with the spec
	fdStderr  = 6 // of the script
	fdArgs    = 7 // memory file with the options of bwrap
	fdFilter  = 8 // memory file with the system call filter
	fdData    = 9 // and up: memory files of Data, then what joins the control groups
)

// The descriptors of bwrap.
const (
	bwrapArgsFD   = 3
	bwrapInfoFD   = 4
	bwrapStatusFD = 5
	bwrapBlockFD  = 6
	bwrapFilterFD = 7
	bwrapDataFD   = 8
)

const orderKill = 'k'

// init is where the stage runs. Packages are initialized in the order of their
// imports and then of their paths, and this one imports little: the stage is
// done before schema compilers and the like have cost it 8 of its 9 ms.
func init() { StageMain() }

// StageMain is the whole life of the process that a Runner starts again from
// its own program as the stage. In such a process it never returns; anywhere
// else it returns at once. Importing this package is enough to have it called.
//
// The stage is pid 1 of an own pid namespace and root of an own user namespace
// in which only the uid of the server exists. Whatever way it dies, the kernel
// kills the sandbox with it, and its mounts go with the last process.
func StageMain() {
	if len(os.Args) != 1 || os.Args[0] != stageName {
		return
	}
	// PDEATHSIG of bwrap follows the thread that started it. The main
	// goroutine, locked to the main thread, lives as long as the stage.
	runtime.LockOSThread()
	// Not os.Exit: there is nothing to flush, and under the race detector it
	// would sleep for a second.
	syscall.Exit(stage())
}

type stageRun struct {
	spec   spec
	report *frameWriter
	orders chan struct{} // the parent wants the sandbox killed
	upper  int           // descriptor of the upper directory
	lower  int           // descriptor of the lower directory
}

// stage runs one script and returns the exit status of the stage.
func stage() int {
	if os.Getpid() != 1 {
		return 1 // not started by a Runner
	}
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		closeOnExec()
	}
	s := &stageRun{report: newFrameWriter(fdWriter(fdReport)), orders: make(chan struct{}, 1)}
	go s.listen()
	if err := s.run(); err != nil {
		f := failure{Step: "stage", Detail: err.Error()}
		errors.As(err, &f)
		s.report.write(frameFailed, f.marshal())
	}
	if s.report.flush() != nil {
		return 1
	}
	return 0
}

// fail wraps the error of a system call with the step in which it happened.
func fail(step string, err error) error {
	f := failure{Step: step, Detail: err.Error()}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		f.Errno = uint64(errno)
	}
	return f
}

// listen ends the stage when the parent is gone.
func (s *stageRun) listen() {
	var b [1]byte
	for {
		n, err := unix.Read(fdControl, b[:])
		switch {
		case err == unix.EINTR:
		case n == 1 && b[0] == orderKill:
			select {
			case s.orders <- struct{}{}:
			default:
			}
		default:
			syscall.Exit(1)
		}
	}
}

func (s *stageRun) run() error {
	b, err := io.ReadAll(fdReader(fdSpec))
	if err != nil {
		return fail("orders", err)
	}
	if s.spec, err = parseSpec(b); err != nil {
		return err
	}
	if err := s.mount(); err != nil {
		return err
	}
	if s.spec.Bwrap == "" {
		if err := s.selfTest(); err != nil {
			return err
		}
		s.report.write(frameEnd, end{}.marshal())
		return nil
	}
	box, err := s.start()
	if err != nil {
		return err
	}
	g, err := s.wait(box)
	if err != nil {
		return err
	}
	s.report.write(frameGone, g.marshal())
	if err := s.report.flush(); err != nil {
		return err
	}
	return s.sendDiff()
}

// box is a running sandbox.
type box struct {
	bwrap    int // pid
	pidfd    int // of pid 1 of the sandbox; -1 if bwrap failed before it
	status   int // read end of --json-status-fd
	released time.Time
}

// start starts bwrap, sets the limits on its blocked child, and lets it go.
func (s *stageRun) start() (*box, error) {
	info, status, block, err := threePipes()
	if err != nil {
		return nil, fail("pipes", err)
	}
	files := []uintptr{fdStdin, fdStdout, fdStderr, fdArgs, uintptr(info[1]), uintptr(status[1]), uintptr(block[0]), fdFilter}
	for i := range s.spec.Data {
		files = append(files, uintptr(fdData+i))
	}
	b := &box{pidfd: -1, status: status[0]}
	if b.bwrap, err = s.fork(files); err != nil {
		return nil, err
	}
	s.letGo(info[1], status[1], block[0])
	child, err := childPID(info[0])
	if err != nil {
		return nil, err
	}
	if child == 0 {
		return b, nil // bwrap says why on stderr
	}
	if b.pidfd, err = unix.PidfdOpen(child, 0); err != nil {
		return nil, fail("pidfd", err)
	}
	if err := s.limit(child); err != nil {
		return nil, err
	}
	s.report.write(frameReleased, nil)
	if err := s.report.flush(); err != nil {
		return nil, err
	}
	b.released = time.Now()
	if _, err := unix.Write(block[1], []byte{0}); err != nil && err != unix.EPIPE {
		return nil, fail("release", err)
	}
	unix.Close(block[1])
	return b, nil
}

// fork starts bwrap in the control groups of the run. It is born there: moving
// a process, as writing its pid to cgroup.procs does, waits for all CPUs to
// pass through the scheduler, ten milliseconds and more. With v2 it is clone3
// that puts it there. With v1 a child is where the thread is that makes it, and
// a thread can move itself without waiting, so one does. It belongs to the
// groups from then on and is counted as a task; the memory of the stage is not,
// since that goes by the first thread.
func (s *stageRun) fork(files []uintptr) (int, error) {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	join := fdData + s.spec.Data
	if s.spec.Group {
		attr.UseCgroupFD, attr.CgroupFD = true, join+s.spec.Tasks
	}
	if s.spec.Tasks == 0 {
		return s.forkHere(files, attr)
	}
	type result struct {
		pid int
		err error
	}
	started := make(chan result)
	go func() {
		runtime.LockOSThread() // for good, as PDEATHSIG asks
		var r result
		for fd := join; fd < join+s.spec.Tasks && r.err == nil; fd++ {
			if _, err := unix.Write(fd, []byte("0")); err != nil {
				r.err = fail(stepGroup, err)
			}
		}
		if r.err == nil {
			r.pid, r.err = s.forkHere(files, attr)
		}
		started <- r
		select {}
	}()
	r := <-started
	return r.pid, r.err
}

func (s *stageRun) forkHere(files []uintptr, attr *syscall.SysProcAttr) (int, error) {
	pid, err := forkSandbox(s.spec.Bwrap, s.spec.Command, files, attr)
	switch {
	case err != nil && attr.UseCgroupFD:
		return 0, fail(stepGroup, err) // or bwrap cannot be executed: the next try tells
	case err != nil:
		return 0, fail(stepBwrap, err)
	}
	return pid, nil
}

// forkSandbox starts bwrap. While it does, the stage offers itself first to
// the kernel when memory runs out, so that the script is taken and not a
// process of the host.
func forkSandbox(path string, argv []string, files []uintptr, attr *syscall.SysProcAttr) (int, error) {
	const score = "/proc/self/oom_score_adj"
	old, err := os.ReadFile(score)
	if err == nil {
		_ = os.WriteFile(score, []byte("1000"), 0)
		defer func() { _ = os.WriteFile(score, old, 0) }()
	}
	return syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Dir: "/", Env: []string{}, Files: files, Sys: attr,
	})
}

func threePipes() (a, b, c [2]int, err error) {
	for _, p := range []*[2]int{&a, &b, &c} {
		if err = unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return
		}
	}
	return
}

// letGo closes the stage's copies of what bwrap has now; the ends of the
// script's streams are seen only when nobody else holds them.
func (s *stageRun) letGo(fds ...int) {
	for i := range s.spec.Data {
		fds = append(fds, fdData+i)
	}
	for _, fd := range append(fds, fdStdin, fdStdout, fdStderr, fdArgs, fdFilter, fdSpec) {
		unix.Close(fd)
	}
}

// childPID reads the pid of the blocked child. It is 0 when bwrap ended
// without having one. The document arrives in several writes.
func childPID(fd int) (int, error) {
	defer unix.Close(fd)
	b, err := io.ReadAll(fdReader(fd))
	if err != nil {
		return 0, fail("info of bubblewrap", err)
	}
	var info struct {
		PID int `json:"child-pid"`
	}
	if len(b) > 0 {
		if err := json.Unmarshal(b, &info); err != nil {
			return 0, fail("info of bubblewrap", err)
		}
	}
	return info.PID, nil
}

// limit sets the rlimits of the blocked child. A hard limit that is already
// lower stays.
func (s *stageRun) limit(pid int) error {
	for _, l := range s.spec.Rlimits {
		var old unix.Rlimit
		if err := unix.Prlimit(pid, l.resource, nil, &old); err != nil {
			return fail("read a resource limit", err)
		}
		v := min(l.value, old.Max)
		if err := unix.Prlimit(pid, l.resource, &unix.Rlimit{Cur: v, Max: v}, nil); err != nil {
			return fail("set a resource limit", err)
		}
	}
	return nil
}

// wait waits until no process of the sandbox is left.
func (s *stageRun) wait(b *box) (gone, error) {
	ended := make(chan unix.WaitStatus, 1)
	go func() { ended <- waitPID(b.bwrap) }()
	stop := make(chan struct{})
	full := s.watchDisk(stop)
	var g gone
	var ws unix.WaitStatus
	for running := true; running; {
		select {
		case ws = <-ended:
			running = false
		case <-s.orders:
			g.Killed = true
			killBox(b)
		case <-full:
			g.Killed, g.DiskFull, full = true, true, nil
			killBox(b)
		}
	}
	close(stop)
	killBox(b)
	// As pid 1 this reaches everything below the stage, and returns only when
	// all of it has been reaped.
	_ = unix.Kill(-1, unix.SIGKILL)
	for waitPID(-1) != noChild {
	}
	g.Took = time.Since(b.released)
	g.Crashed = ws.Signaled() && !g.Killed
	return g, readStatus(b.status, &g)
}

// killBox kills pid 1 of the sandbox and waits for its death, with which the
// kernel has killed all others.
func killBox(b *box) {
	if b.pidfd < 0 {
		_ = unix.Kill(b.bwrap, unix.SIGKILL)
		return
	}
	_ = unix.PidfdSendSignal(b.pidfd, unix.SIGKILL, nil, 0)
	fds := []unix.PollFd{{Fd: int32(b.pidfd), Events: unix.POLLIN}}
	for {
		if n, err := unix.Poll(fds, -1); n > 0 || err != unix.EINTR {
			return
		}
	}
}

const noChild = ^unix.WaitStatus(0)

func waitPID(pid int) unix.WaitStatus {
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &ws, 0, nil)
		if err == nil {
			return ws
		}
		if err != unix.EINTR {
			return noChild
		}
	}
}

// readStatus reads what bwrap wrote to --json-status-fd. Its line with the
// exit code is there only if the command was started.
func readStatus(fd int, g *gone) error {
	b, err := io.ReadAll(fdReader(fd))
	if err != nil {
		return fail("status of bubblewrap", err)
	}
	for line := range strings.Lines(string(b)) {
		var doc struct {
			Code *uint64 `json:"exit-code"`
		}
		if err := json.Unmarshal([]byte(line), &doc); err != nil {
			return fail("status of bubblewrap", err)
		}
		if doc.Code != nil {
			g.Execed, g.Code = true, *doc.Code
		}
	}
	return nil
}

// closeOnExec does what close_range cannot on kernels before 5.11.
func closeOnExec() {
	names, _ := os.ReadDir("/proc/self/fd")
	for _, n := range names {
		if fd, err := parseFD(n.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}
