package sandboxrun

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// spareTime is how long a stage waits for a run that needs it.
const spareTime = time.Minute

// Close ends the stage that waits for the next run, and returns when nothing of it
// is left. A Run afterwards works, and leaves none. Closing twice is no error.
func (r *Runner) Close() { r.stages.close() }

// DropSpare ends the stage that waits for the next run, as its time would, and
// returns when nothing of it is left. The next Run leaves another.
func (r *Runner) DropSpare() { r.stages.drop(nil) }

// spares starts stages, and keeps one ahead: its program is loaded and its
// namespaces are made when the next run comes. There is none before the first
// run, none but one, and none for longer than life.
type spares struct {
	self string
	life time.Duration

	mu     sync.Mutex
	spare  *spare // the one that waits, or is on its way
	closed bool
	work   sync.WaitGroup // what starts and ends spares
}

func newSpares(self string) *spares { return &spares{self: self, life: spareTime} }

// spare is a stage that nobody needed yet.
type spare struct {
	stage  *stageProcess
	timer  *time.Timer
	mounts int      // mountinfo of this process, opened before the stage was started
	watch  *os.File // the same, by which the poller wakes whoever looks at mounts

	mu    sync.Mutex
	stale bool // something was mounted or unmounted since
}

// take returns a stage, the one that waits if it can be used; waited tells which.
func (s *spares) take() (p *stageProcess, waited bool, err error) {
	s.mu.Lock()
	sp := s.spare
	s.spare = nil
	s.mu.Unlock()
	if sp != nil {
		if sp.timer.Stop(); sp.good() {
			sp.unwatch()
			return sp.stage, true, nil
		}
		s.discard(sp)
	}
	p, err = startStage(s.self)
	return p, false, err
}

// leave starts a stage for the next run, unless there is one.
func (s *spares) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.spare != nil {
		return
	}
	sp, err := newSpare(s.self)
	if err != nil {
		return // the next run starts one, and tells why it cannot
	}
	sp.timer = time.AfterFunc(s.life, func() { s.drop(sp) })
	s.spare = sp
	s.work.Go(func() {
		if sp.waitStale() {
			s.drop(sp)
		}
	})
}

// drop ends the stage that waits if it is this one, or whichever for nil, and
// waits until it is gone.
func (s *spares) drop(only *spare) {
	s.mu.Lock()
	sp := s.spare
	if sp == nil || only != nil && sp != only {
		s.mu.Unlock()
		return
	}
	s.spare = nil
	s.work.Add(1)
	s.mu.Unlock()
	defer s.work.Done()
	sp.end()
}

// discard ends a spare that cannot be used, which the run that wanted it need
// not wait for.
func (s *spares) discard(sp *spare) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		sp.end()
		return
	}
	s.work.Go(sp.end)
}

// close ends the spare for good, and waits for all that were dropped before.
func (s *spares) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.drop(nil)
	s.work.Wait()
}

func newSpare(self string) (*spare, error) {
	// Whatever is mounted from here on is noticed.
	fd, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open", err)
	}
	watch, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	sp := &spare{mounts: fd, watch: watch}
	if sp.stage, err = startStage(self); err != nil {
		sp.unwatch()
		return nil, err
	}
	return sp, nil
}

// good tells whether a run on this stage is like one on a new one: it lives, and
// it sees the file systems that this process sees. Its mount namespace is a copy
// that was made when it was started.
func (sp *spare) good() bool {
	return sp.stage.ready() == nil && !sp.stage.ended() && !sp.isStale()
}

// isStale tells whether something was mounted or unmounted since. The kernel tells
// it once for each descriptor, so what it said is kept.
func (sp *spare) isStale() bool {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.stale = sp.stale || mountsChanged(sp.mounts)
	return sp.stale
}

// waitStale returns true when something is mounted or unmounted, and false after
// unwatch. The poller of the runtime is told of it as of any other event, so that
// nobody's thread waits for it; where it will not, the stage goes at its time.
func (sp *spare) waitStale() bool {
	raw, err := sp.watch.SyscallConn()
	if err != nil {
		return false
	}
	return raw.Read(func(uintptr) bool { return sp.isStale() }) == nil
}

// unwatch ends waitStale and closes what it looks at.
func (sp *spare) unwatch() {
	sp.watch.Close()
	sp.mu.Lock()
	defer sp.mu.Unlock()
	unix.Close(sp.mounts)
	sp.mounts, sp.stale = -1, true
}

// mountsChanged tells whether something was mounted, unmounted or remounted in
// this process's mount namespace since its mountinfo was opened, see
// proc_pid_mounts(5).
func mountsChanged(mountinfo int) bool {
	fds := []unix.PollFd{{Fd: int32(mountinfo), Events: unix.POLLPRI}}
	for {
		n, err := unix.Poll(fds, 0)
		if err != unix.EINTR {
			return n != 0 || err != nil
		}
	}
}

func (sp *spare) end() {
	sp.timer.Stop()
	sp.stage.close()
	sp.unwatch()
}
