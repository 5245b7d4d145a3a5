package wheel_test

import (
	"archive/zip"
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
)

// FuzzScan: what Open and Verify accept, Go's archive/zip and Python's zipfile
// see as the same files with the same bytes, and so does Unpack.
func FuzzScan(f *testing.F) {
	for _, w := range zipCorpus() {
		f.Add(w.Bytes())
	}
	python := startLister(f)
	f.Fuzz(func(t *testing.T, b []byte) { compareReaders(t, python, b) })
}

// FuzzHeaders is FuzzScan for archives whose headers are bent one field at a
// time, which bytes changed at random hardly ever hit: each four bytes of program
// name an entry, a field, which of its headers, and a value.
func FuzzHeaders(f *testing.F) {
	f.Add([]byte{})
	for field := range byte(20) {
		f.Add([]byte{0, field, 2, 1})
		f.Add([]byte{0, field, 0, 1, 1, field, 1, 8})
	}
	var straight *wheeltest.Archive
	w := with(wheeltest.File{Name: "demo/other.py", Body: strings.Repeat("x", 300)}, wheeltest.File{Name: "demo/"})
	w.Zip = func(a *wheeltest.Archive) { straight = a }
	w.Bytes()
	python := startLister(f)
	f.Fuzz(func(t *testing.T, program []byte) {
		var a wheeltest.Archive
		for _, e := range straight.Entries {
			c := *e
			c.Data = slices.Clone(e.Data)
			a.Entries = append(a.Entries, &c)
		}
		for op := range slices.Chunk(program[:min(len(program), 64)/4*4], 4) {
			bend(&a, op)
		}
		compareReaders(t, python, a.Bytes())
	})
}

// bend changes one field.
func bend(a *wheeltest.Archive, op []byte) {
	e := a.Entries[int(op[0])%len(a.Entries)]
	headers := [][]*wheeltest.Header{{&e.Local}, {&e.Central}, {&e.Local, &e.Central}}[op[2]%3]
	v := op[3]
	for _, h := range headers {
		switch op[1] % 20 {
		case 0:
			h.Flags ^= 1 << (v % 16)
		case 1:
			h.Method = uint16(v)
		case 2:
			h.CRC += uint32(v)
		case 3:
			h.Packed += uint32(int8(v))
		case 4:
			h.Size += uint32(int8(v))
		case 5:
			h.Name += string(rune(v))
		case 6:
			h.Name = a.Entries[int(v)%len(a.Entries)].Central.Name
		case 7:
			h.Extra += string([]byte{v, 0, 2, 0, 'x', 'y'})
		case 8:
			h.Extra = zip64(h.Size, h.Packed)
		case 9:
			h.Size, h.Packed = 0xffffffff, 0xffffffff
		case 10:
			h.Attr ^= 1 << (v % 32)
		case 11:
			h.Offset = uint32(v)
		case 12:
			h.Comment += string([]byte{'P', 'K', v, v + 1})
		case 13:
			h.Disk, h.MadeBy = uint16(v%2), uint16(v)<<8
		}
	}
	switch op[1] % 20 {
	case 14:
		e.Data = append(e.Data, v)
	case 15:
		e.Stream()
		e.Descriptor = e.Descriptor[v%5:]
	case 16:
		e.NoLocal, e.Hidden = v&1 != 0, v&2 != 0
	case 17:
		a.Comment += string([]byte{v})
	case 18:
		a.Prefix, a.Gap, a.Trailer = strings.Repeat("p", int(v&3)), strings.Repeat("g", int(v>>2&3)), strings.Repeat("t", int(v>>4&3))
	case 19:
		a.End = func(end *wheeltest.End) {
			end.Here += uint16(v & 1)
			end.Total += uint16(v >> 1 & 1)
			end.Offset += uint32(v >> 2)
		}
	}
}

// compareReaders opens an archive with limits small enough for fuzzing.
func compareReaders(t *testing.T, python *lister, b []byte) {
	t.Helper()
	o := wheel.Options{MaxEntries: 1000, MaxFile: 1 << 20, MaxTotal: 4 << 20, NoSync: true}
	w, err := wheel.Open(bytes.NewReader(b), int64(len(b)), "demo-1.0-py3-none-any.whl", o)
	if err == nil {
		err = w.Verify(t.Context())
	}
	if err != nil {
		var e *wheel.Error
		if !errors.As(err, &e) {
			t.Fatalf("an error without code: %v", err)
		}
		return
	}
	golang := listGo(t, b)
	if python != nil {
		if other := python.list(t, b); !slices.Equal(golang, other) {
			t.Fatalf("Go lists %q, Python %q", golang, other)
		}
	}
	l := newLayer(t)
	m, err := w.Unpack(t.Context(), l.root)
	if err != nil {
		t.Fatalf("verified, and not unpacked: %v", err)
	}
	for _, file := range m.Files {
		if !slices.Contains([]string{wheel.SitePackages, wheel.Bin, wheel.Data, wheel.Include}, strings.SplitN(file.Path, "/", 2)[0]) {
			t.Fatalf("%q was unpacked", file.Path)
		}
	}
}

// zipCorpus is archives of every shape, good and bad ones.
func zipCorpus() []wheeltest.Wheel {
	scripts := with(wheeltest.File{Name: "demo-1.0.data/scripts/run", Body: "#!python\n"}, wheeltest.File{Name: "demo/"}, wheeltest.File{Name: "ä.py", Body: "x"}, wheeltest.File{Name: "x.pth", Body: "import x\nlib\n"})
	scripts.EntryPoints = "[console_scripts]\ncli = demo:main\n"
	return []wheeltest.Wheel{
		{}, scripts, {Requires: []string{"numpy>=1 ; extra == 'x'"}, RequiresPython: ">=3.9"},
		bent(func(_ *wheeltest.Archive, e *wheeltest.Entry) { e.Stream() }),
		bent(func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.Comment = "comment" }),
		bent(func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.Zip64 = true }),
		bent(func(_ *wheeltest.Archive, e *wheeltest.Entry) {
			e.Local.Extra = zip64(e.Local.Size, e.Local.Packed)
			e.Local.Size, e.Local.Packed = 0xffffffff, 0xffffffff
		}),
		bent(func(_ *wheeltest.Archive, e *wheeltest.Entry) {
			e.Data = []byte("answer = 42\n")
			e.Both(func(h *wheeltest.Header) { h.Method, h.Packed = 0, h.Size })
		}),
		bent(func(a *wheeltest.Archive, _ *wheeltest.Entry) { a.Prefix = "x" }),
		with(wheeltest.File{Name: "../x"}), with(wheeltest.File{Name: "x", Mode: 0o120777, Body: "y"}),
	}
}

// TestOthersSeeTheSame is FuzzScan's comparison over the corpus, for when no
// fuzzing is done.
func TestOthersSeeTheSame(t *testing.T) {
	python := startLister(t)
	if python == nil {
		t.Skip("SKIP no /usr/bin/python3 to compare with")
	}
	accepted := 0
	for _, w := range zipCorpus() {
		b := w.Bytes()
		if _, err := wheel.Open(bytes.NewReader(b), int64(len(b)), w.FileName(), wheel.Options{}); err != nil {
			continue
		}
		accepted++
		if golang, other := listGo(t, b), python.list(t, b); !slices.Equal(golang, other) || len(golang) == 0 {
			t.Errorf("Go lists %q, Python %q", golang, other)
		}
	}
	if accepted < 7 {
		t.Errorf("only %d were accepted", accepted)
	}
}

// listGo is "name size crc" of every entry as archive/zip reads it.
func listGo(t *testing.T, b []byte) []string {
	t.Helper()
	r, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatalf("archive/zip: %v", err)
	}
	var list []string
	for _, f := range r.File {
		in, err := f.Open()
		if err != nil {
			t.Fatalf("archive/zip, %q: %v", f.Name, err)
		}
		body, err := io.ReadAll(in)
		if err != nil {
			t.Fatalf("archive/zip, %q: %v", f.Name, err)
		}
		list = append(list, fmt.Sprintf("%x %d %d", f.Name, len(body), crc32.ChecksumIEEE(body)))
	}
	return list
}

// lister is a Python that lists archives, one after the other: it reads a length
// and an archive, and answers with a length and lines like listGo's.
type lister struct {
	in  io.Writer
	out *bufio.Reader
}

const listerCode = `
import io, struct, sys, zipfile, zlib
while True:
    head = sys.stdin.buffer.read(4)
    if len(head) < 4:
        break
    data = sys.stdin.buffer.read(struct.unpack("<I", head)[0])
    try:
        z = zipfile.ZipFile(io.BytesIO(data))
        lines = []
        for info in z.infolist():
            body = z.read(info)
            lines.append("%s %d %d" % (info.filename.encode().hex(), len(body), zlib.crc32(body)))
        answer = "\n".join(lines)
    except Exception as e:
        answer = "error: %r" % e
    answer = answer.encode("utf-8", "replace")
    sys.stdout.buffer.write(struct.pack("<I", len(answer)) + answer)
    sys.stdout.buffer.flush()
`

// startLister starts it, once per process; nil if there is no Python.
func startLister(tb testing.TB) *lister {
	tb.Helper()
	const python = "/usr/bin/python3"
	cmd := exec.Command(python, "-I", "-c", listerCode)
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		return nil
	}
	tb.Cleanup(func() {
		in.Close() // which ends it
		if err := cmd.Wait(); err != nil {
			tb.Errorf("%s: %v", python, err)
		}
	})
	return &lister{in, bufio.NewReader(out)}
}

func (l *lister) list(t *testing.T, b []byte) []string {
	t.Helper()
	if _, err := l.in.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...)); err != nil {
		t.Fatal(err)
	}
	var head [4]byte
	if _, err := io.ReadFull(l.out, head[:]); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, binary.LittleEndian.Uint32(head[:]))
	if _, err := io.ReadFull(l.out, answer); err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(answer), "\n")
}

// FuzzMetadata: whatever is read has a valid name and version, and no line that
// begins like a requirement, in whatever line ends, has been passed over.
func FuzzMetadata(f *testing.F) {
	for _, text := range []string{
		"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n\nbody\n",
		"Metadata-Version: 2.1\r\nName: demo\r\nVersion: 1.0\r\nRequires-Dist: a>=1 ; extra == 'x'\r\n",
		"Metadata-Version: 2.1\rName: demo\rVersion: 1!1.0rc1\rRequires-Dist: a @ http://example.org\r\r",
		"Metadata-Version: 2.4\nName: demo\nVersion: 1\nDescription: x\n  y\n\tz\nRequires-Python: >=3.9\nProvides-Extra: x\nLicense: MIT\n",
		"", "\n", ":", " x", "Name", "\xff\xfe: x\n", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\nSummary: \xff\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := wheel.ParseMetadata(text)
		if err != nil {
			if !errors.Is(err, wheel.ErrWheelMetadata) && !errors.Is(err, wheel.ErrDirectURL) {
				t.Fatal(err)
			}
			return
		}
		if m.Name == "" || m.Version.IsZero() {
			t.Fatalf("%q gave %+v", text, m)
		}
		lines := 0
		for line := range strings.SplitSeq(strings.ReplaceAll(strings.ReplaceAll(string(text), "\r\n", "\n"), "\r", "\n"), "\n") {
			if line == "" {
				break
			}
			if strings.HasPrefix(strings.ToLower(line), "requires-dist:") {
				lines++
			}
		}
		if lines != len(m.Requires) {
			t.Fatalf("%q has %d requirements, %d were read", text, lines, len(m.Requires))
		}
		for _, r := range m.Requires {
			if r.URL != "" {
				t.Fatalf("%q needs %s", text, r.URL)
			}
		}
	})
}
