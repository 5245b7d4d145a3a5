package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// hub is an open state directory with whatever is open in it: the daemon's, for
// all who are connected, or that of one command. Its methods may be called by
// many goroutines at once.
type hub struct {
	st     *state
	set    settings
	log    *slog.Logger
	turns  *tools.Turns // of scripts, whatever disk they are on
	shared bool         // more than one command may come
	envs   string       // the environment root

	notices notifier // of requests that wait for a person

	placing sync.Mutex // held while a disk that came with a uuid gets its name

	mu    sync.Mutex // never held while a disk is opened or closed, which may take long
	disks []*disk    // also those that are being opened or closed

	choosing sync.Mutex // held while the moment of a backup is chosen

	clock  lease.Clock // of leases; nil for that of the system
	lazy   sync.Mutex  // held while one of the following is made
	box    *sandboxrun.Runner
	python *pyenv.Env
	leases *lease.Badger

	asked    sync.Once // for the queue; see requests
	queue    *queue.Queue
	queueErr error
	resumed  sync.Once
}

// openHub opens a state directory. wait is for how long another process may have
// it.
func openHub(ctx context.Context, r front.Request, set settings, wait time.Duration, log *slog.Logger) (*hub, error) {
	st, err := openState(ctx, r.State, set, wait, log)
	if err != nil {
		return nil, err
	}
	h := &hub{st: st, set: set, log: log, envs: envRoot(r, set), turns: tools.NewTurns(set.limits.Scripts, set.limits.ScriptMemory)}
	h.notices.command, h.notices.failed = set.env.notify, h.notNotified
	return h, nil
}

// Close closes the disks that are open for no reason but their jobs, ends the work on
// requests for packages, which the next process goes on with, and closes the state.
// Whoever uses a disk must have released it.
func (h *hub) Close() error {
	h.notices.close() // it looks for the names of disks
	h.mu.Lock()
	disks := h.disks
	h.disks = nil
	h.mu.Unlock()
	var errs []error
	for _, d := range disks {
		errs = append(errs, d.close())
	}
	if h.box != nil {
		errs = append(errs, h.python.Close())
		h.box.Close()
	}
	return errors.Join(append(errs, h.st.Close())...)
}

// sandbox is what scripts run in.
func (h *hub) sandbox(ctx context.Context) (*sandboxrun.Runner, *pyenv.Env, error) {
	h.lazy.Lock()
	defer h.lazy.Unlock()
	if h.box != nil {
		return h.box, h.python, nil
	}
	box, err := sandboxrun.New(ctx, boxConfig(h.st.dir, h.set))
	if err != nil {
		return nil, nil, err
	}
	python, err := h.ownEnv(box)
	if err != nil {
		box.Close()
		return nil, nil, err
	}
	h.box, h.python = box, python
	if h.shared { // what it begins, the daemon ends
		h.resume(ctx, python)
	}
	return h.box, h.python, nil
}

// want says which disk is to be opened, and how.
type want struct {
	ref      front.ImageRef
	file     *os.File // of a disk that is named by its path; open owns it
	readOnly bool
	create   bool // when it is missing
	fresh    bool // it must be missing
	label    string
	// unsettled takes a disk also when the calls that a killed process left open
	// on it cannot be settled.
	unsettled bool
	set       settings // the limits of one that is made
}

// open opens a disk, or finds it open. Calls that a killed process left open on
// it are settled first. The caller releases it.
func (h *hub) open(ctx context.Context, w want) (*disk, error) {
	deadline := time.Now().Add(lockWait)
	for {
		d, again, err := h.tryOpen(ctx, w)
		if !again || time.Now().After(deadline) {
			if d == nil && w.file != nil {
				w.file.Close()
			}
			return d, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// tryOpen is one attempt. again says that it failed because of somebody who will
// soon be gone.
func (h *hub) tryOpen(ctx context.Context, w want) (d *disk, again bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d, err = h.find(ctx, w); err != nil {
		return nil, false, err
	}
	if d != nil {
		switch {
		case d.checked:
			return nil, true, exit.Fail(exit.Busy, "try again when that is done", "disk %s is being checked", w.ref)
		case d.readOnly && !w.readOnly && !d.idle():
			return nil, true, exit.Fail(exit.Busy, "stop it first", "disk %s is open for reading only by another session", w.ref)
		case d.readOnly && !w.readOnly:
			err := h.drop(d)
			return nil, err == nil, err // somebody else may have been first
		case w.fresh:
			return nil, false, exit.Fail(exit.Refused, "choose another name; an existing disk is never overwritten", "there is a disk %s already", w.ref)
		default:
			if err := d.settle(ctx, w); err != nil {
				return nil, false, err
			}
			if w.file != nil {
				w.file.Close()
			}
			d.users++
			return d, false, nil
		}
	}
	d = &disk{hub: h, name: w.ref.String(), path: h.pathOf(w.ref), users: 1, moving: make(chan struct{})}
	d.file, _ = h.stat(w) // nil when it is to be made
	h.disks = append(h.disks, d)
	if err := h.openDisk(ctx, w, d); err != nil {
		h.forget(d)
		return nil, false, err
	}
	close(d.moving)
	d.moving = nil
	return d, false, nil
}

// find returns the disk if it is open. One that is being opened or closed is
// waited for; mu is held, and let go for as long.
func (h *hub) find(ctx context.Context, w want) (*disk, error) {
	for {
		d := h.look(w)
		if d == nil || d.moving == nil {
			return d, nil
		}
		moving := d.moving
		h.mu.Unlock()
		select {
		case <-moving:
		case <-ctx.Done():
		}
		h.mu.Lock()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// look returns the disk if it is among those of the hub.
func (h *hub) look(w want) *disk {
	info, err := h.stat(w)
	path := h.pathOf(w.ref)
	for _, d := range h.disks {
		if err == nil && d.file != nil && os.SameFile(d.file, info) || d.moving != nil && d.file == nil && d.path == path {
			return d
		}
	}
	return nil
}

func (h *hub) stat(w want) (os.FileInfo, error) {
	if w.file != nil {
		return w.file.Stat()
	}
	return os.Stat(h.pathOf(w.ref))
}

func (h *hub) pathOf(r front.ImageRef) string {
	if r.Path != "" {
		return r.Path
	}
	return h.st.imagePath(r.Name)
}

// release ends one use of a disk. The last one closes it, unless scripts of it
// run or can be asked for.
func (h *hub) release(d *disk) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.users--; !d.idle() {
		return nil
	}
	return h.drop(d)
}

// drop closes a disk that nobody uses. mu is held, and let go meanwhile.
func (h *hub) drop(d *disk) error {
	d.moving = make(chan struct{})
	h.mu.Unlock()
	err := d.close()
	h.mu.Lock()
	h.forget(d)
	return err
}

// forget takes a disk off the list, for those who wait for that.
func (h *hub) forget(d *disk) {
	if i := slices.Index(h.disks, d); i >= 0 {
		h.disks = slices.Delete(slices.Clone(h.disks), i, i+1)
	}
	close(d.moving)
}

// sweep closes the disks that were open for their jobs only, which are forgotten.
// It returns how many are left.
func (h *hub) sweep() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range slices.Clone(h.disks) {
		if d.moving == nil && d.idle() {
			if err := h.drop(d); err != nil {
				h.log.Warn("a disk could not be closed", "disk", d.name, "error", err)
			}
		}
	}
	return len(h.disks)
}

// use returns a disk that is open and counts one more who uses it; nil when it
// is not.
func (h *hub) use(w want) *disk {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, _ := h.find(context.Background(), w)
	if d == nil || d.checked {
		return nil
	}
	d.users++
	return d
}

// named returns an open disk by its uuid.
func (h *hub) named(uuid string) *disk {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.disks {
		if d.moving == nil && d.info.UUID == uuid {
			return d
		}
	}
	return nil
}

// open disks, for those who look at all of them.
func (h *hub) all() []*disk {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.disks)
}

// aside keeps a disk closed while fn works on its file. It is refused while
// somebody uses it.
func (h *hub) aside(w want, fn func() error) error {
	d, err := h.setAside(w)
	if err != nil {
		return err
	}
	err = fn()
	if d == nil { // there is none, as fn has told
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return cmp.Or(err, h.drop(d))
}

func (h *hub) setAside(w want) (*disk, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		d, err := h.find(context.Background(), w)
		switch {
		case err != nil:
			return nil, err
		case d == nil:
			info, err := h.stat(w)
			if err != nil { // fn tells what is wrong with it
				return nil, nil
			}
			d = &disk{hub: h, file: info, name: w.ref.String(), checked: true, users: 1}
			h.disks = append(h.disks, d)
			return d, nil
		case d.checked || !d.idle():
			return nil, exit.Fail(exit.Busy, "try again when they are gone; mcp-vdisk daemon status shows who is connected", "disk %s is in use", w.ref)
		}
		if err := h.drop(d); err != nil {
			return nil, err
		}
	}
}
