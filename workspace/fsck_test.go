package workspace

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// sample is an image with a history and files of every kind, and all that can
// ever be read from it.
type sample struct {
	bytes    []byte
	now      map[string]string // path → seen, of the newest commit
	versions map[string]string // path@version → seen, of every commit
	info     Info
}

// seen is everything a reader can tell of a node and its content.
func seen(n Node, body string) string {
	return fmt.Sprintf("%c %o %d %d %d %x %q %x", n.Kind, n.Mode, n.ModTime.UnixNano(), n.Size, n.Lines, n.SHA256, n.Target, sumOf([]byte(body)))
}

func at(p Path, version uint64) string { return fmt.Sprintf("%s@%d", p.Rel(), version) }

// newSample makes one whose tree is three pages deep. many is the number of
// small files.
func newSample(t testing.TB, many int) *sample {
	t.Helper()
	im, path := newImage(t, CreateOptions{Label: "sample"})
	im.db.NoSync = true
	r := rand.New(rand.NewPCG(3, 4))
	for at := 0; at < many; at += 500 {
		var steps []step
		for i := at; i < min(at+500, many); i++ {
			steps = append(steps, put(fmt.Sprintf("many/dir %d/a file with the number %d%s", i/100, i, strings.Repeat("_", 100)), fmt.Sprintf("small %d\n", i)))
		}
		mustDo(t, im, steps...)
	}
	for i := range 60 {
		mustDo(t, im, put(fmt.Sprintf("chunks/%d", i), string(noise(r, 200+r.IntN(6000)))), link(fmt.Sprintf("links/%d", i), "../chunks"))
	}
	big := noise(r, 600_000)
	mustDo(t, im, put("big/one", string(big)), put("big/twin", string(big)), put("empty", ""), mkdir("bare"))
	copy(big[300_000:], "a change in the middle")
	mustDo(t, im, put("big/one", string(big)), put("old", string(noise(r, 40_000))))
	mustDo(t, im, remove("old"), remove("chunks/7"), Change{Op: OpMeta, Path: must(Clean("chunks/8")), Mode: 0o600}.step())
	mustDo(t, im, put("last", lines(400)))
	s := &sample{now: map[string]string{}, versions: map[string]string{}, info: must(im.Info())}
	for _, c := range must(im.Log(0, 1<<30)) {
		for _, e := range c.Effects {
			if e.After != nil {
				s.versions[at(e.Path, e.After.Version)] = seen(*e.After, bodyOf(t, im, e.Path, *e.After))
			}
		}
	}
	err := im.Walk(context.Background(), Path{}, func(e Entry) error {
		s.now[e.Path.Rel()] = s.versions[at(e.Path, e.Node.Version)]
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	im.Close()
	s.bytes = must(os.ReadFile(path))
	s.bytes = s.bytes[:readHighWater(t, path)*pageSize]
	return s
}

func (c Change) step() step { return step{Change: c} }

func bodyOf(t testing.TB, im *Image, p Path, n Node) string {
	if n.Kind != KindFile {
		return ""
	}
	return nodeText(t, im, p, n)
}

func readHighWater(t testing.TB, path string) uint64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return must(readHeader(f)).pages
}

// write puts a damaged copy of the sample into a directory of its own.
func (s *sample) write(t testing.TB, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sample.vdisk")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// read reads everything that an image gives away. What is wrong with it is
// reported to wrong, and the paths that cannot be had are returned.
func (s *sample) read(im *Image, wrong func(string, ...any)) (lost []string) {
	for rel := range s.now {
		p := must(FromBytes([]byte(rel)))
		if err := s.readOne(im, p, wrong); err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrNotDirectory) {
				wrong("%s: %v", p, err)
			}
			lost = append(lost, rel)
		}
	}
	im.Walk(context.Background(), Path{}, func(e Entry) error {
		if _, ok := s.versions[at(e.Path, e.Node.Version)]; !ok && e.Path.Rel() != "new" {
			wrong("%s at version %d was never there", e.Path, e.Node.Version)
		}
		return nil
	})
	slices.Sort(lost)
	return lost
}

var errOlder = fmt.Errorf("%w: an older version", ErrCorrupt)

func (s *sample) readOne(im *Image, p Path, wrong func(string, ...any)) error {
	n, err := im.Lstat(p)
	if err != nil {
		return err
	}
	var body bytes.Buffer
	if n.Kind == KindFile {
		f, err := im.OpenNode(p, n)
		if err != nil {
			return err
		}
		if _, err := body.ReadFrom(f.Reader()); err != nil {
			return err
		}
	}
	got := seen(n, body.String())
	if got != s.versions[at(p, n.Version)] {
		wrong("%s at version %d is %s", p, n.Version, got)
	}
	if got != s.now[p.Rel()] {
		return errOlder
	}
	return nil
}

func check(t testing.TB, path string, o CheckOptions) *Report {
	t.Helper()
	r, err := Check(context.Background(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// wantClean checks an image that must be without a finding.
func wantClean(t testing.TB, path string) *Report {
	t.Helper()
	r := check(t, path, CheckOptions{})
	for _, f := range r.Findings {
		t.Errorf("%s: %v", f.Kind, f)
	}
	if r.More > 0 {
		t.Errorf("and %d more", r.More)
	}
	return r
}

func TestCheckClean(t *testing.T) {
	s := newSample(t, 1000)
	path := s.write(t, s.bytes)
	r := wantClean(t, path)
	if r.UUID != s.info.UUID || r.Seq != s.info.Seq || r.Commit != s.info.Commit || r.Bytes != s.info.Bytes ||
		r.Files+r.Directories+r.Symlinks != s.info.Entries || r.Label != "sample" || r.Oldest != 1 || r.Commits != int64(s.info.Seq) {
		t.Errorf("the report is %+v, the image %+v", r, s.info)
	}
	if r.Files == 0 || r.Directories == 0 || r.Symlinks == 0 || r.Chunks == 0 || r.ChunkBytes == 0 || r.PlainBytes <= r.ChunkBytes ||
		r.Leaked != 0 || r.Unused != 0 || r.Pending != 0 || r.FileSize != int64(len(s.bytes)) || r.FreePages == 0 {
		t.Errorf("the report is %+v", r)
	}
	if !bytes.Equal(must(os.ReadFile(path)), s.bytes) {
		t.Error("a check changed the file")
	}
	if r := check(t, path, CheckOptions{Repair: true}); !r.Clean() || len(r.Findings) > 0 || r.Kept != "" {
		t.Errorf("repairing what is whole: %+v", r)
	}
	if !bytes.Equal(must(os.ReadFile(path)), s.bytes) {
		t.Error("a repair of what is whole changed the file")
	}
}

// A file with more chunks than a node holds, and one made of the same chunks
// in another order.
func TestCheckLongFile(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	im.db.NoSync = true
	body := string(randomBytes(5, 90<<20))
	half := len(body) / 2
	mustDo(t, im, put("long", body))
	mustDo(t, im, put("turned", body[half:]+body[:half]))
	n := must(im.Lstat(mustPath(t, "long")))
	if n.body.list == nil {
		t.Fatal("the file is too short for this test")
	}
	im.Close()
	wantClean(t, path)
	// A byte of one chunk: both files need it, or the first only when the cut
	// is in it; the first is named in any case.
	im = must(Open(path, OpenOptions{}))
	var refs []ref
	im.db.View(func(tx *bolt.Tx) (err error) { refs, err = im.listedRefs(tx, &n); return err })
	edit(t, im, bucketChunks, uintKey(refs[700].id), flip)
	im.Close()
	r := check(t, path, CheckOptions{})
	wantFinding(t, r, FindChunk, chunkName(refs[700].id), "")
	wantFinding(t, r, FindContent, "", "long")
}

// wantFinding wants one with the kind, the place when it is not empty, and the
// path when it is not empty.
func wantFinding(t testing.TB, r *Report, kind FindingKind, where, path string) *Finding {
	t.Helper()
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.Kind == kind && (where == "" || f.Where == where) && (path == "" || f.HasPath && f.Path.Rel() == path) {
			return f
		}
	}
	t.Errorf("no finding %s %q %q among %d: %v", kind, where, path, len(r.Findings), r.Findings[:min(5, len(r.Findings))])
	return nil
}

// page numbers of a sample, by what they are.
type layout struct {
	header   *header
	roots    map[string]uint64
	branches map[string][]uint64
	leaves   map[string][]uint64
}

func layoutOf(t testing.TB, b []byte) *layout {
	t.Helper()
	path := filepath.Join(t.TempDir(), "layout")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	f := must(os.Open(path))
	defer f.Close()
	l := &layout{header: must(readHeader(f)), roots: map[string]uint64{}, branches: map[string][]uint64{}, leaves: map[string][]uint64{}}
	p := newPages(f, int64(len(b)), l.header, func(f pageFault) { t.Fatalf("%+v", f) })
	for _, bucket := range must(p.buckets()) {
		l.roots[bucket.name] = bucket.root
		if bucket.root != 0 {
			l.gather(b, bucket.name, bucket.root)
		}
	}
	return l
}

func (l *layout) gather(b []byte, name string, id uint64) {
	page := b[id*pageSize:]
	h := parsePageHead(page)
	if h.flags == flagLeaf {
		l.leaves[name] = append(l.leaves[name], id)
		return
	}
	l.branches[name] = append(l.branches[name], id)
	elements, _, _ := parseBranch(h, page[:h.run()*pageSize])
	for _, e := range elements {
		l.gather(b, name, e.page)
	}
}

// child sets where element i of a branch page leads to.
func child(b []byte, page uint64, i int, to uint64) {
	binary.NativeEndian.PutUint64(b[page*pageSize+pageFront+uint64(elementSize*i)+8:], to)
}

// stored edits a value in place, found by its key, without its checksum
// following.
func flipStored(t testing.TB, b []byte, l *layout, bucket, key []byte, off int) {
	t.Helper()
	for _, id := range l.leaves[string(bucket)] {
		page := b[id*pageSize:]
		h := parsePageHead(page)
		run := page[:h.run()*pageSize]
		done := false
		parseLeaf(h, run, uint64(len(run)), func(_ int, e leafElement) string {
			if bytes.Equal(e.key, key) {
				e.value[off] ^= 1
				done = true
			}
			return ""
		})
		if done {
			return
		}
	}
	t.Fatalf("no %q in %s", key, bucket)
}

// flipInline is flipStored for a bucket within the list of buckets.
func flipInline(t testing.TB, b []byte, l *layout, bucket, key []byte) {
	t.Helper()
	root := b[l.header.root*pageSize:][:pageSize]
	done := false
	parseLeaf(parsePageHead(root), root, pageSize, func(_ int, e leafElement) string {
		if string(e.key) != string(bucket) {
			return ""
		}
		in := e.value[bucketFront:]
		parseLeaf(parsePageHead(in), in, uint64(len(in)), func(_ int, e leafElement) string {
			if bytes.Equal(e.key, key) {
				e.value[len(e.value)/2] ^= 1
				done = true
			}
			return ""
		})
		return ""
	})
	if !done {
		t.Fatalf("no %q in %s", key, bucket)
	}
}

// TestDamages damages one exact spot each, and says what Open, Check and a
// repair make of it. Whatever it is, no wrong byte is served.
func TestDamages(t *testing.T) {
	s := newSample(t, 1000)
	l := layoutOf(t, s.bytes)
	if len(l.branches["tree"]) < 3 || len(l.branches["chunks"]) == 0 {
		t.Fatalf("the sample is too small: %v", l.branches)
	}
	const readable, refused, damaged, whole = "readable", "refused", "damaged", "whole"
	const any = -2 // where the file is cut, which is whatever lies there
	root, branch := l.roots["tree"], l.branches["tree"][1]
	leaf := l.leaves["tree"][5]
	le := binary.NativeEndian
	newest, older := uint64(l.header.copy), uint64(1-l.header.copy)
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, b []byte) []byte
		open   string // whole: nothing is noticed; damaged: opens, reads, does not write; refused: ErrCorrupt
		lost   int    // how many paths cannot be read at the newest version: 0 none, -1 some but not all, any
		kind   FindingKind
		where  string
		left   bool // a repair cannot mend all of it
		back   bool // but all paths are back
	}{
		{"newer header", func(_ *testing.T, b []byte) []byte { b[newest*pageSize+60] ^= 1; return b }, whole, -1, FindHeader, "header", false, true},
		{"older header", func(_ *testing.T, b []byte) []byte { b[older*pageSize+60] ^= 1; return b }, whole, 0, FindHeader, "header", false, true},
		{"front of a header", func(_ *testing.T, b []byte) []byte { b[newest*pageSize+8] ^= 1; return b }, whole, 0, FindHeader, "header", false, true},
		{"flags of the free list", func(_ *testing.T, b []byte) []byte { b[l.header.freeList*pageSize+8] ^= 2; return b }, damaged, 0, FindPage, "", false, true},
		{"count of the free list", func(_ *testing.T, b []byte) []byte {
			le.PutUint16(b[l.header.freeList*pageSize+10:], 0xFFFF)
			return b
		}, damaged, 0, FindPage, "", false, true},
		{"free list names a page in use", func(_ *testing.T, b []byte) []byte {
			le.PutUint64(b[l.header.freeList*pageSize+pageFront:], l.leaves["tree"][0])
			return b
		}, damaged, 0, FindPage, "", false, true},
		{"branch to itself", func(_ *testing.T, b []byte) []byte { child(b, branch, 1, branch); return b }, refused, 0, FindPage, fmt.Sprintf("page %d (branch) of tree", branch), false, true},
		{"branch to its parent", func(_ *testing.T, b []byte) []byte { child(b, branch, 1, root); return b }, refused, 0, FindPage, fmt.Sprintf("page %d (branch) of tree", branch), false, true},
		{"root to itself", func(_ *testing.T, b []byte) []byte { child(b, root, 0, root); return b }, refused, 0, FindPage, fmt.Sprintf("page %d (branch) of tree", root), false, true},
		{"branch to its sibling", func(_ *testing.T, b []byte) []byte { child(b, root, 0, l.branches["tree"][2]); return b }, damaged, -1, FindPage, "", false, true},
		{"branch to a leaf of another bucket", func(_ *testing.T, b []byte) []byte { child(b, branch, 1, l.leaves["chunks"][0]); return b }, damaged, -1, FindPage, "", false, true},
		{"branch to the free list", func(_ *testing.T, b []byte) []byte { child(b, branch, 1, l.header.freeList); return b }, refused, 0, FindPage, "", false, true},
		{"branch out of the file", func(_ *testing.T, b []byte) []byte { child(b, branch, 1, 1<<40); return b }, damaged, -1, FindPage, fmt.Sprintf("page %d (branch) of tree", branch), false, true},
		{"branch out of all numbers", func(_ *testing.T, b []byte) []byte { child(b, branch, 1, ^uint64(0)); return b }, damaged, -1, FindPage, "", false, true},
		{"branch without elements", func(_ *testing.T, b []byte) []byte { le.PutUint16(b[branch*pageSize+10:], 0); return b }, refused, 0, FindPage, "", false, true},
		{"branch with too many elements", func(_ *testing.T, b []byte) []byte { le.PutUint16(b[branch*pageSize+10:], 60000); return b }, refused, 0, FindPage, "", false, true},
		{"branch of zeros", func(_ *testing.T, b []byte) []byte { clear(b[branch*pageSize:][:pageSize]); return b }, damaged, -1, FindPage, "", false, true},
		{"branch of the commits of zeros", func(_ *testing.T, b []byte) []byte { clear(b[l.roots["commits"]*pageSize:][:pageSize]); return b }, damaged, 0, FindPage, "", false, true},
		{"branch of the chunks of zeros", func(_ *testing.T, b []byte) []byte { clear(b[l.roots["chunks"]*pageSize:][:pageSize]); return b }, damaged, -1, FindPage, "", false, true},
		{"leaf that says it is a branch", func(_ *testing.T, b []byte) []byte { b[leaf*pageSize+8] = flagBranch; return b }, "", -1, FindPage, "", false, true},
		{"leaf that is a branch back", func(_ *testing.T, b []byte) []byte {
			copy(b[leaf*pageSize+8:], b[branch*pageSize+8:(branch+1)*pageSize])
			child(b, leaf, 0, branch)
			return b
		}, refused, 0, FindPage, "", false, true},
		{"leaf of zeros", func(_ *testing.T, b []byte) []byte { clear(b[leaf*pageSize:][:pageSize]); return b }, damaged, -1, FindPage, fmt.Sprintf("page %d (branch) of tree", branch), false, true},
		{"position in a leaf", func(_ *testing.T, b []byte) []byte { le.PutUint32(b[leaf*pageSize+pageFront+4:], 1<<31); return b }, damaged, -1, FindPage, fmt.Sprintf("page %d (leaf) of tree", leaf), false, true},
		{"size of a key in a leaf", func(_ *testing.T, b []byte) []byte { le.PutUint32(b[leaf*pageSize+pageFront+8:], 1<<31); return b }, damaged, -1, FindPage, "", false, true},
		{"size of a value in a leaf", func(_ *testing.T, b []byte) []byte { le.PutUint32(b[leaf*pageSize+pageFront+12:], 1<<31); return b }, damaged, -1, FindPage, "", false, true},
		{"overflow of a leaf", func(_ *testing.T, b []byte) []byte { le.PutUint32(b[leaf*pageSize+12:], 1<<31); return b }, damaged, 0, FindPage, "", false, true},
		{"list of buckets of zeros", func(_ *testing.T, b []byte) []byte { clear(b[l.header.root*pageSize:][:pageSize]); return b }, refused, 0, FindPage, "", true, true},
		{"name of a bucket", func(_ *testing.T, b []byte) []byte {
			at := bytes.Index(b[l.header.root*pageSize:], []byte("tree")) + int(l.header.root*pageSize)
			b[at+3] = 'f'
			return b
		}, refused, 0, FindPage, "bucket tree", false, true},
		{"chunk", func(t *testing.T, b []byte) []byte { flipStored(t, b, l, bucketChunks, uintKey(3), 60); return b }, whole, 1, FindChunk, "chunk 3", true, false},
		{"node", func(t *testing.T, b []byte) []byte {
			flipStored(t, b, l, bucketTree, []byte("chunks\x009"), 8)
			return b
		}, whole, 1, FindNode, "", false, true},
		{"commit", func(t *testing.T, b []byte) []byte { flipStored(t, b, l, bucketCommits, uintKey(9), 90); return b }, whole, 0, FindCommit, "commit v9", true, false},
		{"index", func(t *testing.T, b []byte) []byte {
			flipStored(t, b, l, bucketByHash, firstKey(b, l.leaves["byhash"][0]), 7)
			return b
		}, whole, 0, FindIndex, "", false, true},
		{"record of the head", func(t *testing.T, b []byte) []byte { flipInline(t, b, l, bucketMeta, keyHead); return b }, damaged, 0, FindMeta, `record "head"`, false, true},
		{"record of the fence", func(t *testing.T, b []byte) []byte { flipInline(t, b, l, bucketMeta, keyFence); return b }, "", 0, FindMeta, `record "fence"`, false, true},
		{"record of the identity", func(t *testing.T, b []byte) []byte { flipInline(t, b, l, bucketMeta, keyIdentity); return b }, refused, 0, FindMeta, `record "identity"`, false, true},
		{"record of the format", func(t *testing.T, b []byte) []byte { flipInline(t, b, l, bucketMeta, keyFormat); return b }, refused, 0, FindMeta, `record "format"`, false, true},
		{"cut behind a page", func(_ *testing.T, b []byte) []byte { return b[:len(b)*3/4/pageSize*pageSize] }, "", any, FindFile, "file", true, false},
		{"cut within a page", func(_ *testing.T, b []byte) []byte { return b[:len(b)*3/4/pageSize*pageSize+100] }, "", any, FindFile, "file", true, false},
		{"cut behind the headers", func(_ *testing.T, b []byte) []byte { return b[:2*pageSize] }, refused, 0, FindFile, "file", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := s.write(t, c.damage(t, bytes.Clone(s.bytes)))
			other, _ := newImage(t, CreateOptions{})
			im, err := Open(path, OpenOptions{})
			switch {
			case c.open == refused:
				wantKind(t, err, ErrCorrupt)
				if strings.Contains(err.Error(), path) {
					t.Errorf("the error names a host path: %v", err)
				}
			case err != nil && c.open == "":
				wantKind(t, err, ErrCorrupt)
			case err != nil:
				t.Fatal(err)
			}
			if err == nil {
				lost := s.read(im, t.Errorf)
				if c.lost == 0 && len(lost) > 0 || c.lost > 0 && len(lost) != c.lost || c.lost != any && len(lost) == len(s.now) {
					t.Errorf("%d of %d paths cannot be read: %.200q", len(lost), len(s.now), lost)
				}
				switch damage := im.Damage(); {
				case c.open == damaged:
					wantKind(t, damage, ErrCorrupt)
					_, err := do(t, im, Txn{}, put("new", "x"))
					wantKind(t, err, ErrCorrupt)
					_, err = im.Commit(context.Background(), Txn{Changes: []Change{{Op: OpRemove, Path: mustPath(t, "last")}}})
					wantKind(t, err, ErrCorrupt)
					if !strings.Contains(err.Error(), "fsck") || strings.Contains(err.Error(), path) {
						t.Errorf("the refusal is %q", err)
					}
				case c.open == whole && damage != nil:
					t.Error(damage)
				}
				im.Close()
			}
			mustDo(t, other, put("lives", lines(500)))

			r := check(t, path, CheckOptions{})
			wantFinding(t, r, c.kind, c.where, "")
			if _, err := json.Marshal(r); err != nil {
				t.Error(err)
			}
			before := must(os.ReadFile(path))
			r, err = Check(context.Background(), path, CheckOptions{Repair: true})
			if err != nil && c.left && !c.back { // too little is there to make a file of
				wantKind(t, err, ErrCorrupt)
				if r == nil || !bytes.Equal(must(os.ReadFile(path)), before) {
					t.Error("it changed the file, or gave no report")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if r.Clean() == c.left {
				t.Errorf("%d are left: %v", r.Left(), r.Findings[max(0, len(r.Findings)-5):])
			}
			checkAgain(t, path, r)
			if c.back {
				s.wantAllBack(t, path, c.kind == FindHeader)
			}
		})
	}
}

func firstKey(b []byte, page uint64) []byte {
	in := b[page*pageSize:][:pageSize]
	var key []byte
	parseLeaf(parsePageHead(in), in, pageSize, func(i int, e leafElement) string {
		if i == 0 {
			key = e.key
		}
		return ""
	})
	return key
}

// checkAgain wants nothing that the repair did not say.
func checkAgain(t testing.TB, path string, repaired *Report) {
	t.Helper()
	left := map[string]bool{}
	for _, f := range repaired.Findings {
		if !f.Repaired {
			left[f.about()] = true
		}
	}
	for _, f := range check(t, path, CheckOptions{}).Findings {
		if !left[f.about()] {
			t.Errorf("found after the repair: %s %v", f.Kind, f)
		}
	}
}

// wantAllBack wants every path as it was, and an image that can be written.
func (s *sample) wantAllBack(t *testing.T, path string, older bool) {
	t.Helper()
	im, err := Open(path, OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	if im.Damage() != nil {
		t.Error(im.Damage())
	}
	if lost := s.read(im, t.Errorf); len(lost) > 0 && !older {
		t.Errorf("lost: %.300q", lost)
	}
	info := must(im.Info())
	if !older && (info.Seq != s.info.Seq || info.Commit != s.info.Commit) || info.UUID != s.info.UUID {
		t.Errorf("it is %+v, was %+v", info, s.info)
	}
	mustDo(t, im, put("written after the repair", lines(300)))
	verify(t, im)
}

// A repair that writes a new file keeps the old one.
func TestRepairKeepsTheOldFile(t *testing.T) {
	s := newSample(t, 500)
	l := layoutOf(t, s.bytes)
	b := bytes.Clone(s.bytes)
	clear(b[l.leaves["tree"][0]*pageSize:][:pageSize])
	path := s.write(t, b)
	os.Chmod(path, 0o640)
	clock := func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }
	r := check(t, path, CheckOptions{Repair: true, Clock: clock})
	if r.Kept != "sample.vdisk.damaged-20260102T030405Z" {
		t.Errorf("kept as %q", r.Kept)
	}
	kept := filepath.Join(filepath.Dir(path), r.Kept)
	if !bytes.Equal(must(os.ReadFile(kept)), b) {
		t.Error("the old bytes are gone")
	}
	if st := must(os.Stat(path)); st.Mode().Perm() != 0o640 {
		t.Errorf("its mode is %v", st.Mode())
	}
	if entries := must(os.ReadDir(filepath.Dir(path))); len(entries) != 2 {
		t.Errorf("%v are in the directory", entries)
	}
	// Once more in the same second.
	os.WriteFile(path, b, 0o600)
	if r := check(t, path, CheckOptions{Repair: true, Clock: clock}); r.Kept != "sample.vdisk.damaged-20260102T030405Z-2" {
		t.Errorf("kept as %q", r.Kept)
	}
}

// A damaged image that was opened for writing shares its lock with readers,
// and keeps a repair out.
func TestDamagedIsShared(t *testing.T) {
	s := newSample(t, 500)
	b := bytes.Clone(s.bytes)
	clear(b[layoutOf(t, b).leaves["tree"][0]*pageSize:][:pageSize])
	path := s.write(t, b)
	im := must(Open(path, OpenOptions{}))
	defer im.Close()
	wantKind(t, im.Damage(), ErrCorrupt)
	reader := must(Open(path, OpenOptions{ReadOnly: true}))
	defer reader.Close()
	if check(t, path, CheckOptions{}).Clean() {
		t.Error("a check finds nothing")
	}
	for name, err := range map[string]error{
		"open":   second(Open(path, OpenOptions{Wait: time.Millisecond})),
		"repair": second(Check(context.Background(), path, CheckOptions{Wait: time.Millisecond, Repair: true})),
	} {
		if !errors.Is(err, ErrLocked) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// With a descriptor only, what needs no second file is repaired.
func TestRepairByDescriptor(t *testing.T) {
	s := newSample(t, 500)
	l := layoutOf(t, s.bytes)
	b := bytes.Clone(s.bytes)
	flipStored(t, b, l, bucketTree, []byte("chunks\x009"), 8)
	path := s.write(t, b)
	r := check(t, "", CheckOptions{Repair: true, File: must(os.OpenFile(path, os.O_RDWR, 0))})
	if f := wantFinding(t, r, FindNode, "", "chunks/9"); f != nil && !f.Repaired {
		t.Error(f)
	}
	s.wantAllBack(t, path, false)

	clear(b[l.leaves["tree"][0]*pageSize:][:pageSize])
	path = s.write(t, b)
	r = check(t, "", CheckOptions{Repair: true, File: must(os.OpenFile(path, os.O_RDWR, 0))})
	if wantFinding(t, r, FindFile, "file", ""); r.Clean() {
		t.Error("it says that it is clean")
	}
	if !bytes.Equal(must(os.ReadFile(path)), b) {
		t.Error("it changed the file")
	}
}

// What a killed process leaves is no damage; a repair sweeps it.
func TestCheckPending(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	stage := im.Stage(context.Background())
	must(stage.Add(strings.NewReader(lines(2000))))
	if err := stage.flush(); err != nil {
		t.Fatal(err)
	}
	im.Close()
	if r := wantClean(t, path); r.Pending != 2 || r.Unused != 0 {
		t.Errorf("%+v", r)
	}
	if r := check(t, path, CheckOptions{Repair: true}); !r.Clean() || r.Pending != 0 || r.Chunks != 0 {
		t.Errorf("%+v", r)
	}
}

// Values that are damaged and have a good checksum: what someone did who knew
// how.
func TestCheckForged(t *testing.T) {
	reseal := func(key []byte, change func(*Node)) func([]byte) []byte {
		return func(stored []byte) []byte {
			n := must(decodeNode(must(unseal(key, stored))))
			change(n)
			return seal(key, appendNode(nil, n))
		}
	}
	f, d := []byte("d\x00f"), []byte("d")
	for name, c := range map[string]struct {
		forge func(*testing.T, *Image)
		kind  FindingKind
		where string
		path  string
		left  bool
	}{
		"mode": {func(t *testing.T, im *Image) {
			edit(t, im, bucketTree, f, reseal(f, func(n *Node) { n.Mode = 0o777 }))
		}, FindHistory, "", "d/f", false},
		"version": {func(t *testing.T, im *Image) {
			edit(t, im, bucketTree, f, reseal(f, func(n *Node) { n.Version = 99 }))
		}, FindNode, "", "d/f", false},
		"hash": {func(t *testing.T, im *Image) {
			edit(t, im, bucketTree, f, reseal(f, func(n *Node) { n.SHA256[0]++ }))
		}, FindContent, "", "d/f", false},
		"directory turned into a link": {func(t *testing.T, im *Image) {
			edit(t, im, bucketTree, d, reseal(d, func(n *Node) { n.Kind, n.Target = KindSymlink, "x" }))
		}, FindParent, "", "d/f", false},
		"directory gone": {func(t *testing.T, im *Image) {
			im.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketTree).Delete(d) })
		}, FindNode, "", "d", false},
		"path too many": {func(t *testing.T, im *Image) {
			im.db.Update(func(tx *bolt.Tx) error {
				n := Node{Kind: KindDir, Version: 2}
				return tx.Bucket(bucketTree).Put([]byte("z"), seal([]byte("z"), appendNode(nil, &n)))
			})
		}, FindHistory, "", "z", false},
		"impossible name": {func(t *testing.T, im *Image) {
			im.db.Update(func(tx *bolt.Tx) error {
				n := Node{Kind: KindDir, Version: 2}
				return tx.Bucket(bucketTree).Put([]byte("d\x00.."), seal([]byte("d\x00.."), appendNode(nil, &n)))
			})
		}, FindNode, `path "d\x00.."`, "", false},
		"totals": {func(t *testing.T, im *Image) {
			edit(t, im, bucketMeta, keyHead, func(v []byte) []byte {
				h := must(decodeHead(must(unseal(keyHead, v))))
				h.bytes += 7
				return seal(keyHead, h.encode())
			})
		}, FindTotals, `record "head"`, "", false},
		"message of a commit": {func(t *testing.T, im *Image) {
			key := uintKey(2)
			edit(t, im, bucketCommits, key, func(v []byte) []byte {
				return seal(key, bytes.Replace(v[:len(v)-sumSize], []byte("honest"), []byte("forged"), 1))
			})
		}, FindCommit, "commit v2", "", true},
		"commit gone": {func(t *testing.T, im *Image) {
			im.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketCommits).Delete(uintKey(2)) })
		}, FindCommit, "commit v2", "", true},
		"newest commit gone": {func(t *testing.T, im *Image) {
			im.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketCommits).Delete(uintKey(3)) })
		}, FindCommit, "commit v3", "", true},
		"chunk of an older version gone": {func(t *testing.T, im *Image) {
			im.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketChunks).Delete(uintKey(1)) })
		}, FindContent, "commit v2", "d/f", true},
		"index leads elsewhere": {func(t *testing.T, im *Image) {
			sum := sumOf([]byte(lines(300)))
			edit(t, im, bucketByHash, sum[:], func([]byte) []byte { return seal(sum[:], uintKey(2)) })
		}, FindIndex, "", "", false},
		"index gone": {func(t *testing.T, im *Image) {
			sum := sumOf([]byte(lines(301)))
			im.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketByHash).Delete(sum[:]) })
		}, FindIndex, "chunk 2", "", false},
		"chunk in use marked as pending": {func(t *testing.T, im *Image) {
			key := append([]byte("s\x00\x00\x00\x00\x00\x00\x00\x05"), make([]byte, 32)...)
			im.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketPending).Put(key, seal(key, uintKey(2))) })
		}, FindPending, "chunk 2", "", false},
		"damaged chunk that nobody needs": {func(t *testing.T, im *Image) {
			im.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketChunks).Put(uintKey(50), []byte("rubbish")) })
		}, FindChunk, "chunk 50", "", false},
		"checkpoint": {func(t *testing.T, im *Image) {
			im.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketRefs).Put([]byte("name"), []byte("rubbish")) })
		}, FindCheckpoint, `checkpoint "name"`, "", true},
		"unknown record": {func(t *testing.T, im *Image) {
			im.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Put([]byte("x"), []byte("rubbish")) })
		}, FindMeta, `record "x"`, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			im, path := newImage(t, CreateOptions{})
			if _, err := do(t, im, Txn{Message: "honest"}, put("d/f", lines(300))); err != nil {
				t.Fatal(err)
			}
			mustDo(t, im, put("d/f", lines(301)), put("g", "short"))
			c.forge(t, im)
			im.Close()
			wantFinding(t, check(t, path, CheckOptions{}), c.kind, c.where, c.path)
			r := check(t, path, CheckOptions{Repair: true})
			if r.Clean() == c.left || r.Kept != "" {
				t.Errorf("%d are left: %v", r.Left(), r.Findings)
			}
			checkAgain(t, path, r)
			if c.left {
				return
			}
			im = must(Open(path, OpenOptions{}))
			defer im.Close()
			if text(t, im, "d/f") != lines(301) || text(t, im, "g") != "short" {
				t.Error("the files are not what they were")
			}
			mustDo(t, im, put("h", "x"))
			verify(t, im)
		})
	}
}

// What Check says about files that are no image, and about one in use.
func TestCheckErrors(t *testing.T) {
	s := newSample(t, 10)
	dir := t.TempDir()
	file := func(name string, b []byte) string {
		p := filepath.Join(dir, name)
		os.WriteFile(p, b, 0o600)
		return p
	}
	both := bytes.Clone(s.bytes)
	both[60]++
	both[pageSize+60]++
	newer := filepath.Join(dir, "newer")
	db := must(bolt.Open(newer, 0o600, nil))
	db.Update(func(tx *bolt.Tx) error {
		b, _ := tx.CreateBucket(bucketMeta)
		return b.Put(keyFormat, seal(keyFormat, []byte{FormatVersion + 1}))
	})
	db.Close()
	foreign := filepath.Join(dir, "foreign")
	db = must(bolt.Open(foreign, 0o600, nil))
	db.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("x")); return err })
	db.Close()
	im, used := newImage(t, CreateOptions{})
	defer im.Close()
	socket := filepath.Join(dir, "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, c := range map[string]struct {
		path string
		kind error
	}{
		"missing":         {filepath.Join(dir, "missing"), ErrNotFound},
		"empty":           {file("empty", nil), ErrNotImage},
		"text":            {file("text", bytes.Repeat([]byte("hello\n"), 10_000)), ErrNotImage},
		"directory":       {dir, ErrNotImage},
		"socket":          {socket, ErrNotImage},
		"both headers":    {file("both", both), ErrCorrupt},
		"newer format":    {newer, ErrFormat},
		"foreign":         {foreign, ErrNotImage},
		"in use by a run": {used, ErrLocked},
	} {
		t.Run(name, func(t *testing.T) {
			before, _ := os.ReadFile(c.path)
			for _, repair := range []bool{false, true} {
				_, err := Check(context.Background(), c.path, CheckOptions{Wait: time.Millisecond, Repair: repair})
				wantKind(t, err, c.kind)
			}
			if after, _ := os.ReadFile(c.path); !bytes.Equal(before, after) {
				t.Error("the file has changed")
			}
			if c.kind == ErrNotFound || c.kind == ErrLocked {
				return
			}
			_, err := Open(c.path, OpenOptions{Wait: time.Millisecond})
			wantKind(t, err, c.kind)
		})
	}
}

func TestCheckCancelled(t *testing.T) {
	s := newSample(t, 100)
	path := s.write(t, s.bytes)
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(context.Background())
	_, err := Check(ctx, path, CheckOptions{Progress: func(done, total int64) {
		if done < 0 || done > total || total != int64(len(s.bytes)) {
			t.Errorf("progress %d of %d", done, total)
		}
		cancel(stop)
	}})
	if !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

// A history that no longer begins with the first commit is checked as far as
// it reaches.
func TestCheckShortHistory(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	mustDo(t, im, put("old", lines(300)), put("both", "1"), put("gone", "x"))
	mustDo(t, im, put("both", "2"))
	mustDo(t, im, remove("gone"), put("new", lines(301)))
	im.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketCommits)
		return errors.Join(b.Delete(uintKey(1)), b.Delete(uintKey(2)))
	})
	im.Close()
	if r := wantClean(t, path); r.Oldest != 3 || r.Commits != 2 || r.Seq != 4 {
		t.Errorf("%+v", r)
	}
	im = must(Open(path, OpenOptions{}))
	edit(t, im, bucketTree, []byte("new"), flip)
	edit(t, im, bucketTree, []byte("old"), flip)
	im.Close()
	r := check(t, path, CheckOptions{Repair: true})
	if f := wantFinding(t, r, FindNode, "", "new"); f != nil && !f.Repaired {
		t.Error("what the history has was not restored")
	}
	if f := wantFinding(t, r, FindNode, "", "old"); f != nil && f.Repaired {
		t.Error("it says that it restored what nothing has")
	}
	checkAgain(t, path, r)
}
