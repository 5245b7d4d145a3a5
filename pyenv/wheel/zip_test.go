package wheel_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
)

func TestCase22ZipPath(t *testing.T) {
	for _, name := range []string{
		"../x", "/x", `a\..\x`, "a\x00b", "a/./b", "a/../../x", "a//b", "./x", "..", ".", "a/..", "C:/x", "c:x", "//host/x", "a/\x7f", "a\nb", "a\u0085b",
		"\xff\xfe", "e\u0301.py", strings.Repeat("a", 241), strings.Repeat("a/", 40) + "b", "a/b/../c.py", "demo-1.0.data/scripts/../x", "demo-1.0.data/data/../../x",
	} {
		wantCode(t, fmt.Sprintf("%q", name), with(wheeltest.File{Name: name, Body: "x"}), wheel.ErrZipPath)
	}
	wantCode(t, "directory", with(wheeltest.File{Name: "../x/"}), wheel.ErrZipPath)
	wantCode(t, "no name", with(wheeltest.File{Name: "/"}), wheel.ErrZipPath)
	for _, name := range []string{"ä/é.py", "名前.py", strings.Repeat("a", 240), strings.Repeat("a/", 39) + "b", "a b.txt", "..a/b..", "ab:c"} {
		if _, err := newLayer(t).unpack(t, with(wheeltest.File{Name: name, Body: "x"}), wheel.Options{}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestCase23ZipDuplicate(t *testing.T) {
	file := func(name string) wheeltest.File { return wheeltest.File{Name: name, Body: name} }
	for name, files := range map[string][]wheeltest.File{
		"exact":                   {file("a.py"), file("a.py")},
		"case":                    {file("a.py"), file("A.py")},
		"case of a directory":     {file("a/x.py"), file("A/X.py")},
		"folded":                  {file("straße.py"), file("STRASSE.py")},
		"file then directory":     {file("a"), file("a/b.py")},
		"directory then file":     {file("a/b.py"), file("a")},
		"deep":                    {file("a/b/c/d.py"), file("a/b")},
		"directory entry":         {file("a"), {Name: "a/"}},
		"directory entry reverse": {{Name: "a/"}, file("a")},
		"directory twice":         {{Name: "a/"}, {Name: "a/"}},
		"data over package":       {file("a.py"), file("demo-1.0.data/purelib/a.py")},
		"both libs":               {file("demo-1.0.data/platlib/a.py"), file("demo-1.0.data/purelib/A.py")},
	} {
		wantCode(t, name, with(files...), wheel.ErrZipDuplicate)
	}
	script := with(file("demo-1.0.data/scripts/run"))
	script.EntryPoints = "[console_scripts]\nrun = demo:main\n"
	wantCode(t, "script and entry point", script, wheel.ErrZipDuplicate)
	if _, err := open(with(wheeltest.File{Name: "a/"}, file("a/b.py"), wheeltest.File{Name: "a/c/"}), wheel.Options{}); err != nil {
		t.Errorf("directories with entries: %v", err)
	}
}

func TestCase24ZipType(t *testing.T) {
	for name, mode := range map[string]uint32{"symlink": 0o120777, "fifo": 0o010644, "device": 0o060644, "tty": 0o020644, "socket": 0o140755, "unknown": 0o030644, "directory as file": 0o040755} {
		wantCode(t, name, with(wheeltest.File{Name: "x", Body: "/etc/passwd", Mode: mode}), wheel.ErrZipType)
	}
	wantCode(t, "file as directory", with(wheeltest.File{Name: "x/", Mode: 0o100644}), wheel.ErrZipType)
	wantCode(t, "DOS directory", bent(func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Central.Attr = 0x10 }), wheel.ErrZipType)
	wantCode(t, "directory with content", with(wheeltest.File{Name: "x/", Body: "x"}), wheel.ErrZipType)

	l := newLayer(t)
	m, err := l.unpack(t, with(wheeltest.File{Name: "demo/run", Body: "x", Mode: 0o106755}, wheeltest.File{Name: "demo/none", Body: "y", Mode: 1 << 17}), wheel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tree := l.tree(t)
	for path, want := range map[string]string{
		"layer/site-packages/demo/run": "-r-xr-xr-x x", "layer/site-packages/demo/none": "-r--r--r-- y",
		"layer/site-packages/demo/__init__.py": "-r--r--r-- answer = 42\n", "layer/site-packages": "drwxr-xr-x", "layer/site-packages/demo": "drwxr-xr-x",
	} {
		if tree[path] != want {
			t.Errorf("%s is %q, want %q", path, tree[path], want)
		}
	}
	if len(m.Files) != 7 {
		t.Errorf("the manifest has %d files", len(m.Files))
	}
}

func TestCase25ZipAmbiguous(t *testing.T) {
	for name, change := range map[string]func(a *wheeltest.Archive, e *wheeltest.Entry){
		"local name":        func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Local.Name = "evil/__init__.py" },
		"local case":        func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Local.Name = "Demo/__init__.py" },
		"local size":        func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Local.Size++ },
		"local packed size": func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Local.Packed-- },
		"local crc":         func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Local.CRC++ },
		"local method":      func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Local.Method = 0 },
		"local flags":       func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Local.Flags = 0x800 },
		"encrypted":         func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Both(func(h *wheeltest.Header) { h.Flags |= 1 }) },
		"strong encryption": func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Both(func(h *wheeltest.Header) { h.Flags |= 0x40 }) },
		"patch":             func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Both(func(h *wheeltest.Header) { h.Flags |= 0x20 }) },
		"bzip2":             func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Both(func(h *wheeltest.Header) { h.Method = 12 }) },
		"zstd":              func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Both(func(h *wheeltest.Header) { h.Method = 93 }) },
		"stored, two sizes": func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Both(func(h *wheeltest.Header) { h.Method = 0 }) },
		"prefix":            func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.Prefix = "#!/bin/sh\n" },
		"gap":               func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.Gap = "x" },
		"trailing bytes":    func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.Trailer = "x" },
		"trailing zero":     func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.Trailer = "\x00" },
		"end in comment":    func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.Comment = "PK\x05\x06" + strings.Repeat("\x00", 18) },
		"odd comment":       func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.Comment = "a\x01b" },
		"zip64":             func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.Zip64 = true },
		"another volume":    func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.End = func(e *wheeltest.End) { e.Disk = 1 } },
		"fewer here":        func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.End = func(e *wheeltest.End) { e.Here-- } },
		"fewer entries":     func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.End = func(e *wheeltest.End) { e.Here--; e.Total-- } },
		"more entries":      func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.End = func(e *wheeltest.End) { e.Here++; e.Total++ } },
		"directory offset":  func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.End = func(e *wheeltest.End) { e.Offset-- } },
		"directory size":    func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.End = func(e *wheeltest.End) { e.Size-- } },
		"entry's volume":    func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Central.Disk = 1 },
		"second name": func(_ *wheeltest.Archive, e *wheeltest.Entry) {
			e.Both(func(h *wheeltest.Header) { h.Extra = "\x75\x70\x05\x00\x01abcd" })
		},
		"extra cut off": func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Central.Extra = "\x01\x99\xff\x00" },
		"local extra":   func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Local.Extra = "abc" },
		"zip64 sizes": func(_ *wheeltest.Archive, e *wheeltest.Entry) {
			e.Central.Extra = zip64(e.Central.Size, e.Central.Packed)
			e.Central.Size, e.Central.Packed = 0xffffffff, 0xffffffff
		},
		"zip64 beside": func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Local.Extra = zip64(e.Local.Size+1, e.Local.Packed) },
		"name without encoding": func(a *wheeltest.Archive, _ *wheeltest.Entry) {
			n := wheeltest.NewEntry(wheeltest.File{Name: "ä.py"})
			n.Both(func(h *wheeltest.Header) { h.Flags = 0 })
			a.Entries = append([]*wheeltest.Entry{n}, a.Entries...)
		},
		"hidden local header": func(a *wheeltest.Archive, _ *wheeltest.Entry) {
			n := wheeltest.NewEntry(wheeltest.File{Name: "hidden.py", Body: "x"})
			n.Hidden = true
			a.Entries = append(a.Entries, n)
		},
		"shared local header": func(a *wheeltest.Archive, e *wheeltest.Entry) {
			n := wheeltest.NewEntry(wheeltest.File{Name: "other.py", Body: "answer = 42\n"})
			n.NoLocal = true // and so its offset is that of the first entry
			a.Entries = append(a.Entries, n)
		},
		"overlap": func(_ *wheeltest.Archive, e *wheeltest.Entry) {
			e.Both(func(h *wheeltest.Header) { h.Method, h.Packed, h.Size = 0, 1<<19, 1<<19 })
		},
		"no descriptor": func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Stream(); e.Descriptor = nil },
		"descriptor crc": func(_ *wheeltest.Archive, e *wheeltest.Entry) {
			e.Stream()
			e.Descriptor[4]++
		},
		"descriptor signature": func(_ *wheeltest.Archive, e *wheeltest.Entry) {
			e.Stream()
			e.Descriptor[0]++
		},
		"descriptor unasked": func(_ *wheeltest.Archive, e *wheeltest.Entry) {
			e.Descriptor = []byte(strings.Repeat("x", 12))
		},
		"left over packed bytes": func(_ *wheeltest.Archive, e *wheeltest.Entry) {
			e.Data = append(e.Data, "hidden"...)
			e.Both(func(h *wheeltest.Header) { h.Packed += 6 })
		},
		"less than stated": func(_ *wheeltest.Archive, e *wheeltest.Entry) {
			e.Both(func(h *wheeltest.Header) { h.Size++ })
		},
	} {
		w := bent(change)
		if name == "less than stated" { // RECORD has to agree with the headers
			w.Record = func(rows [][]string) [][]string { rows[0][2] = "13"; return rows }
		}
		wantCode(t, name, w, wheel.ErrZipAmbiguous)
	}
	inner := wheeltest.Wheel{}.Bytes()
	wantCode(t, "two archives", bent(func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.Prefix = string(inner) }), wheel.ErrZipAmbiguous)
	wantCode(t, "archive behind", bent(func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.Trailer = string(inner) }), wheel.ErrZipAmbiguous)
}

// zip64 is the extra field with two sizes.
func zip64(size, packed uint32) string {
	b := binary.LittleEndian.AppendUint64([]byte{1, 0, 16, 0}, uint64(size))
	return string(binary.LittleEndian.AppendUint64(b, uint64(packed)))
}

// TestHonestVariants are the archives of other packers, which hide nothing.
func TestHonestVariants(t *testing.T) {
	for name, change := range map[string]func(a *wheeltest.Archive, e *wheeltest.Entry){
		"comment":         func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.Comment = "made by hand" },
		"streamed":        func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Stream() },
		"streamed, short": func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Stream(); e.Descriptor = e.Descriptor[4:] },
		"streamed, sizes twice": func(_ *wheeltest.Archive, e *wheeltest.Entry) {
			local := e.Central
			e.Stream()
			local.Flags |= 8
			e.Local = local
		},
		"timestamps":    func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Local.Extra = "UT\x05\x00\x01abcd" },
		"entry comment": func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Central.Comment = "hello" },
		"from DOS":      func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Central.MadeBy, e.Central.Attr = 20, 0x20 },
		"hard packed":   func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Both(func(h *wheeltest.Header) { h.Flags |= 2 }) },
		"zip64 local sizes": func(_ *wheeltest.Archive, e *wheeltest.Entry) {
			e.Local.Extra = zip64(e.Local.Size, e.Local.Packed)
			e.Local.Size, e.Local.Packed = 0xffffffff, 0xffffffff
		},
		"stored": func(_ *wheeltest.Archive, e *wheeltest.Entry) {
			e.Data = []byte("answer = 42\n")
			e.Both(func(h *wheeltest.Header) { h.Method, h.Packed = 0, h.Size })
		},
	} {
		if _, err := newLayer(t).unpack(t, bent(change), wheel.Options{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	swapped := wheeltest.Wheel{Zip: func(a *wheeltest.Archive) {
		last := len(a.Entries) - 1
		a.Entries[0], a.Entries[last] = a.Entries[last], a.Entries[0]
	}}
	if _, err := newLayer(t).unpack(t, swapped, wheel.Options{}); err != nil {
		t.Errorf("RECORD first: %v", err)
	}
}

func TestZipDamaged(t *testing.T) {
	good := wheeltest.Wheel{}.Bytes()
	for n := range good {
		_, err := wheel.Open(bytes.NewReader(good[:n]), int64(n), "demo-1.0-py3-none-any.whl", wheel.Options{})
		var e *wheel.Error
		if !errors.As(err, &e) {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
	}
	for name, b := range map[string][]byte{"empty": {}, "text": []byte(strings.Repeat("hello\n", 100)), "zeros": make([]byte, 1<<20)} {
		if _, err := wheel.Open(bytes.NewReader(b), int64(len(b)), "demo-1.0-py3-none-any.whl", wheel.Options{}); !errors.Is(err, wheel.ErrZipDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := wheel.Open(bytes.NewReader(good[:len(good)-30]), int64(len(good)), "demo-1.0-py3-none-any.whl", wheel.Options{}); !errors.Is(err, wheel.ErrZipDamaged) {
		t.Errorf("shorter than its size: %v", err)
	}
	wantCode(t, "checksum", bent(func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Both(func(h *wheeltest.Header) { h.CRC++ }) }), wheel.ErrZipDamaged)
	wantCode(t, "no deflate", bent(func(_ *wheeltest.Archive, e *wheeltest.Entry) {
		e.Data = []byte(strings.Repeat("\xff", len(e.Data)))
	}), wheel.ErrZipDamaged)
	wantCode(t, "deflate cut off", bent(func(_ *wheeltest.Archive, e *wheeltest.Entry) {
		e.Data = e.Data[:len(e.Data)-3]
		e.Both(func(h *wheeltest.Header) { h.Packed -= 3 })
	}), wheel.ErrZipDamaged)
}

// meter is a reader of an archive that watches the heap.
type meter struct {
	io.ReaderAt
	reads int
	most  uint64
}

func (m *meter) ReadAt(b []byte, at int64) (int, error) {
	if m.reads++; m.reads%500 == 1 {
		m.sample()
	}
	return m.ReaderAt.ReadAt(b, at)
}

func (m *meter) sample() {
	var st runtime.MemStats
	runtime.ReadMemStats(&st)
	m.most = max(m.most, st.HeapAlloc)
}

// peak runs Open and Unpack and returns how much the heap grew beyond what it was
// before, as seen by every 500th read of the archive.
func peak(t *testing.T, w wheeltest.Wheel, o wheel.Options) (mib float64, err error) {
	t.Helper()
	b := w.Bytes()
	name := w.FileName()
	w = wheeltest.Wheel{}
	l := newLayer(t)
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	// Garbage is no part of it, and with the archive itself in the heap there may be as
	// much of it as the archive is large.
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	m := &meter{ReaderAt: bytes.NewReader(b)}
	opened, err := wheel.Open(m, int64(len(b)), name, o)
	m.sample()
	if err == nil {
		_, err = opened.Unpack(t.Context(), l.root)
		m.sample()
	}
	if err != nil {
		if left := l.tree(t); len(left) != 1 {
			t.Errorf("left behind: %d files", len(left))
		}
	}
	return float64(int64(m.most)-int64(before.HeapAlloc)) / (1 << 20), err
}

func TestCase26ZipBomb(t *testing.T) {
	zeros := strings.Repeat("\x00", 50<<20)
	many := func(n int) wheeltest.Wheel {
		var files []wheeltest.File
		for i := range n {
			files = append(files, wheeltest.File{Name: fmt.Sprintf("demo/m%06d.py", i)})
		}
		return with(files...)
	}
	lying := bent(func(_ *wheeltest.Archive, e *wheeltest.Entry) {
		e.Data = wheeltest.Deflate(zeros)
		e.Both(func(h *wheeltest.Header) { h.Packed = uint32(len(e.Data)) })
	})
	zip64 := many(200_000)
	zip64.Zip = func(a *wheeltest.Archive) { a.Zip64 = true }
	deep := with()
	for i := range 5000 {
		deep.Files = append(deep.Files, wheeltest.File{Name: strings.Repeat(fmt.Sprintf("%04d/", i), 38) + "x"})
	}
	for name, c := range map[string]struct {
		w wheeltest.Wheel
		o wheel.Options
	}{
		"50 MB in 50 KB":    {with(wheeltest.File{Name: "demo/zeros", Body: zeros}), wheel.Options{}},
		"60,001 entries":    {many(60_000), wheel.Options{}},
		"200,000 entries":   {zip64, wheel.Options{}},
		"lying size":        {lying, wheel.Options{}},
		"one file":          {with(wheeltest.File{Name: "demo/x", Body: strings.Repeat("x", 1001)}), wheel.Options{MaxFile: 1000}},
		"total":             {with(wheeltest.File{Name: "demo/x", Body: strings.Repeat("x", 1000)}), wheel.Options{MaxTotal: 1000}},
		"200,000 ancestors": {deep, wheel.Options{}},
	} {
		mib, err := peak(t, c.w, c.o)
		if !errors.Is(err, wheel.ErrZipBomb) {
			t.Errorf("%s: %v", name, err)
		}
		if mib > 64 {
			t.Errorf("%s took %.0f MiB", name, mib)
		}
		t.Logf("%s: %.1f MiB", name, mib)
	}
}

// TestMemory: a wheel that uses its limits up unpacks in less than 64 MiB.
func TestMemory(t *testing.T) {
	if raceDetector {
		t.Skip("SKIP the race detector takes memory of its own")
	}
	big := with(wheeltest.File{Name: "demo/big", Body: noise(80 << 20)})
	wide := with()
	names := 20_000
	if os.Getenv("MCP_VDISK_SOAK") != "1" {
		names = 5000
	}
	for i := range names {
		wide.Files = append(wide.Files, wheeltest.File{Name: fmt.Sprintf("demo/%0200d/m%05d.py", i%500, i)})
	}
	for name, w := range map[string]wheeltest.Wheel{"80 MiB file": big, "many long names": wide} {
		mib, err := peak(t, w, wheel.Options{NoSync: true})
		if err != nil || mib > 64 {
			t.Errorf("%s: %.0f MiB, %v", name, mib, err)
		}
		t.Logf("%s: %.1f MiB", name, mib)
	}
}

// noise does not compress to nothing.
func noise(n int) string {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x >> 8 & 15)
	}
	return string(b)
}
