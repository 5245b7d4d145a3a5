package workspace

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
)

// FormatVersion is the version of the image format that this package writes,
// and the only one it reads.
const FormatVersion = 1

// Keys of the bucket "meta".
var (
	keyFormat   = []byte("format")   // version as a varint; decoded before anything else
	keyIdentity = []byte("identity") // what an image is; written once
	keyHead     = []byte("head")     // where it stands; written by every commit
	keyFence    = []byte("fence")    // the highest fencing token seen, and who gave it out
)

// identity never changes while an image is open.
type identity struct {
	uuid         [16]byte
	label        string
	created      time.Time
	quotaBytes   int64
	quotaEntries int64
}

const maxLabel = 1 << 10

func (id *identity) encode() []byte {
	b := append([]byte(nil), id.uuid[:]...)
	b = appendText(b, id.label)
	b = appendInt(b, id.created.UnixNano())
	b = binary.AppendUvarint(b, uint64(id.quotaBytes))
	return binary.AppendUvarint(b, uint64(id.quotaEntries))
}

func decodeIdentity(in []byte) (*identity, error) {
	d := &decoder{in: in}
	id := new(identity)
	copy(id.uuid[:], d.raw(16))
	id.label = d.text(maxLabel)
	id.created = time.Unix(0, d.int()).UTC()
	id.quotaBytes, id.quotaEntries = d.int63(), d.int63()
	return id, d.end()
}

// uuidString is the usual form of RFC 9562.
func (id *identity) uuidString() string {
	h := hex.EncodeToString(id.uuid[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// head is the newest commit and the exact totals of the tree.
type head struct {
	seq     uint64
	id      [32]byte
	bytes   int64 // sizes of all files and symlink targets
	entries int64 // all nodes; the root does not count
}

func (h *head) encode() []byte {
	b := binary.AppendUvarint(nil, h.seq)
	b = append(b, h.id[:]...)
	b = binary.AppendUvarint(b, uint64(h.bytes))
	return binary.AppendUvarint(b, uint64(h.entries))
}

func decodeHead(in []byte) (*head, error) {
	d := &decoder{in: in}
	h := &head{seq: d.uint(), id: d.id(), bytes: d.int63(), entries: d.int63()}
	return h, d.end()
}

// metaValue reads and checks one value of the bucket "meta".
func metaValue[T any](tx *bolt.Tx, key []byte, decode func([]byte) (T, error)) (T, error) {
	var none T
	stored := tx.Bucket(bucketMeta).Get(key)
	if stored == nil {
		return none, imageError("read", ErrCorrupt, fmt.Sprintf("its %s record is missing", key))
	}
	value, err := unseal(key, stored)
	if err != nil {
		return none, imageError("read", ErrCorrupt, fmt.Sprintf("its %s record: %v", key, err))
	}
	v, err := decode(value)
	if err != nil {
		return none, imageError("read", ErrCorrupt, fmt.Sprintf("its %s record: %v", key, err))
	}
	return v, nil
}

func readHead(tx *bolt.Tx) (*head, error) { return metaValue(tx, keyHead, decodeHead) }

func putMeta(tx *bolt.Tx, key, value []byte) error {
	return tx.Bucket(bucketMeta).Put(key, seal(key, value))
}
