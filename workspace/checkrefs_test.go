package workspace

import (
	"fmt"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// history makes an image in which every commit has a checkpoint, of a tree that
// grows, shrinks and changes kind.
func checkpointed(t *testing.T) (im *Image, path string, all []Checkpoint) {
	im, path = newImage(t, CreateOptions{})
	for i, steps := range [][]step{
		{put("a", "one"), put("d/b", lines(400)), put("z", "last")},
		{put("a", "two")},
		{remove("d")},
		{put("d", "now a file"), put("aa", "between")},
		{remove("z"), remove("a")},
	} {
		mustDo(t, im, steps...)
		all = append(all, must(im.Checkpoint(t.Context(), fmt.Sprint("c", i), "")))
	}
	return im, path, all
}

// Check computes the digest of every checkpoint, the newest and the older ones.
func TestCheckProvesCheckpoints(t *testing.T) {
	im, path, all := checkpointed(t)
	im.Close()
	if r := wantClean(t, path); r.Checkpoints != int64(len(all)) {
		t.Errorf("%d checkpoints, want %d", r.Checkpoints, len(all))
	}
}

func TestCheckForgedCheckpoint(t *testing.T) {
	zeros := strings.Repeat("00", 32)
	for name, forge := range map[string]func(*Checkpoint){
		"digest":         func(c *Checkpoint) { c.Digest = zeros },
		"commit":         func(c *Checkpoint) { c.Commit = zeros },
		"version":        func(c *Checkpoint) { c.Seq++ },
		"later than all": func(c *Checkpoint) { c.Seq = 99 },
		"bytes":          func(c *Checkpoint) { c.Bytes++ },
		"entries":        func(c *Checkpoint) { c.Entries-- },
	} {
		t.Run(name, func(t *testing.T) {
			for i := range 5 {
				im, path, all := checkpointed(t)
				c := all[i]
				forge(&c)
				key := []byte(c.Name)
				err := im.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketRefs).Put(key, seal(key, c.encode())) })
				if err != nil {
					t.Fatal(err)
				}
				im.Close()
				r := check(t, path, CheckOptions{})
				if len(r.Findings) != 1 || r.Findings[0].Kind != FindCheckpoint || !strings.Contains(r.Findings[0].Where, c.Name) {
					t.Errorf("%s: %v", c.Name, r.Findings)
				}
			}
		})
	}
}
