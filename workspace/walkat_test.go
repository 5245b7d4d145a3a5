package workspace

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// WalkAt gives the tree of any commit, whatever came after it and comes meanwhile.
func TestWalkAt(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	r := rand.New(rand.NewPCG(8, 8))
	path := func() Path {
		return must(Clean(fmt.Sprintf("d%d/e%d/f%d", r.IntN(4), r.IntN(4), r.IntN(100))))
	}
	change := func() {
		var c Change
		switch p := path(); r.IntN(80) {
		case 0:
			c = Change{Op: OpRemove, Path: p.Dir(), Recursive: true}
		case 13, 14, 15, 16, 17, 18, 19, 20, 21, 22:
			c = Change{Op: OpRemove, Path: p}
		case 1:
			c = Change{Op: OpRemove, Path: p.Dir().Dir(), Recursive: true}
		case 2, 3, 4, 5, 6, 7, 8, 9:
			c = Change{Op: OpSymlink, Path: p, Target: fmt.Sprint("to", r.IntN(9)), Replace: true, Parents: true}
		case 10, 11, 12:
			c = Change{Op: OpMeta, Path: p, Mode: 0o600}
		default:
			c = Change{Op: OpPut, Path: p, Parents: true, Replace: true}
		}
		_, _ = im.Commit(context.Background(), Txn{Changes: []Change{c}}) // one about what is not there changes nothing
	}
	trees := map[uint64]map[Path]string{}
	show := func(n Node) string { return fmt.Sprint(n.Kind, n.Mode, n.Target, n.ModTime.UnixNano()) }
	record := func() {
		tree := map[Path]string{}
		err := im.Walk(context.Background(), Path{}, func(e Entry) error { tree[e.Path] = show(e.Node); return nil })
		if err != nil {
			t.Fatal(err)
		}
		trees[must(im.Info()).Seq] = tree
	}
	var all []Change
	for i := range 4 * 4 * 100 {
		p := must(Clean(fmt.Sprintf("d%d/e%d/f%d", i/400, i/100%4, i%100)))
		all = append(all, Change{Op: OpPut, Path: p, Parents: true})
	}
	if _, err := im.Commit(context.Background(), Txn{Changes: all}); err != nil {
		t.Fatal(err)
	}
	for i := range 600 {
		change()
		if i%50 == 0 {
			record()
		}
	}
	record()
	most := 0
	for seq, tree := range trees {
		most = max(most, len(tree))
		for _, dir := range []Path{{}, must(Clean("d1")), must(Clean("d1/e2"))} {
			want := map[Path]string{}
			for p, n := range tree {
				if p.isBelow(dir) {
					want[p] = n
				}
			}
			got, order := map[Path]string{}, []Path(nil)
			err := im.WalkAt(context.Background(), dir, seq, func(e Entry) error {
				got[e.Path] = show(e.Node)
				if order = append(order, e.Path); len(order)%200 == 0 {
					change()
				}
				return nil
			})
			if _, there := tree[dir]; !there && !dir.IsRoot() {
				if err == nil {
					t.Errorf("v%d: %s was not there, and is walked", seq, dir)
				}
				continue
			}
			if err != nil || !maps.Equal(got, want) || len(order) != len(want) {
				t.Errorf("v%d: %s has %d entries, not %d, or others: %v", seq, dir, len(order), len(want), err)
			}
			if !slices.IsSortedFunc(order, func(a, b Path) int { return slices.Compare(treeKey(a), treeKey(b)) }) {
				t.Errorf("v%d: %s is out of order", seq, dir)
			}
		}
	}
	if most < 2*walkBatch {
		t.Errorf("at most %d entries: %d batches", most, most/walkBatch+1)
	}
}
