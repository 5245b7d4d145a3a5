package live

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// Drift is a path at which a generation is not what the image was at its commit.
type Drift struct {
	Path string `json:"path"` // as workspace.Path.String shows it, also when the image could not have it
	Text string `json:"text"` // what is wrong, such as "has other bytes"
}

// Check compares the newest clean generation with the image, contents too, and
// returns what differs, by path. Without a clean one it returns nothing: what is
// not clean is not believed anyway. With repair, a view that differs is thrown away:
// no generation of today is shared or copied any more, those that nobody holds
// are removed, the others with their last holder, and the next Pin writes all
// files anew.
//
// Commits and scripts go on meanwhile, a Pin that has work to do waits. Nothing
// is changed, so an ordinary user's Check does not see into files and directories
// whose modes keep their owner out.
//
// Errors: workspace.ErrCorrupt; the cause of ctx; fs.ErrClosed; errors of the
// host's file system. When repair fails, what was found is returned too.
func (v *View) Check(ctx context.Context, repair bool) ([]Drift, error) {
	found, err := v.check(ctx, repair)
	if err != nil {
		return found, fmt.Errorf("check live view: %w", err)
	}
	return found, nil
}

func (v *View) check(ctx context.Context, repair bool) ([]Drift, error) {
	select {
	case v.slot <- struct{}{}:
		defer func() { <-v.slot }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-v.life.Done():
		return nil, fs.ErrClosed
	}
	t, err := v.newestClean()
	if t == nil {
		return nil, err
	}
	ctx, cancel := v.within(ctx)
	defer cancel()
	found, err := v.compare(ctx, t)
	if len(found) > 0 && repair {
		err = v.spoil()
	}
	return found, err
}

// newestClean returns nil when there is none. The caller has the slot.
func (v *View) newestClean() (*tree, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil, fs.ErrClosed
	}
	for _, t := range slices.Backward(v.trees) {
		if !t.spoiled && t.state.clean && v.inHistory(t.state) {
			return t, nil
		}
	}
	return nil, nil
}

// compare compares a tree with the image as it was at the tree's commit. That is
// the newest one, but for the paths that were changed since; those are known
// from the history. So it goes through both, leaves such paths out, and then
// looks at each of them alone.
func (v *View) compare(ctx context.Context, t *tree) ([]Drift, error) {
	c := &checker{
		ctx: ctx, im: v.im, tree: t.root, seen: t.state.seq,
		was: map[string]*workspace.Node{}, found: map[string]string{},
	}
	switch err := c.run(); {
	case errors.Is(err, errDrift):
		return nil, nil // a part of the history is gone; the next Pin does not believe the tree either
	case err != nil:
		return nil, err
	}
	var list []Drift
	for rel, text := range c.found {
		list = append(list, Drift{shown(rel), text})
	}
	slices.SortFunc(list, func(a, b Drift) int { return strings.Compare(a.Path, b.Path) })
	return list, nil
}

// shown is the form of workspace.Path.String for any relative path.
func shown(rel string) string {
	if p, err := workspace.FromBytes([]byte(rel)); err == nil {
		return p.String()
	}
	return strconv.Quote(workspace.Mount + "/" + rel)
}

type checker struct {
	ctx   context.Context
	im    *workspace.Image
	tree  *os.Root                   // with tree/ in it
	was   map[string]*workspace.Node // what the paths that were changed since the tree's commit were at it
	seen  uint64                     // the commit up to which was is complete
	found map[string]string          // relative path → text
}

func (c *checker) run() error {
	if err := c.undo(); err != nil {
		return err
	}
	root, err := c.im.Lstat(workspace.Path{})
	if err != nil {
		return err
	}
	if err := c.both(c.tree, treeName, workspace.Path{}, &root); err != nil {
		return err
	}
	if err := c.undo(); err != nil { // the commits made meanwhile
		return err
	}
	return c.changed()
}

// undo learns what later commits have changed.
func (c *checker) undo() error {
	head, err := c.im.Info()
	if err != nil {
		return err
	}
	err = eachCommit(c.ctx, c.im, c.seen, head.Seq, func(e *workspace.Effect) {
		if _, known := c.was[e.Path.Rel()]; !known {
			c.was[e.Path.Rel()] = e.Before
		}
	})
	c.seen = head.Seq
	return err
}

// note looks at one path and notes what is wrong with it.
func (c *checker) note(d *os.Root, name, rel string, n *workspace.Node) error {
	text, err := differs(c.ctx, d, name, n, true)
	switch {
	case context.Cause(c.ctx) != nil:
		return context.Cause(c.ctx)
	case errors.Is(err, fs.ErrPermission):
		return nil
	case err != nil:
		text = "cannot be read"
	}
	if text != "" {
		c.found[rel] = text
	}
	return nil
}

// both compares what the image has with what is on the host.
func (c *checker) both(d *os.Root, name string, p workspace.Path, n *workspace.Node) error {
	if _, changed := c.was[p.Rel()]; !changed {
		if err := c.note(d, name, p.Rel(), n); err != nil {
			return err
		}
	}
	if n.Kind != workspace.KindDir {
		return nil
	}
	return c.within(d, name, func(sub *os.Root, names []string) error {
		return c.children(sub, names, p)
	})
}

// within opens a directory of the host, if it is one and may be opened.
func (c *checker) within(d *os.Root, name string, visit func(sub *os.Root, names []string) error) error {
	dir, err := isDir(d, name)
	if err != nil || !dir {
		return passing(err)
	}
	sub, err := d.OpenRoot(name)
	if err != nil {
		return passing(err)
	}
	defer sub.Close()
	names, err := list(sub)
	if err != nil {
		return passing(err)
	}
	slices.Sort(names)
	return visit(sub, names)
}

// children merges the names of the host's directory with the image's entries.
func (c *checker) children(d *os.Root, names []string, p workspace.Path) error {
	for after, more := "", true; more; {
		page, next, err := c.im.List(p, after, listPage)
		if gone(err) {
			break // then it was changed since, and so was all in it
		} else if err != nil {
			return err
		}
		more = next
		for i := range page {
			after = page[i].Path.Base()
			at, there := slices.BinarySearch(names, after)
			if err := c.extra(d, names[:at], p.Rel()); err != nil {
				return err
			}
			if names = names[at:]; there {
				names = names[1:]
			}
			if err := c.both(d, after, page[i].Path, &page[i].Node); err != nil {
				return err
			}
		}
	}
	return c.extra(d, names, p.Rel())
}

// extra goes through what the newest commit does not have: it is too much,
// unless a commit behind the tree's took it.
func (c *checker) extra(d *os.Root, names []string, dir string) error {
	for _, name := range names {
		rel := strings.TrimPrefix(dir+"/"+name, "/")
		if _, changed := c.was[rel]; !changed {
			if err := c.note(d, name, rel, nil); err != nil {
				return err
			}
			continue
		}
		err := c.within(d, name, func(sub *os.Root, names []string) error {
			return c.extra(sub, names, rel)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// changed looks at the paths that were changed since the tree's commit, a
// directory before what is in it.
func (c *checker) changed() error {
	for _, rel := range slices.Sorted(maps.Keys(c.was)) {
		delete(c.found, rel)
		if c.lostAbove(rel) {
			continue
		}
		if err := c.note(c.tree, treeName+"/"+rel, rel, c.was[rel]); err != nil {
			return err
		}
	}
	return nil
}

// lostAbove says whether a directory of the path is not there: then it was
// reported with everything in it.
func (c *checker) lostAbove(rel string) bool {
	for rel != "" {
		rel = rel[:max(0, strings.LastIndexByte(rel, '/'))]
		if text := c.found[rel]; text == isMissing || text == isOther {
			return true
		}
	}
	return false
}

// spoil gives all trees up. Those that share files share what is wrong with
// them, so the older ones go too. The caller has the slot.
func (v *View) spoil() error {
	var errs []error
	for _, t := range v.doomed() {
		errs = append(errs, t.remove(v.root))
	}
	return errors.Join(errs...)
}

// doomed marks all trees as spoiled, disowns those that are held, and takes the
// others out of the list.
func (v *View) doomed() (free []*tree) {
	v.mu.Lock()
	defer v.mu.Unlock()
	kept := v.trees[:0]
	for _, t := range v.trees {
		t.spoiled = true
		if t.pins > 0 {
			kept = append(kept, t)
			_ = t.disown() // when it fails, the next Open believes it once more
		} else {
			free = append(free, t)
		}
	}
	v.trees = kept
	return free
}
