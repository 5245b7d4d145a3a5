package bundle

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// sample is a small backup with every kind of entry.
func sample(t testing.TB) (data []byte, f Facts, digest string) {
	t.Helper()
	hash := strings.Repeat("ab", 32)
	f = Facts{ID: "01", Time: time.Unix(1e9, 5), Install: "aa", Disks: []Disk{{Name: "default"}, {Name: "two.2"}}}
	for i, name := range []string{Version, Config, Log, "images/default.vdisk", "images/two.2.vdisk", "envs/catalog.json", "envs/wanted",
		"envs/locks/0123456789abcdef.json", "envs/archives/" + hash + ".tar.zst", "envs/wheelhouse/" + hash + ".whl"} {
		f.Entries = append(f.Entries, Entry{Name: name, Size: int64(i * i * 10)})
	}
	var b bytes.Buffer
	w, err := NewWriter(&b, f)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range f.Entries {
		if err := w.Add(writeBytes(bytes.Repeat([]byte{'x'}, int(e.Size)))); err != nil {
			t.Fatal(err)
		}
	}
	if digest, err = w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), f, digest
}

// readAll reads a backup to its end.
func readAll(r io.Reader) (*Reader, []Entry, error) {
	b, err := NewReader(r)
	if err != nil {
		return nil, nil, err
	}
	defer b.Close()
	var list []Entry
	for {
		e, body, err := b.Next()
		if err == io.EOF {
			return b, list, nil
		}
		if err != nil {
			return b, list, err
		}
		n, err := io.Copy(io.Discard, body)
		if err != nil {
			return b, list, err
		}
		if n != e.Size {
			return b, list, fmt.Errorf("%s: %d bytes, not %d", e.Name, n, e.Size)
		}
		list = append(list, e)
	}
}

func TestRoundTrip(t *testing.T) {
	data, f, digest := sample(t)
	b, list, err := readAll(bytes.NewReader(data))
	if err != nil || len(list) != len(f.Entries) || b.Digest() != digest || len(b.Facts().Disks) != 2 {
		t.Fatalf("%v, %d entries, %v", err, len(list), b.Facts())
	}
}

// A backup that is cut anywhere, or has one bit changed anywhere, is refused.
func TestDamage(t *testing.T) {
	data, _, _ := sample(t)
	for n := range data {
		if _, _, err := readAll(bytes.NewReader(data[:n])); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNotBackup) {
			t.Errorf("cut at %d of %d: %v", n, len(data), err)
		}
	}
	for i := range len(data) * 8 {
		c := bytes.Clone(data)
		c[i/8] ^= 1 << (i % 8)
		b, list, err := readAll(bytes.NewReader(c))
		if err == nil && (b == nil || len(list) == 0) {
			t.Errorf("bit %d: %v", i, err)
		}
		if err == nil && !harmlessBit(t, c, data) {
			t.Errorf("bit %d: taken", i)
		}
	}
	for name, more := range map[string][]byte{"a byte": {0}, "text": []byte("more"), "a frame": packed(t, []byte("more"))} {
		if _, _, err := readAll(bytes.NewReader(append(bytes.Clone(data), more...))); !errors.Is(err, ErrDamaged) {
			t.Errorf("followed by %s: %v", name, err)
		}
	}
}

// harmlessBit says whether a changed backup holds what the original does: a bit of the
// frame's header that means nothing.
func harmlessBit(t *testing.T, a, b []byte) bool {
	t.Helper()
	return bytes.Equal(unpacked(t, a), unpacked(t, b))
}

func unpacked(t *testing.T, data []byte) []byte {
	t.Helper()
	d, err := zstd.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	text, err := io.ReadAll(d)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func packed(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(64<<10))
	if err == nil {
		_, err = w.Write(data)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// file is an entry of a backup that somebody else made.
type file struct {
	h    tar.Header
	text string
}

func plainFile(name, text string) file {
	return file{tar.Header{Name: name, Size: int64(len(text)), Mode: 0o600}, text}
}

func made(t testing.TB, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&f.h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed(t, b.Bytes())
}

func factsOf(t testing.TB, change func(*Facts)) file {
	t.Helper()
	f := Facts{Format: Format, Entries: []Entry{{Name: Version, Size: 2}, {Name: Log, Size: 1}}}
	change(&f)
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return plainFile(factsName, string(text))
}

// Whoever makes a backup by hand gets no further than the table of names.
func TestHostile(t *testing.T) {
	same := func(*Facts) {}
	v, l := plainFile(Version, "1\n"), plainFile(Log, "x")
	with := func(name string, size int64) file {
		return factsOf(t, func(f *Facts) { f.Entries = append(f.Entries, Entry{Name: name, Size: size}) })
	}
	link := plainFile(Log, "")
	link.h.Typeflag, link.h.Linkname = tar.TypeSymlink, "/etc/passwd"
	xattr := l
	xattr.h.PAXRecords, xattr.h.Format = map[string]string{"SCHILY.xattr.user.x": "y"}, tar.FormatPAX
	for name, c := range map[string]struct {
		files []file
		kind  error
	}{
		"nothing":             {nil, ErrNotBackup},
		"something else":      {[]file{plainFile("README", "x")}, ErrNotBackup},
		"no JSON":             {[]file{plainFile(factsName, "x")}, ErrNotBackup},
		"another form":        {[]file{factsOf(t, func(f *Facts) { f.Format = 2 })}, ErrVersion},
		"no log":              {[]file{factsOf(t, func(f *Facts) { f.Entries = f.Entries[:1] }), v}, ErrDamaged},
		"a way out":           {[]file{with("images/../../x.vdisk", 1)}, ErrDamaged},
		"an absolute name":    {[]file{with("/etc/passwd", 1)}, ErrDamaged},
		"a name of the state": {[]file{with("daemon.lock", 1)}, ErrDamaged},
		"twice":               {[]file{with(Log, 1)}, ErrDamaged},
		"a negative size":     {[]file{with(Config, -1)}, ErrDamaged},
		"large settings":      {[]file{with(Config, 2<<20)}, ErrDamaged},
		"sizes that overflow": {[]file{factsOf(t, func(f *Facts) {
			f.Entries[1].Size, f.Disks = 1<<62, []Disk{{Name: "a"}}
			f.Entries = append(f.Entries, Entry{Name: "images/a.vdisk", Size: 1 << 62})
		})}, ErrDamaged},
		"a disk of nobody":      {[]file{with("images/a.vdisk", 1)}, ErrDamaged},
		"a disk that is not in": {[]file{factsOf(t, func(f *Facts) { f.Disks = []Disk{{Name: "a"}} })}, ErrDamaged},
		"two of one name": {[]file{factsOf(t, func(f *Facts) {
			f.Disks = []Disk{{Name: "a"}, {Name: "a"}}
			f.Entries = append(f.Entries, Entry{Name: "images/a.vdisk"})
		})}, ErrDamaged},
		"another order":        {[]file{factsOf(t, same), l, v}, ErrDamaged},
		"another size":         {[]file{factsOf(t, same), v, plainFile(Log, "xx")}, ErrDamaged},
		"a link":               {[]file{factsOf(t, func(f *Facts) { f.Entries[1].Size = 0 }), v, link}, ErrDamaged},
		"attributes":           {[]file{factsOf(t, same), v, xattr}, ErrDamaged},
		"no manifest":          {[]file{factsOf(t, same), v, l}, ErrDamaged},
		"an empty manifest":    {[]file{factsOf(t, same), v, l, plainFile(manifestName, "{}")}, ErrDamaged},
		"a manifest of others": {[]file{factsOf(t, same), v, l, plainFile(manifestName, `{"format":1,"entries":[]}`)}, ErrDamaged},
	} {
		_, _, err := readAll(bytes.NewReader(made(t, c.files...)))
		if !errors.Is(err, c.kind) {
			t.Errorf("%s: %v, want %v", name, err, c.kind)
		}
		if err != nil && (strings.Contains(err.Error(), "\n") || len(err.Error()) > 400) {
			t.Errorf("%s: not a sentence: %q", name, err)
		}
	}
}

// What cannot be read is not called damaged.
func TestUnreadable(t *testing.T) {
	data, _, _ := sample(t)
	broken := errors.New("the line is down")
	for _, n := range []int{0, 10, len(data) / 2, len(data) - 1} {
		r := io.MultiReader(bytes.NewReader(data[:n]), failing{broken})
		if _, _, err := readAll(r); !errors.Is(err, broken) || errors.Is(err, ErrDamaged) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// A writer holds to what it told.
func TestWriterKeepsItsWord(t *testing.T) {
	facts := func(sizes ...int64) Facts {
		return Facts{Entries: []Entry{{Name: Version, Size: sizes[0]}, {Name: Log, Size: sizes[1]}}}
	}
	w, err := NewWriter(io.Discard, facts(2, 3))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(writeBytes([]byte("1"))); err == nil {
		t.Error("an entry that is too short is taken")
	}
	w, _ = NewWriter(io.Discard, facts(2, 3))
	if err := w.Add(writeBytes([]byte("123"))); err == nil {
		t.Error("an entry that is too long is taken")
	}
	w, _ = NewWriter(io.Discard, facts(2, 3))
	if err := w.Add(writeBytes([]byte("12"))); err != nil {
		t.Error(err)
	}
	if _, err := w.Close(); err == nil {
		t.Error("an entry is missing, and it is closed")
	}
	if _, err := NewWriter(io.Discard, Facts{Entries: []Entry{{Name: "x"}}}); err == nil {
		t.Error("a name that no reader takes is taken")
	}
}

func FuzzReader(f *testing.F) {
	data, _, _ := sample(f)
	d, err := zstd.NewReader(bytes.NewReader(data))
	if err != nil {
		f.Fatal(err)
	}
	plain, err := io.ReadAll(d)
	d.Close()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plain)
	f.Add(plain[:2000])
	f.Fuzz(func(t *testing.T, text []byte) {
		if b, list, err := readAll(bytes.NewReader(packed(t, text))); err == nil && len(list) != len(b.Facts().Entries) {
			t.Errorf("%d entries of %d", len(list), len(b.Facts().Entries))
		}
	})
}
