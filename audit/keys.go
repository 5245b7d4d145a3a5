package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/dgraph-io/badger/v4"
)

// The keys in Badger. STREAM has no "/"; N is eight bytes, big endian, so that
// the order of the keys is the order of the records.
//
//	r/STREAM/N  the canonical line of a record
//	b/STREAM/N  its prunable body
//	h/STREAM    the head: how far the stream goes
const (
	recordPrefix = "r/"
	bodyPrefix   = "b/"
	headPrefix   = "h/"
)

const maxStream = 64

func recordKey(stream string, n uint64) []byte { return numberKey(recordPrefix, stream, n) }
func bodyKey(stream string, n uint64) []byte   { return numberKey(bodyPrefix, stream, n) }
func headKey(stream string) []byte             { return append([]byte(headPrefix), stream...) }
func streamPrefix(kind, stream string) []byte  { return append([]byte(kind+stream), '/') }

func numberKey(kind, stream string, n uint64) []byte {
	k := make([]byte, 0, len(kind)+len(stream)+9)
	k = append(append(append(k, kind...), stream...), '/')
	return binary.BigEndian.AppendUint64(k, n)
}

// numberOf is the N of a record or body key.
func numberOf(key, prefix []byte) (uint64, bool) {
	if len(key) != len(prefix)+8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(key[len(prefix):]), true
}

// checkStream allows letters, digits, "-", "_" and ".".
func checkStream(name string) error {
	ok := name != "" && len(name) <= maxStream
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
	}
	if !ok {
		return fmt.Errorf("%w: bad stream name %q", ErrUnavailable, name)
	}
	return nil
}

type leaf [sha256.Size]byte

func (l leaf) String() string { return hex.EncodeToString(l[:]) }

// leafOf is the RFC 6962 §2.1 leaf hash of a line: SHA-256(0x00 || line).
func leafOf(line []byte) (l leaf) {
	h := sha256.New()
	h.Write([]byte{0})
	h.Write(line)
	h.Sum(l[:0])
	return l
}

// prefixedLeaf is leafOf for a line that has the zero byte before it.
func prefixedLeaf(b []byte) leaf { return sha256.Sum256(b) }

// genesis is the prev of the first record. It names the stream, which no record
// does, so that a chain cannot be put in the place of another. The first byte
// keeps it apart from leaves (0) and nodes (1).
func genesis(stream string) leaf {
	return sha256.Sum256([]byte("\x02mcp-vdisk/audit/1\n" + stream))
}

// head is the newest durable record of a stream. No intent up to Settled is
// open, so that a start has to look only at what came after.
type head struct {
	N       uint64 `json:"n"`
	Leaf    string `json:"leaf"`
	Settled uint64 `json:"settled"`
}

func (h head) hash() (l leaf, err error) {
	b, err := hex.DecodeString(h.Leaf)
	if err != nil || len(b) != len(l) {
		return l, fmt.Errorf("%w: head has no hash", ErrUnreadable)
	}
	return leaf(b), nil
}

// readHead gives a zero head for a stream that has none.
func readHead(txn *badger.Txn, stream string) (h head, err error) {
	item, err := txn.Get(headKey(stream))
	if errors.Is(err, badger.ErrKeyNotFound) {
		return h, nil
	}
	if err == nil {
		err = item.Value(func(v []byte) error { return json.Unmarshal(v, &h) })
	}
	if err != nil {
		return h, fmt.Errorf("%w: head of stream %s: %w", ErrUnreadable, stream, err)
	}
	return h, nil
}
