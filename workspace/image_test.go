package workspace

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

func TestCreate(t *testing.T) {
	now := time.Unix(1_700_000_000, 0).UTC()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.vdisk")
	im, err := Create(path, CreateOptions{Label: "my disk", QuotaBytes: 1 << 20, Clock: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	info := must(im.Info())
	if info.Label != "my disk" || info.QuotaBytes != 1<<20 || info.QuotaEntries != DefaultQuotaEntries || info.Format != FormatVersion ||
		!info.Created.Equal(now) || info.Seq != 1 || len(info.UUID) != 36 || len(info.Commit) != 64 || info.Bytes != 0 || info.Entries != 0 {
		t.Errorf("%+v", info)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 || st.Size() != info.FileSize {
		t.Errorf("%v %v", st, err)
	}
	if root := must(im.Lstat(Path{})); root.Kind != KindDir || root.Version != 0 {
		t.Errorf("%+v", root)
	}
	names, _ := os.ReadDir(dir)
	if len(names) != 1 {
		t.Errorf("left behind: %v", names)
	}
	verify(t, im)
}

func TestCreateRefusesWhatIsThere(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"a file":             func(p string) error { return os.WriteFile(p, []byte("precious"), 0o600) },
		"an empty file":      func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"a directory":        func(p string) error { return os.Mkdir(p, 0o700) },
		"a dangling symlink": func(p string) error { return os.Symlink("nowhere", p) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.vdisk")
			if err := make(path); err != nil {
				t.Fatal(err)
			}
			before, _ := os.Lstat(path)
			_, err := Create(path, CreateOptions{})
			wantKind(t, err, ErrExists)
			after, err := os.Lstat(path)
			if err != nil || before.Size() != after.Size() || !before.ModTime().Equal(after.ModTime()) {
				t.Errorf("it has changed: %v, %v", after, err)
			}
		})
	}
	if _, err := Create(filepath.Join(t.TempDir(), "no/such/a.vdisk"), CreateOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a missing directory: %v", err)
	}
	_, err := Create(filepath.Join(t.TempDir(), "a"), CreateOptions{Label: strings.Repeat("x", 2000)})
	wantKind(t, err, ErrTooLarge)
}

// Both ways to give a new image its name respect what is there.
func TestNaming(t *testing.T) {
	for name, move := range map[string]func(from, to string) error{"by a link": linkOrMove, "without links": reserveAndMove} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
			if err := move(from, to); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("nothing to name: %v", err)
			}
			if _, err := os.Lstat(to); err == nil {
				t.Error("a failure leaves the name behind")
			}
			os.WriteFile(from, []byte("new"), 0o600)
			if err := move(from, to); err != nil || string(must(os.ReadFile(to))) != "new" {
				t.Error(err)
			}
			os.Remove(from)
			os.WriteFile(from, []byte("newer"), 0o600)
			if err := move(from, to); !errors.Is(err, fs.ErrExist) || string(must(os.ReadFile(to))) != "new" {
				t.Errorf("a name that is taken: %v", err)
			}
		})
	}
}

func TestReopen(t *testing.T) {
	im, path := newImage(t, CreateOptions{Label: "x"})
	mustDo(t, im, put("a/b", lines(1000)), link("l", "a"))
	before, info := snapshot(t, im), must(im.Info())
	im = reopen(t, im, path)
	if after := must(im.Info()); after != info {
		t.Errorf("%+v, was %+v", after, info)
	}
	for p, s := range snapshot(t, im) {
		if before[p] != s {
			t.Errorf("%s is %s, was %s", p, s, before[p])
		}
	}
	mustDo(t, im, put("more", "x"))
	verify(t, im)
}

func TestLock(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	began := time.Now()
	for _, readOnly := range []bool{false, true} {
		_, err := Open(path, OpenOptions{Wait: time.Millisecond, ReadOnly: readOnly})
		wantKind(t, err, ErrLocked)
	}
	if time.Since(began) > 5*time.Second {
		t.Error("it took too long")
	}
	im.Close()
	a, err := Open(path, OpenOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := Open(path, OpenOptions{ReadOnly: true})
	if err != nil {
		t.Fatal("two readers: ", err)
	}
	defer b.Close()
	_, err = Open(path, OpenOptions{Wait: time.Millisecond})
	wantKind(t, err, ErrLocked)
}

func TestShortCommand(t *testing.T) {
	for in, want := range map[string]string{
		"/usr/local/bin/mcp-vdisk serve --state /home/u/x": "mcp-vdisk serve",
		"./mcp-vdisk --state /home/u/x serve":              "mcp-vdisk",
		"mcp-vdisk /home/u/x":                              "mcp-vdisk",
		"":                                                 "unknown",
	} {
		if got := shortCommand(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestReadOnly(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	mustDo(t, im, put("a", lines(500)))
	// Something pending must not be swept either.
	s := im.Stage(context.Background())
	must(s.Add(strings.NewReader(lines(2000))))
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
	im.Close()
	if err := os.Chmod(path, 0o444); err != nil {
		t.Fatal(err)
	}
	sum := func() [32]byte { return sha256.Sum256(must(os.ReadFile(path))) }
	before := sum()
	st, _ := os.Stat(path)
	ro, err := Open(path, OpenOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if !ro.ReadOnly() || text(t, ro, "a") != lines(500) {
		t.Error("it cannot be read")
	}
	_, err = do(t, ro, Txn{}, remove("a"))
	wantKind(t, err, ErrReadOnly)
	_, err = do(t, ro, Txn{}, put("b", "x"))
	wantKind(t, err, ErrReadOnly)
	if err := ro.Close(); err != nil {
		t.Error(err)
	}
	after, _ := os.Stat(path)
	if sum() != before || !after.ModTime().Equal(st.ModTime()) {
		t.Error("the file has changed")
	}
}

func TestOpenByDescriptor(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	mustDo(t, im, put("a", "x"))
	im.Close()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	im, err = Open("not/this/path", OpenOptions{File: f})
	if err != nil {
		t.Fatal(err)
	}
	mustDo(t, im, put("b", "y"))
	im.Close()
	if _, err := f.Stat(); !errors.Is(err, fs.ErrClosed) {
		t.Error("the descriptor was not closed")
	}
}

func TestClosed(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	mustDo(t, im, put("a", lines(100)))
	f := must(im.Open(mustPath(t, "a")))
	s := im.Stage(context.Background())
	im.Close()
	if err := im.Close(); err != nil {
		t.Error("closing twice: ", err)
	}
	_, err := f.Lines(1, 1, 100)
	for name, err := range map[string]error{
		"info":   second(im.Info()),
		"stat":   second(im.Lstat(Path{})),
		"read":   err,
		"stage":  second(s.Add(strings.NewReader(lines(100)))),
		"commit": second(im.Commit(context.Background(), Txn{Changes: []Change{{Op: OpRemove, Path: mustPath(t, "a")}}})),
	} {
		if !errors.Is(err, fs.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestOpenWhatIsNoImage(t *testing.T) {
	image := func(edit func(path string, b []byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			im, from := newImage(t, CreateOptions{})
			mustDo(t, im, put("a", string(noise(rand.New(rand.NewPCG(1, 2)), 200_000))), mkdir("b"))
			im.Close()
			if err := os.WriteFile(path, edit(path, must(os.ReadFile(from))), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write := func(b string) func(*testing.T, string) {
		return func(t *testing.T, path string) { os.WriteFile(path, []byte(b), 0o600) }
	}
	database := func(fill func(*bolt.Tx) error) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			db, err := bolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if err := db.Update(fill); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name string
		make func(*testing.T, string)
		kind error
	}{
		{"missing", func(*testing.T, string) {}, ErrNotFound},
		{"empty", write(""), ErrNotImage},
		{"text", write(strings.Repeat("hello\n", 10_000)), ErrNotImage},
		{"zeros", write(strings.Repeat("\x00", 100_000)), ErrNotImage},
		{"directory", func(t *testing.T, p string) { os.Mkdir(p, 0o700) }, errAny},
		{"another database", database(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("x")); return err }), ErrNotImage},
		{"another database with meta", database(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("meta")); return err }), ErrNotImage},
		{"newer format", database(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucket(bucketMeta)
			if err != nil {
				return err
			}
			return b.Put(keyFormat, seal(keyFormat, []byte{FormatVersion + 1}))
		}), ErrFormat},
		{"a bucket is missing", image(func(path string, b []byte) []byte {
			os.WriteFile(path, b, 0o600)
			db := must(bolt.Open(path, 0o600, nil))
			defer os.Remove(path)
			db.Update(func(tx *bolt.Tx) error { return tx.DeleteBucket(bucketRefs) })
			db.Close()
			return must(os.ReadFile(path))
		}), ErrCorrupt},
		{"one page", image(func(_ string, b []byte) []byte { return b[:4096] }), ErrCorrupt},
		{"half", image(func(_ string, b []byte) []byte { return b[:len(b)/2/4096*4096] }), errCorruptOrFine},
		{"cut within what is used", image(func(_ string, b []byte) []byte { return b[:8*4096] }), errDamaged},
		{"cut in mid-page", image(func(_ string, b []byte) []byte { return b[:8*4096+100] }), errDamaged},
		{"both headers damaged", image(func(_ string, b []byte) []byte { b[16+20]++; b[4096+16+20]++; return b }), ErrCorrupt},
		{"one header damaged", image(func(_ string, b []byte) []byte { b[16+20]++; return b }), errCorruptOrFine},
		{"header swapped for text", image(func(_ string, b []byte) []byte { copy(b, strings.Repeat("x", 8192)); return b }), ErrNotImage},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.vdisk")
			c.make(t, path)
			im, err := Open(path, OpenOptions{Wait: time.Millisecond})
			if err == nil {
				defer im.Close()
			}
			switch c.kind {
			case errAny:
				if err == nil {
					t.Error("it opens")
				}
			case errDamaged:
				if err == nil {
					wantKind(t, im.Damage(), ErrCorrupt)
				} else {
					wantKind(t, err, ErrCorrupt)
				}
			case errCorruptOrFine:
				if err != nil {
					wantKind(t, err, ErrCorrupt)
				}
			default:
				wantKind(t, err, c.kind)
			}
			if err != nil && strings.Contains(err.Error(), path) && c.kind != errAny {
				t.Errorf("the error names a host path: %v", err)
			}
			if _, err := os.Stat(path); c.name == "missing" && err == nil {
				t.Error("opening made a file")
			}
		})
	}
}

var errDamaged = errors.New("corrupt, or open and found damaged")

var errCorruptOrFine = errors.New("corrupt, or none")

func TestErrorText(t *testing.T) {
	im := start(t)
	for _, c := range []struct {
		err  error
		want string
	}{
		{second(Clean("../x")), `the path "../x" leads out of the disk: a ".." component is never followed`},
		{second(Clean(".system")), `the path ".system" is reserved for the container itself`},
		{second(im.Lstat(mustPath(t, "x"))), "/workspace/x does not exist"},
		{second(im.Lstat(mustPath(t, "f/x"))), "/workspace/f is not a directory"},
		{second(im.Open(mustPath(t, "d"))), "/workspace/d is a directory"},
		{second(do(t, im, Txn{}, remove("d").with(func(c *Change) { c.Recursive = false }))), "/workspace/d is a directory that is not empty"},
	} {
		if c.err == nil || c.err.Error() != c.want {
			t.Errorf("got %v, want %s", c.err, c.want)
		}
	}
}
