package workspace_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// The second reader of the format: made from docs/image-format.md alone. It shares
// no line with the package, not even the library that reads the container.
// Whatever does not fit stops it by a panic, which is a failed test.

type rawImage struct {
	file    []byte
	buckets map[string]map[string][]byte // values without their checksum
}

func check(ok bool, what string, args ...any) {
	if !ok {
		panic(fmt.Sprintf(what, args...))
	}
}

func readRaw(file []byte) *rawImage {
	im := &rawImage{file: file, buckets: map[string]map[string][]byte{}}
	var root, newest uint64
	for p := range uint64(2) {
		h := file[p*4096+16:]
		sum := fnv.New64a()
		sum.Write(h[:56])
		if binary.LittleEndian.Uint32(h) == 0xED0CDAED && sum.Sum64() == binary.LittleEndian.Uint64(h[56:]) {
			if tx := binary.LittleEndian.Uint64(h[48:]); root == 0 || tx > newest {
				root, newest = binary.LittleEndian.Uint64(h[16:]), tx
			}
		}
	}
	check(root != 0, "no header")
	im.leaves(im.page(root), func(flags uint32, name, value []byte) {
		check(flags == 1, "%q is no bucket", name)
		bucket := map[string][]byte{}
		im.buckets[string(name)] = bucket
		page := value[16:]
		if at := binary.LittleEndian.Uint64(value); at != 0 {
			page = im.page(at)
		}
		im.leaves(page, func(_ uint32, key, value []byte) {
			end := len(value) - 4
			sum := crc32.Checksum(append(slices.Clone(key), value[:end]...), crc32.MakeTable(crc32.Castagnoli))
			check(sum == binary.LittleEndian.Uint32(value[end:]), "checksum of %q in %s", key, name)
			bucket[string(key)] = value[:end]
		})
	})
	return im
}

func (im *rawImage) page(n uint64) []byte { return im.file[n*4096:] }

func (im *rawImage) leaves(page []byte, visit func(flags uint32, key, value []byte)) {
	flags, count := binary.LittleEndian.Uint16(page[8:]), int(binary.LittleEndian.Uint16(page[10:]))
	for i := range count {
		e := page[16+16*i:]
		a, b, c := binary.LittleEndian.Uint32(e), binary.LittleEndian.Uint32(e[4:]), binary.LittleEndian.Uint32(e[8:])
		if flags == 1 {
			im.leaves(im.page(binary.LittleEndian.Uint64(e[8:])), visit)
			continue
		}
		key := e[b:][:c]
		visit(a, key, e[b+c:][:binary.LittleEndian.Uint32(e[12:])])
	}
}

type pieces struct{ in []byte }

func (p *pieces) take(n uint64) []byte { b := p.in[:n]; p.in = p.in[n:]; return b }
func (p *pieces) uint() uint64 {
	v, n := binary.Uvarint(p.in)
	check(n == len(binary.AppendUvarint(nil, v)), "padded number")
	p.take(uint64(n))
	return v
}
func (p *pieces) int() int64   { v := p.uint(); return int64(v>>1) ^ -int64(v&1) }
func (p *pieces) text() []byte { return p.take(p.uint()) }
func (p *pieces) end()         { check(len(p.in) == 0, "%d bytes left over", len(p.in)) }

type rawNode struct {
	kind                   byte
	mode, seq, size, lines uint64
	mtime                  int64
	sum, target, inline    string
	refs                   []rawRef
}

type rawRef struct{ id, size, lines uint64 }

func (im *rawImage) node(b []byte) rawNode {
	p := &pieces{b}
	check(p.take(1)[0] == 1, "version of a node")
	n := rawNode{kind: p.take(1)[0], mode: p.uint(), mtime: p.int(), seq: p.uint()}
	switch n.kind {
	case 'l':
		n.target = string(p.text())
	case 'f':
		n.size, n.lines, n.sum = p.uint(), p.uint(), string(p.take(32))
		switch storage := p.take(1)[0] & 3; storage {
		case 0:
			n.inline = string(p.take(n.size))
		case 1:
			n.refs = refs(p)
		case 2:
			list := &pieces{im.chunk(rawRef{p.uint(), p.uint(), p.uint()})}
			n.refs = refs(list)
			list.end()
		}
	default:
		check(n.kind == 'd', "kind of a node")
	}
	p.end()
	return n
}

func refs(p *pieces) (all []rawRef) {
	for range p.uint() {
		all = append(all, rawRef{p.uint(), p.uint(), p.uint()})
	}
	return all
}

func (im *rawImage) chunk(r rawRef) []byte {
	p := &pieces{im.buckets["chunks"][string(binary.BigEndian.AppendUint64(nil, r.id))]}
	packing, sum := p.take(1)[0], p.take(32)
	if packing == 1 {
		check(p.uint() == r.size, "length of chunk %d", r.id)
		d, _ := zstd.NewReader(nil)
		defer d.Close()
		plain, err := d.DecodeAll(p.in, nil)
		check(err == nil, "chunk %d: %v", r.id, err)
		p.in = plain
	}
	check(sha256.Sum256(p.in) == [32]byte(sum), "hash of chunk %d", r.id)
	check(uint64(len(p.in)) == r.size, "size of chunk %d", r.id)
	check(string(im.buckets["byhash"][string(sum)]) == string(binary.BigEndian.AppendUint64(nil, r.id)), "chunk %d in byhash", r.id)
	return p.in
}

func (im *rawImage) content(n rawNode) []byte {
	all := []byte(n.inline)
	for _, r := range n.refs {
		plain := im.chunk(r)
		check(uint64(bytes.Count(plain, []byte("\n"))) == r.lines, "newlines of chunk %d", r.id)
		all = append(all, plain...)
	}
	sum := sha256.Sum256(all)
	check(string(sum[:]) == n.sum && uint64(len(all)) == n.size, "content")
	check(uint64(bytes.Count(all, []byte("\n"))) == n.lines, "newlines")
	return all
}

type rawCommit struct {
	id, parent, call, actor, message string
	seq, source                      uint64
	before, after                    map[string][]byte
}

// commit reads record seq; ok is false when there is none.
func (im *rawImage) commit(seq uint64) (c rawCommit, ok bool) {
	key := binary.BigEndian.AppendUint64(nil, seq)
	first, ok := im.buckets["commits"][string(key)]
	if !ok {
		return c, false
	}
	p := &pieces{first}
	c.id = string(p.take(32))
	hash := sha256.New()
	hash.Write(p.in)
	c.parent = string(p.take(32))
	check(p.take(1)[0] == 1, "version of a commit record")
	c.seq, c.call, c.actor, c.message = p.uint(), string(p.text()), string(p.text()), string(p.text())
	p.int()
	p.uint()
	p.uint()
	c.source = p.uint()
	count := p.uint()
	for range 5 {
		p.uint()
	}
	c.before, c.after = map[string][]byte{}, map[string][]byte{}
	for part := uint32(1); ; part++ {
		for len(p.in) > 0 {
			path := string(p.text())
			c.before[path], c.after[path] = p.text(), p.text()
		}
		next, more := im.buckets["commits"][string(binary.BigEndian.AppendUint32(slices.Clone(key), part))]
		if !more {
			break
		}
		hash.Write(next)
		p.in = next
	}
	check(uint64(len(c.after)) == count, "number of changes of v%d", seq)
	check(c.id == string(hash.Sum(nil)), "id of v%d", seq)
	return c, true
}

// fixture is an image that an early release wrote, byte for byte.
func fixture(t *testing.T) []byte {
	t.Helper()
	f, err := os.Open("testdata/v1.vdisk.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	file, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// What that image holds, as it was written then.
var fixtureTree = map[string]string{
	"a.txt":           "f 0644 14 b6285c57",
	`"back`:           "d 0755",
	`"back/slash"`:    "f 0644 1 18f5384d",
	"big.txt":         "f 0644 100800000 ",
	"dir":             "d 0755",
	"dir/abs":         "l /workspace/dir/sub",
	`dir/back\slash`:  "f 0644 1 a1fce436",
	"dir/dangling":    "l nowhere",
	"dir/inline.txt":  "f 0644 7 ",
	"dir/latin\xe9":   "f 0644 1 594e519a",
	"dir/link":        "l inline.txt",
	"dir/new\nline":   "f 0644 1 2d711642",
	"dir/numbers.txt": "f 0600 108894 ",
	"dir/sub":         "d 0755",
	"p.txt":           "f 0644 4 ",
}

func describe(kind byte, mode, size uint64, sum, target string) string {
	switch kind {
	case 'd':
		return fmt.Sprintf("d %04o", mode)
	case 'l':
		return "l " + target
	}
	return fmt.Sprintf("f %04o %d %s", mode, size, hex.EncodeToString([]byte(sum))[:8])
}

// TestFormatBySecondReader reads an old image with the reader above, from its
// container up, and proves its tree by its history.
func TestFormatBySecondReader(t *testing.T) {
	im := readRaw(fixture(t))
	if v := im.buckets["meta"]["format"]; !bytes.Equal(v, []byte{1}) {
		t.Fatalf("format is %x", v)
	}
	tree := map[string]string{}
	for key, value := range im.buckets["tree"] {
		n := im.node(value)
		path := strings.ReplaceAll(key, "\x00", "/")
		tree[path] = describe(n.kind, n.mode, n.size, n.sum+"....", n.target)
		if n.kind == 'f' {
			im.content(n)
		}
	}
	compareTree(t, tree)

	head := &pieces{im.buckets["meta"]["head"]}
	seq, id := head.uint(), string(head.take(32))
	replayed, parent := map[string][]byte{}, string(make([]byte, 32))
	for n := uint64(1); n <= seq; n++ {
		c, ok := im.commit(n)
		if !ok || c.seq != n || c.parent != parent {
			t.Fatalf("commit %d is missing or misplaced", n)
		}
		parent = c.id
		for path, before := range c.before {
			if !bytes.Equal(replayed[path], before) {
				t.Errorf("v%d: %q was not what the record says", n, path)
			}
			if replayed[path] = c.after[path]; len(c.after[path]) == 0 {
				delete(replayed, path)
			}
		}
	}
	if parent != id {
		t.Error("the head is not the last commit")
	}
	for path, node := range replayed {
		if !bytes.Equal(node, im.buckets["tree"][strings.ReplaceAll(path, "/", "\x00")]) {
			t.Errorf("%q is not what history makes it", path)
		}
	}
	if len(replayed) != len(tree) {
		t.Errorf("history makes %d paths, the tree has %d", len(replayed), len(tree))
	}
}

func compareTree(t *testing.T, got map[string]string) {
	t.Helper()
	for _, path := range slices.Sorted(maps.Keys(fixtureTree)) {
		if !strings.HasPrefix(got[path], fixtureTree[path]) {
			t.Errorf("%q is %q, not %q", path, got[path], fixtureTree[path])
		}
	}
	if len(got) != len(fixtureTree) {
		t.Errorf("%d paths, not %d: %q", len(got), len(fixtureTree), slices.Sorted(maps.Keys(got)))
	}
}

// TestOldImage opens the same image with the program, reads all of it, and goes
// on writing it.
func TestOldImage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v1.vdisk")
	if err := os.WriteFile(path, fixture(t), 0o600); err != nil {
		t.Fatal(err)
	}
	im, err := workspace.Open(path, workspace.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	tree := map[string]string{}
	err = im.Walk(t.Context(), workspace.Path{}, func(e workspace.Entry) error {
		n := e.Node
		tree[e.Path.Rel()] = describe(byte(n.Kind), uint64(n.Mode), uint64(n.Size), string(n.SHA256[:]), n.Target)
		if n.Kind != workspace.KindFile {
			return nil
		}
		f, err := im.OpenNode(e.Path, n)
		if err == nil {
			_, err = io.Copy(io.Discard, f.Reader())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	compareTree(t, tree)
	p, err := workspace.Clean("new.txt")
	if err != nil {
		t.Fatal(err)
	}
	c, err := im.Commit(t.Context(), workspace.Txn{Changes: []workspace.Change{{Op: workspace.OpPut, Path: p}}})
	if err != nil || c.Seq != 9 {
		t.Errorf("Commit = v%d, %v, want v9", c.Seq, err)
	}
}
