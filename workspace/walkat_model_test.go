package workspace

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// momentAt is momentOf by WalkAt; during is called with each entry.
func momentAt(t testing.TB, im *Image, seq uint64, during func(int)) moment {
	t.Helper()
	m := moment{}
	var last Path
	err := im.WalkAt(context.Background(), Path{}, seq, func(e Entry) error {
		if len(m) > 0 && last.Compare(e.Path) >= 0 {
			t.Errorf("%v comes behind %v", e.Path, last)
		}
		last = e.Path
		m[e.Path.Rel()] = factOf(t, im, e.Path, e.Node)
		if during != nil {
			during(len(m))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestWalkAtEveryVersion(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	rnd := rand.New(rand.NewPCG(8, 1))
	moments := []moment{1: {}}
	for range 60 {
		p := fmt.Sprintf("%c", 'a'+rnd.IntN(4))
		for rnd.IntN(3) > 0 {
			p += fmt.Sprintf("/%c", 'a'+rnd.IntN(4))
		}
		var s step
		switch rnd.IntN(4) {
		case 0:
			s = remove(p)
		case 1:
			s = link(p, "target"+p).with(replacing)
		case 2:
			s = mkdir(p).with(replacing)
		default:
			s = put(p, strings.Repeat(p, rnd.IntN(100))).with(replacing)
		}
		if c, err := do(t, im, Txn{}, s); err == nil && len(c.Effects) > 0 {
			moments = append(moments, momentOf(t, im))
		}
	}
	if len(moments) < 20 {
		t.Fatalf("only %d versions", len(moments))
	}
	for seq := 1; seq < len(moments); seq++ {
		wantMoment(t, momentAt(t, im, uint64(seq), nil), moments[seq])
	}
	for _, seq := range []uint64{0, uint64(len(moments))} {
		wantKind(t, im.WalkAt(t.Context(), Path{}, seq, func(Entry) error { return nil }), ErrNotFound)
	}
	forget(t, im, 5)
	wantKind(t, im.WalkAt(t.Context(), Path{}, 4, func(Entry) error { return nil }), ErrNotFound)
	wantMoment(t, momentAt(t, im, 5, nil), moments[5])
}

// What is committed while the walk runs is not seen: what was removed before the walk came
// to it, made anew, replaced by something of another kind, or is new.
func TestWalkAtWhileOthersCommit(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	var steps []step
	for i := range 2000 {
		steps = append(steps, put(fmt.Sprintf("d%02d/f%04d", i/50, i), fmt.Sprint(i)))
	}
	mustDo(t, im, steps...)
	want := momentOf(t, im)
	rnd := rand.New(rand.NewPCG(8, 2))
	got := momentAt(t, im, 2, func(n int) {
		if n%25 != 0 {
			return
		}
		d := fmt.Sprintf("d%02d", rnd.IntN(40))
		switch rnd.IntN(4) {
		case 0:
			do(t, im, Txn{}, remove(d))
		case 1:
			do(t, im, Txn{}, put(d+"/new"+fmt.Sprint(n), "new"))
		case 2:
			do(t, im, Txn{}, put(d, "a file now").with(replacing))
		default:
			do(t, im, Txn{}, remove(d), put(d+"/f0001", "anew"))
		}
	})
	wantMoment(t, got, want)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	err := im.WalkAt(ctx, Path{}, 2, func(Entry) error { cancel(why); return nil })
	if !errors.Is(err, why) {
		t.Error(err)
	}
	if err := im.WalkAt(t.Context(), Path{}, 2, func(Entry) error { return why }); err != why {
		t.Error(err)
	}
}
