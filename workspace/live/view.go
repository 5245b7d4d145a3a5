package live

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// View is the plain directory of one image. Its methods may be used
// concurrently; they wait for each other.
type View struct {
	im   *workspace.Image
	base string // DIR/UUID, absolute
	lock *os.File

	mu    sync.Mutex
	root  *os.Root // base
	file  *os.File // live.state
	state state    // what it says
	known bool     // the state was written, or checked against the image, by this View
}

const (
	treeName  = "tree"
	stateName = "live.state"
	lockName  = "lock"
)

// Open prepares the view of an image below dir, which is made if it is
// missing. It does not look at the files yet.
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
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, fmt.Errorf("open live view: %w", explain(err))
	}
	lock, err := takeLock(filepath.Join(base, lockName))
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(base)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("open live view: %w", err)
	}
	file, err := root.OpenFile(stateName, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		root.Close()
		lock.Close()
		return nil, fmt.Errorf("open live view: %w", explain(err))
	}
	return &View{im: im, base: base, lock: lock, root: root, file: file, state: readState(file)}, nil
}

func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open live view: %w", explain(err))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err = hostos.Lock(ctx, f, true)
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, hostos.ErrLocked) {
		return nil, &workspace.Error{Op: "open live view", Kind: workspace.ErrLocked, Detail: "its directory for scripts is open elsewhere"}
	}
	return nil, fmt.Errorf("open live view: %w", err)
}

// Sync makes the directory equal to the newest commit, and returns its
// absolute path and that commit's sequence number. Commits made meanwhile may
// be in it or not; the number says which are.
//
// When it fails the directory is in no particular state, and the next Sync
// compares all of it.
//
// Errors: workspace.ErrNoSpace, workspace.ErrCorrupt, the cause of ctx, errors
// of the host's file system.
func (v *View) Sync(ctx context.Context) (dir string, seq uint64, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.root == nil {
		return "", 0, fmt.Errorf("sync live view: %w", fs.ErrClosed)
	}
	if err := v.sync(ctx); err != nil {
		return "", 0, fmt.Errorf("sync live view: %w", explain(err))
	}
	return filepath.Join(v.base, treeName), v.state.seq, nil
}

func (v *View) sync(ctx context.Context) error {
	at, known := v.start()
	target, err := v.im.Info()
	if err != nil {
		return err
	}
	if known && at == target.Seq {
		return nil
	}
	was := v.state
	if err := v.setState(was.moving(target.Commit)); err != nil {
		return err
	}
	if known {
		if err := v.advance(ctx, at, target.Seq); err == nil {
			return v.setState(clean(target))
		} else if !errors.Is(err, errDrift) {
			return err
		}
	}
	return v.rebuild(ctx, !was.sameBoot())
}

// rebuild compares everything with the image. The walk sees the image at
// several commits; those made while it went on are applied on top, which
// settles every path that may have been seen too early or too late.
func (v *View) rebuild(ctx context.Context, deep bool) error {
	before, err := v.im.Info()
	if err != nil {
		return err
	}
	if err := v.scan(ctx, deep); err != nil {
		return err
	}
	after, err := v.im.Info()
	if err != nil {
		return err
	}
	if err := v.advance(ctx, before.Seq, after.Seq); err != nil {
		return err
	}
	return v.setState(clean(after))
}

// start says which commit the directory is equal to, if that is known: the
// state is clean, and the image's history has that very commit.
func (v *View) start() (seq uint64, ok bool) {
	if !v.state.clean || !v.state.sameBoot() {
		return 0, false
	}
	if v.known {
		return v.state.seq, true
	}
	log, err := v.im.Log(v.state.seq-1, 1)
	if err != nil || len(log) != 1 || log[0].Seq != v.state.seq || log[0].ID != v.state.id {
		return 0, false
	}
	v.known = true
	return v.state.seq, true
}

// Close gives the view back. The directory stays for the next one.
func (v *View) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.close()
}

func (v *View) close() error {
	if v.root == nil {
		return nil
	}
	err := errors.Join(v.file.Close(), v.root.Close(), v.lock.Close())
	v.root = nil
	return err
}

// Drop closes the view and removes its directory. The image is not touched.
func (v *View) Drop() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.root != nil {
		if err := removeTree(v.root, treeName); err != nil {
			return fmt.Errorf("drop live view: %w", err)
		}
	}
	if err := errors.Join(os.RemoveAll(v.base), v.close()); err != nil {
		return fmt.Errorf("drop live view: %w", err)
	}
	return nil
}

// explain gives a full disk its sentinel.
func explain(err error) error {
	if hostos.IsNoSpace(err) {
		return fmt.Errorf("%w (%w)", workspace.ErrNoSpace, err)
	}
	return err
}
