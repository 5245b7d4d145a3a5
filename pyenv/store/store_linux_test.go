package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
)

func sumOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func TestWheelhouse(t *testing.T) {
	r := openRoot(t, filepath.Join(t.TempDir(), "a", "envs"))
	const body = "some bytes"
	broken := errors.New("the network is gone")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	for name, c := range map[string]struct {
		ctx  context.Context
		from io.Reader
		sum  string
		size int64
		err  error
	}{
		"other bytes":  {t.Context(), strings.NewReader("other byte"), sumOf(body), 10, wheel.ErrHashMismatch},
		"unknown size": {t.Context(), strings.NewReader("other bytes!"), sumOf(body), 0, wheel.ErrHashMismatch},
		"too short":    {t.Context(), strings.NewReader(body[:5]), sumOf(body), 10, wheel.ErrHashMismatch},
		"too long":     {t.Context(), strings.NewReader(body + "!"), sumOf(body), 10, wheel.ErrHashMismatch},
		"lying size":   {t.Context(), strings.NewReader(body), sumOf(body), 9, wheel.ErrHashMismatch},
		"negative":     {t.Context(), strings.NewReader(body), sumOf(body), -1, wheel.ErrHashMismatch},
		"no hash":      {t.Context(), strings.NewReader(body), "../../x", 10, wheel.ErrHashMismatch},
		"upper case":   {t.Context(), strings.NewReader(body), strings.ToUpper(sumOf(body)), 10, wheel.ErrHashMismatch},
		"cut off":      {t.Context(), iotest.ErrReader(broken), sumOf(body), 10, broken},
		"cancelled":    {ended, strings.NewReader(body), sumOf(body), 10, broken},
	} {
		if err := r.AddWheel(c.ctx, c.from, c.sum, c.size); !errors.Is(err, c.err) {
			t.Errorf("%s: %v", name, err)
		}
		if list, _ := r.names(wheelsDir); len(list) > 0 {
			t.Errorf("%s: left %v", name, list)
		}
	}
	if _, err := r.OpenWheel(sumOf(body)); !errors.Is(err, ErrMissingWheel) || r.HasWheel(sumOf(body)) {
		t.Errorf("a wheel that is not there: %v", err)
	}
	must(t, r.AddWheel(t.Context(), strings.NewReader(body), sumOf(body), 0))
	must(t, r.AddWheel(t.Context(), iotest.ErrReader(broken), sumOf(body), 10)) // it is there already
	f, err := r.OpenWheel(sumOf(body))
	must(t, err)
	defer f.Close()
	if b, err := io.ReadAll(f); err != nil || string(b) != body {
		t.Errorf("%q, %v", b, err)
	}
	if st, err := os.Stat(r.Dir()); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

// TestOpenLeavesTheLivingAlone: what somebody is at work on is not swept away.
func TestOpenLeavesTheLivingAlone(t *testing.T) {
	p := newPlace(t)
	from, to := io.Pipe()
	added := make(chan error)
	go func() { added <- p.AddWheel(t.Context(), from, sumOf("ab"), 2) }()
	_, err := to.Write([]byte("a")) // returns when it is being written
	must(t, err)
	l := p.lock(lock.Base, simple("alpha", "1"))
	looked := 0
	layer, err := p.Build(t.Context(), Build{Lock: l, Python: p.py, Box: p.box, Progress: func(s Step) {
		if s.Stage == StageCompile || s.Stage == StagePublish {
			looked++
			openRoot(t, p.Dir())
			if _, err := p.GC(t.Context(), nil, 0, nil, false); err != nil {
				t.Error(err)
			}
			if n := len(left(t, p.Root)); n != 3 {
				t.Errorf("%s: left %q", s.Stage, left(t, p.Root))
			}
		}
	}})
	must(t, err)
	p.verify(layer)
	_, err = to.Write([]byte("b"))
	must(t, err)
	to.Close()
	must(t, <-added)
	if looked != 2 || len(left(t, p.Root)) > 0 {
		t.Errorf("looked %d times, left %q", looked, left(t, p.Root))
	}
}

func TestOpenRefuses(t *testing.T) {
	open := filepath.Join(t.TempDir(), "envs")
	must(t, os.Mkdir(open, 0o700))
	must(t, os.Chmod(open, 0o777))
	_, err := Open(open)
	wantCode(t, err, ErrUnsafe)
	_, err = Open("/usr") // root's, and no test runs as root
	wantCode(t, err, ErrUnsafe)
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	if _, err := Open(file); err == nil {
		t.Error("a file was opened as a root")
	}
}

func TestLocks(t *testing.T) {
	p := newPlace(t)
	l := p.lock(lock.X, simple("alpha", "1"))
	id, err := p.PutLock(l)
	must(t, err)
	if again, err := p.PutLock(l); err != nil || again != id {
		t.Errorf("%s, %v", again, err)
	}
	have, err := p.Lock(id)
	must(t, err)
	if again, err := have.ID(); err != nil || again != id {
		t.Errorf("%s, %v", again, err)
	}
	for _, name := range []string{"0123456789abcdef", "../../etc/passwd", ""} {
		_, err := p.Lock(name)
		wantCode(t, err, ErrNotFound)
	}
	// It is edited, in a form that is a lock all the same.
	file := p.path(lockName(id))
	b, err := os.ReadFile(file)
	must(t, err)
	must(t, os.Chmod(file, 0o600))
	must(t, os.WriteFile(file, bytes.Replace(b, []byte("test/1"), []byte("test/2"), 1), 0o600))
	_, err = p.Lock(id)
	wantCode(t, err, ErrTampered)
	must(t, os.WriteFile(file, b[:len(b)/2], 0o600))
	_, err = p.Lock(id)
	wantCode(t, err, ErrTampered)
	if _, err := p.PutLock(l); err != nil { // who has the lock can store it again
		t.Error(err)
	}
	_, err = p.Lock(id)
	must(t, err)
	bad := l
	bad.Packages = nil
	if _, err := p.PutLock(bad); !errors.Is(err, lock.ErrInvalid) {
		t.Error(err)
	}
}

func TestCurrent(t *testing.T) {
	p := newPlace(t)
	_, err := p.Current()
	wantCode(t, err, ErrNotFound)
	l := p.lock(lock.Base, simple("alpha", "1"))
	layer := p.mustBuild(l)
	want := Current{Layer: layer.ID, Lock: layer.Manifest.Lock, Python: "cp311-test"}
	must(t, p.SetCurrent(want))
	if have, err := p.Current(); err != nil || have != want {
		t.Errorf("%v, %v", have, err)
	}
	x := p.mustBuild(p.lock(lock.X, simple("beta", "1")))
	for name, c := range map[string]Current{
		"no layer": {"base-0123456789abcdef", want.Lock, "p"}, "no lock": {want.Layer, "0123456789abcdef", "p"}, "x": {x.ID, want.Lock, "p"},
		"no python": {want.Layer, want.Lock, ""}, "path": {want.Layer, want.Lock, "../x"}, "hidden": {want.Layer, want.Lock, ".tmp-x"}, "empty": {},
	} {
		if err := p.SetCurrent(c); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if have, err := p.Current(); err != nil || have != want {
		t.Errorf("%v, %v", have, err)
	}
	for _, text := range []string{"", "{}", "null", `{"layer":"x"}`, strings.Repeat("x", 5000), `{"layer":"` + layer.ID + `","lock":"` + want.Lock + `","python":"p","more":1}`} {
		must(t, os.WriteFile(p.path(currentFile), []byte(text), 0o600))
		if _, err := p.Current(); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

// TestLayerIsRead: strictly, and only once.
func TestLayerIsRead(t *testing.T) {
	p := newPlace(t)
	layer := p.mustBuild(p.lock(lock.Base, odd()))
	if again, err := p.Layer(layer.ID); err != nil || again != layer {
		t.Errorf("%v, read again", err)
	}
	in := layer.Manifest.Packages[0]
	if in.Name != "odd" || !slices.Equal(in.Tops, []string{"odd"}) || !slices.Equal(in.Scripts, []string{"odd", "odd-script"}) || in.Native {
		t.Errorf("%+v", in)
	}
	file := filepath.Join(layer.Dir, manifestFile)
	b, err := os.ReadFile(file)
	must(t, err)
	must(t, os.Chmod(file, 0o600))
	change := func(edit func(m map[string]any)) []byte {
		var m map[string]any
		must(t, json.Unmarshal(b, &m))
		edit(m)
		out, err := json.Marshal(m)
		must(t, err)
		return out
	}
	first := func(m map[string]any, list string) map[string]any { return m[list].([]any)[0].(map[string]any) }
	for name, text := range map[string][]byte{
		"empty": nil, "cut": b[:len(b)/2], "text": []byte("x"), "null": []byte("null"),
		"unknown key":   change(func(m map[string]any) { m["x"] = 1 }),
		"schema":        change(func(m map[string]any) { m["schema"] = 2 }),
		"other id":      change(func(m map[string]any) { m["id"] = "base-0123456789abcdef" }),
		"other lock":    change(func(m map[string]any) { m["lock"] = "x" }),
		"other version": change(func(m map[string]any) { first(m, "packages")["version"] = "9" }),
		"other hash":    change(func(m map[string]any) { first(m, "files")["sha256"] = sumOf("x") }),
		"path":          change(func(m map[string]any) { first(m, "files")["path"] = "site-packages/../../x" }),
		"size":          change(func(m map[string]any) { m["size"] = 1 }),
		"cache":         change(func(m map[string]any) { m["cache"].(map[string]any)["files"] = m["files"] }),
	} {
		must(t, os.WriteFile(file, text, 0o600))
		if _, err := p.Layer(layer.ID); !errors.Is(err, ErrLayerTampered) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, os.WriteFile(file, b, 0o600))
	_, err = p.Layer(layer.ID)
	must(t, err)
	for _, id := range []string{"base-0123456789abcdef", "", "../locks", "base-0123456789ABCDEF"} {
		_, err := p.Layer(id)
		wantCode(t, err, ErrNotFound)
	}
}

// TestCase52ChangedFiles: what was changed on disk is found.
func TestCase52ChangedFiles(t *testing.T) {
	p := newPlace(t)
	l := p.lock(lock.Base, odd(), simple("alpha", "1"), fakeMatplotlib(honestFonts))
	layer := p.mustBuild(l)
	at := func(name string) string { return filepath.Join(layer.Dir, "site-packages", name) }
	edit := func(file, text string) {
		must(t, os.Chmod(file, 0o600))
		must(t, os.WriteFile(file, []byte(text), 0o600))
		must(t, os.Chmod(file, 0o444))
	}
	edit(at("alpha/__init__.py"), "version = '2'\n") // as long as before
	edit(at("alpha/data.txt"), "short")
	edit(filepath.Join(layer.Dir, FontCache, "fontlist-v390.json"), "{}")
	must(t, os.Remove(at("odd/warns.py")))
	must(t, os.Chmod(at("odd/empty.py"), 0o644))
	must(t, os.Chmod(filepath.Join(layer.Dir, "bin/odd"), 0o444))
	must(t, os.Remove(at("odd/latin.py")))
	must(t, os.Symlink("/etc/hostname", at("odd/latin.py")))
	must(t, os.Remove(at("odd/bytes.py")))
	must(t, syscall.Mkfifo(at("odd/bytes.py"), 0o444))
	must(t, os.WriteFile(at("sitecustomize.py"), nil, 0o444))
	must(t, os.MkdirAll(at("more/below"), 0o755))
	must(t, os.RemoveAll(at("odd/half")))
	must(t, os.WriteFile(at("odd/half"), nil, 0o444))
	must(t, os.Chmod(at("odd/sub"), 0o777))
	faults, err := p.Verify(t.Context(), layer)
	must(t, err)
	minor := strings.TrimPrefix(l.Python.Tag, "cp")
	want := []Fault{
		{Path: "bin/odd", Kind: Mode}, {Path: "cache/matplotlib/fontlist-v390.json", Kind: Changed},
		{Path: "site-packages/alpha/__init__.py", Kind: Changed}, {Path: "site-packages/alpha/data.txt", Kind: Changed}, {Path: "site-packages/more", Kind: Additional},
		{Path: "site-packages/odd/bytes.py", Kind: Changed}, {Path: "site-packages/odd/empty.py", Kind: Mode}, {Path: "site-packages/odd/half", Kind: Changed},
		{Path: "site-packages/odd/half/__pycache__/m.cpython-" + minor + ".pyc", Kind: Missing}, {Path: "site-packages/odd/half/__pycache__/notes.txt", Kind: Missing},
		{Path: "site-packages/odd/half/__pycache__/source.py", Kind: Missing}, {Path: "site-packages/odd/half/m.py", Kind: Missing},
		{Path: "site-packages/odd/latin.py", Kind: Changed}, {Path: "site-packages/odd/sub", Kind: Mode}, {Path: "site-packages/odd/warns.py", Kind: Missing}, {Path: "site-packages/sitecustomize.py", Kind: Additional},
	}
	if !slices.Equal(faults, want) {
		t.Errorf("have %q\nwant %q", faults, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Verify(ctx, layer); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	must(t, p.Drop(layer.ID))
	_, err = p.Verify(t.Context(), layer)
	wantCode(t, err, ErrNotFound)
	p.mustBuild(l)
}

func TestUse(t *testing.T) {
	p := newPlace(t)
	a := p.mustBuild(p.lock(lock.Base, simple("alpha", "1")))
	b := p.mustBuild(p.lock(lock.X, simple("beta", "1")))
	one, err := p.Use(a.ID, b.ID, a.ID)
	must(t, err)
	two, err := openRoot(t, p.Dir()).Use(b.ID)
	must(t, err)
	var ends sync.WaitGroup
	for range 3 { // as often as one likes, by whomever
		ends.Go(one)
	}
	ends.Wait()
	wantCode(t, p.Drop(b.ID), ErrInUse)
	must(t, p.Drop(a.ID))
	two()
	_, err = p.Use(b.ID, a.ID)
	wantCode(t, err, ErrNotFound)
	must(t, p.Drop(b.ID)) // the failed Use holds nothing
	wantCode(t, p.Drop(b.ID), ErrNotFound)
	_, err = p.Use("../wheelhouse")
	wantCode(t, err, ErrNotFound)
	if release, err := p.Use(); err != nil {
		t.Error(err)
	} else {
		release()
	}
}

// old sets when a thing was last used.
func old(t testing.TB, r *Root, name string, at time.Time) {
	t.Helper()
	must(t, r.root.Chtimes(name, at, at))
}

// TestCase38Collector: of layers that are bound, current, young, in use and none of
// these, only the last goes, with its lock and its wheels.
func TestCase38Collector(t *testing.T) {
	p := newPlace(t)
	now := time.Now()
	long := now.Add(-48 * time.Hour)
	layer := map[string]*Layer{}
	locks := map[string]lock.Lock{}
	for _, name := range []string{"bound", "current", "young", "used", "orphan"} {
		kind := lock.X
		if name == "current" {
			kind = lock.Base
		}
		locks[name] = p.lock(kind, simple(name, "1"))
		layer[name] = p.mustBuild(locks[name])
	}
	// Another lock of the bound layer, and one that is bound by itself.
	twin := locks["bound"]
	twin.Resolver = "test/2"
	twinID, err := p.PutLock(twin)
	must(t, err)
	ahead, err := p.PutLock(p.lock(lock.X, simple("ahead", "1")))
	must(t, err)
	must(t, p.SetCurrent(Current{layer["current"].ID, layer["current"].Manifest.Lock, "p"}))
	for _, dir := range []string{layersDir, locksDir, wheelsDir} {
		list, err := p.names(dir)
		must(t, err)
		for _, d := range list {
			old(t, p.Root, dir+"/"+d.Name(), long)
		}
	}
	must(t, p.AddWheel(t.Context(), strings.NewReader("young"), sumOf("young"), 5))
	old(t, p.Root, layersDir+"/"+layer["young"].ID, now.Add(-23*time.Hour))
	release, err := p.Use(layer["used"].ID)
	must(t, err)
	old(t, p.Root, layersDir+"/"+layer["used"].ID, long)
	for name, at := range map[string]time.Time{"done": long, "running": now.Add(-time.Minute)} {
		must(t, os.Mkdir(p.path(jobsDir+"/"+name), 0o700))
		old(t, p.Root, jobsDir+"/"+name, at)
	}
	must(t, os.MkdirAll(p.path(layersDir+"/.trash-x/below"), 0o700))
	must(t, os.Mkdir(p.path(layersDir+"/"+tmpPrefix+layer["young"].ID+"-DEAD"), 0o700))
	must(t, os.WriteFile(p.path(layersDir+"/notes.txt"), nil, 0o600)) // not ours

	keep := map[string]bool{layer["bound"].ID: true, ahead: true}
	clock := func() time.Time { return now }
	before := treeOf(t, p.Dir())
	dry, err := p.GC(t.Context(), keep, 24*time.Hour, clock, true)
	must(t, err)
	if !slices.Equal(before, treeOf(t, p.Dir())) {
		t.Error("a dry run removed something")
	}
	rep, err := p.GC(t.Context(), keep, 24*time.Hour, clock, false)
	must(t, err)
	show := func(items []Item) (list []string) {
		for _, i := range items {
			id := i.ID
			for name, l := range layer {
				id = strings.ReplaceAll(id, l.ID, name)
				id = strings.ReplaceAll(id, l.Manifest.Lock, name)
				id = strings.ReplaceAll(id, locks[name].Packages[0].SHA256, name)
			}
			id = strings.NewReplacer(twinID, "twin", ahead, "ahead", sumOf("young"), "single").Replace(id)
			if len(id) < 60 { // but for the wheel of the lock that has no layer
				list = append(list, strings.TrimSpace(i.Kind+" "+id+" "+i.Why))
			}
		}
		slices.Sort(list)
		return list
	}
	wantGone := []string{"job done", "layer orphan", "lock orphan", "rest layers/.tmp-young-DEAD", "rest layers/.trash-x", "wheel orphan"}
	wantKept := []string{"job running young", "layer bound bound", "layer current current", "layer used in use", "layer young young", "lock ahead bound",
		"lock bound of a kept layer", "lock current current", "lock twin of a kept layer", "lock used of a kept layer", "lock young of a kept layer",
		"wheel bound of a kept lock", "wheel current of a kept lock", "wheel single young", "wheel used of a kept lock", "wheel young of a kept lock"}
	if gone, kept := show(rep.Removed), show(rep.Kept); !slices.Equal(gone, wantGone) || !slices.Equal(kept, wantKept) {
		t.Errorf("removed %q\nkept %q", gone, kept)
	}
	if dryGone := show(dry.Removed); !slices.Equal(dryGone, wantGone) || dry.Bytes != rep.Bytes || rep.Bytes < layer["orphan"].Manifest.Size {
		t.Errorf("the dry run says %q, %d bytes, not %d", dryGone, dry.Bytes, rep.Bytes)
	}
	for name, l := range layer {
		if _, err := p.Layer(l.ID); (err == nil) != (name != "orphan") {
			t.Errorf("%s: %v", name, err)
		}
	}
	release()
	rep, err = p.GC(t.Context(), keep, 24*time.Hour, clock, false)
	must(t, err)
	if gone := show(rep.Removed); !slices.Equal(gone, []string{"layer used", "lock used", "wheel used"}) {
		t.Errorf("after its end: %q", gone)
	}
}

// TestClockSetBack: what seems to come from the future ages from now on.
func TestClockSetBack(t *testing.T) {
	p := newPlace(t)
	layer := p.mustBuild(p.lock(lock.X, simple("alpha", "1")))
	now := time.Now()
	old(t, p.Root, layersDir+"/"+layer.ID, now.AddDate(10, 0, 0))
	gone := func(at time.Time) bool {
		t.Helper()
		_, err := p.GC(t.Context(), nil, 24*time.Hour, func() time.Time { return at }, false)
		must(t, err)
		_, err = p.Layer(layer.ID)
		return errors.Is(err, ErrNotFound)
	}
	if gone(now) || gone(now.Add(23*time.Hour)) || !gone(now.Add(25*time.Hour)) {
		t.Error("it was not kept for a day, or for longer")
	}
}

// TestCollectorAndUnreadableLock: the wheels of a lock that cannot be read are not
// known, so none is removed.
func TestCollectorAndUnreadableLock(t *testing.T) {
	p := newPlace(t)
	l := p.lock(lock.X, simple("alpha", "1"))
	id, err := p.PutLock(l)
	must(t, err)
	must(t, os.Chmod(p.path(lockName(id)), 0o600))
	must(t, os.WriteFile(p.path(lockName(id)), []byte("x"), 0o600))
	later := func() time.Time { return time.Now().Add(time.Hour) }
	_, err = p.GC(t.Context(), map[string]bool{id: true}, 0, later, false)
	must(t, err)
	if !p.HasWheel(l.Packages[0].SHA256) {
		t.Error("its wheel is gone")
	}
	_, err = p.GC(t.Context(), nil, 0, later, false)
	must(t, err)
	if _, err := p.Lock(id); !errors.Is(err, ErrNotFound) || p.HasWheel(l.Packages[0].SHA256) {
		t.Errorf("not removed: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrNoProgress)
	if _, err := p.GC(ctx, nil, 0, nil, false); !errors.Is(err, io.ErrNoProgress) {
		t.Error(err)
	}
}
