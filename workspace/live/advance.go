package live

import (
	"context"
	"os"
	"slices"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// change is what a path finally is after some commits.
type change struct {
	path workspace.Path
	node *workspace.Node // nil: nothing
}

// advance applies the commits behind from, up to and with to. Doing it again,
// or to a tree that has some of it already, leads to the same.
func (b *builder) advance(from, to uint64) error {
	changes, err := b.changes(from, to)
	if err != nil || len(changes) == 0 {
		return err
	}
	if err := b.room.fits(changes); err != nil {
		return err
	}
	w := newWalker(b.root)
	defer w.close()
	for _, c := range changes {
		if err := context.Cause(b.ctx); err != nil {
			return err
		}
		if err := b.apply(w, c); err != nil {
			return err
		}
	}
	return w.leaveTo(0)
}

// fits refuses a tree for which there is no room, before it is made: what is not
// linked is what the commits behind from changed.
func (b *builder) fits(from uint64) error {
	head, err := b.im.Info()
	if err != nil {
		return err
	}
	changes, err := b.changes(from, head.Seq)
	if err != nil {
		return err
	}
	return b.room.fits(append(changes, change{node: &workspace.Node{Size: entrySize * head.Entries}}))
}

// changes merges commits: the last node of every path they changed, in the
// order of the tree, so that a directory comes before what is in it.
func (b *builder) changes(from, to uint64) ([]change, error) {
	last := map[workspace.Path]*workspace.Node{}
	err := eachCommit(b.ctx, b.im, from, to, func(e *workspace.Effect) { last[e.Path] = e.After })
	if err != nil {
		return nil, err
	}
	list := make([]change, 0, len(last))
	for p, n := range last {
		if n == nil {
			if above, ok := last[p.Dir()]; ok && (above == nil || above.Kind != workspace.KindDir) {
				continue // goes with its directory
			}
		}
		list = append(list, change{p, n})
	}
	slices.SortFunc(list, func(a, b change) int {
		return slices.Compare(a.path.Components(), b.path.Components())
	})
	return list, nil
}

// eachCommit visits what the commits behind from, up to and with to, changed.
// When the history does not have all of them, it returns errDrift.
func eachCommit(ctx context.Context, im *workspace.Image, from, to uint64, visit func(*workspace.Effect)) error {
	for seq := from; seq < to; seq++ {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		log, err := im.Log(seq, 1)
		if err != nil {
			return err
		}
		if len(log) != 1 || log[0].Seq != seq+1 {
			return errDrift
		}
		for i := range log[0].Effects {
			visit(&log[0].Effects[i])
		}
	}
	return nil
}

// apply makes one path what it should be.
func (b *builder) apply(w *walker, c change) error {
	d, err := w.goTo(c.path.Dir())
	if err != nil {
		return err
	}
	name := c.path.Base()
	switch {
	case c.node == nil:
		return removeTree(d, name)
	case c.node.Kind == workspace.KindDir:
		if err := b.makeDir(d, name); err != nil {
			return err
		}
		return setMode(d, name, c.node.Mode)
	}
	return b.place(d, name, c.path, c.node)
}

// walker goes through the tree, with the directories from its root to where it
// is open: at most workspace.MaxDepth of them.
type walker struct {
	base  *os.Root
	stack []level
}

type level struct {
	name   string
	dir    *os.Root
	mode   uint32 // to be restored on leaving when narrow
	narrow bool
}

func newWalker(base *os.Root) *walker { return &walker{base: base} }

// goTo leaves and enters directories until it is in dir.
func (w *walker) goTo(dir workspace.Path) (*os.Root, error) {
	names := append([]string{treeName}, dir.Components()...)
	same := 0
	for same < len(w.stack) && same < len(names) && w.stack[same].name == names[same] {
		same++
	}
	if err := w.leaveTo(same); err != nil {
		return nil, err
	}
	for _, name := range names[same:] {
		sub, mode, narrow, err := enter(w.top(), name)
		if err != nil {
			return nil, err
		}
		w.stack = append(w.stack, level{name: name, dir: sub, mode: uint32(mode), narrow: narrow})
	}
	return w.top(), nil
}

func (w *walker) top() *os.Root {
	if len(w.stack) == 0 {
		return w.base
	}
	return w.stack[len(w.stack)-1].dir
}

// leaveTo leaves all directories below depth and gives them their modes back.
func (w *walker) leaveTo(depth int) error {
	for len(w.stack) > depth {
		l := w.stack[len(w.stack)-1]
		w.stack = w.stack[:len(w.stack)-1]
		if err := l.dir.Close(); err != nil {
			return err
		}
		if l.narrow {
			if err := setMode(w.top(), l.name, l.mode); err != nil {
				return err
			}
		}
	}
	return nil
}

// close leaves everything after an error; what cannot be restored is found by
// the next comparison, for the state is not clean.
func (w *walker) close() { _ = w.leaveTo(0) }
