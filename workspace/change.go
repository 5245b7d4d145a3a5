package workspace

import (
	"crypto/sha256"
	"fmt"
	"math"
	"strings"
	"time"
)

// Op is a kind of change.
type Op byte

const (
	OpPut     Op = 'p' // a file with this content
	OpMkdir   Op = 'd'
	OpSymlink Op = 'l'
	OpRemove  Op = 'r'
	OpMeta    Op = 'm' // mode and time only
)

// ModeSet in Change.Mode says that the permission bits are meant even when
// they are 0.
const ModeSet uint32 = 1 << 31

// Change is one step of a commit. Steps apply in order, each to the result of
// those before it. None ever goes through a symlink: callers resolve first,
// and something else than a directory on the way is ErrNotDirectory.
type Change struct {
	Op      Op
	Path    Path
	Content Content   // OpPut
	Mode    uint32    // permission bits; 0 without ModeSet keeps those that are, or is 0644 (file), 0755 (directory)
	ModTime time.Time // zero is now, except that OpMeta with a mode then keeps the time
	Target  string    // OpSymlink, raw bytes, at most 4,095

	// Replace removes whatever stands at Path first, a tree included. Without
	// it a file replaces only a file or a symlink (ErrIsDirectory), a symlink
	// nothing (ErrExists) and a directory nothing (ErrNotDirectory). A
	// directory that stands at the path of an OpMkdir stays, with or without it,
	// and keeps its time: what a script makes in a directory moves its time, and
	// two scripts that work in one directory would always conflict. OpMeta sets it.
	Replace bool

	Opaque    bool // OpMkdir: what was in the directory goes
	Recursive bool // OpRemove: also a directory that is not empty (else ErrNotEmpty)
	Parents   bool // parents that are missing are made (else ErrNotFound)
}

// change applies one change to the tree.
func (w *writer) change(c *Change) error {
	if err := w.checkPath(c); err != nil {
		return err
	}
	old, err := w.tree.get(c.Path)
	if err != nil {
		return err
	}
	switch c.Op {
	case OpPut:
		return w.putFile(c, old)
	case OpMkdir:
		return w.mkdir(c, old)
	case OpSymlink:
		return w.symlink(c, old)
	case OpMeta:
		return w.meta(c, old)
	}
	return w.remove(c, old)
}

// checkPath refuses the root and what is reserved, and sees to the parents.
func (w *writer) checkPath(c *Change) error {
	p := c.Path
	switch {
	case strings.IndexByte("pdlrm", byte(c.Op)) < 0:
		return fmt.Errorf("commit: unknown kind of change %q", c.Op)
	case p.IsRoot() && c.Op == OpMkdir && !c.Opaque:
		return nil // it exists
	case p.IsRoot() && (c.Op == OpPut || c.Op == OpSymlink):
		return pathError("commit", p, ErrIsDirectory, "the root of the disk cannot be replaced")
	case p.IsRoot():
		return pathError("commit", p, ErrInvalidPath, "the root of the disk cannot be changed or removed")
	case reserved[firstComponent(p)]:
		return pathError("commit", p, ErrReservedPath, "")
	case c.Op == OpRemove:
		return nil
	case w.goneLater(p.Dir()):
		return w.conflict([]Path{p})
	case c.Op == OpMeta:
		return nil
	}
	return w.ensureDir(p.Dir(), c.Parents)
}

func firstComponent(p Path) string {
	first, _, _ := strings.Cut(p.rel, "/")
	return first
}

// ensureDir sees to it that dir is a directory.
func (w *writer) ensureDir(dir Path, make bool) error {
	if w.parents[dir] {
		return nil
	}
	n, err := w.tree.get(dir)
	switch {
	case err != nil:
		return err
	case n != nil && n.Kind != KindDir:
		return pathError("commit", dir, ErrNotDirectory, "")
	case n == nil && !make:
		_, err := w.tree.mustGet("commit", dir)
		return err
	case n == nil:
		if err := w.ensureDir(dir.Dir(), true); err != nil {
			return err
		}
		if err := w.set(dir, nil, &Node{Kind: KindDir, Mode: 0o755, ModTime: w.now}); err != nil {
			return err
		}
	}
	w.parents[dir] = true
	return nil
}

// set writes a node; n == nil deletes it. old is what stands there.
func (w *writer) set(p Path, old, n *Node) error {
	t := w.touched[p]
	if t == nil {
		t = &touch{before: old}
		w.touched[p] = t
	}
	t.now = n
	if n == nil {
		return w.tree.delete(p)
	}
	n.Version = w.head.seq + 1
	return w.tree.put(p, n)
}

func (w *writer) putFile(c *Change, old *Node) error {
	n := &Node{
		Kind: KindFile, Mode: c.mode(old, KindFile, 0o644), ModTime: w.time(c),
		Size: c.Content.Size, Lines: c.Content.Lines, SHA256: c.Content.SHA256, body: c.Content.body,
	}
	switch {
	case c.Content.kept:
		if err := w.checkKept(c); err != nil {
			return err
		}
	case c.Content.stage == nil:
		n.SHA256 = sha256.Sum256(nil)
	}
	if old != nil && old.Kind == KindDir {
		if !c.Replace {
			return pathError("commit", c.Path, ErrIsDirectory, "")
		}
		if err := w.removeTree(c.Path); err != nil {
			return err
		}
	}
	return w.set(c.Path, old, n)
}

func (w *writer) mkdir(c *Change, old *Node) error {
	switch {
	case old == nil || old.Kind != KindDir && c.Replace:
		return w.set(c.Path, old, &Node{Kind: KindDir, Mode: c.mode(nil, KindDir, 0o755), ModTime: w.time(c)})
	case old.Kind != KindDir:
		return pathError("commit", c.Path, ErrNotDirectory, "")
	}
	if c.Opaque {
		if err := w.removeTree(c.Path); err != nil {
			return err
		}
	}
	if mode := c.mode(old, KindDir, 0); mode != old.Mode {
		n := *old
		n.Mode = mode
		return w.set(c.Path, old, &n)
	}
	return nil
}

func (w *writer) symlink(c *Change, old *Node) error {
	if c.Target == "" || len(c.Target) > maxTarget || strings.IndexByte(c.Target, 0) >= 0 {
		return pathError("commit", c.Path, ErrInvalidPath, "a symlink's target must have 1 to 4,095 bytes and no NUL")
	}
	n := &Node{Kind: KindSymlink, Mode: 0o777, ModTime: w.time(c), Size: int64(len(c.Target)), Target: c.Target}
	switch {
	case old == nil:
	case old.sameContent(n):
		if c.ModTime.IsZero() {
			return nil
		}
	case !c.Replace:
		return pathError("commit", c.Path, ErrExists, "")
	case old.Kind == KindDir:
		if err := w.removeTree(c.Path); err != nil {
			return err
		}
	}
	return w.set(c.Path, old, n)
}

func (w *writer) meta(c *Change, old *Node) error {
	if old == nil {
		_, err := w.tree.mustGet("commit", c.Path)
		return err
	}
	n := *old
	if n.Kind != KindSymlink {
		n.Mode = c.mode(old, old.Kind, 0)
	}
	if !c.ModTime.IsZero() || c.Mode == 0 {
		n.ModTime = w.time(c)
	}
	return w.set(c.Path, old, &n)
}

func (w *writer) remove(c *Change, old *Node) error {
	if old == nil {
		if w.goneLater(c.Path) {
			return nil // both removed it
		}
		_, err := w.tree.mustGet("commit", c.Path)
		return err
	}
	if old.Kind == KindDir {
		if !c.Recursive && w.tree.hasChildren(c.Path) {
			return pathError("commit", c.Path, ErrNotEmpty, "")
		}
		if err := w.removeTree(c.Path); err != nil {
			return err
		}
	}
	return w.set(c.Path, old, nil)
}

// removeTree deletes everything below dir. What was known about parents may
// be wrong from here on.
func (w *writer) removeTree(dir Path) error {
	clear(w.parents)
	w.parents[Path{}] = true
	for _, key := range w.tree.subtree(dir) {
		p := keyPath(key)
		old, err := w.tree.get(p)
		if err != nil {
			return err
		}
		if err := w.set(p, old, nil); err != nil {
			return err
		}
	}
	return nil
}

// mode are the permission bits that a change leaves at its path.
func (c *Change) mode(old *Node, kind Kind, fresh uint32) uint32 {
	switch {
	case c.Mode != 0:
		return c.Mode & 0o777
	case old != nil && old.Kind == kind:
		return old.Mode
	}
	return fresh
}

// The times that fit in the encoding.
var (
	minTime = time.Unix(0, math.MinInt64)
	maxTime = time.Unix(0, math.MaxInt64)
)

// time is when the changed path was last modified. A script may set any time;
// one that does not fit becomes the nearest that does.
func (w *writer) time(c *Change) time.Time {
	t := c.ModTime
	switch {
	case t.IsZero():
		return w.now
	case t.Before(minTime):
		t = minTime
	case t.After(maxTime):
		t = maxTime
	}
	return t.UTC()
}
