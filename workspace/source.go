package workspace

import (
	"crypto/sha256"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// maxSource is the most that Txn.Source may have, in bytes.
const maxSource = 4 << 20

// Source returns the source of the script that made a commit; ok is false
// when none was given with it.
//
// Errors: ErrNotFound when there is no such commit; ErrCorrupt.
func (im *Image) Source(seq uint64) (source []byte, ok bool, err error) {
	err = im.view("read source", func(tx *bolt.Tx) error {
		if _, err := checkVersion(tx, "read source", seq); err != nil {
			return err
		}
		r, err := recordHead(tx, seq)
		switch {
		case err != nil:
			return err
		case r == nil:
			return notReached("read source", seq)
		case r.source == 0:
			return nil
		}
		source, err = im.sourceChunk(tx, r.source)
		ok = err == nil
		return err
	})
	return source, ok, err
}

func (im *Image) sourceChunk(tx *bolt.Tx, id uint64) ([]byte, error) {
	// A record has no size of its source: the chunk's own word has to do,
	// within the limit.
	size, _, err := chunkFront(tx.Bucket(bucketChunks).Get(uintKey(id)))
	if err == nil && size > maxSource {
		return nil, imageError("read source", ErrCorrupt, fmt.Sprintf("its chunk %d is too long for a source", id))
	}
	source, _, err := im.chunk(tx, ref{id: id, size: size}, nil)
	return source, err
}

// packSource packs the source ahead of the transaction, and returns how many
// bytes it is going to write.
func (w *writer) packSource() int {
	if len(w.txn.Source) == 0 || w.txn.DryRun {
		return 0
	}
	id, sum := w.im.lastChunk.Add(1), sha256.Sum256(w.txn.Source)
	w.source = &stored{id, sum, w.im.packer.pack(id, sum, w.txn.Source)}
	return len(w.source.value)
}

// putSource stores the source, unless the image has these bytes already. It
// comes behind settle, which drops and indexes what the stage has of them.
func (w *writer) putSource() error {
	if w.source == nil {
		return nil
	}
	if id := hashed(w.tx, w.source.sum); id != 0 && !w.im.doomed(id) {
		w.result.source = id
		w.im.revive(id)
		return nil
	}
	w.result.source = w.source.id
	if err := putChunk(w.tx, w.source); err != nil {
		return err
	}
	return w.im.putHash(w.tx, w.source.sum, w.source.id)
}
