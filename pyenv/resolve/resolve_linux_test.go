package resolve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
)

// TestResolve: a solution with all that locks need, by either pip and either kind of index.
func TestResolve(t *testing.T) {
	everyPip(t, func(t *testing.T, p *Pip) {
		for _, html := range []bool{false, true} {
			foo2 := pkg("foo", "2.0")
			foo2.Metadata = "Metadata-Version: 2.1\nName: foo\nVersion: 2.0\nProvides-Extra: more\nRequires-Dist: bar>=1; python_version > '3'\nRequires-Dist: baz; extra == 'more'\n" +
				"License: " + strings.Repeat("long ", 100) + "\nClassifier: License :: OSI Approved :: MIT License\n"
			x := index(t, indextest.Options{HTML: html}, pkg("foo", "1.0"), foo2, pkg("bar", "1.5"), pkg("bar", "1.6"), pkg("baz", "0.1"))
			r, err := p.Resolve(t.Context(), Request{Specs: specs(t, "Foo[more]"), Pins: map[string]string{"bar": "1.5", "unrelated": "7"}, Config: at(x)})
			if err != nil {
				t.Fatal(err)
			}
			if got, want := lines(r), "bar 1.5\nbaz 0.1\nfoo 2.0\n"; got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
			foo := r.Packages[2]
			if foo.File != "foo-2.0-py3-none-any.whl" || len(foo.SHA256) != 64 || foo.License != "MIT License" || len(foo.Requires) != 2 || r.Resolver != p.Name() {
				t.Errorf("foo is %+v", foo)
			}
			if !html && (foo.Size == 0 || foo.Uploaded.Year() != 2020 || foo.Index != "127.0.0.1") {
				t.Errorf("size %d, uploaded %v, index %q", foo.Size, foo.Uploaded, foo.Index)
			}
			if p.Lacks == "" && x.Wheels() != 0 {
				t.Errorf("wheels were downloaded: %q", x.Requests())
			}
			if (p.Lacks != "") != slices.Contains(r.Notes, p.Lacks) {
				t.Errorf("notes %q", r.Notes)
			}
		}
	})
}

// TestCase14_15SdistOnly: what has source only is refused, and names it and who needs it.
func TestCase14_15SdistOnly(t *testing.T) {
	everyPip(t, func(t *testing.T, p *Pip) {
		x := index(t, indextest.Options{}, pkg("top", "1.0", "middle"), pkg("middle", "1.1", "source-only>=1"))
		x.Add(indextest.File{Name: "source_only-2.0.tar.gz", Body: evilSdist(t, "source-only", "2.0", "/out/marker")})
		_, err := p.Resolve(t.Context(), Request{Specs: specs(t, "source-only"), Config: at(x)})
		if e := refused(t, err, ErrSdistOnly, "source-only 2.0"); e.Blocking.Name != "source-only" || len(e.Suggestions) == 0 {
			t.Errorf("blocking %+v", e.Blocking)
		}
		_, err = p.Resolve(t.Context(), Request{Specs: specs(t, "top"), Config: at(x)})
		if e := refused(t, err, ErrSdistOnly, "source-only", "middle"); !strings.HasPrefix(e.Blocking.NeededBy, "middle") {
			t.Errorf("blocking %+v", e.Blocking)
		}
		if x.Wheels() != 0 && p.Lacks == "" {
			t.Errorf("files were downloaded: %q", x.Requests())
		}
	})
}

// TestCase16BadSpec: what is no name of a package is refused before there is any pip.
func TestCase16BadSpec(t *testing.T) {
	for _, s := range []string{"pkg @ https://host/x.whl", "./x.whl", "git+https://host/x", "-r f", "--index-url=https://host", "foo==1 --hash=sha256:00", strings.Repeat("a", 201), "a\x00b", "a\nb"} {
		if _, err := spec.ParseRequests([]string{s}); !errors.Is(err, spec.ErrBadSpec) {
			t.Errorf("%.40q: %v", s, err)
		}
	}
	// Nor does Resolve take one that was made in another way.
	q, err := spec.ParseRequirement("pkg @ https://host/x.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	_, err = (&Pip{}).Resolve(t.Context(), Request{Specs: []spec.Requirement{q}})
	refused(t, err, ErrDirectURL)
}

// TestCase17DirectURL: a wheel of an index that needs a source archive by URL, which pip
// builds in spite of --only-binary. Nothing of it runs, not even in the jail.
func TestCase17DirectURL(t *testing.T) {
	everyPip(t, func(t *testing.T, p *Pip) {
		marker := t.TempDir() + "/marker"
		if err := os.Chmod(t.TempDir(), 0o777); err != nil {
			t.Fatal(err)
		}
		x := index(t, indextest.Options{})
		ran := make(chan struct{}, 1)
		x.Handle("/ran", func(http.ResponseWriter, *http.Request) { ran <- struct{}{} })
		x.Handle("/evil-1.0.tar.gz", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(evilSdist(t, "evil", "1.0", marker, x.Root()+"/ran"))
		})
		x.Add(file(pkg("nice", "1.0", "evil @ "+x.Root()+"/evil-1.0.tar.gz")))
		x.Add(file(pkg("outer", "1.0", "nice")))
		_, err := p.Resolve(t.Context(), Request{Specs: specs(t, "outer"), Config: at(x)})
		e := refused(t, err, ErrDirectURL, "evil")
		if e.Blocking.Name != "evil" || e.Blocking.NeededBy != "nice" && p.atLeast("23.1") { // older ones do not tell
			t.Errorf("blocking %+v; %s", e.Blocking, e.Detail)
		}
		if _, err := os.Stat(marker); err == nil {
			t.Error("the build ran on the host")
		}
		select {
		case <-ran:
			t.Error("the build ran in the jail")
		default:
		}
		// A wheel by URL needs no build, and is refused as well.
		direct := pkg("direct", "1.0")
		x.Handle("/"+direct.FileName(), func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(direct.Bytes()) })
		x.Add(file(pkg("nice2", "1.0", "direct @ "+x.Root()+"/"+direct.FileName())))
		_, err = p.Resolve(t.Context(), Request{Specs: specs(t, "nice2"), Config: at(x)})
		refused(t, err, ErrDirectURL, "nice2", "direct")
	})
}

// TestCase20HashMismatch: bytes that are not those of the lock go to nobody.
func TestCase20HashMismatch(t *testing.T) {
	somePip(t, func(t *testing.T, p *Pip) {
		x := index(t, indextest.Options{}, pkg("foo", "1.0"), pkg("bar", "1.0"))
		r, err := p.Resolve(t.Context(), Request{Specs: specs(t, "foo", "bar"), Config: at(x)})
		if err != nil {
			t.Fatal(err)
		}
		fetch := func() (map[string]int, error) {
			got := map[string]int{}
			err := p.Fetch(t.Context(), r.Packages, at(x), func(l lock.Package, f *os.File) error {
				b, err := io.ReadAll(f)
				got[l.Name] = len(b)
				return err
			})
			return got, err
		}
		if got, err := fetch(); err != nil || len(got) != 2 || int64(got["foo"]) != r.Packages[1].Size {
			t.Fatalf("got %v, %v", got, err)
		}
		other := pkg("foo", "1.0", "evil").Bytes()
		good := pkg("foo", "1.0")
		for name, f := range map[string]indextest.File{
			"swapped, and so is the hash": {Name: good.FileName(), Body: other},
			"other bytes than told":       {Name: good.FileName(), Body: good.Bytes(), Sent: other},
			"no hash is told":             {Name: good.FileName(), Body: other, SHA256: "-"},
		} {
			x.Add(f)
			got, err := fetch()
			if e := refused(t, err, ErrHashMismatch, "foo"); e.Blocking.Name != "foo" {
				t.Errorf("%s: blocking %+v", name, e.Blocking)
			}
			if _, ok := got["foo"]; ok {
				t.Errorf("%s: the wrong bytes were handed on", name)
			}
		}
	})
}

// TestFetchFails: files that do not come, and a caller who does not want them.
func TestFetchFails(t *testing.T) {
	p := newWorld(t).pip
	w := pkg("foo", "1.0")
	x := index(t, indextest.Options{}, w)
	r, err := p.Resolve(t.Context(), Request{Specs: specs(t, "foo"), Config: at(x)})
	if err != nil {
		t.Fatal(err)
	}
	no := func(lock.Package, *os.File) error { t.Error("a file was handed on"); return nil }
	c := at(x)
	c.Timeout = 1
	for name, tc := range map[string]struct {
		f    indextest.File
		code Code
		word string
	}{
		"gone":      {indextest.File{Name: w.FileName(), Body: w.Bytes(), Status: 404}, ErrIndexUnreachable, "404"},
		"forbidden": {indextest.File{Name: w.FileName(), Body: w.Bytes(), Status: 403}, ErrIndexUnreachable, "credentials"},
		"broken":    {indextest.File{Name: w.FileName(), Body: w.Bytes(), Status: 500}, ErrIndexUnreachable, "500"},
		"slow":      {indextest.File{Name: w.FileName(), Body: w.Bytes(), Slow: true}, ErrIndexUnreachable, ""},
		"truncated": {indextest.File{Name: w.FileName(), Body: w.Bytes(), Truncated: true}, ErrIndexUnreachable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			x.Add(tc.f)
			refused(t, p.Fetch(t.Context(), r.Packages, c, no), tc.code, tc.word)
		})
	}
	x.Add(file(w))
	stop := errors.New("the disk is full")
	if err := p.Fetch(t.Context(), r.Packages, c, func(lock.Package, *os.File) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("error %v", err)
	}
	bad := r.Packages[0]
	bad.SHA256 = "00\n--index-url=http://other"
	refused(t, p.Fetch(t.Context(), []lock.Package{bad}, c, no), ErrResolverFailed)
}

// TestConflictWithBase: pins that cannot be kept are named, with who wants what.
func TestConflictWithBase(t *testing.T) {
	everyPip(t, func(t *testing.T, p *Pip) {
		x := index(t, indextest.Options{}, pkg("foo", "1.0", "bar>=2"), pkg("bar", "1.0"), pkg("bar", "2.0"))
		q := Request{Specs: specs(t, "foo"), Pins: map[string]string{"bar": "1.0"}, PinsOf: func(string) string { return "base-0123456789abcdef" }, Config: at(x)}
		_, err := p.Resolve(t.Context(), q)
		e := refused(t, err, ErrConflictWithBase, "foo 1.0 needs bar>=2", "base-0123456789abcdef has bar 1.0")
		if want := (Blocking{"bar", "1.0", "base-0123456789abcdef", "foo 1.0", "bar>=2"}); e.Blocking != want {
			t.Errorf("blocking %+v, want %+v", e.Blocking, want)
		}
		q.Specs = specs(t, "bar>=2")
		_, err = p.Resolve(t.Context(), q)
		refused(t, err, ErrConflictWithBase, "bar>=2 was asked for")
	})
}

// TestNoSolution: conditions that exclude each other, versions that are not there.
func TestNoSolution(t *testing.T) {
	somePip(t, func(t *testing.T, p *Pip) {
		x := index(t, indextest.Options{}, pkg("foo", "1.0", "bar>=2"), pkg("baz", "1.0", "bar<2"), pkg("bar", "1.0"), pkg("bar", "2.0"))
		for _, tc := range []struct {
			specs []string
			code  Code
			words []string
		}{
			{[]string{"foo", "baz"}, ErrNoSolution, []string{"foo 1.0 needs bar>=2", "baz 1.0 needs bar<2"}},
			{[]string{"bar>=3"}, ErrNoSolution, []string{"no version of bar>=3"}},
			{[]string{"nowhere"}, ErrNotFound, []string{`"nowhere"`}},
			{[]string{"foo", "bar<1"}, ErrNoSolution, []string{"bar"}},
		} {
			if !pyenvtest.Soak() && len(tc.specs) == 2 && tc.specs[1] == "bar<1" {
				continue // as bar>=3, and asked for twice
			}
			_, err := p.Resolve(t.Context(), Request{Specs: specs(t, tc.specs...), Config: at(x)})
			refused(t, err, tc.code, tc.words...)
		}
		later := file(pkg("later", "1.0"))
		later.RequiresPython = ">=3.99"
		x.Add(later)
		_, err := p.Resolve(t.Context(), Request{Specs: specs(t, "later"), Config: at(x)})
		refused(t, err, ErrNoSolution, "Python")
		gone := file(pkg("gone", "1.0"))
		gone.Yanked = "it ate my \x1b[31mhomework"
		x.Add(gone)
		_, err = p.Resolve(t.Context(), Request{Specs: specs(t, "gone>=1"), Config: at(x)})
		if err == nil { // older ones take it when there is nothing else
			return
		}
		refused(t, err, ErrNoSolution, "yanked")
	})
}

// TestCase44Yanked: only an exact version gets a yanked file, with the reason.
func TestCase44Yanked(t *testing.T) {
	somePip(t, func(t *testing.T, p *Pip) {
		x := index(t, indextest.Options{}, pkg("foo", "1.0"))
		f := file(pkg("foo", "2.0"))
		f.Yanked = "broken\nbuild \x1b[31m!"
		x.Add(f)
		r, err := p.Resolve(t.Context(), Request{Specs: specs(t, "foo"), Config: at(x)})
		if err != nil || lines(r) != "foo 1.0\n" || r.Packages[0].Yanked != "" {
			t.Fatalf("%v %+v", err, r)
		}
		r, err = p.Resolve(t.Context(), Request{Specs: specs(t, "foo==2.0"), Config: at(x)})
		if err != nil || lines(r) != "foo 2.0\n" || r.Packages[0].Yanked != "broken build [31m!" {
			t.Fatalf("%v %+v", err, r)
		}
	})
}

// TestCase45Cooldown: what was uploaded lately is left out, and told.
func TestCase45Cooldown(t *testing.T) {
	p := newWorld(t).pip
	if !p.atLeast("26.0") {
		t.Skip("SKIP pip " + p.Version + " has no --uploaded-prior-to")
	}
	cutoff := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	x := index(t, indextest.Options{}, pkg("foo", "2.0"))
	young := file(pkg("foo", "2.1"))
	young.Uploaded = cutoff.Add(3 * time.Hour)
	x.Add(young)
	r, err := p.Resolve(t.Context(), Request{Specs: specs(t, "foo"), Cutoff: cutoff, Config: at(x)})
	if err != nil || lines(r) != "foo 2.0\n" || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "foo 2.1 was passed over: it was uploaded on 2026-11-20") {
		t.Fatalf("%v %+v", err, r)
	}
	_, err = p.Resolve(t.Context(), Request{Specs: specs(t, "foo>2.0"), Cutoff: cutoff, Config: at(x)})
	refused(t, err, ErrCooldown, "2026-11-20")
	timeless := index(t, indextest.Options{NoTimes: true}, pkg("foo", "2.0"))
	r, err = p.Resolve(t.Context(), Request{Specs: specs(t, "foo"), Cutoff: cutoff, Config: at(timeless)})
	if err != nil || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "does not tell when") {
		t.Fatalf("%v %+v", err, r)
	}
}

// TestCase48NoCompatibleWheel: wheels for other systems only.
func TestCase48NoCompatibleWheel(t *testing.T) {
	somePip(t, func(t *testing.T, p *Pip) {
		win := pkg("foo", "1.0")
		win.Tag = "cp399-cp399-win_amd64"
		mac := pkg("foo", "1.0")
		mac.Tag = "cp313-cp313-macosx_11_0_arm64"
		x := index(t, indextest.Options{}, win, mac, pkg("bar", "1.0", "foo"))
		_, err := p.Resolve(t.Context(), Request{Specs: specs(t, "foo"), Config: at(x)})
		refused(t, err, ErrNoCompatibleWheel, "cp399-cp399-win_amd64", "cp313-cp313-macosx_11_0_arm64", p.Python.Facts.Target.String())
		_, err = p.Resolve(t.Context(), Request{Specs: specs(t, "bar"), Config: at(x)})
		if e := refused(t, err, ErrNoCompatibleWheel, "bar"); e.Blocking.Name != "foo" || !strings.HasPrefix(e.Blocking.NeededBy, "bar") {
			t.Errorf("blocking %+v", e.Blocking)
		}
	})
}

// TestCase49NewestWithoutWheel: an older version is never chosen in silence.
func TestCase49NewestWithoutWheel(t *testing.T) {
	somePip(t, func(t *testing.T, p *Pip) {
		win := pkg("foo", "3.0")
		win.Tag = "cp311-cp311-win_amd64"
		x := index(t, indextest.Options{}, pkg("foo", "2.9"), win, pkg("bar", "1.0", "foo"))
		x.Add(indextest.File{Name: "foo-3.1.tar.gz", Body: []byte("x")})
		for _, s := range []string{"bar", "foo"} {
			if s == "foo" && !pyenvtest.Soak() {
				continue // as by way of bar
			}
			r, err := p.Resolve(t.Context(), Request{Specs: specs(t, s), Config: at(x)})
			want := "The newest foo is 3.1, which has no wheel for this system; using 2.9."
			if err != nil || !slices.Contains(r.Notes, want) {
				t.Errorf("%v, notes %q", err, r.Notes)
			}
		}
		later := file(pkg("other", "3.0"))
		later.RequiresPython = ">=3.99"
		x.Add(file(pkg("other", "2.0")), later)
		r, err := p.Resolve(t.Context(), Request{Specs: specs(t, "other"), Config: at(x)})
		if want := "The newest other is 3.0, which needs another Python than " + p.Python.Facts.Full + "; using 2.0."; err != nil || !slices.Contains(r.Notes, want) {
			t.Errorf("%v, notes %q", err, r.Notes)
		}
		r, err = p.Resolve(t.Context(), Request{Specs: specs(t, "foo<3"), Config: at(x)})
		if err != nil || slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "newest") }) {
			t.Errorf("%v, notes %q", err, r.Notes)
		}
	})
}

// TestBadIndexes: whatever an index does instead of answering, there is a code and a
// sentence with its host.
func TestBadIndexes(t *testing.T) {
	page := func(kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			io.WriteString(w, body)
		}
	}
	const asJSON = "application/vnd.pypi.simple.v1+json"
	status := func(n int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(n) }
	}
	somePip(t, func(t *testing.T, p *Pip) {
		x := index(t, indextest.Options{})
		for _, tc := range []struct {
			name  string
			h     http.HandlerFunc
			code  Code
			words []string
		}{
			{"401", status(401), ErrIndexUnreachable, []string{"127.0.0.1", "401", "credentials"}},
			{"403", status(403), ErrIndexUnreachable, []string{"403"}},
			{"404", status(404), ErrNotFound, []string{"127.0.0.1", `"foo"`}},
			{"500", status(500), ErrIndexUnreachable, []string{"HTTP 500"}},
			{"503", status(503), ErrIndexUnreachable, []string{"HTTP 503"}},
			{"slow", x.Never, ErrIndexUnreachable, []string{"in time"}},
			{"truncated", indextest.Truncated([]byte(`{"files":[],"meta":{}}`)), ErrIndexUnreachable, []string{"127.0.0.1"}},
			{"garbage", page(asJSON, "\x00\xff<<<"), ErrIndexUnreachable, []string{"no list of files"}},
			{"list", page(asJSON, `[1,2]`), ErrIndexUnreachable, []string{"no list of files"}},
			{"wrong type", page("image/png", "x"), ErrIndexUnreachable, []string{"no list of files"}},
			{"html without links", page("text/html", "<h1>Welcome to the hotel network"), ErrIndexUnreachable, []string{"no list of files"}},
			{"to a file", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "file:///etc/passwd")
				w.WriteHeader(302)
			}, ErrIndexUnreachable, []string{"no list of files"}}, // pip can read files, and there is none but its own
			{"in circles", func(w http.ResponseWriter, q *http.Request) { http.Redirect(w, q, q.URL.Path, http.StatusFound) }, ErrIndexUnreachable, []string{"circles"}},
		} {
			if p.host != nil && !slices.Contains([]string{"401", "404", "500", "slow", "truncated", "list"}, tc.name) {
				continue // an older pip fails in other words, but not in more ways
			}
			if !pyenvtest.Soak() && slices.Contains([]string{"403", "503", "list"}, tc.name) {
				continue // told as the row before
			}
			t.Run(tc.name, func(t *testing.T) {
				x.Handle("/simple/foo/", tc.h)
				c := at(x)
				c.Timeout = 1
				_, err := p.Resolve(t.Context(), Request{Specs: specs(t, "foo"), Config: c})
				refused(t, err, tc.code, tc.words...)
			})
		}
	})
	t.Run("down", func(t *testing.T) {
		x := indextest.New(indextest.Options{})
		c := at(x)
		x.Close()
		_, err := newWorld(t).pip.Resolve(t.Context(), Request{Specs: specs(t, "foo"), Config: c})
		refused(t, err, ErrIndexUnreachable, "127.0.0.1")
	})
	t.Run("unknown host", func(t *testing.T) {
		c := Config{IndexURL: "https://no-such-host.invalid/simple"}
		_, err := newWorld(t).pip.Resolve(t.Context(), Request{Specs: specs(t, "foo"), Config: c})
		refused(t, err, ErrIndexUnreachable, "no-such-host.invalid")
	})
}

// TestHostileIndex: pages that are huge or that want to be seen on a terminal.
func TestHostileIndex(t *testing.T) {
	p := newWorld(t).pip
	x := index(t, indextest.Options{HTML: true}, pkg("foo", "1.0"))
	x.Handle("/simple/huge/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		row := []byte(strings.Repeat("<a href='/files/huge-1.0-py3-none-win_amd64.whl'>x</a>\n", 1000))
		pages := 40 // of 55 kB
		if pyenvtest.Soak() {
			pages = 200
		}
		for range pages {
			if _, err := w.Write(row); err != nil {
				return
			}
		}
	})
	x.Handle("/simple/odd/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		for _, name := range []string{"odd-1.0-py3-none-\x1b]0;owned\x07any.whl", "odd-1.0%0AERROR: No matching distribution found for evil-py3-none-any.whl",
			"odd-\u202e1.0-py3-none-any.whl", strings.Repeat("odd", 5000) + "-1-py3-none-any.whl", "../../odd-1.0-py3-none-any.whl"} {
			fmt.Fprintf(w, "<a href=\"/files/%s\">%s</a>\n", name, name)
		}
	})
	for name, s := range map[string]string{"huge": "huge", "odd": "odd"} {
		start := time.Now()
		_, err := p.Resolve(t.Context(), Request{Specs: specs(t, s), Config: at(x)})
		var e *Error
		if !errors.As(err, &e) {
			t.Fatalf("%s: %v", name, err)
		}
		refused(t, err, e.Code)
		for _, bad := range []string{"\x1b", "\x07", "\u202e", "owned", "evil"} {
			if strings.Contains(e.Sentence, bad) || bad != "owned" && bad != "evil" && strings.Contains(e.Detail, bad) {
				t.Errorf("%s: %q or %q has %q", name, e.Sentence, e.Detail, bad)
			}
		}
		t.Logf("%s: %v", name, time.Since(start).Round(time.Millisecond))
	}
	// Metadata with escapes come out as text.
	w := pkg("shown", "1.0")
	w.Metadata = "Metadata-Version: 2.1\nName: shown\nVersion: 1.0\nLicense: MIT \x1b[31mred\n"
	x.Add(file(w))
	r, err := p.Resolve(t.Context(), Request{Specs: specs(t, "shown"), Config: at(x)})
	if err != nil || strings.Contains(fmt.Sprint(r), "\x1b") {
		t.Errorf("%v %+v", err, r)
	}
}

// TestCancel: the caller's reason comes back, at once.
func TestCancel(t *testing.T) {
	p := newWorld(t).pip
	x := index(t, indextest.Options{})
	asked := make(chan struct{}, 10)
	x.Handle("/simple/foo/", func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		x.Never(w, r)
	})
	gone := errors.New("the client went away")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-asked
		cancel(gone)
	}()
	c := at(x)
	c.Timeout = 60
	if _, err := p.Resolve(ctx, Request{Specs: specs(t, "foo"), Config: c}); !errors.Is(err, gone) {
		t.Errorf("error %v", err)
	}
}

// TestTimeout: an index that keeps pip waiting has an end.
func TestTimeout(t *testing.T) {
	p := *newWorld(t).pip
	p.timeout = 1500 * time.Millisecond
	x := index(t, indextest.Options{})
	x.Handle("/simple/foo/", x.Never)
	c := at(x)
	c.Timeout = 60
	start := time.Now()
	_, err := p.Resolve(t.Context(), Request{Specs: specs(t, "foo"), Config: c})
	if e := refused(t, err, ErrResolverTimeout, "pip"); len(e.Suggestions) == 0 || time.Since(start) > 30*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

// TestFindLinks: a directory is a place of packages like an index, and its files have hashes.
func TestFindLinks(t *testing.T) {
	somePip(t, func(t *testing.T, p *Pip) {
		dir := t.TempDir()
		for _, w := range []wheeltest.Wheel{pkg("foo", "1.0", "bar"), pkg("bar", "2.0")} {
			if _, err := w.Write(dir); err != nil {
				t.Fatal(err)
			}
		}
		c := Config{NoIndex: true, FindLinks: []string{dir}}
		r, err := p.Resolve(t.Context(), Request{Specs: specs(t, "foo"), Config: c})
		if err != nil || lines(r) != "bar 2.0\nfoo 1.0\n" {
			t.Fatalf("%v %+v", err, r)
		}
		for _, l := range r.Packages {
			if !isSHA256(l.SHA256) || l.Index != "find-links" || l.Size == 0 {
				t.Errorf("%+v", l)
			}
		}
		n := 0
		if err := p.Fetch(t.Context(), r.Packages, c, func(lock.Package, *os.File) error { n++; return nil }); err != nil || n != 2 {
			t.Errorf("%d files, %v", n, err)
		}
	})
}
