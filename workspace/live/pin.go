package live

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// Generation is a hold on a plain tree that is equal to one commit. Nobody
// changes the tree as long as somebody holds it: names, contents, modes and
// times of modification stay, while a file's inode may get and lose other links. The
// image keeps the commits behind it for as long.
type Generation struct {
	v    *View
	t    *tree
	at   state
	drop func() // of the history behind it, on which a commit may be based
	once sync.Once
}

// Dir returns the absolute path of the tree.
func (g *Generation) Dir() string { return filepath.Join(g.v.base, g.t.name(), treeName) }

// Seq returns the sequence number of the commit that the tree is equal to.
func (g *Generation) Seq() uint64 { return g.at.seq }

// Commit returns the id of that commit, in hex.
func (g *Generation) Commit() string { return g.at.id }

// Release gives the hold back. The last one on a tree that is not the newest
// removes it, which takes as long as removing its files does. It may be called
// more than once and after Close.
func (g *Generation) Release() { g.once.Do(func() { g.drop(); g.v.release(g.t) }) }

// Pin returns a generation equal to a commit at least as new as the newest was
// when Pin was called, and holds it until Release. An up-to-date one is shared at
// once, whatever else goes on; other Pins that have work to do wait for each other.
//
// When it fails, everything that is pinned is still what it was, and the next
// Pin makes good what was left undone. ctx ends the wait and the work.
//
// Errors: workspace.ErrNoSpace, also when what had to be written would have left
// less than 16 MiB free; workspace.ErrCorrupt; the cause of ctx; fs.ErrClosed;
// errors of the host's file system.
func (v *View) Pin(ctx context.Context) (*Generation, error) {
	head, err := v.im.Info()
	if err != nil {
		return nil, fmt.Errorf("pin live view: %w", err)
	}
	g, err := v.pin(ctx, head.Seq)
	if err != nil {
		return nil, fmt.Errorf("pin live view: %w", explain(err))
	}
	return g, nil
}

func (v *View) pin(ctx context.Context, seq uint64) (*Generation, error) {
	for {
		g, news, err := v.share(seq)
		if g != nil || err != nil {
			return g, err
		}
		select {
		case v.slot <- struct{}{}:
			return v.renew(ctx, seq)
		case <-news: // perhaps somebody made the one that is wanted
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-v.life.Done():
		}
	}
}

// share holds a tree that is new enough. If there is none, it returns what is
// closed when there may be one.
func (v *View) share(seq uint64) (*Generation, <-chan struct{}, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil, nil, fs.ErrClosed
	}
	for _, t := range slices.Backward(v.trees) {
		if t.ready && !t.spoiled && t.state.seq >= seq {
			return v.hold(t), nil, nil
		}
	}
	return nil, v.news, nil
}

// hold counts one holder more; mu is held.
func (v *View) hold(t *tree) *Generation {
	t.pins++
	return &Generation{v: v, t: t, at: t.state, drop: v.im.Hold(t.state.seq)}
}

func (v *View) release(t *tree) {
	if v.unhold(t) {
		defer v.removing.Done()
		_ = t.remove(v.root) // what it leaves, the next Open removes
	}
}

// unhold counts one holder less, and says whether the tree has to go.
func (v *View) unhold(t *tree) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	t.pins--
	if v.closed || t.pins > 0 || !t.spoiled && t == v.trees[len(v.trees)-1] {
		return false
	}
	v.trees = slices.DeleteFunc(v.trees, func(o *tree) bool { return o == t })
	v.removing.Add(1)
	return true
}

// renew makes a tree that is new enough, or makes one so, and holds it. The
// caller has taken the slot; renew gives it back.
func (v *View) renew(ctx context.Context, seq uint64) (*Generation, error) {
	defer func() { <-v.slot }()
	if g, _, err := v.share(seq); g != nil || err != nil {
		return g, err
	}
	ctx, cancel := v.within(ctx)
	defer cancel()
	t, held := v.claim()
	if held {
		defer v.release(t) // when the new one is in its place
	}
	var err error
	switch {
	case t == nil:
		t, err = v.build(ctx)
	case held:
		t, err = v.fork(ctx, t)
	default:
		err = v.bring(ctx, t)
	}
	if err != nil {
		return nil, err
	}
	return v.publish(t)
}

// within is ctx, which ends with the view too.
func (v *View) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(v.life, func() { cancel(fs.ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// claim returns the newest tree to work with, or none. One that nobody holds is
// the caller's to change; else the caller holds it too and makes another from it.
func (v *View) claim() (t *tree, held bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.trees) == 0 {
		return nil, false
	}
	if t = v.trees[len(v.trees)-1]; t.spoiled {
		return nil, false
	}
	if held = t.pins > 0; held {
		t.pins++
	} else {
		t.ready = false
	}
	return t, held
}

// publish makes a finished tree the newest and holds it.
func (v *View) publish(t *tree) (*Generation, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	isNew := !slices.Contains(v.trees, t)
	if v.closed {
		if isNew {
			return nil, errors.Join(fs.ErrClosed, t.close())
		}
		return nil, fs.ErrClosed
	}
	if isNew {
		v.trees = append(v.trees, t)
	}
	t.ready = true
	close(v.news)
	v.news = make(chan struct{})
	_ = v.stamp() // a view that seems unused is only swept too early
	return v.hold(t), nil
}

// bring makes the newest tree equal to the head, in place.
func (v *View) bring(ctx context.Context, t *tree) error {
	head, err := v.im.Info()
	if err != nil {
		return err
	}
	was, known := t.state, v.believed(t)
	if known && was.seq == head.Seq {
		return nil
	}
	if err := t.setState(was.moving(head.Commit)); err != nil {
		return err
	}
	b := v.builder(ctx, t)
	err = errDrift
	if known {
		head, err = b.follow(was.seq)
	}
	if errors.Is(err, errDrift) {
		head, err = b.rebuild(!was.sameBoot())
	}
	if err != nil {
		return err
	}
	return t.setState(clean(head))
}

// believed says whether a tree is what its state says, without a look at it:
// the state is clean, was written since the machine started, and names a commit
// of this image.
func (v *View) believed(t *tree) bool {
	if !t.state.clean {
		return false
	}
	if !t.known {
		t.known = t.state.sameBoot() && v.inHistory(t.state)
	}
	return t.known
}

// inHistory says whether the image's history has the very commit.
func (v *View) inHistory(s state) bool {
	log, err := v.im.Log(s.seq-1, 1)
	return err == nil && len(log) == 1 && log[0].Seq == s.seq && log[0].ID == s.id
}

// fork makes a tree from one that has to stay as it is. What it does not finish
// it removes.
func (v *View) fork(ctx context.Context, from *tree) (*tree, error) {
	return v.produce(ctx, from.state, func(b *builder, _ workspace.Info) (workspace.Info, error) {
		if err := b.fits(from.state.seq); err != nil && !errors.Is(err, errDrift) {
			return workspace.Info{}, err
		}
		err := b.linkFrom(from)
		if err == nil {
			var at workspace.Info
			if at, err = b.follow(from.state.seq); err == nil {
				return at, nil
			}
		}
		if errors.Is(err, errDrift) {
			return b.rebuild(false)
		}
		return workspace.Info{}, err
	})
}

// build makes a tree from nothing.
func (v *View) build(ctx context.Context) (*tree, error) {
	return v.produce(ctx, state{boot: bootID()}, func(b *builder, head workspace.Info) (workspace.Info, error) {
		if err := b.room.need(head.Bytes+blockSize*head.Entries, head.Entries); err != nil {
			return workspace.Info{}, err
		}
		return b.rebuild(false)
	})
}

// produce makes a new tree, which fill makes equal to the commit that it returns.
func (v *View) produce(ctx context.Context, was state, fill func(*builder, workspace.Info) (workspace.Info, error)) (*tree, error) {
	head, err := v.im.Info()
	if err != nil {
		return nil, err
	}
	n := v.next
	v.next++
	t, err := newTree(v.root, n, was, head.Commit)
	if err != nil {
		return nil, err
	}
	at, err := fill(v.builder(ctx, t), head)
	if err == nil {
		err = t.setState(clean(at))
	}
	if err != nil {
		return nil, errors.Join(err, t.remove(v.root))
	}
	return t, nil
}
