package workspace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// start is what the cases of TestCommit begin with.
func start(t *testing.T) *Image {
	im, _ := newImage(t, CreateOptions{})
	mustDo(t, im,
		mkdir("d"), put("d/f", "one\n"), put("d/sub/deep", "two\n"), mkdir("empty"), put("f", "three"),
		link("l", "f"), link("dl", "d"))
	return im
}

func TestCommit(t *testing.T) {
	at := time.Unix(1_600_000_000, 5)
	for _, c := range []struct {
		name  string
		steps []step
		want  string // effects
		kind  error
	}{
		{"new file", []step{put("n", "x")}, "C /workspace/n\n", nil},
		{"new file with parents", []step{put("p/q/n", "x")}, "C /workspace/p\nC /workspace/p/q\nC /workspace/p/q/n\n", nil},
		{"new file without parents", []step{put("p/n", "x").with(func(c *Change) { c.Parents = false })}, "", ErrNotFound},
		{"overwrite", []step{put("f", "other")}, "M /workspace/f\n", nil},
		{"overwrite with the same", []step{put("f", "three")}, "T /workspace/f\n", nil},
		{"same content, other mode", []step{put("f", "three").with(func(c *Change) { c.Mode = 0o600 })}, "P /workspace/f\n", nil},
		{"file on a directory", []step{put("d", "x")}, "", ErrIsDirectory},
		{"file on an empty directory", []step{put("empty", "x")}, "", ErrIsDirectory},
		{"file on the root", []step{put("/", "x")}, "", ErrIsDirectory},
		{"file below a file", []step{put("f/x", "x")}, "", ErrNotDirectory},
		{"file far below a file", []step{put("f/x/y/z", "x")}, "", ErrNotDirectory},
		{"file below a symlink to a directory", []step{put("dl/x", "x")}, "", ErrNotDirectory},
		{"file on a symlink", []step{put("l", "x")}, "M /workspace/l\n", nil},
		{"file replaces a tree", []step{put("d", "x").with(replacing)}, "M /workspace/d\nD /workspace/d/f\nD /workspace/d/sub\nD /workspace/d/sub/deep\n", nil},

		{"mkdir", []step{mkdir("a/b")}, "C /workspace/a\nC /workspace/a/b\n", nil},
		{"mkdir again", []step{mkdir("d")}, "", nil},
		{"mkdir the root", []step{mkdir("/")}, "", nil},
		{"mkdir again with another mode", []step{mkdir("d").with(func(c *Change) { c.Mode = 0o700 })}, "P /workspace/d\n", nil},
		{"mkdir on a file", []step{mkdir("f")}, "", ErrNotDirectory},
		{"mkdir on a symlink to a directory", []step{mkdir("dl")}, "", ErrNotDirectory},
		{"mkdir below a file", []step{mkdir("f/x")}, "", ErrNotDirectory},
		{"mkdir replaces a file", []step{mkdir("f").with(replacing)}, "M /workspace/f\n", nil},
		{"mkdir with replace keeps a directory", []step{mkdir("d").with(replacing)}, "", nil},
		{"opaque mkdir", []step{mkdir("d").with(func(c *Change) { c.Opaque = true }), put("d/new", "x")}, "D /workspace/d/f\nC /workspace/d/new\nD /workspace/d/sub\nD /workspace/d/sub/deep\n", nil},
		{"opaque root", []step{mkdir("/").with(func(c *Change) { c.Opaque = true })}, "", ErrInvalidPath},

		{"symlink", []step{link("n", "anywhere/../else")}, "C /workspace/n\n", nil},
		{"symlink again", []step{link("l", "f")}, "", nil},
		{"symlink again with a time", []step{link("l", "f").with(func(c *Change) { c.ModTime = at })}, "T /workspace/l\n", nil},
		{"symlink on another", []step{link("l", "d")}, "", ErrExists},
		{"symlink on a file", []step{link("f", "d")}, "", ErrExists},
		{"symlink on a directory", []step{link("d", "f")}, "", ErrExists},
		{"symlink on the root", []step{link("/", "f")}, "", ErrIsDirectory},
		{"symlink replaces a tree", []step{link("d", "f").with(replacing)}, "M /workspace/d\nD /workspace/d/f\nD /workspace/d/sub\nD /workspace/d/sub/deep\n", nil},
		{"symlink without target", []step{link("n", "")}, "", ErrInvalidPath},
		{"symlink with too long a target", []step{link("n", strings.Repeat("x", 4096))}, "", ErrInvalidPath},

		{"remove a file", []step{remove("f")}, "D /workspace/f\n", nil},
		{"remove a symlink, not its target", []step{remove("dl")}, "D /workspace/dl\n", nil},
		{"remove a tree", []step{remove("d")}, "D /workspace/d\nD /workspace/d/f\nD /workspace/d/sub\nD /workspace/d/sub/deep\n", nil},
		{"remove a tree without saying so", []step{remove("d").with(func(c *Change) { c.Recursive = false })}, "", ErrNotEmpty},
		{"remove an empty directory", []step{remove("empty").with(func(c *Change) { c.Recursive = false })}, "D /workspace/empty\n", nil},
		{"remove the root", []step{remove("/")}, "", ErrInvalidPath},
		{"remove nothing", []step{remove("x")}, "", ErrNotFound},
		{"remove nothing below a file", []step{remove("f/x")}, "", ErrNotDirectory},
		{"remove behind a symlink", []step{remove("dl/f")}, "", ErrNotDirectory},

		{"mode", []step{meta("f", 0o700, time.Time{})}, "P /workspace/f\n", nil},
		{"mode zero", []step{meta("f", ModeSet, time.Time{})}, "P /workspace/f\n", nil},
		{"same mode", []step{meta("f", 0o644, time.Time{})}, "", nil},
		{"time", []step{meta("f", 0, at)}, "T /workspace/f\n", nil},
		{"meta of nothing", []step{meta("x", 0o700, at)}, "", ErrNotFound},
		{"meta of the root", []step{meta("/", 0o700, at)}, "", ErrInvalidPath},
		{"mode of a symlink stays", []step{meta("l", 0o600, time.Time{})}, "", nil},

		{"steps build on each other", []step{put("n", "x"), remove("n"), mkdir("n"), put("n/f", "y")}, "C /workspace/n\nC /workspace/n/f\n", nil},
		{"there and back", []step{put("n/x", "x"), remove("n")}, "", nil},
		{"a parent turns into a file", []step{put("n/x", "x"), put("n", "y").with(replacing), put("n/z", "z")}, "", ErrNotDirectory},
		{"the last step fails", []step{put("n", "x"), remove("f"), remove("nothing")}, "", ErrNotFound},
		{"unknown step", []step{{Change: Change{Op: 'x', Path: must(Clean("f"))}}}, "", errAny},
	} {
		t.Run(c.name, func(t *testing.T) {
			im := start(t)
			before, info := snapshot(t, im), must(im.Info())
			got, err := do(t, im, Txn{}, c.steps...)
			if c.kind != nil {
				if c.kind != errAny {
					wantKind(t, err, c.kind)
				} else if err == nil {
					t.Error("no error")
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if effects(got) != c.want {
				t.Errorf("effects are\n%swant\n%s", effects(got), c.want)
			}
			if c.want == "" {
				if fmt.Sprint(snapshot(t, im)) != fmt.Sprint(before) || must(im.Info()).Seq != info.Seq {
					t.Error("the disk has changed")
				}
			}
			verify(t, im)
		})
	}
}

var errAny = errors.New("any error")

func meta(path string, mode uint32, at time.Time) step {
	return step{Change: Change{Op: OpMeta, Path: must(Clean(path)), Mode: mode, ModTime: at}}
}

func TestCommitResult(t *testing.T) {
	now := time.Unix(1_700_000_000, 9).UTC()
	im, _ := newImage(t, CreateOptions{Clock: func() time.Time { return now }})
	first := must(im.Info())
	c, err := do(t, im, Txn{Call: "01CALL", Actor: "claude", Message: "hello"}, put("a", "x"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Seq != first.Seq+1 || c.Parent != first.Commit || c.Call != "01CALL" || c.Actor != "claude" || c.Message != "hello" || !c.Time.Equal(now) {
		t.Errorf("%+v", c)
	}
	if info := must(im.Info()); info.Commit != c.ID || info.Seq != c.Seq || info.Bytes != 1 || info.Entries != 1 {
		t.Errorf("%+v", info)
	}
	n := must(im.Lstat(mustPath(t, "a")))
	if n.Version != c.Seq || n.Mode != 0o644 || !n.ModTime.Equal(now) || n.Size != 1 || n.TotalLines() != 1 {
		t.Errorf("%+v", n)
	}
	log := must(im.Log(first.Seq, 10))
	if len(log) != 1 || log[0].ID != c.ID || effects(log[0]) != effects(c) || log[0].Call != "01CALL" {
		t.Errorf("%+v", log)
	}
	if found, ok, err := im.FindCommit("01CALL"); err != nil || !ok || found.ID != c.ID {
		t.Errorf("%+v %v %v", found, ok, err)
	}
	if _, ok, err := im.FindCommit("01OTHER"); err != nil || ok {
		t.Errorf("%v %v", ok, err)
	}
}

func TestCommitKeepsWhatItIsNotTold(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	at := time.Unix(1_600_000_000, 0)
	mustDo(t, im, put("f", "x").with(func(c *Change) { c.Mode, c.ModTime = 0o751, at }), mkdir("d").with(func(c *Change) { c.Mode = 0o700 }))
	mustDo(t, im, put("f", "y"), meta("d", 0o500, time.Time{}))
	if n := must(im.Lstat(mustPath(t, "f"))); n.Mode != 0o751 {
		t.Errorf("mode is %o", n.Mode)
	}
	mustDo(t, im, meta("f", 0, at), meta("d", 0, at))
	if n := must(im.Lstat(mustPath(t, "d"))); n.Mode != 0o500 || !n.ModTime.Equal(at) {
		t.Errorf("%+v", n)
	}
	mustDo(t, im, meta("f", ModeSet, time.Time{}), put("g", "").with(func(c *Change) { c.Mode = ModeSet | 0o7000 }))
	for _, p := range []string{"f", "g"} {
		if n := must(im.Lstat(mustPath(t, p))); n.Mode != 0 {
			t.Errorf("%s: mode is %o", p, n.Mode)
		}
	}
	if n := must(im.Lstat(mustPath(t, "f"))); !n.ModTime.Equal(at) {
		t.Errorf("a new mode set the time to %v", n.ModTime)
	}
	mustDo(t, im, meta("f", 0, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)), meta("g", 0, time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC)))
	if n := must(im.Lstat(mustPath(t, "f"))); !n.ModTime.Equal(maxTime) {
		t.Errorf("a far time became %v", n.ModTime)
	}
	verify(t, im)
}

func TestPreconditions(t *testing.T) {
	im := start(t)
	v := must(im.Lstat(mustPath(t, "f"))).Version
	for _, c := range []struct {
		name    string
		path    string
		version uint64
		kind    error
	}{
		{"right version", "f", v, nil},
		{"old version", "f", v - 1, ErrVersionConflict},
		{"missing path", "x", v, ErrVersionConflict},
		{"must not exist, does not", "x", 0, nil},
		{"must not exist, does", "f", 0, ErrExists},
	} {
		t.Run(c.name, func(t *testing.T) {
			txn := Txn{Preconditions: []Precondition{{mustPath(t, c.path), c.version}}, DryRun: true}
			_, err := do(t, im, txn, put("new", "x"))
			if c.kind == nil && err != nil {
				t.Fatal(err)
			}
			if c.kind != nil {
				wantKind(t, err, c.kind)
			}
		})
	}
}

// Twenty writers that all build on the version they read: one wins each round.
func TestPreconditionsLoseNoUpdate(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	mustDo(t, im, put("n", ""))
	p := mustPath(t, "n")
	errs := make(chan error)
	const writers = 8
	for range writers {
		go func() {
			for {
				n, err := im.Lstat(p)
				if err != nil {
					errs <- err
					return
				}
				s := im.Stage(context.Background())
				c, err := s.Add(strings.NewReader(strings.Repeat("x", int(n.Size)+1)))
				if err != nil {
					errs <- err
					return
				}
				_, err = im.Commit(context.Background(), Txn{Stage: s, Changes: []Change{{Op: OpPut, Path: p, Content: c}},
					Preconditions: []Precondition{{p, n.Version}}})
				if !errors.Is(err, ErrVersionConflict) {
					errs <- err
					return
				}
			}
		}()
	}
	for range writers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if got := text(t, im, "n"); got != strings.Repeat("x", writers) {
		t.Errorf("%d of %d updates are there", len(got), writers)
	}
}

func TestBase(t *testing.T) {
	for _, c := range []struct {
		name  string
		later []step // committed behind the base
		steps []step // computed on the base
		want  string // effects, when there is no conflict
		clash string // a path of the conflict
	}{
		{"disjoint", []step{put("a", "1")}, []step{put("b", "2")}, "C /workspace/b\n", ""},
		{"same path", []step{put("f", "1")}, []step{put("f", "2").with(replacing)}, "", "/workspace/f"},
		{"both create", []step{put("n", "1")}, []step{put("n", "2").with(replacing)}, "", "/workspace/n"},
		{"both make a directory", []step{mkdir("n")}, []step{mkdir("n").with(replacing), put("n/x", "1")}, "C /workspace/n/x\n", ""},
		{"in one directory", []step{put("d/a", "1")}, []step{mkdir("d").with(replacing), put("d/b", "1")}, "C /workspace/d/b\n", ""},
		{"both remove", []step{remove("f")}, []step{remove("f")}, "", ""},
		{"remove what was changed", []step{put("f", "1")}, []step{remove("f")}, "", "/workspace/f"},
		{"change what was removed", []step{remove("f")}, []step{put("f", "1").with(replacing)}, "", "/workspace/f"},
		{"remove above a change", []step{put("d/new", "1")}, []step{remove("d")}, "", "/workspace/d/new"},
		{"change below a removal", []step{remove("d")}, []step{mkdir("d").with(replacing), put("d/new", "1")}, "", "/workspace/d"},
		{"change below a removal, no parents", []step{remove("d")}, []step{put("d/new", "1").with(func(c *Change) { c.Parents = false })}, "", "/workspace/d/new"},
		{"remove below a removal", []step{remove("d")}, []step{remove("d/f")}, "", ""},
		{"change below a file that was a directory", []step{put("d", "1").with(replacing)}, []step{put("d/new", "1").with(replacing)}, "", "/workspace/d/new"},
		{"the directory came back", []step{remove("d"), mkdir("d")}, []step{put("d/new", "1")}, "C /workspace/d/new\n", ""},
		{"mode against content", []step{put("f", "1")}, []step{meta("f", 0o600, time.Time{})}, "", "/workspace/f"},
		{"the result is there already", []step{link("n", "f")}, []step{link("n", "f").with(replacing)}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			im := start(t)
			base := must(im.Info()).Seq
			for _, s := range c.later {
				mustDo(t, im, s)
			}
			before := must(im.Info())
			got, err := do(t, im, Txn{Base: base}, c.steps...)
			if c.clash == "" {
				if err != nil || effects(got) != c.want {
					t.Errorf("%v, effects\n%swant\n%s", err, effects(got), c.want)
				}
			} else {
				wantKind(t, err, ErrVersionConflict)
				if !strings.Contains(err.Error(), c.clash) {
					t.Errorf("%v does not name %s", err, c.clash)
				}
				if must(im.Info()) != before {
					t.Error("the disk has changed")
				}
			}
			verify(t, im)
		})
	}
}

func TestBaseFromTheFuture(t *testing.T) {
	im := start(t)
	_, err := do(t, im, Txn{Base: 99}, put("a", "x"))
	wantKind(t, err, ErrVersionConflict)
}

func TestBaseOfAnEmptyDisk(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	base := must(im.Info()).Seq
	mustDo(t, im, put("f", "theirs"))
	_, err := do(t, im, Txn{Base: base}, put("f", "mine").with(replacing))
	wantKind(t, err, ErrVersionConflict)
}

func TestConflictListIsShort(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	base := must(im.Info()).Seq
	var all []step
	for i := range 500 {
		all = append(all, put(fmt.Sprintf("file%03d", i), "x"))
	}
	mustDo(t, im, all...)
	for i := range all {
		all[i].Replace = true
	}
	_, err := do(t, im, Txn{Base: base}, all...)
	wantKind(t, err, ErrVersionConflict)
	if msg := err.Error(); len(msg) > 1000 || !strings.Contains(msg, "and 480 more") {
		t.Errorf("%d bytes: %s", len(msg), msg)
	}
}

func TestAdmit(t *testing.T) {
	im := start(t)
	refusal := errors.New("deleting is not allowed")
	var seen string
	admit := func(all []Effect) error {
		seen = effects(Commit{Effects: all})
		for _, e := range all {
			if e.What == Deleted {
				return refusal
			}
		}
		return nil
	}
	if _, err := do(t, im, Txn{Admit: admit}, put("a", "x"), remove("f")); err != refusal {
		t.Errorf("got %v", err)
	}
	if seen != "C /workspace/a\nD /workspace/f\n" {
		t.Errorf("asked about\n%s", seen)
	}
	if _, err := do(t, im, Txn{Admit: admit}, put("a", "x")); err != nil {
		t.Error(err)
	}
	verify(t, im)
}

func TestDryRun(t *testing.T) {
	im := start(t)
	before, info := snapshot(t, im), must(im.Info())
	ctx := context.Background()
	s := im.Stage(ctx)
	content := must(s.Add(strings.NewReader(strings.Repeat("long\n", 1000))))
	txn := Txn{Stage: s, DryRun: true, Changes: []Change{
		{Op: OpPut, Path: mustPath(t, "new"), Content: content}, {Op: OpRemove, Path: mustPath(t, "d"), Recursive: true}}}
	dry, err := im.Commit(ctx, txn)
	if err != nil || dry.ID != "" {
		t.Fatal(dry, err)
	}
	if fmt.Sprint(snapshot(t, im)) != fmt.Sprint(before) || must(im.Info()) != info {
		t.Error("the disk has changed")
	}
	txn.DryRun = false
	wet, err := im.Commit(ctx, txn)
	if err != nil || effects(wet) != effects(dry) || wet.Seq != dry.Seq {
		t.Errorf("%v: then\n%swas announced as\n%s", err, effects(wet), effects(dry))
	}
	verify(t, im)
}

func TestNothingToChange(t *testing.T) {
	im := start(t)
	info := must(im.Info())
	c := mustDo(t, im, mkdir("d"), mkdir("empty"))
	if c.Seq != info.Seq || c.ID != info.Commit || len(c.Effects) != 0 {
		t.Errorf("%+v", c)
	}
}

func TestQuotaIsExact(t *testing.T) {
	im, _ := newImage(t, CreateOptions{QuotaBytes: 1000, QuotaEntries: 4})
	mustDo(t, im, put("a", strings.Repeat("x", 600)), put("b", strings.Repeat("y", 400)))
	_, err := do(t, im, Txn{}, put("c", "z"))
	wantKind(t, err, ErrQuota)
	_, err = do(t, im, Txn{}, link("c", "a"))
	wantKind(t, err, ErrQuota)
	mustDo(t, im, put("a", strings.Repeat("x", 599)), link("c", "a"), mkdir("d")) // 599 + 400 + 1
	_, err = do(t, im, Txn{}, mkdir("e"))
	wantKind(t, err, ErrQuota)
	_, err = do(t, im, Txn{}, put("b", strings.Repeat("y", 401)))
	wantKind(t, err, ErrQuota)
	// Removing and putting in one commit counts what is left.
	mustDo(t, im, remove("b"), put("e", strings.Repeat("z", 400)))
	if info := must(im.Info()); info.Bytes != 1000 || info.Entries != 4 {
		t.Errorf("%+v", info)
	}
	// Contents that no commit could take are refused while they are read.
	s := im.Stage(context.Background())
	_, err = s.Add(strings.NewReader(strings.Repeat("x", 1001)))
	wantKind(t, err, ErrQuota)
	verify(t, im)
}

func TestCommitMisuse(t *testing.T) {
	im := start(t)
	ctx := context.Background()
	a, b := im.Stage(ctx), im.Stage(ctx)
	c := must(a.Add(strings.NewReader("x")))
	change := []Change{{Op: OpPut, Path: mustPath(t, "x"), Content: c}}
	if _, err := im.Commit(ctx, Txn{Stage: b, Changes: change}); err == nil {
		t.Error("a content of another stage was taken")
	}
	if _, err := im.Commit(ctx, Txn{Changes: change}); err == nil {
		t.Error("a content without its stage was taken")
	}
	if _, err := im.Commit(ctx, Txn{Stage: a, Changes: change}); err != nil {
		t.Error(err)
	}
	if _, err := im.Commit(ctx, Txn{Stage: a, Changes: change}); err == nil {
		t.Error("a stage was used twice")
	}
	if _, err := a.Add(strings.NewReader("x")); err == nil {
		t.Error("a used stage takes contents")
	}
	_, err := im.Commit(ctx, Txn{Message: strings.Repeat("x", maxText+1), Changes: change[:0]})
	wantKind(t, err, ErrTooLarge)
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := im.Commit(cancelled, Txn{Changes: []Change{{Op: OpRemove, Path: mustPath(t, "f")}}}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	verify(t, im)
}

// The cost of a commit grows with its changes and not with their square: it
// holds for ten thousand in one directory that goes and comes.
func TestCommitOfVeryManyChanges(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	n := 10_000
	if soak() {
		n = 200_000
	}
	var all []step
	for i := range n {
		all = append(all, put(fmt.Sprintf("d/%06d", i), fmt.Sprint(i)))
	}
	mustDo(t, im, all...)
	all = append([]step{remove("d")}, all...)
	c := mustDo(t, im, all...)
	if len(c.Effects) != n+1 {
		t.Errorf("%d effects", len(c.Effects))
	}
	mustDo(t, im, remove("d"))
	if log := must(im.Log(3, 1)); len(log) != 1 || len(log[0].Effects) != n+1 {
		t.Errorf("%d commits", len(log))
	}
	verify(t, im)
}
