package workspace

import (
	"bytes"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// texts are files that paging could go wrong on. The large ones span several
// chunks.
func texts() map[string]string {
	r := rand.New(rand.NewPCG(3, 4))
	random := make([]byte, 300_000)
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	long := strings.Repeat("x", 299) + "\n"
	return map[string]string{
		"empty":                  "",
		"one line":               "hello\n",
		"no newline at the end":  "a\nb",
		"only newlines":          "\n\n\n",
		"inline of 128 bytes":    strings.Repeat("ab\n", 42) + "ab",
		"one chunk":              lines(300),
		"lines of 300 bytes":     strings.Repeat(long, 4000),
		"several chunks":         lines(20_000),
		"several chunks, open":   lines(20_000) + "the end",
		"runes on all borders":   strings.Repeat("€", 200_000),
		"four-byte runes":        strings.Repeat("😀", 100_000) + "\n",
		"one huge line":          strings.Repeat("word ", 150_000),
		"a huge line in between": lines(100) + strings.Repeat("ü", 200_000) + "\n" + lines(100),
		"random bytes":           string(random),
		"latin-1":                strings.Repeat("caf\xe9 ", 60_000) + "\n",
		"newlines only at last":  strings.Repeat("y", 400_000) + "\n\n\n",
		"CRLF":                   strings.Repeat("abc\r\n", 50_000),
	}
}

// openText puts a text in an image of its own and opens it.
func openText(t *testing.T, body string) *File {
	t.Helper()
	im, _ := newImage(t, CreateOptions{})
	mustDo(t, im, put("f", body))
	f, err := im.Open(mustPath(t, "f"))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Pages by line, one behind the other, are the file; a line too long for a
// page goes on by bytes.
func TestLines(t *testing.T) {
	for name, body := range texts() {
		t.Run(name, func(t *testing.T) {
			f := openText(t, body)
			all := strings.SplitAfter(body, "\n")
			if all[len(all)-1] == "" {
				all = all[:len(all)-1]
			}
			var got strings.Builder
			for more, line := true, int64(1); more; {
				p, err := f.Lines(line, 777, 40_000)
				if err != nil {
					t.Fatal(err)
				}
				checkPage(t, p, body, int64(len(all)))
				if p.FirstLine != line && len(body) > 0 {
					t.Fatalf("page starts at line %d, not %d", p.FirstLine, line)
				}
				got.Write(p.Data)
				for p.More && !bytes.HasSuffix(p.Data, newline) {
					if p, err = f.Bytes(p.Next, 40_000); err != nil {
						t.Fatal(err)
					}
					checkPage(t, p, body, int64(len(all)))
					got.Write(p.Data)
				}
				line, more = p.LastLine+1, p.More
				if n := got.Len(); more && !strings.HasSuffix(body[:n], "\n") {
					t.Fatalf("page ends in mid-line at %d", n)
				}
				if more && got.Len() > 0 && body[got.Len()-1] == '\n' {
					line = int64(strings.Count(body[:got.Len()], "\n")) + 1
				}
			}
			if got.String() != body {
				t.Errorf("pages make %d bytes, the file has %d", got.Len(), len(body))
			}
			for _, line := range []int{1, 2, 3, 77, len(all) / 2, len(all) - 1, len(all)} {
				if line < 1 || line > len(all) || len(all[line-1]) > 40_000 {
					continue
				}
				p, err := f.Lines(int64(line), 1, 1<<20)
				if err != nil || string(p.Data) != all[line-1] || p.FirstLine != int64(line) || p.LastLine != int64(line) {
					t.Errorf("line %d: lines %d to %d, %d bytes, %v", line, p.FirstLine, p.LastLine, len(p.Data), err)
				}
			}
			for _, line := range []int64{int64(len(all)) + 1, 1 << 60} {
				p, err := f.Lines(line, 10, 1000)
				if err != nil || len(p.Data) != 0 || p.More || p.Offset != int64(len(body)) || p.LastLine != int64(len(all)) {
					t.Errorf("behind the end: %+v, %v", p, err)
				}
			}
		})
	}
}

// checkPage checks what must hold for any page.
func checkPage(t *testing.T, p Page, body string, total int64) {
	t.Helper()
	if body[p.Offset:p.Next] != string(p.Data) || p.Size != int64(len(body)) || p.More != (p.Next < p.Size) || p.TotalLines != total {
		t.Fatalf("page of %d bytes: offset %d next %d size %d more %v total %d (want %d)", len(p.Data), p.Offset, p.Next, p.Size, p.More, p.TotalLines, total)
	}
	if len(p.Data) == 0 {
		if p.More {
			t.Fatal("an empty page, and more to come")
		}
		return
	}
	first := int64(strings.Count(body[:p.Offset], "\n")) + 1
	last := int64(strings.Count(body[:p.Next-1], "\n")) + 1
	if p.FirstLine != first || p.LastLine != last {
		t.Fatalf("lines %d to %d, want %d to %d", p.FirstLine, p.LastLine, first, last)
	}
	if len(p.Data) > 40_000 {
		t.Fatalf("a page of %d bytes", len(p.Data))
	}
	if utf8.ValidString(body) && p.More && !utf8.Valid(p.Data) {
		t.Fatalf("a rune is cut at %d", p.Next)
	}
}

func TestBytes(t *testing.T) {
	for name, body := range texts() {
		t.Run(name, func(t *testing.T) {
			f := openText(t, body)
			total := f.Node().TotalLines()
			for _, size := range []int{4, 9999} {
				off := int64(0)
				if size == 4 && len(body) > 200 {
					off = int64(len(body)) - 200
					for off < int64(len(body)) && !utf8.RuneStart(body[off]) {
						off++
					}
				}
				for more := true; more; {
					p, err := f.Bytes(off, size)
					if err != nil {
						t.Fatal(err)
					}
					checkPage(t, p, body, total)
					if p.Offset != off || len(p.Data) > size {
						t.Fatalf("asked for %d at %d, got %d at %d", size, off, len(p.Data), p.Offset)
					}
					off, more = p.Next, p.More
				}
			}
			if p, err := f.Bytes(int64(len(body))+5, 10); err != nil || len(p.Data) != 0 || p.Offset != int64(len(body)) || p.More {
				t.Errorf("behind the end: %+v, %v", p, err)
			}
			if p, err := f.Bytes(-5, 10); err != nil || p.Offset != 0 {
				t.Errorf("in front of the start: %+v, %v", p, err)
			}
		})
	}
}

func TestSmallPagesMoveOn(t *testing.T) {
	f := openText(t, "€€")
	p, err := f.Bytes(0, 1)
	if err != nil || len(p.Data) != 1 || !p.More {
		t.Errorf("%+v %v", p, err)
	}
	// Offsets within a rune are taken as they are.
	if p, err = f.Bytes(1, 10); err != nil || string(p.Data) != "\x82\xac€" {
		t.Errorf("%q %v", p.Data, err)
	}
}

func TestReadAt(t *testing.T) {
	body := texts()["several chunks, open"]
	f := openText(t, body)
	r := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		off, n := r.IntN(len(body)), r.IntN(300_000)
		buf := make([]byte, n)
		got, err := f.ReadAt(buf, int64(off))
		want := body[off:min(off+n, len(body))]
		if string(buf[:got]) != want || (err == io.EOF) != (got < n) || err != nil && err != io.EOF {
			t.Fatalf("%d at %d: %d, %v", n, off, got, err)
		}
	}
	if _, err := f.ReadAt(make([]byte, 1), -1); err == nil {
		t.Error("a negative offset is taken")
	}
	if n, err := f.ReadAt(make([]byte, 1), int64(len(body))); n != 0 || err != io.EOF {
		t.Errorf("%d %v", n, err)
	}
	if err := iotestReader(f, body); err != nil {
		t.Error(err)
	}
}

// iotestReader reads in small and odd steps.
func iotestReader(f *File, body string) error {
	r := f.Reader()
	var got bytes.Buffer
	buf := make([]byte, 1237)
	for {
		n, err := r.Read(buf)
		got.Write(buf[:n])
		if err == io.EOF {
			break
		} else if err != nil {
			return err
		}
	}
	if got.String() != body {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// A file that is open goes on reading its version.
func TestOpenFileKeepsItsVersion(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	for _, body := range []string{"short", lines(300), lines(20_000)} {
		mustDo(t, im, put("f", body))
		f := must(im.Open(mustPath(t, "f")))
		mustDo(t, im, put("f", "other"))
		mustDo(t, im, remove("f"))
		if got, err := io.ReadAll(f.Reader()); err != nil || string(got) != body {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	im := start(t)
	_, err := im.Open(mustPath(t, "d"))
	wantKind(t, err, ErrIsDirectory)
	_, err = im.Open(mustPath(t, "dl"))
	wantKind(t, err, ErrIsDirectory)
	_, err = im.Open(mustPath(t, "x"))
	wantKind(t, err, ErrNotFound)
	_, err = im.OpenNode(mustPath(t, "l"), must(im.Lstat(mustPath(t, "l"))))
	wantKind(t, err, ErrInvalidPath)
	f, err := im.Open(mustPath(t, "l"))
	if err != nil || f.Path().String() != "/workspace/f" {
		t.Errorf("%v", err)
	}
}

// Reading a page costs the chunk it shows, however large the file is.
func TestPageReadsOneChunk(t *testing.T) {
	f := openText(t, strings.Repeat(lines(20_000), 3))
	if _, err := f.Lines(30_000, 10, 1000); err != nil {
		t.Fatal(err)
	}
	if len(f.refs) < 20 {
		t.Fatalf("only %d chunks", len(f.refs))
	}
	// Damage all chunks but the one that was read, and read elsewhere in it.
	good := f.last
	for i := range f.refs {
		if i != good {
			f.refs[i].id = 1 << 50
		}
	}
	line := int64(1)
	for _, r := range f.refs[:good] {
		line += r.lines
	}
	if _, err := f.Lines(line+2, 3, 1000); err != nil {
		t.Error(err)
	}
	_, err := f.Lines(1, 1, 100)
	wantKind(t, err, ErrCorrupt)
}
