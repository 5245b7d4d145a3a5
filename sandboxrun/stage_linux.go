package sandboxrun

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stageName is argv[0] of the stage, by which StageMain knows it.
const stageName = "mcp-vdisk-stage"

// fdSocket is the one descriptor that a stage is started with, besides those of
// its own: stdin and stdout are the null device and stderr is a memory file, so
// that nothing of it gets into the output of a script. Orders come by the socket
// and frames go; its end of file means that the parent is dead.
const fdSocket = 3

// The orders are bytes. What a run needs comes with the first two as descriptors.
const (
	orderKeep = 'd' // keep the descriptors, more will come
	orderRun  = 'r' // that was all: run
	orderKill = 'k' // kill the sandbox
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
	given  given
	report *frameWriter
	orders chan struct{} // the parent wants the sandbox killed
	upper  int           // descriptor of the upper directory
	lower  int           // descriptor of the lower directory
}

// given are the descriptors that come with the orders.
type given struct {
	spec                  int   // memory file
	stdin, stdout, stderr int   // of the script
	args, filter          int   // memory files: the options of bwrap, the system call filter
	data                  []int // memory files of Data
	tasks                 []int // tasks files of control groups v1
	group                 int   // the directory of a control group v2
}

// stage waits for its orders, runs one script and returns the exit status of the stage.
func stage() int {
	if os.Getpid() != 1 {
		return 1 // not started by a Runner
	}
	if closeInherited() != nil {
		return 1
	}
	s := &stageRun{report: newFrameWriter(fdWriter(fdSocket)), orders: make(chan struct{}, 1)}
	err := s.prepare()
	fds, ok := receive()
	if !ok {
		return 1
	}
	go s.listen()
	// Whoever gave the orders to a stage that had waited wants to know that it lives.
	s.report.write(frameTaken, nil)
	if s.report.flush() != nil {
		return 1
	}
	if err == nil {
		err = s.run(fds)
	}
	if err != nil {
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

// prepare does what is the same for every run, before there are orders.
func (s *stageRun) prepare() error {
	// bwrap looks its child up in /proc, which has to be the one of this pid
	// namespace. It comes without the host's mounts below its own.
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fail(stepProc, err)
	}
	return nil
}

// receive waits for the order to run and returns the descriptors that came up to
// it; false means that the parent is gone.
func receive() (fds []int, ok bool) {
	var order [1]byte
	rights := make([]byte, unix.CmsgSpace(4*maxRights))
	for {
		n, size, flags, _, err := unix.Recvmsg(fdSocket, order[:], rights, unix.MSG_CMSG_CLOEXEC)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || n != 1 || flags&unix.MSG_CTRUNC != 0:
			return nil, false
		}
		messages, err := unix.ParseSocketControlMessage(rights[:size])
		if err != nil {
			return nil, false
		}
		for _, m := range messages {
			more, err := unix.ParseUnixRights(&m)
			if err != nil {
				return nil, false
			}
			fds = append(fds, more...)
		}
		if order[0] == orderRun {
			return fds, true
		}
	}
}

// listen ends the stage when the parent is gone.
func (s *stageRun) listen() {
	var b [1]byte
	for {
		n, err := unix.Read(fdSocket, b[:])
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

// accept sorts the descriptors by what they are for.
func (s *stageRun) accept(fds []int) error {
	const fixed = 6
	if len(fds) < fixed {
		return fail("orders", errors.New("descriptors are missing"))
	}
	g := given{spec: fds[0], stdin: fds[1], stdout: fds[2], stderr: fds[3], args: fds[4], filter: fds[5]}
	b, err := io.ReadAll(fdReader(g.spec))
	if err != nil {
		return fail("orders", err)
	}
	if s.spec, err = parseSpec(b); err != nil {
		return err
	}
	fds = fds[fixed:]
	data, tasks, group := s.spec.Data, s.spec.Tasks, 0
	if s.spec.Group {
		group = 1
	}
	if data < 0 || tasks < 0 || len(fds) != data+tasks+group {
		return fail("orders", errors.New("the descriptors are not those of the orders"))
	}
	g.data, g.tasks = fds[:data], fds[data:data+tasks]
	if s.spec.Group {
		g.group = fds[data+tasks]
	}
	s.given = g
	return nil
}

func (s *stageRun) run(fds []int) error {
	if err := s.accept(fds); err != nil {
		return err
	}
	s.mark(MarkTaken)
	if err := s.mount(); err != nil {
		return err
	}
	s.mark(MarkMounted)
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
	var files []uintptr
	g := s.given
	for _, fd := range slices.Concat([]int{g.stdin, g.stdout, g.stderr, g.args, info[1], status[1], block[0], g.filter}, g.data) {
		files = append(files, uintptr(fd))
	}
	b := &box{pidfd: -1, status: status[0]}
	if b.bwrap, err = s.fork(files); err != nil {
		return nil, err
	}
	s.mark(MarkForked)
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
	s.mark(MarkReleased)
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
	if s.spec.Group {
		attr.UseCgroupFD, attr.CgroupFD = true, s.given.group
	}
	if len(s.given.tasks) == 0 {
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
		for _, fd := range s.given.tasks {
			if r.err != nil {
				break
			}
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
	if score, err := unix.Open("/proc/self/oom_score_adj", unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
		defer unix.Close(score)
		old := make([]byte, 16)
		if n, err := unix.Pread(score, old, 0); err == nil {
			_, _ = unix.Pwrite(score, []byte("1000"), 0)
			defer func() { _, _ = unix.Pwrite(score, old[:n], 0) }()
		}
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
	g := s.given
	for _, fd := range slices.Concat(fds, []int{g.stdin, g.stdout, g.stderr, g.args, g.filter, g.spec}, g.data) {
		unix.Close(fd)
	}
}

// mark notes when a step was done, if the parent wants to know.
func (s *stageRun) mark(m Mark) {
	if s.spec.Trace {
		s.report.write(frameMark, appendMark(m, monotonic()))
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
	s.mark(MarkEnded)
	close(stop)
	killBox(b)
	// As pid 1 this reaches everything below the stage, and returns only when
	// all of it has been reaped.
	_ = unix.Kill(-1, unix.SIGKILL)
	for waitPID(-1) != noChild {
	}
	g.Took = time.Since(b.released)
	s.mark(MarkReaped)
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

// closeInherited closes what the server was given by whoever started it and did
// not know of, so that it gets no further. Of all descriptors those are the ones
// that are not closed on exec: the runtime's own are.
func closeInherited() error {
	unix.CloseOnExec(fdSocket)
	dir, err := unix.Open("/proc/self/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	names, err := readNames(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd <= fdSocket {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	return nil
}
