package live

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// tree is one generation on disk: the directory N with live.state and tree/.
type tree struct {
	n     uint64
	root  *os.Root // the directory N
	file  *os.File // live.state
	state state    // what it says
	known bool     // the state was written by this View, or found in the image's history

	// Guarded by View.mu. Whoever clears ready has the tree for itself, state and
	// known included, until it is set again.
	pins    int
	ready   bool // equal to the commit that state names, and may be pinned
	spoiled bool // found to be wrong: not pinned and not copied any more
}

const (
	treeName  = "tree"
	stateName = "live.state"
	lockName  = "lock"
)

// maxNumber keeps a number that somebody made up from being the last.
const maxNumber = 1 << 62

// number reads the name of a generation's directory.
func number(name string) (n uint64, ok bool) {
	n, err := strconv.ParseUint(name, 10, 64)
	return n, err == nil && n > 0 && n < maxNumber && strconv.FormatUint(n, 10) == name
}

func (t *tree) name() string { return strconv.FormatUint(t.n, 10) }

// openTree opens a generation that is there. ok is false for what is none.
func openTree(base *os.Root, name string) (t *tree, ok bool) {
	n, ok := number(name)
	if !ok {
		return nil, false
	}
	if dir, err := isDir(base, name); err != nil || !dir {
		return nil, false
	}
	root, err := base.OpenRoot(name)
	if err != nil {
		return nil, false
	}
	t = &tree{n: n, root: root}
	st, err := root.Lstat(stateName)
	if err == nil && st.Mode().IsRegular() {
		if t.file, err = root.OpenFile(stateName, os.O_RDWR, 0); err == nil {
			t.state = readState(t.file)
			return t, true
		}
	}
	root.Close()
	return nil, false
}

// newTree makes an empty generation on its way to a commit. What was is that of
// the tree it is going to be made from.
func newTree(base *os.Root, n uint64, was state, to string) (*tree, error) {
	t := &tree{n: n}
	if err := base.Mkdir(t.name(), 0o700); err != nil {
		return nil, err
	}
	hostos.Failpoint("live.made")
	err := t.create(base, was.moving(to))
	if err != nil {
		return nil, errors.Join(err, t.close(), removeTree(base, t.name()))
	}
	return t, nil
}

func (t *tree) create(base *os.Root, s state) (err error) {
	if t.root, err = base.OpenRoot(t.name()); err != nil {
		return err
	}
	if t.file, err = t.root.OpenFile(stateName, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return err
	}
	return t.setState(s)
}

// setState writes live.state.
func (t *tree) setState(s state) error {
	if s.clean {
		hostos.Failpoint("live.done")
	}
	line := fmt.Sprintf("%-*s\n", stateSize-1, s)
	if _, err := t.file.WriteAt([]byte(line), 0); err != nil {
		return err
	}
	t.state, t.known = s, true
	if s.clean {
		hostos.Failpoint("live.clean")
	} else {
		hostos.Failpoint("live.moving")
	}
	return nil
}

// disown makes sure that nobody believes the tree.
func (t *tree) disown() error {
	if err := t.root.Remove(stateName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	hostos.Failpoint("live.disowned")
	return nil
}

// remove closes and removes the tree. Its state goes first: the half that a
// killed process leaves must not be taken for a whole.
func (t *tree) remove(base *os.Root) error {
	if err := t.disown(); err != nil {
		return errors.Join(err, t.close())
	}
	if err := t.close(); err != nil {
		return err
	}
	return removeTree(base, t.name())
}

func (t *tree) close() error {
	var err error
	if t.file != nil {
		err = t.file.Close()
	}
	if t.root != nil {
		err = errors.Join(err, t.root.Close())
	}
	return err
}
