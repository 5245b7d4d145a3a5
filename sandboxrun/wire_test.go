package sandboxrun

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
)

// stream writes frames as the stage does.
func stream(write func(f *frameWriter)) []byte {
	var b bytes.Buffer
	f := newFrameWriter(&b)
	write(f)
	if err := f.flush(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func (f *frameWriter) change(c Change) { f.write(frameEntry, marshalEntry(nil, c)) }

// sample is a stream with everything that can be in one.
func sample() []byte {
	return stream(func(f *frameWriter) {
		at := time.Unix(1_700_000_000, 5)
		f.change(Change{Path: []byte("a"), Kind: Removed})
		f.change(Change{Path: []byte("d"), Kind: Dir, Mode: 0o755, ModTime: at})
		f.change(Change{Path: []byte("d/f"), Kind: File, Mode: 0o644, ModTime: at, Size: 10})
		f.write(frameBytes, []byte("hello"))
		f.write(frameHole, appendHole(3))
		f.write(frameBytes, []byte("!!"))
		f.change(Change{Path: []byte("d/l"), Kind: Symlink, Target: []byte("../x")})
		f.change(Change{Path: []byte("d.x"), Kind: OpaqueDir, Mode: 0o700, ModTime: time.Unix(-1, 0)})
		f.write(frameEnd, end{Full: true, FIFO: 1, Socket: 2, Devices: 3}.marshal())
	})
}

// parse reads a stream of changes to its end, bodies included.
func parse(b []byte) (lines []string, e end, err error) {
	d := diffReader{f: newFrameReader(bytes.NewReader(b))}
	for {
		c, e, more, err := d.next()
		if err != nil || !more {
			return lines, e, err
		}
		line := fmt.Sprintf("%s %s %o %d %d %s", c.Kind, c.Path, c.Mode, c.ModTime.UnixNano(), c.Size, c.Target)
		if c.Body != nil {
			body, err := io.ReadAll(io.LimitReader(c.Body, 1<<16))
			if err != nil {
				return lines, end{}, err
			}
			line += fmt.Sprintf(" %q", body)
		}
		lines = append(lines, line)
	}
}

func TestStream(t *testing.T) {
	lines, e, err := parse(sample())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"removed a 0 -6795364578871345152 0 ",
		"dir d 755 1700000000000000005 0 ",
		`file d/f 644 1700000000000000005 10  "hello\x00\x00\x00!!"`,
		"symlink d/l 0 -6795364578871345152 0 ../x",
		"opaque_dir d.x 700 -1000000000 0 ",
	}
	if !reflect.DeepEqual(lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	if e != (end{Full: true, FIFO: 1, Socket: 2, Devices: 3}) {
		t.Errorf("end %+v", e)
	}
}

// TestStreamCutAnywhere: a stream that ends early is an error at every byte.
func TestStreamCutAnywhere(t *testing.T) {
	whole := sample()
	for n := range whole {
		if _, _, err := parse(whole[:n]); !errors.Is(err, ErrStream) {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
}

// TestHostileStreams: what the stage never writes is refused.
func TestHostileStreams(t *testing.T) {
	file := func(size int64) Change { return Change{Path: []byte("f"), Kind: File, Size: size} }
	dir := func(path string) Change { return Change{Path: []byte(path), Kind: Dir} }
	raw := func(kind, mode, nsec uint64, path string) []byte {
		b := binary.AppendUvarint(nil, kind)
		b = binary.AppendUvarint(b, mode)
		b = binary.AppendVarint(b, 0)
		b = binary.AppendUvarint(b, nsec)
		b = binary.AppendUvarint(b, 0)
		return appendString(appendString(b, path), "")
	}
	for name, write := range map[string]func(f *frameWriter){
		"unknown frame":             func(f *frameWriter) { f.write('?', nil) },
		"frame of another phase":    func(f *frameWriter) { f.write(frameGone, gone{}.marshal()) },
		"data without a file":       func(f *frameWriter) { f.write(frameBytes, []byte("x")) },
		"data after a directory":    func(f *frameWriter) { f.change(dir("d")); f.write(frameBytes, []byte("x")) },
		"too much data":             func(f *frameWriter) { f.change(file(1)); f.write(frameBytes, []byte("xx")) },
		"too large a hole":          func(f *frameWriter) { f.change(file(1)); f.write(frameHole, appendHole(2)) },
		"overflowing hole":          func(f *frameWriter) { f.change(file(1)); f.write(frameHole, appendHole(-1)) },
		"empty hole":                func(f *frameWriter) { f.change(file(1)); f.write(frameHole, appendHole(0)) },
		"long hole":                 func(f *frameWriter) { f.change(file(1)); f.write(frameHole, make([]byte, 40)) },
		"empty data":                func(f *frameWriter) { f.change(file(1)); f.write(frameBytes, nil) },
		"entry inside a file":       func(f *frameWriter) { f.change(file(1)); f.change(dir("g")) },
		"end inside a file":         func(f *frameWriter) { f.change(file(1)); f.write(frameEnd, end{}.marshal()) },
		"failure inside a file":     func(f *frameWriter) { f.change(file(1)); f.write(frameFailed, failure{}.marshal()) },
		"failure":                   func(f *frameWriter) { f.write(frameFailed, failure{Step: "scan"}.marshal()) },
		"parent not announced":      func(f *frameWriter) { f.change(dir("a/b")) },
		"parent is a file":          func(f *frameWriter) { f.change(Change{Path: []byte("a"), Kind: File}); f.change(dir("a/b")) },
		"parent was left":           func(f *frameWriter) { f.change(dir("a")); f.change(dir("b")); f.change(dir("a/b")) },
		"twice":                     func(f *frameWriter) { f.change(dir("a")); f.change(dir("a")) },
		"wrong order":               func(f *frameWriter) { f.change(dir("b")); f.change(dir("a")) },
		"empty path":                func(f *frameWriter) { f.change(dir("")) },
		"absolute":                  func(f *frameWriter) { f.change(dir("/a")) },
		"dot":                       func(f *frameWriter) { f.change(dir(".")) },
		"dot dot":                   func(f *frameWriter) { f.change(dir("..")) },
		"dot dot inside":            func(f *frameWriter) { f.change(dir("a")); f.change(dir("a/..")) },
		"empty component":           func(f *frameWriter) { f.change(dir("a")); f.change(dir("a//b")) },
		"trailing slash":            func(f *frameWriter) { f.change(dir("a/")) },
		"NUL":                       func(f *frameWriter) { f.change(dir("a\x00b")) },
		"long name":                 func(f *frameWriter) { f.change(dir(strings.Repeat("n", 256))) },
		"deep":                      func(f *frameWriter) { f.change(dir(strings.Repeat("d/", 257) + "d")) },
		"kind 0":                    func(f *frameWriter) { f.write(frameEntry, raw(0, 0, 0, "a")) },
		"kind 6":                    func(f *frameWriter) { f.write(frameEntry, raw(6, 0, 0, "a")) },
		"setuid":                    func(f *frameWriter) { f.write(frameEntry, raw(uint64(File), 0o4755, 0, "a")) },
		"nanoseconds":               func(f *frameWriter) { f.write(frameEntry, raw(uint64(Dir), 0, 1e9, "a")) },
		"directory with a size":     func(f *frameWriter) { f.change(Change{Path: []byte("a"), Kind: Dir, Size: 1}) },
		"negative size":             func(f *frameWriter) { f.change(file(-1)) },
		"link without a target":     func(f *frameWriter) { f.change(Change{Path: []byte("a"), Kind: Symlink}) },
		"link with NUL":             func(f *frameWriter) { f.change(Change{Path: []byte("a"), Kind: Symlink, Target: []byte("a\x00")}) },
		"long target":               func(f *frameWriter) { f.change(Change{Path: []byte("a"), Kind: Symlink, Target: make([]byte, 5000)}) },
		"file with a target":        func(f *frameWriter) { f.change(Change{Path: []byte("a"), Kind: File, Target: []byte("b")}) },
		"more after an entry":       func(f *frameWriter) { f.write(frameEntry, append(marshalEntry(nil, dir("a")), 0)) },
		"empty entry":               func(f *frameWriter) { f.write(frameEntry, nil) },
		"end with a strange truth":  func(f *frameWriter) { f.write(frameEnd, []byte{2, 0, 0, 0, 0}) },
		"end with more":             func(f *frameWriter) { f.write(frameEnd, append(end{}.marshal(), 0)) },
		"string beyond the payload": func(f *frameWriter) { f.write(frameEntry, []byte{1, 0, 0, 0, 0, 200, 'a'}) },
	} {
		t.Run(name, func(t *testing.T) {
			if lines, _, err := parse(stream(write)); !errors.Is(err, ErrStream) {
				t.Errorf("error %v after %q", err, lines)
			}
		})
	}
	t.Run("huge frame", func(t *testing.T) {
		if _, _, err := parse(binary.AppendUvarint([]byte{frameEntry}, 1<<40)); !errors.Is(err, ErrStream) {
			t.Errorf("error %v", err)
		}
	})
}

// TestMessages: what one side writes the other reads, and nothing else.
func TestMessages(t *testing.T) {
	s := spec{Lower: "/l", Disk: "/d", Bytes: 1 << 40, Inodes: 7, Rooms: []room{{0o1777, 1 << 20, 5}, {}}, Binds: []string{"/a", ""}, Bwrap: "/b", Command: []string{"x", "y\n"}, Data: 3, Tasks: 2, Group: true,
		Rlimits: []rlimit{{1, 2}, {3, 1 << 63}}, Diff: true, Trace: true}
	if got, err := parseSpec(s.marshal()); err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("spec %+v, %v", got, err)
	}
	f := failure{"step", 5, "detail"}
	if got, err := parseFailure(f.marshal()); err != nil || got != f {
		t.Errorf("failure %+v, %v", got, err)
	}
	g := gone{Execed: true, Code: 139, Killed: true, DiskFull: true, Crashed: true, Took: time.Second}
	if got, err := parseGone(g.marshal()); err != nil || got != g {
		t.Errorf("gone %+v, %v", got, err)
	}
	if m, at, err := parseMark(appendMark(MarkEnded, -7)); err != nil || m != MarkEnded || at != -7 {
		t.Errorf("mark %s at %d, %v", m, at, err)
	}
	g.Code = 256
	if _, err := parseGone(g.marshal()); !errors.Is(err, ErrStream) {
		t.Errorf("exit code 256: %v", err)
	}
	for name, b := range map[string][]byte{"spec": s.marshal(), "failure": f.marshal(), "gone": gone{}.marshal(), "mark": appendMark(MarkEnded, 300)} {
		for n := range b {
			var err error
			switch name {
			case "spec":
				_, err = parseSpec(b[:n])
			case "failure":
				_, err = parseFailure(b[:n])
			case "gone":
				_, err = parseGone(b[:n])
			case "mark":
				_, _, err = parseMark(b[:n])
			}
			if !errors.Is(err, ErrStream) {
				t.Errorf("%s cut at %d: %v", name, n, err)
			}
		}
	}
}

// FuzzStream: whatever the bytes are, the reader ends without a panic, keeps
// to its order, and gives each file exactly its size.
func FuzzStream(f *testing.F) {
	f.Add(sample())
	f.Add(stream(func(w *frameWriter) { w.write(frameEnd, end{}.marshal()) }))
	f.Add(stream(func(w *frameWriter) {
		w.change(Change{Path: []byte("f"), Kind: File, Size: 1 << 40})
		w.write(frameHole, appendHole(1<<40))
		w.write(frameEnd, end{TooDeep: true}.marshal())
	}))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := diffReader{f: newFrameReader(bytes.NewReader(b))}
		var last []byte
		for i := 0; ; i++ {
			c, _, more, err := d.next()
			if err != nil && !errors.Is(err, ErrStream) {
				t.Fatalf("error %v", err)
			}
			if err != nil || !more {
				return
			}
			if !validPath(c.Path) || (last != nil && comparePaths(last, c.Path) >= 0) {
				t.Fatalf("path %q after %q", c.Path, last)
			}
			last = c.Path
			if again, err := parseEntry(marshalEntry(nil, c)); err != nil || !again.ModTime.Equal(c.ModTime) || again.Size != c.Size || !bytes.Equal(again.Path, c.Path) {
				t.Fatalf("%+v became %+v (%v)", c, again, err)
			}
			if c.Kind == File && i%2 == 0 && c.Size < 1<<20 {
				if n, err := io.Copy(io.Discard, c.Body); err == nil && n != c.Size {
					t.Fatalf("%d bytes of %d", n, c.Size)
				}
			}
		}
	})
}

// FuzzSpec: decoding and encoding again is the identity.
func FuzzSpec(f *testing.F) {
	f.Add(spec{}.marshal())
	f.Add(spec{Lower: "/l", Rooms: []room{{1, 2, 3}}, Binds: []string{"/a"}, Command: []string{"bwrap"}, Rlimits: []rlimit{{1, 2}}, Diff: true}.marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseSpec(b)
		if err != nil {
			return
		}
		if again, err := parseSpec(s.marshal()); err != nil || !reflect.DeepEqual(s, again) {
			t.Fatalf("%+v became %+v (%v)", s, again, err)
		}
	})
}
