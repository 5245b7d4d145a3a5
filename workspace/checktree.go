package workspace

import (
	"bytes"
	"fmt"
	"slices"
)

// treeCheck is the walk through the tree.
type treeCheck struct {
	dirs    []Path // the directories on the way to the path that is looked at
	orphans Path   // the directory that was last found missing
	sound   bool   // nothing was wrong with it
	bytes   int64
	entries int64
	restore map[digest]bool // paths that the history has to give back
}

// checkTree checks every path against the rules, against its content, and
// against what the history leaves.
func (k *checker) checkTree() error {
	t := &k.tree
	t.sound, t.restore = true, map[digest]bool{}
	err := k.walk(k.again(), bucketTree, func(key, stored []byte) error {
		k.checkEntry(key, stored)
		return nil
	})
	if err != nil {
		return err
	}
	if err := k.restoreNodes(); err != nil {
		return err
	}
	k.report.Bytes = t.bytes
	if h := k.newest(); h != nil && t.sound && (h.bytes != t.bytes || h.entries != t.entries) {
		k.findf(FindTotals, "record \"head\"", "It says %d bytes in %d entries, the tree has %d in %d.", h.bytes, h.entries, t.bytes, t.entries)
	}
	return nil
}

// badNode reports a path of which the history has to say what it should be.
func (k *checker) badNode(kind FindingKind, p Path, format string, args ...any) {
	k.tree.sound = false
	k.findPath(kind, "", p, format, args...)
}

func (k *checker) checkEntry(key, stored []byte) {
	p, err := keyToPath(key)
	if err != nil {
		k.tree.sound = false
		k.findf(FindNode, "path "+showKey(key), "No path has such a name.")
		k.dropNode(key, digest{})
		return
	}
	id := pathDigest(p)
	value, err := unseal(key, stored)
	var n *Node
	if err == nil {
		n, err = decodeNode(value)
	}
	if err != nil {
		k.badNode(FindNode, p, "Its record is damaged: %v.", err)
		k.checkParent(p, nil)
		k.dropNode(key, id)
		return
	}
	k.count(n)
	k.checkParent(p, n)
	k.prove(key, id, p, n)
	if wrong := k.use(n, usedNow); wrong != "" {
		k.findPath(FindContent, "", p, "It cannot be read: %s.", wrong)
	}
}

// keyToPath is keyPath for a key that may be anything.
func keyToPath(key []byte) (Path, error) {
	if len(key) > MaxPath || bytes.IndexByte(key, '/') >= 0 {
		return Path{}, fmt.Errorf("not a key of the tree: %s", showKey(key))
	}
	return FromBytes(bytes.ReplaceAll(key, []byte{0}, []byte{'/'}))
}

func (k *checker) count(n *Node) {
	k.tree.bytes += n.Size
	k.tree.entries++
	switch n.Kind {
	case KindFile:
		k.report.Files++
	case KindDir:
		k.report.Directories++
	case KindSymlink:
		k.report.Symlinks++
	}
}

// checkParent relies on the order of keys: a directory comes before what is in
// it, and nothing else comes between. A directory that is missing is told once,
// and a path whose record is damaged (n is nil) may be one.
func (k *checker) checkParent(p Path, n *Node) {
	t := &k.tree
	dir := p.Dir()
	for len(t.dirs) > 0 && t.dirs[len(t.dirs)-1] != dir {
		t.dirs = t.dirs[:len(t.dirs)-1]
	}
	if !dir.IsRoot() && len(t.dirs) == 0 && t.orphans != dir {
		t.orphans = dir
		k.badNode(FindParent, p, "Its directory is missing, or is no directory.")
	}
	if n == nil || n.Kind == KindDir {
		t.dirs = append(t.dirs, p)
	}
}

// prove compares a node with what the commits left at its path.
func (k *checker) prove(key []byte, id digest, p Path, n *Node) {
	h := &k.history
	want, known := h.now[id]
	newest := k.newest()
	switch {
	case h.count == 0:
		return
	case newest != nil && n.Version > newest.seq, n.Version == 0:
		k.badNode(FindNode, p, "Its version is v%d, which is no commit.", n.Version)
	case known && want == nodeDigest(n):
		delete(h.now, id)
		return
	case !known && n.Version < h.oldest:
		return // it comes from a commit that is not kept
	case h.excused(n), !known && len(h.gaps) > 0:
		delete(h.now, id)
		return // from one that is damaged
	case known && want != digest{}:
		k.badNode(FindHistory, p, "It is not what the commits left there.")
	default:
		k.badNode(FindHistory, p, "The commits left nothing there.")
	}
	k.dropNode(key, id)
}

// dropNode has a path restored from the history, or removed when that has none.
func (k *checker) dropNode(key []byte, id digest) {
	h := &k.history
	want, known := h.now[id]
	if known && want != (digest{}) {
		k.tree.restore[id] = true
	} else if h.whole() || known && h.chained() {
		k.plan.node(key, nil)
	}
	delete(h.now, id)
}

// restoreNodes goes through the commits once more, for the nodes that the tree
// lacks or has wrong.
func (k *checker) restoreNodes() error {
	t, h := &k.tree, &k.history
	missing := map[digest]bool{}
	for id, n := range h.now {
		if n != (digest{}) {
			missing[id] = true
		}
	}
	if len(missing) == 0 && len(t.restore) == 0 {
		return nil
	}
	found := map[digest]*Effect{}
	err := k.walk(k.again(), bucketCommits, func(key, stored []byte) error {
		for _, e := range changesIn(key, stored) {
			if id := pathDigest(e.Path); missing[id] || t.restore[id] {
				found[id] = &e
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	k.restoreFound(found, missing)
	return nil
}

func (k *checker) restoreFound(found map[digest]*Effect, missing map[digest]bool) {
	all := make([]Effect, 0, len(found))
	for _, e := range found {
		all = append(all, *e)
	}
	sortEffects(all)
	for _, e := range all {
		if e.After == nil {
			continue // it was removed by a commit behind a gap
		}
		if missing[pathDigest(e.Path)] {
			if len(k.history.gaps) > 0 {
				continue // or that
			}
			k.badNode(FindNode, e.Path, "It is missing: %s left it there.", commitName(e.After.Version))
		}
		if k.history.chained() {
			k.plan.node(treeKey(e.Path), e.After)
		}
	}
}

// changesIn reads the changes in one value of a record; none when it is damaged.
func changesIn(key, stored []byte) []Effect {
	value, err := unseal(key, stored)
	if err != nil {
		return nil
	}
	d := &decoder{in: value}
	var r record
	if len(key) == 8 {
		r.decodeHead(d)
	}
	if r.decodeChanges(d); d.end() != nil {
		return nil
	}
	return slices.Clip(r.changes)
}
