package workspace

import (
	"fmt"
	"testing"
)

// The history goes back from the newest commit to the first, in pieces of any size.
func TestAncestry(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	for i := range 6 {
		if _, err := do(t, im, Txn{Call: fmt.Sprint("call", i)}, put(fmt.Sprint(i), "x")); err != nil {
			t.Fatal(err)
		}
	}
	log := must(im.Log(0, 100))
	for _, limit := range []int{1, 2, 7, 100} {
		var all []Link
		for last := (Link{}); ; {
			list := must(im.Ancestry(last, limit))
			if len(list) > limit {
				t.Errorf("%d of at most %d", len(list), limit)
			}
			if len(list) == 0 {
				break
			}
			all = append(all, list...)
			last = all[len(all)-1]
		}
		if len(all) != len(log) {
			t.Fatalf("pieces of %d: %d commits, %d there are", limit, len(all), len(log))
		}
		for i, l := range all {
			if c := log[len(log)-1-i]; l.ID != c.ID || l.Seq != c.Seq || l.Call != c.Call || l.Parent != c.Parent {
				t.Errorf("pieces of %d: %+v, want %+v", limit, l, c)
			}
		}
	}
}
