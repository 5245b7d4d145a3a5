package workspace

import (
	"fmt"
	"testing"
)

func TestFence(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	for _, c := range []struct {
		token uint64
		kind  error
	}{{0, nil}, {5, nil}, {5, nil}, {4, ErrFenced}, {0, ErrFenced}, {6, nil}} {
		_, err := do(t, im, Txn{Fence: Fence{Token: c.token}}, put(fmt.Sprint(must(im.Info()).Seq), "x"))
		if c.kind == nil && err != nil {
			t.Errorf("token %d: %v", c.token, err)
		} else if c.kind != nil {
			wantKind(t, err, c.kind)
		}
	}
	im = reopen(t, im, path)
	_, err := do(t, im, Txn{Fence: Fence{Token: 5}}, put("x", "x"))
	wantKind(t, err, ErrFenced)
	// Who only looks what would change needs no lease.
	if _, err := do(t, im, Txn{DryRun: true}, put("x", "x")); err != nil {
		t.Errorf("a dry run without a lease: %s", err)
	}
}

var (
	here  = [16]byte{1}
	there = [16]byte{2}
)

// TestFenceOfInstalls: tokens are compared only with those of the same counter.
func TestFenceOfInstalls(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	for i, c := range []struct {
		fence Fence
		kind  error
	}{
		{Fence{}, nil},
		{Fence{here, 5}, nil},
		{Fence{here, 4}, ErrFenced},
		{Fence{there, 9}, ErrFenced},
		{Fence{Token: 9}, ErrFenced},
		{Fence{}, ErrFenced},
		{Fence{here, 5}, nil},
	} {
		_, err := do(t, im, Txn{Fence: c.fence}, put(fmt.Sprint(i), "x"))
		if c.kind == nil && err != nil {
			t.Errorf("%v: %v", c.fence, err)
		} else if c.kind != nil {
			wantKind(t, err, c.kind)
		}
	}
	im = reopen(t, im, path)
	if f := must(im.Fence()); f != (Fence{here, 5}) {
		t.Errorf("after reopening: %v", f)
	}
	verify(t, im)
}

// TestRaiseFence: what a new holder has announced counts before its first commit.
func TestRaiseFence(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	if f := must(im.Fence()); f != (Fence{}) {
		t.Errorf("a new image has %v", f)
	}
	for _, f := range []Fence{{here, 3}, {here, 3}, {here, 7}} {
		if err := im.RaiseFence(f); err != nil {
			t.Errorf("%v: %v", f, err)
		}
	}
	im = reopen(t, im, path)
	for _, f := range []Fence{{here, 6}, {there, 8}, {}} {
		wantKind(t, im.RaiseFence(f), ErrFenced)
		_, err := do(t, im, Txn{Fence: f}, put("x", "x"))
		wantKind(t, err, ErrFenced)
	}
	if err := im.AdoptFence(Fence{there, 1}); err != nil {
		t.Fatal(err)
	}
	_, err := do(t, im, Txn{Fence: Fence{here, 7}}, put("x", "x"))
	wantKind(t, err, ErrFenced)
	if _, err := do(t, im, Txn{Fence: Fence{there, 1}}, put("x", "x")); err != nil {
		t.Error(err)
	}
	verify(t, im)
}

func TestFenceOfReadOnlyImage(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	if err := im.RaiseFence(Fence{here, 3}); err != nil {
		t.Fatal(err)
	}
	if err := im.Close(); err != nil {
		t.Fatal(err)
	}
	im, err := Open(path, OpenOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	wantKind(t, im.RaiseFence(Fence{here, 4}), ErrReadOnly)
	wantKind(t, im.AdoptFence(Fence{here, 4}), ErrReadOnly)
	if f := must(im.Fence()); f != (Fence{here, 3}) {
		t.Error(f)
	}
}
