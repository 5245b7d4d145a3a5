package workspace

import (
	"bytes"
	"crypto/sha256"
	"strings"
	"testing"
	"time"
)

func fileNode(text string, refs ...ref) *Node {
	n := &Node{
		Kind: KindFile, Mode: 0o640, ModTime: time.Unix(1_700_000_000, 123).UTC(), Version: 7,
		Size: int64(len(text)), Lines: int64(strings.Count(text, "\n")), SHA256: sha256.Sum256([]byte(text)),
	}
	n.body.open = unended([]byte(text))
	if len(refs) == 0 {
		n.body.inline = []byte(text)
		return n
	}
	n.body.refs = refs
	n.Size, n.Lines = 0, 0
	for _, r := range refs {
		n.Size, n.Lines = n.Size+r.size, n.Lines+r.lines
	}
	return n
}

func sampleNodes() map[string]*Node {
	list := fileNode("", ref{9, 1 << 20, 12})
	list.body.refs, list.body.list = nil, &ref{id: 300, size: 5000}
	return map[string]*Node{
		"empty file":       fileNode(""),
		"inline, ended":    fileNode("a\nb\n"),
		"inline, open":     fileNode("a\nb"),
		"one chunk":        fileNode("x\n", ref{1, 200, 3}),
		"several chunks":   fileNode("x", ref{1, 70_000, 3}, ref{1 << 40, 100_000, 0}, ref{2, 129, 129}),
		"listed chunks":    list,
		"directory":        {Kind: KindDir, Mode: 0o755, ModTime: time.Unix(0, -1).UTC(), Version: 1 << 60},
		"mode zero":        {Kind: KindDir, ModTime: time.Unix(0, 0).UTC()},
		"symlink":          {Kind: KindSymlink, Mode: 0o777, ModTime: minTime.UTC(), Target: "../\xff", Size: 4},
		"largest time":     {Kind: KindDir, ModTime: maxTime.UTC()},
		"version and mode": {Kind: KindDir, Mode: 0o777, ModTime: time.Unix(1, 1).UTC(), Version: 3},
	}
}

func TestNodeRoundTrip(t *testing.T) {
	for name, n := range sampleNodes() {
		t.Run(name, func(t *testing.T) {
			b := appendNode(nil, n)
			got, err := decodeNode(b)
			if err != nil {
				t.Fatal(err)
			}
			if !got.same(n) || got.Version != n.Version || !bytes.Equal(appendNode(nil, got), b) {
				t.Errorf("got %+v, want %+v", got, n)
			}
		})
	}
}

// What decodes has one encoding, and it is the one that was decoded.
func FuzzNode(f *testing.F) {
	for _, n := range sampleNodes() {
		f.Add(appendNode(nil, n))
	}
	f.Add([]byte{nodeVersion, 'd', 0x80, 0x00, 0, 0}) // padded integer
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := decodeNode(b)
		if err != nil {
			return
		}
		if again := appendNode(nil, n); !bytes.Equal(again, b) {
			t.Fatalf("%x decodes to %+v, which encodes as %x", b, n, again)
		}
		if n.Mode > 0o777 || n.Size < 0 || n.Lines < 0 || n.Lines > n.Size {
			t.Fatalf("%x decodes to %+v", b, n)
		}
	})
}

func sampleRecord() *record {
	nodes := sampleNodes()
	r := &record{
		seq: 12, parent: sha256.Sum256([]byte("parent")), call: "01J", actor: "claude", message: "put a file",
		time: time.Unix(1_700_000_000, 1).UTC(), bytes: 99, entries: 3, source: 4,
	}
	for _, c := range []struct {
		path          string
		before, after *Node
	}{
		{"a", nil, nodes["directory"]},
		{"a/b", nodes["one chunk"], nodes["several chunks"]},
		{"c\xff", nodes["symlink"], nil},
		{"d", nodes["mode zero"], nodes["version and mode"]},
	} {
		e, ok := newEffect(Path{c.path}, c.before, c.after)
		if !ok {
			panic(c.path)
		}
		r.changes = append(r.changes, e)
	}
	return r
}

// What no writer makes is not read either, whoever forged it.
func TestNodeWithAnImpossibleTarget(t *testing.T) {
	for _, target := range []string{"", "a\x00b", "\x00"} {
		n := Node{Kind: KindSymlink, Mode: 0o777, ModTime: minTime.UTC(), Target: target, Size: int64(len(target))}
		if got, err := decodeNode(appendNode(nil, &n)); err == nil {
			t.Errorf("the target %q is read as %+v", target, got)
		}
	}
}

func TestRecordInParts(t *testing.T) {
	r := sampleRecord()
	one := r.changes
	r.changes = nil
	for range 2000 {
		r.changes = append(r.changes, one...)
	}
	parts := r.encode()
	if len(parts) < 3 {
		t.Fatalf("%d parts", len(parts))
	}
	for i, part := range parts {
		if len(part) > partBytes+maxNode {
			t.Errorf("part %d has %d bytes", i, len(part))
		}
	}
	got, err := decodeRecord(parts)
	if err != nil {
		t.Fatal(err)
	}
	if got.id != r.id || len(got.changes) != len(r.changes) || got.stats != countKinds(r.changes) {
		t.Errorf("got %d changes, %v", len(got.changes), got.stats)
	}
	if _, err := decodeRecord(parts[:len(parts)-1]); err == nil {
		t.Error("a record without its last part decodes")
	}
}

func TestRecordIDCoversAll(t *testing.T) {
	base := sampleRecord()
	base.encode()
	for name, edit := range map[string]func(*record){
		"seq":     func(r *record) { r.seq++ },
		"parent":  func(r *record) { r.parent[0]++ },
		"call":    func(r *record) { r.call += "x" },
		"actor":   func(r *record) { r.actor += "x" },
		"message": func(r *record) { r.message += "x" },
		"time":    func(r *record) { r.time = r.time.Add(1) },
		"totals":  func(r *record) { r.bytes++ },
		"source":  func(r *record) { r.source++ },
		"changes": func(r *record) { r.changes = r.changes[1:] },
		"node":    func(r *record) { n := *r.changes[0].After; n.Mode = 0o700; r.changes[0].After = &n },
	} {
		t.Run(name, func(t *testing.T) {
			r := sampleRecord()
			edit(r)
			if r.encode(); r.id == base.id {
				t.Error("the id is the same")
			}
		})
	}
}

func FuzzRecord(f *testing.F) {
	f.Add(sampleRecord().encode()[0])
	first := &record{seq: 1, message: "created image", time: time.Unix(5, 5).UTC()}
	f.Add(first.encode()[0])
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord([][]byte{b})
		if err != nil {
			return
		}
		id := r.id
		again := r.encode()
		if r.id != id {
			return // an id that is a lie; fsck finds it
		}
		if !bytes.Equal(bytes.Join(again, nil), b) {
			t.Fatalf("%x encodes as %x", b, again)
		}
	})
}

func TestSealIsTiedToItsKey(t *testing.T) {
	stored := seal([]byte("key"), []byte("value"))
	if v, err := unseal([]byte("key"), stored); err != nil || string(v) != "value" {
		t.Errorf("%q, %v", v, err)
	}
	for name, c := range map[string]struct{ key, value []byte }{
		"other key": {[]byte("kez"), stored},
		"one bit":   {[]byte("key"), append([]byte("walue"), stored[5:]...)},
		"cut":       {[]byte("key"), stored[:len(stored)-1]},
		"too short": {[]byte("key"), stored[:3]},
		"nothing":   {[]byte("key"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := unseal(c.key, c.value); err == nil {
				t.Error("it passes")
			}
		})
	}
}
