package live

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// View is the plain directories of one image. Its methods may be used
// concurrently.
type View struct {
	im   *workspace.Image
	base string // DIR/UUID, absolute
	lock *os.File
	root *os.Root // base

	life     context.Context // ends when the view is closed
	end      context.CancelFunc
	slot     chan struct{}  // holds one element while a tree is made, changed or checked
	removing sync.WaitGroup // trees that a release removes; Add with mu held

	mu     sync.Mutex
	trees  []*tree       // oldest first
	next   uint64        // number of the next tree; for the one that has the slot
	news   chan struct{} // closed, and another one made, when a tree became ready
	closed bool

	free func(path string) (bytes, inodes uint64, err error) // hostos.Free
	keep uint64                                              // bytes that stay free, see KeepFree
	link func(from, to *os.File, name string) error          // linkAt
}

// Open prepares the view of an image below dir, which is made if it is
// missing. Of the generations that an earlier process left it keeps the newest
// that is clean, or the newest if none is, and removes the others along with
// whatever else lies there; what cannot be removed stays. It does not look at the
// files yet.
//
// Errors: workspace.ErrLocked when another process, or another image file with
// the same uuid, has the view.
func Open(dir string, im *workspace.Image) (*View, error) {
	info, err := im.Info()
	if err != nil {
		return nil, err
	}
	base, err := filepath.Abs(filepath.Join(dir, info.UUID))
	if err != nil {
		return nil, fmt.Errorf("open live view: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	lock, err := takeLock(ctx, base)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(base)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("open live view: %w", err)
	}
	v := &View{
		im: im, base: base, lock: lock, root: root, slot: make(chan struct{}, 1),
		next: 1, news: make(chan struct{}), free: hostos.Free, link: linkAt,
	}
	v.life, v.end = context.WithCancel(context.Background())
	if err := v.adopt(); err != nil {
		v.Close()
		return nil, fmt.Errorf("open live view: %w", explain(err))
	}
	return v, nil
}

// KeepFree sets how many bytes of the host's file system a Pin leaves free, for
// others that need them more than a cache does; 16 MiB if it is less. It is called
// before the first Pin.
func (v *View) KeepFree(bytes uint64) { v.keep = bytes }

// adopt takes over the best of the generations that are there.
func (v *View) adopt() error {
	names, err := list(v.root)
	if err != nil {
		return err
	}
	var found []*tree
	for _, name := range names {
		if n, ok := number(name); ok {
			v.next = max(v.next, n+1)
		}
		if name == lockName {
			continue
		} else if t, ok := openTree(v.root, name); ok {
			found = append(found, t)
		} else {
			_ = removeTree(v.root, name)
		}
	}
	if len(found) > 0 {
		best := slices.MaxFunc(found, better)
		v.trees = []*tree{best}
		for _, t := range found {
			if t != best {
				_ = t.remove(v.root)
			}
		}
	}
	return v.stamp()
}

// better orders generations by how much there is to gain from keeping them.
func better(a, b *tree) int {
	switch {
	case a.state.clean != b.state.clean && a.state.clean:
		return 1
	case a.state.clean != b.state.clean:
		return -1
	case a.n < b.n:
		return -1
	}
	return 1
}

// stamp notes in the time of the lock file that the view is in use, for Sweep.
func (v *View) stamp() error {
	now := time.Now()
	return v.root.Chtimes(lockName, now, now)
}

// Close gives the view back. A Pin that is at work is ended, with fs.ErrClosed; no
// script is waited for. What is pinned stays as it is until the next Open, by this
// process or another, which removes it: so the scripts should have ended by then.
// Releasing it later is no error and does nothing. Closing twice is no error.
func (v *View) Close() error {
	v.mu.Lock()
	again := v.closed
	v.closed = true
	v.mu.Unlock()
	if again {
		return nil
	}
	v.settle()
	return errors.Join(v.stamp(), v.leave())
}

// settle waits until nobody works on the directory any more, for good.
func (v *View) settle() {
	v.end()
	v.slot <- struct{}{}
	v.removing.Wait()
}

// leave closes what is open, the lock last.
func (v *View) leave() error {
	var err error
	for _, t := range v.trees {
		err = errors.Join(err, t.close())
	}
	return errors.Join(err, v.root.Close(), v.lock.Close())
}

// Drop closes the view and removes its directory. The image is not touched.
//
// Errors: workspace.ErrLocked while a generation is pinned, fs.ErrClosed;
// nothing has happened then.
func (v *View) Drop() error {
	if err := v.mayDrop(); err != nil {
		return fmt.Errorf("drop live view: %w", err)
	}
	v.settle()
	if err := errors.Join(erase(v.root, v.base), v.leave()); err != nil {
		return fmt.Errorf("drop live view: %w", err)
	}
	return nil
}

func (v *View) mayDrop() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return fs.ErrClosed
	}
	for _, t := range v.trees {
		if t.pins > 0 {
			return &workspace.Error{Op: "drop live view", Kind: workspace.ErrLocked, Detail: "a script uses its directory for scripts"}
		}
	}
	v.closed = true
	return nil
}

// explain gives a full disk its sentinel.
func explain(err error) error {
	if hostos.IsNoSpace(err) {
		return fmt.Errorf("%w (%w)", workspace.ErrNoSpace, err)
	}
	return err
}
