package python

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// Case 53: Pythons of the host that cannot be shown, or are none of their own.
func TestCase53PythonsOfTheHost(t *testing.T) {
	box := pyenvtest.Box(t)
	real := needSystem(t)
	name := filepath.Base(real)
	home := fakePython(t, "#!/bin/sh\nexit 0\n")
	venv := t.TempDir()
	writeFiles(t, venv, map[string]string{"pyvenv.cfg": "home = /home/a/.pyenv/versions/3.11.7/bin\n", "bin/" + name: "x", "lib/" + name + "/os.py": ""})
	linked := t.TempDir()
	must(t, os.Mkdir(filepath.Join(linked, "bin"), 0o755))
	must(t, os.Symlink(real, filepath.Join(linked, "bin", "python3")))
	loose := prefixOf(t)
	must(t, os.Chmod(filepath.Join(loose, "lib", name, "os.py"), 0o666))
	outside := prefixOf(t)
	must(t, os.Symlink("/usr/lib/os-release", filepath.Join(outside, "lib", name, "x.py")))
	fifo := prefixOf(t)
	must(t, os.Remove(filepath.Join(fifo, "bin", "python3")))
	must(t, os.Symlink("other", filepath.Join(fifo, "bin", "python3")))
	bare := t.TempDir()
	writeFiles(t, bare, map[string]string{"bin/" + name: "#!/bin/sh\necho '{}'\n"})
	must(t, os.Symlink(name, filepath.Join(bare, "bin", "python3")))
	for _, tc := range []struct {
		name string
		o    Options
		kind error
		want string
	}{
		{"below a home", Options{system: []string{filepath.Join(home, "python3")}}, ErrNone, "lies below /tmp, which the sandbox does not show"},
		{"none at all", Options{system: []string{"/no/such/python3"}}, ErrNone, "/no/such/python3 is not there"},
		{"no interpreter", Options{system: []string{"/usr/bin/env"}}, ErrNone, "is no program python3.N"},
		{"a copied virtual environment", Options{Prefix: venv}, ErrRefused, "name the prefix of that one"},
		{"a program elsewhere", Options{Prefix: linked}, ErrRefused, "no bin/python3 of its own"},
		{"writable by everybody", Options{Prefix: loose}, ErrRefused, "can be written by everybody"},
		{"a link out of the tree", Options{Prefix: outside}, ErrRefused, "leads out of"},
		{"a link to nothing", Options{Prefix: fifo}, ErrRefused, "no bin/python3 of its own"},
		{"relative", Options{Prefix: "python"}, ErrRefused, "is not an absolute path"},
		{"missing", Options{Prefix: "/no/such"}, ErrRefused, "cannot be opened"},
		{"no answer", Options{Prefix: bare}, ErrBroken, "it did not answer as Python does: it printed \"{}\""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			_, err := Make(t.Context(), root, tc.o, box)
			if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %v with %q", err, tc.kind, tc.want)
			}
			left(t, root)
			if list := Candidates(tc.o); tc.kind != ErrBroken && (list[0].Chosen || list[0].Why == "") && !strings.Contains(tc.want, "written") && !strings.Contains(tc.want, "leads out") {
				t.Errorf("candidates are %+v", list)
			}
		})
	}
}

// A prefix of the operator is copied, without what is installed in it, and need not
// have ensurepip.
func TestCase53PrefixWithoutEnsurepip(t *testing.T) {
	box := pyenvtest.Box(t)
	prefix := prefixOf(t)
	name := filepath.Base(needSystem(t))
	writeFiles(t, prefix, map[string]string{"lib/" + name + "/site-packages/evil.pth": "import os; os.abort()\n", "lib/" + name + "/sitecustomize.py": "raise SystemExit(3)\n", "bin/tool": "x"})
	root := t.TempDir()
	it, err := Make(t.Context(), root, Options{Prefix: prefix}, box)
	must(t, err)
	if it.Source.Kind != KindPrefix || it.Source.From != prefix {
		t.Errorf("source is %+v", it.Source)
	}
	res := python(t, box, it, Executable, "-c", "import platform; print(platform.python_version())")
	if got := strings.TrimSpace(string(res.Stdout.Text)); got != it.Facts.Full {
		t.Errorf("it is %q and was reported as %s", got, it.Facts.Full)
	}
	res = python(t, box, it, Executable, "-m", "ensurepip")
	if res.ExitCode != 1 || !strings.Contains(string(res.Stderr.Text), "python_env") {
		t.Errorf("ensurepip: exit %d, %s", res.ExitCode, res.Stderr.Text)
	}
}

// prefixOf makes a prefix of its own of the system's Python, without ensurepip, and
// without the largest parts of the library that nothing here needs: they would be
// compiled by every test that makes an interpreter of it.
func prefixOf(t testing.TB) (dir string) {
	t.Helper()
	real := needSystem(t)
	src, err := openSystem(real)
	must(t, err)
	defer src.close()
	dir = t.TempDir()
	w, err := newWriter(dir)
	must(t, err)
	defer w.close()
	must(t, src.copy(t.Context(), w))
	must(t, os.Symlink(filepath.Base(real), filepath.Join(dir, "bin", "python3")))
	for _, name := range []string{"ensurepip", "asyncio", "curses", "distutils", "idlelib", "lib2to3", "multiprocessing", "pydoc_data", "tkinter", "turtledemo", "unittest", "wsgiref", "xml", "xmlrpc"} {
		must(t, os.RemoveAll(filepath.Join(dir, "lib", filepath.Base(real), name)))
	}
	return dir
}

func writeFiles(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o755))
	}
}

// Interpreters that hang, crash, lie or cannot be started.
func TestProbeOfWhatDoesNotWork(t *testing.T) {
	box := pyenvtest.Box(t)
	good := `'{"nonce":"'$5'","implementation":"cpython","version":"3.11.2","flags":"","bits":64,"machine":"x86_64","libc":["glibc","2.36"],"executable":"/opt/mcp/python/bin/python3","prefix":"/opt/mcp/python","path":[],"site":["/opt/mcp/python/x"],"stdlib":[],"mapped":[],"missing":[]}'`
	for _, tc := range []struct{ name, program, want string }{
		{"hangs", "#!/bin/sh\nexec sleep 60\n", "did not answer within 2s"},
		{"crashes", "#!/bin/sh\nkill -SEGV $$\n", "crashed (SIGSEGV)"},
		{"fails", "#!/bin/sh\necho no module named encodings >&2; exit 1\n", `exited with 1: "no module named encodings"`},
		{"is for another machine", "\x7fELF\x02\x01\x01 nothing more", "it exited with 127"},
		{"has no interpreter", "#!/no/such/loader\n", "it cannot be started"},
		{"prints nothing", "#!/bin/sh\n", "it printed nothing"},
		{"floods", "#!/bin/sh\nexec yes\n", "it was ended (output_limit)"},
		{"repeats an old answer", "#!/bin/sh\necho " + strings.Replace(good, "'$5'", "old", 1) + "\n", "did not answer as Python does"},
		{"answers twice", "#!/bin/sh\necho " + good + good + "\n", "did not answer as Python does"},
		{"is not CPython", "#!/bin/sh\necho " + strings.Replace(good, "cpython", "pypy", 1) + "\n", `it is "pypy"`},
		{"has no version", "#!/bin/sh\necho " + strings.Replace(good, "3.11.2", "3.11.2; rm", 1) + "\n", `its version is "3.11.2; rm"`},
		{"is too old", "#!/bin/sh\necho " + strings.Replace(good, "3.11.2", "3.9.2", 1) + "\n", "3.10 is the oldest"},
		{"is free-threaded", "#!/bin/sh\necho " + strings.Replace(good, `"flags":""`, `"flags":"t"`, 1) + "\n", "a build of another kind"},
		{"has 32 bits", "#!/bin/sh\necho " + strings.Replace(good, `"bits":64`, `"bits":32`, 1) + "\n", "32 bits"},
		{"is elsewhere", "#!/bin/sh\necho " + strings.Replace(good, `"prefix":"/opt/mcp/python"`, `"prefix":"/usr"`, 1) + "\n", `below "/usr"`},
		{"has packages elsewhere", "#!/bin/sh\necho " + strings.Replace(good, "/opt/mcp/python/x", "/opt/mcp/python/../x", 1) + "\n", "nowhere below"},
		{"has no library", "#!/bin/sh\necho " + good + "\n", "names 0 modules"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			writeFiles(t, dir, map[string]string{"bin/python3": tc.program})
			p := prober{box: box, dir: dir, timeout: 2 * time.Second}
			_, err := p.ask(t.Context())
			if !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// What an answer says of libraries, modules and the C library.
func TestAnswer(t *testing.T) {
	stdlib := make([]string, 0, 200)
	for i := range 150 {
		stdlib = append(stdlib, "a"+strings.Repeat("a", i))
	}
	good := answer{Implementation: "cpython", Version: "3.12.4", Bits: 64, Machine: "x86_64", Libc: [2]string{"glibc", "2.36"}, Executable: Executable, Prefix: Prefix,
		Site: []string{"/usr/x", Prefix + "/lib/dist-packages", Prefix + "/lib/python3.12/site-packages"}, Stdlib: append(stdlib, "json")}
	must(t, good.check(false))
	if got := good.sitePackages(); got != Prefix+"/lib/python3.12/site-packages" {
		t.Errorf("packages are in %s", got)
	}
	ofSystem := good
	ofSystem.Mapped = []string{"/usr/lib/libpython3.12.so.1.0"}
	must(t, ofSystem.check(true))
	for want, edit := range map[string]func(*answer){
		"it runs /home/a/lib/libpython3.12.so.1.0": func(a *answer) { a.Mapped = []string{"/usr/lib/libc.so.6", "/home/a/lib/libpython3.12.so.1.0"} },
		"it runs /usr/lib/libpython3.12.so.1.0":    func(a *answer) { a.Mapped = []string{"/usr/lib/libpython3.12.so.1.0"} },
		"it has no module zlib":                    func(a *answer) { a.Missing = []string{"lzma", "zlib"} },
		`its C library is "glibc 2.x"`:             func(a *answer) { a.Libc[1] = "2.x" },
		`its C library is "bionic 2.1"`:            func(a *answer) { a.Libc[0], a.Libc[1] = "bionic", "2.1" },
		`the architecture "riscv64"`:               func(a *answer) { a.Machine = "riscv64" },
		"no C library 3.1":                         func(a *answer) { a.Libc = [2]string{"musl", "3.1"} },
	} {
		a := good
		edit(&a)
		if err := a.check(false); !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// entry is one header of a test archive.
type entry struct {
	name, link, body string
	kind             byte
	mode             int64
}

// tarOf writes an archive; a kind of 0 is a file.
func tarOf(t testing.TB, entries []entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Mode: e.mode, Size: int64(len(e.body)), Format: tar.FormatGNU}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		must(t, w.WriteHeader(h))
		_, err := io.WriteString(w, e.body)
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err := z.Write(b)
	must(t, errors.Join(err, z.Close()))
	return out.Bytes()
}

// writeArchive returns the options for an archive of these bytes.
func writeArchive(t testing.TB, b []byte) Options {
	t.Helper()
	file := filepath.Join(t.TempDir(), "python.tar.gz")
	must(t, os.WriteFile(file, b, 0o644))
	sum := sha256.Sum256(b)
	return Options{Archive: file, SHA256: hex.EncodeToString(sum[:])}
}

// standalone are the entries of an archive with the system's Python.
func standalone(t testing.TB, at string) []entry {
	t.Helper()
	real := needSystem(t)
	dir := prefixOf(t)
	entries := []entry{{name: "python/", kind: tar.TypeDir}}
	must(t, fs.WalkDir(os.DirFS(dir), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(dir, p))
		entries = append(entries, entry{name: at + p, body: string(b)})
		return err
	}))
	name := filepath.Base(real)
	return append(entries,
		entry{name: at + "bin/python3", link: name, kind: tar.TypeSymlink},
		entry{name: at + "bin/pip3", body: "#!/bin/sh\n"},
		entry{name: at + "lib/" + name + "/copy_of_os.py", link: at + "lib/" + name + "/os.py", kind: tar.TypeLink},
		entry{name: at + "lib/" + name + "/site-packages/pip/__main__.py", body: "print('real pip')\n"},
		entry{name: at + "share/terminfo/x/xterm", link: "../v/vt100", kind: tar.TypeSymlink})
}

// Archives of both kinds and both compressions give an interpreter, which stays
// when the archive is gone.
func TestStandalone(t *testing.T) {
	box := pyenvtest.Box(t)
	zst, err := zstd.NewWriter(nil)
	must(t, err)
	for name, b := range map[string][]byte{
		"install only, gzip": gzipped(t, tarOf(t, standalone(t, "python/"))),
		"full, zstd":         zst.EncodeAll(tarOf(t, standalone(t, "python/install/")), nil),
	} {
		t.Run(name, func(t *testing.T) {
			o := writeArchive(t, b)
			root := t.TempDir()
			it, err := Make(t.Context(), root, o, box)
			must(t, err)
			if it.Source != (Source{Kind: KindStandalone, From: o.Archive, SHA256: o.SHA256}) {
				t.Errorf("source is %+v", it.Source)
			}
			res := python(t, box, it, Executable, "-c", "import sys, copy_of_os; print(sys.executable)")
			if string(res.Stdout.Text) != Executable+"\n" {
				t.Errorf("%s%s", res.Stdout.Text, res.Stderr.Text)
			}
			res = python(t, box, it, Executable, "-m", "pip", "install", "x")
			if res.ExitCode != 1 || !strings.Contains(string(res.Stderr.Text), `"packages":["x"]`) {
				t.Errorf("pip: exit %d, %s%s", res.ExitCode, res.Stdout.Text, res.Stderr.Text)
			}
			left(t, root, it.ID)
			if again, err := Make(t.Context(), root, o, nil); err != nil || again.ID != it.ID {
				t.Errorf("made again: %v", err)
			}
		})
	}
}

// Case 54: what is wrong with an archive is told, and nothing of it stays.
func TestCase54BadArchives(t *testing.T) {
	ok := []entry{{name: "python/bin/python3.12", body: "x"}}
	with := func(e ...entry) []byte { return gzipped(t, tarOf(t, append(append([]entry{}, ok...), e...))) }
	half := with(entry{name: "python/lib/python3.12/os.py", body: strings.Repeat("x\n", 5000)})
	whole := writeArchive(t, half)
	cut := writeArchive(t, half[:len(half)/2])
	wrong := writeArchive(t, half)
	wrong.SHA256 = strings.Repeat("0", 64)
	for _, tc := range []struct {
		name string
		o    Options
		want string
	}{
		{"half a download", Options{Archive: cut.Archive, SHA256: whole.SHA256}, "or only a part"},
		{"half, with the hash of that", cut, "is damaged"},
		{"wrong hash", wrong, "has the SHA-256"},
		{"no hash", Options{Archive: whole.Archive}, "needs its SHA-256"},
		{"short hash", Options{Archive: whole.Archive, SHA256: "abcd"}, "needs its SHA-256"},
		{"hash without a file", Options{SHA256: whole.SHA256}, "is not an absolute path"},
		{"missing", Options{Archive: "/no/such", SHA256: whole.SHA256}, "cannot be opened"},
		{"a directory", Options{Archive: t.TempDir(), SHA256: whole.SHA256}, "is no file"},
		{"empty", writeArchive(t, nil), "too short"},
		{"not compressed", writeArchive(t, tarOf(t, ok)), "neither .tar.gz nor .tar.zst"},
		{"not a tar", writeArchive(t, gzipped(t, bytes.Repeat([]byte("x"), 2000))), "is damaged"},
		{"parent", writeArchive(t, with(entry{name: "python/../x", body: "x"})), `the name "python/../x"`},
		{"parent at once", writeArchive(t, with(entry{name: "../x", body: "x"})), `the name "../x"`},
		{"absolute", writeArchive(t, with(entry{name: "/etc/x", body: "x"})), `the name "/etc/x"`},
		{"backslash", writeArchive(t, with(entry{name: `python\x`, body: "x"})), "the name"},
		{"dot", writeArchive(t, with(entry{name: "python/./x", body: "x"})), "the name"},
		{"another top", writeArchive(t, with(entry{name: "usr/x", body: "x"})), "outside of python/"},
		{"absolute link", writeArchive(t, with(entry{name: "python/lib/x.so", link: "/etc/passwd", kind: tar.TypeSymlink})), "leads out of it"},
		{"link out", writeArchive(t, with(entry{name: "python/lib/x.so", link: "../../x", kind: tar.TypeSymlink})), "leads out of it"},
		{"link out, not wanted", writeArchive(t, with(entry{name: "python/share/x", link: "../../x", kind: tar.TypeSymlink})), "leads out of it"},
		{"link to the top", writeArchive(t, with(entry{name: "python/share/x", link: "..", kind: tar.TypeSymlink})), "leads out of it"},
		{"below a link", writeArchive(t, with(entry{name: "python/lib", link: "bin", kind: tar.TypeSymlink}, entry{name: "python/lib/x.so", body: "x"})), "below what is no directory"},
		{"below a file", writeArchive(t, with(entry{name: "python/bin/python3.12/x", body: "x"})), "below what is no directory"},
		{"twice", writeArchive(t, with(ok...)), "twice"},
		{"file and directory", writeArchive(t, with(entry{name: "python/bin", body: "x"})), "twice"},
		{"twice in two layouts", writeArchive(t, with(entry{name: "python/install/bin/python3.12", body: "x"})), "twice"},
		{"hard link out", writeArchive(t, with(entry{name: "python/lib/x.so", link: "/etc/passwd", kind: tar.TypeLink})), "hard link"},
		{"hard link to what is not copied", writeArchive(t, with(entry{name: "python/a", body: "x"}, entry{name: "python/lib/x.so", link: "python/a", kind: tar.TypeLink})), "not copied"},
		{"device", writeArchive(t, with(entry{name: "python/lib/x.so", kind: tar.TypeChar})), "neither a file"},
		{"block device, not wanted", writeArchive(t, with(entry{name: "python/x", kind: tar.TypeBlock})), "neither a file"},
		{"fifo", writeArchive(t, with(entry{name: "python/x", kind: tar.TypeFifo})), "neither a file"},
		{"setuid", writeArchive(t, with(entry{name: "python/x", body: "x", mode: 0o4755})), "setuid"},
		{"setgid", writeArchive(t, with(entry{name: "python/x", body: "x", mode: 0o2755})), "setuid"},
		{"bomb", writeArchive(t, with(entry{name: "python/x", body: strings.Repeat("\x00", 20<<20)})), "more in it"},
		{"bomb of what is wanted", writeArchive(t, with(entry{name: "python/lib/x.so", body: strings.Repeat("\x00", 20<<20)})), "more in it"},
		{"sparse", writeArchive(t, gzipped(t, sparse(t))), "sparse file"},
		{"goes on", writeArchive(t, gzipped(t, append(tarOf(t, ok), tarOf(t, ok)...))), "after its end"},
		{"no interpreter", writeArchive(t, gzipped(t, tarOf(t, []entry{{name: "python/bin/python3.12t", body: "x"}}))), "0 programs"},
		{"two interpreters", writeArchive(t, with(entry{name: "python/bin/python3.13", body: "x"})), "2 programs"},
		{"a link to nothing", writeArchive(t, with(entry{name: "python/lib/x.so", link: "y.so", kind: tar.TypeSymlink})), "leads to no file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			_, err := Make(t.Context(), root, tc.o, new(sandboxrun.Runner)) // never gets that far
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			left(t, root)
		})
	}
}

// sparse is an archive with a file of 1 GiB that is nothing but a hole, as a PAX
// header says (GNU, sparse format 1.0).
func sparse(t testing.TB) []byte {
	t.Helper()
	pax := ""
	for _, kv := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=python/lib/x.so", "GNU.sparse.realsize=1073741824"} {
		n := len(kv) + 4
		if n > 99 {
			t.Fatal(kv)
		}
		pax += fmt.Sprintf("%d %s\n", n, kv)
	}
	holes := "1\n1073741824\n0\n"
	b := tarOf(t, []entry{{name: "pax", body: pax}, {name: "python/lib/x.so", body: holes + strings.Repeat("\x00", 512-len(holes))}})
	b[156] = tar.TypeXHeader
	sum := 0
	copy(b[148:156], "        ")
	for _, c := range b[:512] {
		sum += int(c)
	}
	copy(b[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

// FuzzArchive: whatever the bytes, nothing is written outside of the prefix, and
// what is inside has no link that leads out.
func FuzzArchive(f *testing.F) {
	f.Add(tarOf(f, []entry{{name: "python/", kind: tar.TypeDir}, {name: "python/bin/python3.12", body: "x"}, {name: "python/lib/a.so", link: "b.so", kind: tar.TypeSymlink}}))
	f.Add(tarOf(f, []entry{{name: "python/lib/a.so", body: "x"}, {name: "python/lib/b.so", link: "python/lib/a.so", kind: tar.TypeLink}, {name: "python/../x", body: "x"}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		parent := t.TempDir()
		dir := filepath.Join(parent, "prefix")
		must(t, os.Mkdir(dir, 0o755))
		w, err := newWriter(dir)
		must(t, err)
		defer w.close()
		u := untar{w: w, seen: map[string]byte{}}
		err = u.run(t.Context(), &capped{r: bytes.NewReader(b), left: 1 << 20})
		if err != nil && !errors.Is(err, ErrRefused) {
			t.Errorf("%v", err)
		}
		if list, err := os.ReadDir(parent); err != nil || len(list) != 1 {
			t.Errorf("the parent has %v (%v)", list, err)
		}
		must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			if target, err := os.Readlink(p); err == nil && strings.Contains(target, "/") {
				t.Errorf("%s leads to %q", p, target)
			}
			return nil
		}))
	})
}
