package tools

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// putBytes writes any bytes.
func (d *disk) putBytes(path string, data []byte) {
	d.t.Helper()
	d.ok("write_file", args{"path": path, "content": base64.StdEncoding.EncodeToString(data), "encoding": "base64"})
}

// nextArg finds the argument that a closing line gives for the next page.
var nextArg = regexp.MustCompile(`next page: "(offset|byte_offset)": (\d+)\]$`)

// pages reads a whole file page by page, following the closing lines.
func (d *disk) pages(a args) (text string, pages int) {
	d.t.Helper()
	var b strings.Builder
	for a["path"] != nil && pages < 10_000 {
		r := d.call("read_file", a)
		if !r.OK() || len(r.Blocks) != 2 {
			d.t.Fatalf("%v: %s", a, r)
		}
		d.checkSize(r)
		if !utf8.ValidString(r.Blocks[0].Text) {
			d.t.Fatalf("page %d is not UTF-8", pages)
		}
		pages++
		b.WriteString(r.Blocks[0].Text)
		m := nextArg.FindStringSubmatch(r.Blocks[1].Text)
		if more := r.Facts["more"] == true; more != (m != nil) {
			d.t.Fatalf("more is %v: %s", more, r.Blocks[1].Text)
		}
		if m == nil {
			return b.String(), pages
		}
		n, _ := strconv.Atoi(m[2])
		delete(a, "offset")
		delete(a, "byte_offset")
		if m[1] == "offset" { // a page by bytes goes on by bytes
			delete(a, "byte_limit")
		} else {
			delete(a, "limit")
		}
		a[m[1]] = n
	}
	d.t.Fatal("the pages do not end")
	return "", 0
}

// checkSize checks that a result fits a reply.
func (d *disk) checkSize(r Result) {
	d.t.Helper()
	b, err := json.Marshal(r.MCP())
	if err != nil || len(b) > MaxReply {
		d.t.Errorf("a reply of %d bytes, %v", len(b), err)
	}
}

// TestReadPages: however a file is paged, the pages put together are the file.
func TestReadPages(t *testing.T) {
	t.Parallel()
	var numbered strings.Builder
	for i := range 5001 {
		fmt.Fprintf(&numbered, "line %d of a file with ünïcode\n", i+1)
	}
	files := map[string]string{
		"empty":              "",
		"one byte":           "x",
		"one line":           "line\n",
		"no end of line":     "a\nb",
		"only newlines":      strings.Repeat("\n", 4500),
		"many lines":         numbered.String(),
		"CRLF":               strings.Repeat("line\r\n", 3000),
		"one huge line":      strings.Repeat("0123456789", 30_000),
		"huge line of runes": strings.Repeat("漢字é🎉", 30_000),
		"huge lines":         strings.Repeat(strings.Repeat("é", 50_000)+"\n", 3),
		"huge, then short":   strings.Repeat("x", 90_000) + "\nshort\nlines\n",
		"control bytes":      strings.Repeat("\x01", 200_000),
		"control, in lines":  strings.Repeat(strings.Repeat("\x02", 99)+"\n", 2000),
		"quotes":             strings.Repeat(`"\`, 60_000),
		"line separators":    strings.Repeat("\u2028<&>", 20_000),
	}
	ways := map[string]args{
		"plain": {}, "limit 1000": {"limit": 1000}, "large limit": {"limit": 1_000_000}, "byte_limit": {"byte_limit": 50_000},
		"large byte_limit": {"byte_limit": 100_000_000}, "byte_offset": {"byte_offset": 0}, "utf-8": {"encoding": "utf-8"},
	}
	d := newDisk(t)
	for name, body := range files {
		d.putBytes(name, []byte(body))
		for way, a := range ways {
			d.run(name+"/"+way, func(t *testing.T) {
				got, pages := d.pages(with(a, name))
				if got != body {
					t.Errorf("%d bytes in %d pages, want %d", len(got), pages, len(body))
				}
				if way == "plain" && pages < len(body)/(MaxText*2) {
					t.Errorf("%d bytes in %d pages", len(body), pages)
				}
			})
		}
	}
	d.run("inside U+FFFD", func(t *testing.T) {
		d.write("bad", "a\ufffdb")
		if r := d.call("read_file", args{"path": "bad", "byte_offset": 2}); !r.OK() || r.Blocks[0].Text != "\ufffdb" {
			t.Errorf("%s", r)
		}
	})
	d.run("small pages of runes", func(t *testing.T) {
		d.write("runes", "aé漢🎉z")
		for off, want := range []string{"a", "é", "é", "漢", "漢", "漢", "🎉", "🎉", "🎉", "🎉", "z"} { // inside a rune, too
			if r := d.call("read_file", args{"path": "runes", "byte_offset": off, "byte_limit": 1}); !r.OK() || r.Blocks[0].Text != want {
				t.Errorf("at %d: %s", off, r)
			}
		}
		for limit := 1; limit < 12; limit++ {
			a := args{"path": "runes", "byte_limit": limit}
			var got strings.Builder
			for off := 0; off < 11; {
				a["byte_offset"] = off
				r := d.call("read_file", a)
				got.WriteString(r.Blocks[0].Text)
				off += len(r.Blocks[0].Text)
			}
			if got.String() != "aé漢🎉z" {
				t.Errorf("pages of %d bytes: %q", limit, got.String())
			}
		}
	})
}

// TestReadClosing: what the closing line says.
func TestReadClosing(t *testing.T) {
	d := newDisk(t)
	d.write("f", "one\ntwo\nthree")
	d.write("empty", "")
	for _, c := range []struct {
		name string
		a    args
		text string
		line string
	}{
		{"whole", args{}, "one\ntwo\nthree", "[lines 1-3 of 3, 13 bytes, v2]"},
		{"from 2", args{"offset": 2}, "two\nthree", "[lines 2-3 of 3, 13 bytes, v2]"},
		{"one line", args{"offset": 2, "limit": 1}, "two\n", `[lines 2-2 of 3, 13 bytes, v2; next page: "offset": 3]`},
		{"last line", args{"offset": 3}, "three", "[lines 3-3 of 3, 13 bytes, v2]"},
		{"past the end", args{"offset": 4}, "", "[offset 4 is past the end: the file has 3 lines, v2]"},
		{"far past the end", args{"offset": int64(1) << 60}, "", "[offset 1152921504606846976 is past the end: the file has 3 lines, v2]"},
		{"bytes", args{"byte_offset": 4, "byte_limit": 3}, "two", `[bytes 4-6 of 13 bytes, v2; next page: "byte_offset": 7]`},
		{"last bytes", args{"byte_offset": 8}, "three", "[bytes 8-12 of 13 bytes, v2]"},
		{"at the end", args{"byte_offset": 13}, "", "[byte_offset is past the end: the file has 13 bytes, v2]"},
		{"behind it", args{"byte_offset": int64(1) << 60}, "", "[byte_offset is past the end: the file has 13 bytes, v2]"},
		{"base64", args{"byte_offset": 4, "byte_limit": 3, "encoding": "base64"}, "dHdv", `[bytes 4-6 of 13 bytes, v2; next page: "byte_offset": 7]`},
		{"base64 behind the end", args{"byte_offset": 99, "encoding": "base64"}, "", "[byte_offset is past the end: the file has 13 bytes, v2]"},
		{"empty", args{"path": "empty"}, "", "[empty file, v3]"},
		{"empty, from 9", args{"path": "empty", "offset": 9}, "", "[empty file, v3]"},
		{"empty, base64", args{"path": "empty", "encoding": "base64"}, "", "[empty file, v3]"},
	} {
		d.run(c.name, func(t *testing.T) {
			if c.a["path"] == nil {
				c.a["path"] = "f"
			}
			r := d.call("read_file", c.a)
			if !r.OK() || r.Blocks[0].Text != c.text || r.Blocks[1].Text != c.line {
				t.Errorf("got %q", r.Blocks)
			}
		})
	}
}

// TestReadBinary: bytes are refused as text, and come whole as base64.
func TestReadBinary(t *testing.T) {
	d := newDisk(t)
	random := noise(1_300_000)
	d.putBytes("random", random)
	d.putBytes("latin", []byte("caf\xe9 au lait\n"))
	d.putBytes("late", append(bytes.Repeat([]byte("text\n"), 3000), 0xff))
	for _, path := range []string{"random", "latin"} {
		for _, a := range []args{{}, {"offset": 1}, {"byte_offset": 0}, {"limit": 5}} {
			wantText(t, d.fails(BinaryFile, "read_file", with(a, path)), `encoding:"base64"`)
		}
	}
	wantText(t, d.ok("read_file", args{"path": "latin", "encoding": "utf-8"}), "caf\ufffd au lait\n", "1 byte not UTF-8, shown as \ufffd")
	d.ok("read_file", args{"path": "late"})
	d.fails(BinaryFile, "read_file", args{"path": "late", "offset": 2001})
	for _, limit := range []int{0, 1000, 100_000_000} {
		var got []byte
		for off := 0; off < len(random); {
			a := args{"path": "random", "encoding": "base64", "byte_offset": off}
			if limit > 0 {
				a["byte_limit"] = max(limit, len(random)/20)
			}
			r := d.call("read_file", a)
			d.checkSize(r)
			part, err := base64.StdEncoding.DecodeString(r.Blocks[0].Text)
			if err != nil || len(part) == 0 {
				t.Fatalf("at %d: %v, %s", off, err, r.Blocks[1].Text)
			}
			got, off = append(got, part...), off+len(part)
		}
		if !bytes.Equal(got, random) {
			t.Errorf("byte_limit %d: other bytes", limit)
		}
	}
}

// TestReadPictures: pictures come as pictures; what only begins like one does
// not, since a client that cannot show it may lose the whole reply.
func TestReadPictures(t *testing.T) {
	pic := image.NewPaletted(image.Rect(0, 0, 30, 20), color.Palette{color.Black, color.White})
	encoded := func(f func(io.Writer) error) []byte {
		var b bytes.Buffer
		if err := f(&b); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	pngBytes := encoded(func(w io.Writer) error { return png.Encode(w, pic) })
	d := newDisk(t)
	for mime, data := range map[string][]byte{
		"image/png":  pngBytes,
		"image/jpeg": encoded(func(w io.Writer) error { return jpeg.Encode(w, pic, nil) }),
		"image/gif":  encoded(func(w io.Writer) error { return gif.Encode(w, pic, nil) }),
	} {
		d.run(mime, func(t *testing.T) {
			d.putBytes("pic", data)
			for _, a := range []args{{}, {"limit": 2000}, {"encoding": "auto"}} {
				r := d.call("read_file", with(a, "pic"))
				if !r.OK() || r.Blocks[0].MIME != mime || !bytes.Equal(r.Blocks[0].Data, data) {
					t.Fatalf("%s", r)
				}
				wantText(t, r.Blocks[1].Text, strings.ToUpper(mime[6:])+" 30×20, ")
				wantText(t, r.String(), "30×20")
			}
			r := d.call("read_file", args{"path": "pic", "encoding": "base64"})
			if got, _ := base64.StdEncoding.DecodeString(r.Blocks[0].Text); !bytes.Equal(got, data) {
				t.Error("base64 gives other bytes")
			}
		})
	}
	webp := []byte("RIFF\x1a\x00\x00\x00WEBPVP8L\x0d\x00\x00\x00\x2f\x00\x00\x00\x10\x07\x10\x11\x11\x88\x88\xfe\x07\x00")
	d.putBytes("webp", webp)
	if r := d.call("read_file", args{"path": "webp"}); !r.OK() || r.Blocks[0].MIME != "image/webp" {
		t.Errorf("%s", r)
	}
	d.putBytes("notes", []byte("GIF89a is the format that…\n"))
	wantText(t, d.ok("read_file", args{"path": "notes"}), "GIF89a is the format that…\n")
	d.putBytes("cut", pngBytes[:20])
	d.fails(BinaryFile, "read_file", args{"path": "cut"})
	d.putBytes("large", append(bytes.Clone(pngBytes), make([]byte, 480_000)...))
	wantText(t, d.fails(TooLarge, "read_file", args{"path": "large"}), "smaller copy", "480.0 kB")
	d.putBytes("almost", append(bytes.Clone(pngBytes), make([]byte, 479_000)...))
	d.checkSize(d.call("read_file", args{"path": "almost"}))
	d.putBytes("wide", header(t, pngBytes, 70_000))
	d.call("read_file", args{"path": "wide"}) // must not take memory for the pixels
}

// header is a PNG with another width in its header.
func header(t *testing.T, png []byte, width uint32) []byte {
	t.Helper()
	b := bytes.Clone(png)
	binary.BigEndian.PutUint32(b[16:], width)
	binary.BigEndian.PutUint32(b[29:], crc32.ChecksumIEEE(b[12:29]))
	return b
}
