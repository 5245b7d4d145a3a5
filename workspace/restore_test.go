package workspace

import (
	"fmt"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// apply commits a plan.
func apply(t testing.TB, im *Image, txn Txn, err error) Commit {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	c, err := im.Commit(t.Context(), txn)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRestoreToEmptyAndBack(t *testing.T) {
	im, _ := newImage(t, CreateOptions{Clock: ticking(time.Unix(1e9, 1))})
	odd := must(FromBytes([]byte("d/new\nline \xff")))
	mustDo(t, im,
		put("d/sub/f", string(randomBytes(1, 300_000))), put("empty", ""), link("l", "d/\xff"), mkdir("e/e/e"),
		put("d/zero", "x").with(func(c *Change) { c.Mode = ModeSet }), put("d/x", "odd").with(func(c *Change) { c.Path = odd }),
		meta("d", 0o700, time.Unix(-5, 7)), meta("d/sub/f", 0o755, minTime),
	)
	full := momentOf(t, im)
	txn, err := im.Restoring(t.Context(), 1, nil)
	if len(txn.Changes) != 4 || txn.Message != "restore v1" || txn.Base != 2 {
		t.Errorf("%d changes, %q, base %d", len(txn.Changes), txn.Message, txn.Base)
	}
	apply(t, im, txn, err)
	wantMoment(t, momentOf(t, im), moment{})
	txn, err = im.Restoring(t.Context(), 2, []Path{{}})
	apply(t, im, txn, err)
	wantMoment(t, momentOf(t, im), full)
	if full["d"].time != time.Unix(-5, 7).UTC() || full["d/zero"].mode != 0 {
		t.Errorf("%+v", full)
	}
	// There is nothing left to do.
	txn, err = im.Restoring(t.Context(), 2, nil)
	if c := apply(t, im, txn, err); len(txn.Changes) != 0 || c.Seq != 4 {
		t.Errorf("%d changes", len(txn.Changes))
	}
	verify(t, im)
}

func TestRestorePaths(t *testing.T) {
	for _, c := range []struct {
		name  string
		then  []step
		later []step
		paths []string
		want  string // effects of the restore
		kind  error  // of Restoring
	}{
		{"a changed file", nil, []step{put("f", "new"), put("g", "new")}, []string{"f"}, "M /workspace/f\n", nil},
		{"mode only", nil, []step{meta("f", 0o600, time.Time{})}, []string{"f"}, "P /workspace/f\n", nil},
		{"time only", nil, []step{meta("d", 0, time.Unix(9, 9))}, []string{"d"}, "T /workspace/d\n", nil},
		{"a removed directory", nil, []step{remove("d")}, []string{"d"}, "C /workspace/d\nC /workspace/d/f\nC /workspace/d/s\nC /workspace/d/s/f\n", nil},
		{"its parent comes too", nil, []step{remove("d")}, []string{"d/s/f"}, "C /workspace/d\nC /workspace/d/s\nC /workspace/d/s/f\n", nil},
		{"two below one parent", nil, []step{remove("d")}, []string{"d/s", "d/f"}, "C /workspace/d\nC /workspace/d/f\nC /workspace/d/s\nC /workspace/d/s/f\n", nil},
		{"a parent that is there stays", nil, []step{remove("d/s"), meta("d", 0o700, time.Unix(9, 9))}, []string{"d/s/f"}, "C /workspace/d/s\nC /workspace/d/s/f\n", nil},
		{"what is new goes", nil, []step{put("new/a", "x"), put("d/new", "x")}, []string{"new", "d"}, "D /workspace/d/new\nD /workspace/new\nD /workspace/new/a\n", nil},
		{"its parent does not", nil, []step{put("new/a", "x")}, []string{"new/a"}, "D /workspace/new/a\n", nil},
		{"a file where a directory was", nil, []step{put("d", "x").with(replacing)}, []string{"d"}, "M /workspace/d\nC /workspace/d/f\nC /workspace/d/s\nC /workspace/d/s/f\n", nil},
		{"a directory where a file was", nil, []step{remove("f"), put("f/a/b", "x")}, []string{"f"}, "M /workspace/f\nD /workspace/f/a\nD /workspace/f/a/b\n", nil},
		{"a directory where a link was", nil, []step{remove("l"), put("l/a", "x")}, []string{"l"}, "M /workspace/l\nD /workspace/l/a\n", nil},
		{"a link where a directory was", nil, []step{link("d", "f").with(replacing)}, []string{"d"}, "M /workspace/d\nC /workspace/d/f\nC /workspace/d/s\nC /workspace/d/s/f\n", nil},
		{"another link", nil, []step{link("l", "elsewhere").with(replacing)}, []string{"l"}, "M /workspace/l\n", nil},
		{"given twice", nil, []step{put("f", "new")}, []string{"f", "f"}, "M /workspace/f\n", nil},
		{"given with its parent", nil, []step{put("d/f", "new")}, []string{"d/f", "d"}, "M /workspace/d/f\n", nil},
		{"unchanged", nil, []step{put("g", "x")}, []string{"f"}, "", nil},
		{"there and back", nil, []step{put("f", "other"), meta("f", 0, time.Unix(1e9+1, 0))}, []string{"d"}, "", nil},
		{"neither now nor then", nil, nil, []string{"f", "none"}, "", ErrNotFound},
		{"only between", nil, []step{put("n", "x"), remove("n")}, []string{"n"}, "", ErrNotFound},
		{"below a file that was a directory", nil, []step{put("d", "x").with(replacing)}, []string{"d/f"}, "", ErrNotDirectory},
		{"below a link that was a directory", nil, []step{link("d", "e").with(replacing)}, []string{"d/s/f"}, "", ErrNotDirectory},
		{"unless that is among them", nil, []step{put("d", "x").with(replacing)}, []string{"d/f", "d"}, "M /workspace/d\nC /workspace/d/f\nC /workspace/d/s\nC /workspace/d/s/f\n", nil},
		{"below a file", nil, nil, []string{"f/none"}, "", ErrNotFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			im, _ := newImage(t, CreateOptions{Clock: ticking(time.Unix(1e9, 1))})
			mustDo(t, im, put("f", "f"), put("d/f", "df"), put("d/s/f", "dsf"), link("l", "f"))
			mustDo(t, im, meta("d", 0o750, time.Unix(77, 7)))
			seq, then := must(im.Info()).Seq, momentOf(t, im)
			for _, s := range c.later {
				mustDo(t, im, s)
			}
			var paths []Path
			for _, p := range c.paths {
				paths = append(paths, mustPath(t, p))
			}
			txn, err := im.Restoring(t.Context(), seq, paths)
			if c.kind != nil {
				wantKind(t, err, c.kind)
				return
			}
			got := apply(t, im, txn, err)
			if effects(got) != c.want {
				t.Errorf("effects\n%swant\n%s", effects(got), c.want)
			}
			for p := range differ(momentOf(t, im), then) {
				if inside(p, c.paths) {
					t.Errorf("%s is not what it was", p)
				}
			}
			verify(t, im)
		})
	}
}

// A commit that comes between plan and commit wins where it did the same paths.
func TestRestoreOnBase(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	mustDo(t, im, put("f", "1"), put("d/f", "1"))
	mustDo(t, im, put("f", "2"), remove("d"))
	txn := must(im.Restoring(t.Context(), 2, nil))
	mustDo(t, im, put("other", "x"))
	if _, err := im.Commit(t.Context(), txn); err != nil {
		t.Error(err)
	}
	txn = must(im.Restoring(t.Context(), 3, nil))
	mustDo(t, im, put("d/new", "x"))
	_, err := im.Commit(t.Context(), txn)
	wantKind(t, err, ErrVersionConflict)
	if !strings.Contains(err.Error(), "/workspace/d/new") {
		t.Error(err)
	}
	verify(t, im)
}

func TestRestoreOfWhatIsNoLongerKept(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	mustDo(t, im, put("f", strings.Repeat("x", 1000)))
	mustDo(t, im, put("f", "short"))
	txn := must(im.Restoring(t.Context(), 2, nil))
	im.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketChunks).Delete(uintKey(1)) })
	_, err := im.Commit(t.Context(), txn)
	wantKind(t, err, ErrNotFound)
	if text(t, im, "f") != "short" {
		t.Error("the disk has changed")
	}
}

func TestRestoreKeepsTheQuota(t *testing.T) {
	im, _ := newImage(t, CreateOptions{QuotaBytes: 1000})
	mustDo(t, im, put("f", strings.Repeat("x", 900)))
	mustDo(t, im, remove("f"))
	mustDo(t, im, put("g", strings.Repeat("y", 900)))
	_, err := im.Commit(t.Context(), must(im.Restoring(t.Context(), 2, []Path{mustPath(t, "f")})))
	wantKind(t, err, ErrQuota)
	apply(t, im, must(im.Restoring(t.Context(), 2, nil)), nil)
	verify(t, im)
}

func TestUndo(t *testing.T) {
	for _, c := range []struct {
		name     string
		commit   []step // what is undone
		later    []step
		conflict string // a path of it; "" when it is allowed
	}{
		{"a change", []step{put("f", "new"), meta("d", 0o700, time.Unix(5, 5))}, nil, ""},
		{"all kinds of change", []step{remove("d/s"), put("l", "x"), put("f", "y"), put("new/a", "x"), meta("g", 0o600, time.Time{})}, nil, ""},
		{"other paths changed", []step{put("f", "new")}, []step{put("g", "new"), put("d/f", "new")}, ""},
		{"a file became a directory", []step{remove("f"), put("f/a", "x")}, nil, ""},
		{"a directory became a link", []step{link("d", "f").with(replacing)}, []step{put("g", "x")}, ""},
		{"changed again", []step{put("f", "new")}, []step{put("f", "newer")}, "/workspace/f"},
		{"changed and back", []step{put("f", "new")}, []step{meta("f", 0o600, time.Time{}), meta("f", 0o644, time.Time{})}, "/workspace/f"},
		{"removed later", []step{put("f", "new")}, []step{remove("f")}, "/workspace/f"},
		{"parent removed later", []step{remove("d/s")}, []step{remove("d")}, "/workspace/d"},
		{"parent replaced later", []step{remove("d/s")}, []step{put("d", "x").with(replacing)}, "/workspace/d"},
		{"parent came back", []step{remove("d/s")}, []step{remove("d"), mkdir("d")}, ""},
		{"parent changed mode", []step{remove("d/s")}, []step{meta("d", 0o700, time.Time{})}, ""},
		{"something in what it made", []step{mkdir("new")}, []step{put("new/x", "x")}, "/workspace/new/x"},
		{"deep in what it made", []step{mkdir("new")}, []step{put("new/x/y", "x")}, "/workspace/new/x/y"},
		{"something in it that went", []step{mkdir("new")}, []step{put("new/x", "x"), remove("new/x")}, ""},
		{"something in what it replaced", []step{remove("f"), mkdir("f")}, []step{put("f/x", "x")}, "/workspace/f/x"},
		{"something where it removed", []step{remove("d/s")}, []step{put("d/s", "x")}, "/workspace/d/s"},
		{"something beside", []step{put("d/n", "x")}, []step{put("d/m", "x"), put("d/n.x", "x")}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			im, _ := newImage(t, CreateOptions{Clock: ticking(time.Unix(1e9, 1))})
			mustDo(t, im, put("f", "f"), put("g", "g"), put("d/f", "df"), put("d/s/f", "dsf"), link("l", "f"))
			before := momentOf(t, im)
			for i := range c.commit {
				c.commit[i].Replace = true
			}
			done := mustDo(t, im, c.commit...)
			changed := differ(before, momentOf(t, im))
			for _, s := range c.later {
				mustDo(t, im, s)
			}
			later := momentOf(t, im)
			txn, err := im.Undoing(t.Context(), done.Seq)
			if c.conflict != "" {
				wantKind(t, err, ErrVersionConflict)
				if !strings.Contains(err.Error(), c.conflict) || !strings.Contains(err.Error(), fmt.Sprint("changed since v", done.Seq)) {
					t.Error(err)
				}
				return
			}
			apply(t, im, txn, err)
			if want := fmt.Sprint("undo v", done.Seq); txn.Message != want {
				t.Errorf("%q, want %q", txn.Message, want)
			}
			want := later
			for p := range changed {
				delete(want, p)
				if f, ok := before[p]; ok {
					want[p] = f
				}
			}
			wantMoment(t, momentOf(t, im), want)
			// An undo can be undone.
			txn, err = im.Undoing(t.Context(), must(im.Info()).Seq)
			apply(t, im, txn, err)
			verify(t, im)
		})
	}
}

func TestUndoErrors(t *testing.T) {
	im := lived(t)
	_, err := im.Undoing(t.Context(), 1)
	wantKind(t, err, ErrInvalid)
	if want := "undoing v1 is not valid: it is the commit that made the disk"; err.Error() != want {
		t.Error(err)
	}
	for _, seq := range []uint64{0, 10, 1 << 63} {
		_, err := im.Undoing(t.Context(), seq)
		wantKind(t, err, ErrNotFound)
		_, err = im.Restoring(t.Context(), seq, nil)
		wantKind(t, err, ErrNotFound)
		_, err = im.Between(t.Context(), 1, seq, nil)
		wantKind(t, err, ErrNotFound)
	}
	txn := must(im.Undoing(t.Context(), 9))
	mustDo(t, im, put("x", "meanwhile"))
	_, err = im.Commit(t.Context(), txn)
	wantKind(t, err, ErrVersionConflict)
}

func TestConflictsOfAnUndoAreSortedAndFew(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	var all []step
	for i := range 500 {
		all = append(all, put(fmt.Sprintf("file%03d", i), "x"))
	}
	c := mustDo(t, im, all...)
	mustDo(t, im, func() (gone []step) {
		for _, s := range all {
			gone = append(gone, remove(s.Path.Rel()))
		}
		return gone
	}()...)
	_, err := im.Undoing(t.Context(), c.Seq)
	wantKind(t, err, ErrVersionConflict)
	if msg := err.Error(); !strings.HasPrefix(msg, "/workspace/file000 ") || !strings.Contains(msg, "and 480 more") || len(msg) > 1000 {
		t.Errorf("%d bytes: %s", len(msg), msg)
	}
}
