package workspace

import (
	"testing"
	"time"
)

func TestContentSum(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	old := time.Unix(-5, 7)
	mustDo(t, im, put("a/b", "x\ny"), link("a-b", "../a"), mkdir("a b"), put("z", "").with(func(c *Change) { c.Mode, c.ModTime = 0o640, old }))
	sum := NewContentSum()
	var last Entry
	err := im.WalkAt(t.Context(), Path{}, 2, func(e Entry) error {
		if !sum.Add(e.Path, e.Node) {
			t.Errorf("%v is out of order", e.Path)
		}
		last = e
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want, seq, err := im.ContentDigest(t.Context())
	if err != nil || seq != 2 || sum.Sum() != want {
		t.Errorf("sum %x, digest %x of v%d, %v", sum.Sum(), want, seq, err)
	}
	if sum.Add(last.Path, last.Node) || sum.Add(mustPath(t, "a"), last.Node) || sum.Sum() != want {
		t.Error("an entry out of order counts")
	}
}
