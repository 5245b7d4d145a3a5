package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// edit changes one stored value behind the image's back.
func edit(t *testing.T, im *Image, bucket, key []byte, change func([]byte) []byte) {
	t.Helper()
	err := im.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucket)
		v := b.Get(key)
		if v == nil {
			t.Fatalf("no %x in %s", key, bucket)
		}
		return b.Put(key, change(bytes.Clone(v)))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func flip(v []byte) []byte {
	v[len(v)/2] ^= 1
	return v
}

func TestDamageIsFound(t *testing.T) {
	body := string(noise(rand.New(rand.NewPCG(1, 2)), 50_000))
	for name, c := range map[string]struct {
		damage func(*testing.T, *Image)
		use    func(*Image) error
	}{
		"node": {
			func(t *testing.T, im *Image) { edit(t, im, bucketTree, []byte("f"), flip) },
			func(im *Image) error { return second(im.Lstat(must(Clean("f")))) },
		},
		"node in a listing": {
			func(t *testing.T, im *Image) { edit(t, im, bucketTree, []byte("f"), flip) },
			func(im *Image) error { _, _, err := im.List(Path{}, "", 10); return err },
		},
		"node under another key": {
			func(t *testing.T, im *Image) {
				edit(t, im, bucketTree, []byte("g"), func([]byte) (v []byte) {
					im.db.View(func(tx *bolt.Tx) error { v = bytes.Clone(tx.Bucket(bucketTree).Get([]byte("f"))); return nil })
					return v
				})
			},
			func(im *Image) error { return second(im.Lstat(must(Clean("g")))) },
		},
		"chunk": {
			func(t *testing.T, im *Image) { edit(t, im, bucketChunks, uintKey(1), flip) },
			func(im *Image) error { return readAll(im, "f") },
		},
		"chunk with a good checksum": {
			func(t *testing.T, im *Image) {
				edit(t, im, bucketChunks, uintKey(1), func(v []byte) []byte { return seal(uintKey(1), flip(v[:len(v)-sumSize])) })
			},
			func(im *Image) error { return readAll(im, "f") },
		},
		"chunk with a good hash and other content": {
			func(t *testing.T, im *Image) {
				other := bytes.Repeat([]byte("x"), len(body))
				edit(t, im, bucketChunks, uintKey(1), func([]byte) []byte { return im.packer.pack(1, sumOf(other), other) })
			},
			func(im *Image) error { return readAll(im, "f") },
		},
		"chunk that unpacks to more": {
			func(t *testing.T, im *Image) {
				bomb := make([]byte, 10<<20)
				edit(t, im, bucketChunks, uintKey(1), func([]byte) []byte { return im.packer.pack(1, sumOf(bomb), bomb) })
			},
			func(im *Image) error { return readAll(im, "f") },
		},
		"chunk that is missing": {
			func(t *testing.T, im *Image) {
				im.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketChunks).Delete(uintKey(1)) })
			},
			func(im *Image) error { return readAll(im, "f") },
		},
		"head": {
			func(t *testing.T, im *Image) { edit(t, im, bucketMeta, keyHead, flip) },
			func(im *Image) error { return second(im.Info()) },
		},
		"commit record": {
			func(t *testing.T, im *Image) { edit(t, im, bucketCommits, uintKey(2), flip) },
			func(im *Image) error { return second(im.Log(0, 10)) },
		},
		"commit record that is searched": {
			func(t *testing.T, im *Image) { edit(t, im, bucketCommits, uintKey(2), flip) },
			func(im *Image) error { _, _, err := im.FindCommit("x"); return err },
		},
	} {
		t.Run(name, func(t *testing.T) {
			im, _ := newImage(t, CreateOptions{})
			mustDo(t, im, put("f", body), put("g", "short"))
			if err := readAll(im, "f"); err != nil {
				t.Fatal(err)
			}
			c.damage(t, im)
			wantKind(t, c.use(im), ErrCorrupt)
		})
	}
}

func readAll(im *Image, path string) error {
	f, err := im.Open(must(Clean(path)))
	if err != nil {
		return err
	}
	_, err = f.Bytes(0, 1<<20)
	return err
}

// A damaged entry of the index by hash costs a second copy and no more.
func TestDamagedIndex(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	body := lines(300)
	mustDo(t, im, put("f", body))
	sum := sumOf([]byte(body))
	edit(t, im, bucketByHash, sum[:], flip)
	mustDo(t, im, put("g", body))
	if text(t, im, "g") != body || text(t, im, "f") != body {
		t.Error("the content is gone")
	}
}

func sumOf(b []byte) [32]byte { return sha256.Sum256(b) }

// The file is cut short under an open image: reading what is gone is a fault
// of the memory map, and an error here.
func TestFileCutShort(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	mustDo(t, im, put("f", string(randomBytes(1, 1<<20))))
	if err := os.Truncate(path, 2*pageSize); err != nil {
		t.Fatal(err)
	}
	wantKind(t, readAll(im, "f"), ErrCorrupt)
	_, err := im.Info()
	wantKind(t, err, ErrCorrupt)
	_, err = do(t, im, Txn{}, put("g", "x"))
	wantKind(t, err, ErrCorrupt)
}

// Whatever is wrong with the bytes of an image, using it gives results or
// errors.
func TestRandomDamage(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	var all []step
	for i := range 200 {
		all = append(all, put("d/"+strings.Repeat("n", i%50)+string(rune('a'+i%26)), lines(i)))
	}
	mustDo(t, im, all...)
	im.Close()
	good := must(os.ReadFile(path))
	rounds := 60
	if soak() {
		rounds = 3000
	}
	r := rand.New(rand.NewPCG(7, 8))
	for i := range rounds {
		bad := bytes.Clone(good)
		for range 1 + r.IntN(20) {
			off := 2*pageSize + r.IntN(len(bad)-2*pageSize)
			bad[off] ^= byte(1 << r.IntN(8))
		}
		file := filepath.Join(t.TempDir(), "bad.vdisk")
		if err := os.WriteFile(file, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		use(t, i, file)
	}
}

func use(t *testing.T, round int, path string) {
	t.Helper()
	im, err := Open(path, OpenOptions{})
	if err != nil {
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNotImage) && !errors.Is(err, ErrFormat) {
			t.Errorf("round %d: %v", round, err)
		}
		return
	}
	defer im.Close()
	im.Walk(context.Background(), Path{}, func(e Entry) error {
		if f, err := im.OpenNode(e.Path, e.Node); err == nil {
			f.Lines(1, 1000, 1<<20)
		}
		return nil
	})
	im.Log(0, 100)
	do(t, im, Txn{}, put("new", "x"))
}
