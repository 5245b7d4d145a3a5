package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// notifier runs a program of the operator's for each thing that a person should hear of,
// one at a time and in order. Nobody waits for it: what comes faster than the program
// ends is queued, and what is too much is dropped. Its methods may be called by many
// goroutines at once.
type notifier struct {
	command []string      // an absolute path and its arguments; none: nobody is told
	limit   time.Duration // of one run; 0 is notifyTime

	// failed is told what nobody else is: a program that did not end well, and news that
	// were dropped.
	failed func(error)

	mu      sync.Mutex
	backlog []news
	running bool
	closed  bool
	stop    context.CancelFunc // of the run
	work    sync.WaitGroup
}

// news is what the program gets on its standard input. It is made when its turn comes.
type news func(context.Context) ([]byte, error)

const (
	notifyTime    = 10 * time.Second // how long the program may run
	notifyGrace   = time.Second      // how long what it left may hold its output open
	notifyBacklog = 16               // news that wait
	notifyOutput  = 512              // bytes of its output that a failure shows
)

// tell queues news, and returns at once.
func (n *notifier) tell(what news) {
	if len(n.command) == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closed:
	case len(n.backlog) >= notifyBacklog:
		n.failed(fmt.Errorf("%d are waiting for it already", len(n.backlog)))
	default:
		n.backlog = append(n.backlog, what)
		if !n.running {
			n.running = true
			n.work.Go(n.run)
		}
	}
}

// run works the backlog off.
func (n *notifier) run() {
	for {
		ctx, what := n.next()
		if what == nil {
			return
		}
		if err := n.one(ctx, what); err != nil {
			n.failed(err)
		}
	}
}

// next takes the oldest news and the context of their run; nil when there are none.
func (n *notifier) next() (context.Context, news) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stop != nil {
		n.stop()
		n.stop = nil
	}
	if n.closed || len(n.backlog) == 0 {
		n.running = false
		return nil, nil
	}
	what := n.backlog[0]
	n.backlog = n.backlog[1:]
	limit := n.limit
	if limit == 0 {
		limit = notifyTime
	}
	ctx, stop := context.WithTimeout(context.Background(), limit)
	n.stop = stop
	return ctx, what
}

// one runs the program. No shell has a part in it, and it gets nothing of what this
// process has but PATH and HOME. After its time it is killed, with all it started that
// stayed in its process group.
func (n *notifier) one(ctx context.Context, what news) error {
	input, err := what(ctx)
	if err != nil {
		return err
	}
	said := &head{most: notifyOutput}
	cmd := exec.CommandContext(ctx, n.command[0], n.command[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = notifyGrace
	err = cmd.Run()
	switch {
	case err == nil:
		return nil
	case ctx.Err() == context.DeadlineExceeded:
		return fmt.Errorf("it had not ended after its time, and was killed")
	case ctx.Err() != nil:
		return fmt.Errorf("it was killed, for the daemon ends")
	case said.text.Len() > 0:
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(strings.ToValidUTF8(said.text.String(), "?")))
	}
	return err
}

// close ends the program that runs, forgets what waits, and returns when nothing goes on
// any more. What is told later is dropped.
func (n *notifier) close() {
	n.mu.Lock()
	n.closed, n.backlog = true, nil
	if n.stop != nil {
		n.stop()
	}
	n.mu.Unlock()
	n.work.Wait()
}

// head keeps the beginning of what is written to it.
type head struct {
	text bytes.Buffer
	most int
}

func (h *head) Write(p []byte) (int, error) {
	h.text.Write(p[:min(len(p), h.most-h.text.Len())])
	return len(p), nil
}
