package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// strangersDigest follows the comment of TreeDigest, with nothing but what the
// package exports.
func strangersDigest(t testing.TB, im *Image) string {
	t.Helper()
	var entries []Entry
	if err := im.Walk(context.Background(), Path{}, func(e Entry) error { entries = append(entries, e); return nil }); err != nil {
		t.Fatal(err)
	}
	name := func(e Entry) string { return strings.Join(e.Path.Components(), "\x00") }
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(name(a), name(b)) })
	b := []byte("mcp-vdisk tree 1\n")
	for _, e := range entries {
		n := e.Node
		b = binary.BigEndian.AppendUint32(b, uint32(len(name(e))))
		b = append(append(b, name(e)...), byte(n.Kind))
		b = binary.BigEndian.AppendUint32(b, n.Mode)
		b = binary.BigEndian.AppendUint64(b, uint64(n.ModTime.UnixNano()))
		b = binary.BigEndian.AppendUint64(b, n.Version)
		b = binary.BigEndian.AppendUint64(b, uint64(n.Size))
		b = binary.BigEndian.AppendUint64(b, uint64(n.Lines))
		switch n.Kind {
		case KindFile:
			b = append(b, n.SHA256[:]...)
		case KindSymlink:
			b = append(b, n.Target...)
		}
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func TestTreeDigest(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	empty, seq, err := im.TreeDigest(t.Context())
	if err != nil || seq != 1 || empty != sha256.Sum256([]byte("mcp-vdisk tree 1\n")) {
		t.Errorf("%x of %d, %v", empty, seq, err)
	}
	mustDo(t, im,
		put("a/b", "x\ny"), put("a.b", strings.Repeat("z\n", 1000)), mkdir("a").with(func(c *Change) { c.Path = must(FromBytes([]byte("a\xff\nb"))) }), link("l", "\xff"), put("e", ""),
		meta("a", 0o700, time.Unix(-1, -1)),
	)
	digest, _, err := im.TreeDigest(t.Context())
	if want := strangersDigest(t, im); err != nil || hex.EncodeToString(digest[:]) != want {
		t.Errorf("%x, want %s (%v)", digest, want, err)
	}
	// Everything that can be seen of a tree is in it.
	seen := map[[32]byte]bool{digest: true}
	for i, s := range []step{
		meta("e", 0o600, time.Time{}), meta("e", 0, time.Unix(3, 3)), put("e", "x"), put("e", "y"), link("l", "m").with(replacing), remove("e"), mkdir("e"),
	} {
		mustDo(t, im, s)
		digest, _, err := im.TreeDigest(t.Context())
		if err != nil || seen[digest] {
			t.Errorf("step %d did not change it (%v)", i, err)
		}
		seen[digest] = true
	}
	edit(t, im, bucketTree, []byte("l"), flip)
	_, _, err = im.TreeDigest(t.Context())
	wantKind(t, err, ErrCorrupt)
	_, err = im.Checkpoint(t.Context(), "damaged", "")
	wantKind(t, err, ErrCorrupt)
}

func TestCheckpoints(t *testing.T) {
	im, path := newImage(t, CreateOptions{Clock: ticking(time.Unix(1e9, 1))})
	if all, err := im.Checkpoints(); err != nil || len(all) != 0 {
		t.Error(all, err)
	}
	var made []Checkpoint
	for _, name := range []string{"z", "a"} {
		made = append(made, must(im.Checkpoint(t.Context(), name, "empty\n\xff")))
	}
	c := mustDo(t, im, put("f", "12345"), link("l", "f"))
	last := must(im.Checkpoint(t.Context(), "Release_1.0-rc.2", ""))
	if last.Seq != 2 || last.Commit != c.ID || last.Bytes != 6 || last.Entries != 2 || last.Digest != strangersDigest(t, im) {
		t.Errorf("%+v", last)
	}
	mustDo(t, im, remove("f"))
	_, err := im.Checkpoint(t.Context(), "a", "again")
	wantKind(t, err, ErrExists)
	if err.Error() != `the checkpoint "a" already exists: it names v1` {
		t.Error(err)
	}
	im = reopen(t, im, path)
	want := []Checkpoint{made[1], made[0], last}
	if all, err := im.Checkpoints(); err != nil || !slices.Equal(all, want) {
		t.Errorf("%+v, %v, want %+v", all, err, want)
	}
	if err := im.DropCheckpoint("a"); err != nil {
		t.Error(err)
	}
	wantKind(t, im.DropCheckpoint("a"), ErrNotFound)
	wantKind(t, im.DropCheckpoint(""), ErrNotFound)
	wantKind(t, im.DropCheckpoint(strings.Repeat("x", 1<<20)), ErrNotFound)
	if all := must(im.Checkpoints()); len(all) != 2 {
		t.Errorf("%+v", all)
	}
	if c := must(im.Checkpoint(t.Context(), "a", "")); c.Seq != 3 {
		t.Errorf("%+v", c)
	}
	_, err = im.Checkpoint(t.Context(), "long", strings.Repeat("x", maxText+1))
	wantKind(t, err, ErrTooLarge)
	im.Close()
	im = must(Open(path, OpenOptions{ReadOnly: true}))
	defer im.Close()
	_, err = im.Checkpoint(t.Context(), "b", "")
	wantKind(t, err, ErrReadOnly)
	wantKind(t, im.DropCheckpoint("a"), ErrReadOnly)
	if all := must(im.Checkpoints()); len(all) != 3 || must(im.Revision("z")) != 1 {
		t.Errorf("%+v", all)
	}
}

func TestCheckpointNames(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	for _, name := range []string{"a", "1a", "v", "v1.0", "vv1", "1.0", "headway", "A_-.", strings.Repeat("x", 64)} {
		if _, err := im.Checkpoint(t.Context(), name, ""); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{
		"", "head", "HEAD", "v1", "V1", "v007", "12", "0", ".a", "-a", "_a", "a b", "a/b", "a\n", "\xff", "é", "a\x00", strings.Repeat("x", 65), strings.Repeat("x", 1e6), "@", "[", "`", "{",
	} {
		_, err := im.Checkpoint(t.Context(), name, "")
		wantKind(t, err, ErrInvalid)
		if len(err.Error()) > 400 || !strings.Contains(err.Error(), "1 to 64") {
			t.Errorf("%.500v", err)
		}
	}
}

func TestDamagedCheckpoint(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	must(im.Checkpoint(t.Context(), "c", "message"))
	edit(t, im, bucketRefs, []byte("c"), flip)
	_, err := im.Checkpoints()
	wantKind(t, err, ErrCorrupt)
	_, err = im.Revision("c")
	wantKind(t, err, ErrCorrupt)
	_, err = im.Checkpoint(t.Context(), "c", "")
	wantKind(t, err, ErrExists)
	if err := im.DropCheckpoint("c"); err != nil {
		t.Error(err)
	}
	// An image from elsewhere may hold a name that no terminal should see.
	forged := []byte("\x1b[2J")
	im.db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketRefs).Put(forged, seal(forged, new(Checkpoint{Time: time.Unix(0, 0)}).encode()))
	})
	_, err = im.Checkpoints()
	wantKind(t, err, ErrCorrupt)
	if strings.Contains(err.Error(), "\x1b") {
		t.Errorf("%q", err)
	}
}

// Of two that want one name, one gets it; each is of one commit, whatever
// others commit meanwhile.
func TestCheckpointsSideBySide(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	digests := map[uint64]string{1: strangersDigest(t, im)}
	results := make(chan error)
	for i := range 8 {
		go func() {
			_, err := im.Checkpoint(context.Background(), fmt.Sprint("n", i%4), "")
			results <- err
		}()
	}
	for range 20 {
		c := mustDo(t, im, put("f", fmt.Sprint(len(digests))))
		digests[c.Seq] = strangersDigest(t, im)
	}
	taken := 0
	for range 8 {
		if err := <-results; err != nil {
			wantKind(t, err, ErrExists)
			taken++
		}
	}
	all := must(im.Checkpoints())
	if taken != 4 || len(all) != 4 {
		t.Errorf("%d refused, %d made", taken, len(all))
	}
	for _, c := range all {
		if c.Digest != digests[c.Seq] {
			t.Errorf("%s of %d has the digest of another state", c.Name, c.Seq)
		}
	}
}

func FuzzCheckpoint(f *testing.F) {
	f.Add((&Checkpoint{Time: time.Unix(0, 0)}).encode())
	f.Add((&Checkpoint{
		Seq: 1 << 40, Commit: strings.Repeat("ab", 32), Digest: strings.Repeat("01", 32),
		Bytes: 1 << 62, Entries: 3, Time: minTime, Message: "text \xff",
	}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeCheckpoint(b)
		if err != nil {
			return
		}
		if again := c.encode(); !bytes.Equal(again, b) {
			t.Fatalf("%x decodes to %+v, which encodes as %x", b, c, again)
		}
		if len(c.Commit) != 64 || len(c.Digest) != 64 || c.Bytes < 0 || c.Entries < 0 || len(c.Message) > maxText {
			t.Fatalf("%x decodes to %+v", b, c)
		}
	})
}
