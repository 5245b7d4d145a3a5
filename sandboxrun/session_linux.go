package sandboxrun

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// setupTime is how long a sandbox may take to start.
	setupTime = 30 * time.Second
	// wordTime is how long a stage that has waited may take to say that it has its
	// orders. One that does not is replaced, which costs a run this time and no more.
	wordTime = time.Second
	// killTime is how long a killed sandbox may take to be gone. A process
	// that hangs in the kernel can take longer than any limit.
	killTime = 10 * time.Second
	// stdinTime is how long Run waits for a Read of Run.Stdin under way.
	stdinTime = time.Second
)

// session is one run on a stage and the ends of its pipes that stay in this
// process.
type session struct {
	stage   *stageProcess
	stdin   *os.File
	streams [2]*os.File // of the script, by Stream
	trace   func(Mark, time.Time)

	outputMax int64
	group     *group
	output    [2]capture
	tap       *tap // nil: nobody listens
	drained   atomic.Int64
	flooded   chan struct{} // closed when drained passes outputMax
	flood     sync.Once
	readers   sync.WaitGroup
	stdinDone chan error

	taken, released, gone, done chan struct{}
	take, release               sync.Once
	mu                          sync.Mutex
	cause                       Outcome   // why the tree was killed; "" = it was not
	stuck                       bool      // the stage did not answer in time
	heard                       bool      // the stage has sent more than that it has its orders
	letGo                       time.Time // when the command was started
}

// bwrapInput is what bubblewrap reads from descriptors.
type bwrapInput struct {
	args   []string
	filter []byte
	data   []Data
}

// openSession makes the pipes and gives the stage its orders. It must be closed;
// with an error the stage is.
func openSession(stage *stageProcess, sp spec, in bwrapInput, r Run, l Limits, g *group) (*session, error) {
	s := &session{
		stage: stage, trace: r.Trace, flooded: make(chan struct{}), stdinDone: make(chan error, 1),
		taken: make(chan struct{}), released: make(chan struct{}), gone: make(chan struct{}), done: make(chan struct{}),
		outputMax: l.OutputMax, group: g,
	}
	joins, tasks, v2 := g.joins()
	sp.Tasks, sp.Group, sp.Trace = tasks, v2, r.Trace != nil
	for i := range s.output {
		s.output[i] = capture{head: l.Head, tail: l.Tail}
	}
	if r.Tap != nil {
		s.tap = &tap{f: r.Tap, left: l.OutputMax}
	}
	files, err := s.files(sp, in, r.Stdin != nil)
	if err == nil {
		err = stage.ready()
	}
	if err == nil {
		// A stage that has ended shows in what comes from it.
		if err = stage.order(slices.Concat(files, joins)); isGone(err) {
			err = nil
		}
	}
	for _, f := range files {
		f.Close()
	}
	if err != nil {
		stage.close()
		s.closeFiles()
		return nil, err
	}
	s.mark(MarkOrdered, time.Now)
	for i := range s.streams {
		s.readers.Add(1)
		go s.drain(i)
	}
	go s.feed(r.Stdin)
	return s, nil
}

// mark tells Run.Trace of a step, if somebody wants to know.
func (s *session) mark(m Mark, at func() time.Time) {
	if s.trace != nil {
		s.trace(m, at())
	}
}

// files makes the descriptors of a run, in the order in which the stage expects
// them. What was made is returned with an error, too, so that it can be closed.
func (s *session) files(sp spec, in bwrapInput, stdin bool) (files []*os.File, err error) {
	toChild := func(mine **os.File, childReads bool) {
		if err == nil {
			var child *os.File
			if *mine, child, err = pipe(childReads); err == nil {
				files = append(files, child)
			}
		}
	}
	memory := func(name string, b []byte) {
		if err == nil {
			var f *os.File
			if f, err = memFile(name, b); err == nil {
				files = append(files, f)
			}
		}
	}
	null := func() {
		if err == nil {
			var f *os.File
			if f, err = os.Open(os.DevNull); err == nil {
				files = append(files, f)
			}
		}
	}
	memory("stage-orders", sp.marshal())
	if stdin {
		toChild(&s.stdin, true)
	} else {
		null()
	}
	toChild(&s.streams[0], false)
	toChild(&s.streams[1], false)
	memory("bwrap-args", joinArgs(in.args))
	memory("filter", in.filter)
	for _, d := range in.data {
		memory("data", d.Bytes)
	}
	return files, err
}

// drain reads one stream of the script to its end.
func (s *session) drain(i int) {
	defer s.readers.Done()
	buf := make([]byte, 64<<10)
	for {
		n, err := s.streams[i].Read(buf)
		s.output[i].write(buf[:n])
		over := s.drained.Add(int64(n)) > s.outputMax
		s.tap.write(Stream(i), buf[:n])
		if over {
			s.flood.Do(func() { close(s.flooded) })
			// The script is being killed. Until it is dead it has to wait.
			select {
			case <-s.gone:
			case <-s.done:
			}
		}
		if err != nil {
			return
		}
	}
}

// readError remembers an error of the caller's reader, which is a fault of the
// run, unlike one of the pipe, which only means that nobody reads.
type readError struct {
	r   io.Reader
	err error
}

func (r *readError) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

// feed copies stdin to the script. Nothing is read before the script starts:
// a setup that fails can be tried again with the same input.
func (s *session) feed(stdin io.Reader) {
	started := false
	select {
	case <-s.released:
		started = true
	case <-s.done:
	}
	if stdin == nil || !started {
		s.stdinDone <- nil
		return
	}
	r := &readError{r: stdin}
	_, _ = io.Copy(s.stdin, r)
	s.stdin.Close()
	s.stdinDone <- r.err
}

// supervise kills the sandbox when its time is over, when it writes too much,
// when it ran out of memory, or when ctx ends. It returns when the session is
// done. With cgroup v1 the kernel kills one process of a group that has no
// memory left; the others go from here. A stage that takes longer than word to
// say that it has its orders is killed without being blamed: it did nothing.
func (s *session) supervise(ctx context.Context, word, timeout time.Duration) {
	deadline := time.NewTimer(word)
	defer deadline.Stop()
	taken, released, gone, flooded := s.taken, s.released, s.gone, s.flooded
	look := time.NewTicker(groupPoll)
	defer look.Stop()
	if !s.group.limitsMemory() {
		look.Stop()
	}
	for {
		select {
		case <-s.done:
			return
		case <-ctx.Done():
			s.abort(Cancelled)
			return
		case <-taken:
			taken = nil
			if released != nil {
				deadline.Reset(setupTime)
			}
		case <-released:
			taken, released = nil, nil
			deadline.Reset(timeout)
		case <-gone:
			gone, flooded = nil, nil
			deadline.Stop()
			look.Stop()
		case <-look.C:
			if s.group.outOfMemory() {
				look.Stop()
				s.kill(MemoryLimit)
				deadline.Reset(killTime)
			}
		case <-flooded:
			flooded = nil
			s.kill(OutputLimit)
			deadline.Reset(killTime)
		case <-deadline.C:
			if taken != nil && word < setupTime {
				s.stage.kill()
				return
			}
			if released != nil || s.why() != "" {
				s.abort(SetupFailed)
				s.stuck = true
				return
			}
			s.kill(TimedOut)
			deadline.Reset(killTime)
		}
	}
}

// kill asks the stage to kill the sandbox and to go on with the changes.
func (s *session) kill(why Outcome) {
	s.blame(why)
	_ = s.stage.tell(orderKill)
}

// abort kills the stage and with it everything.
func (s *session) abort(why Outcome) {
	s.blame(why)
	s.stage.kill()
}

// blame keeps the first reason.
func (s *session) blame(why Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause == "" {
		s.cause = why
	}
}

func (s *session) why() Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// close ends the stage if it still runs and waits for all that was started.
func (s *session) close() error {
	s.stage.close()
	s.readers.Wait()
	if s.stdin != nil {
		s.stdin.Close()
	}
	var err error
	select {
	case err = <-s.stdinDone:
	case <-time.After(stdinTime):
	}
	s.closeFiles()
	if err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	return nil
}

func (s *session) closeFiles() {
	for _, f := range []*os.File{s.stdin, s.streams[0], s.streams[1]} {
		if f != nil {
			f.Close()
		}
	}
}
