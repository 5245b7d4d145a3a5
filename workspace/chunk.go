package workspace

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
	bolt "go.etcd.io/bbolt"
)

// A stored chunk is
//
//	packing (0 raw, 1 zstd) · sha256 of the plain bytes · [zstd: plain size] · bytes
//
// under its id. The hash is checked on every read, before a byte is served;
// the checksum that ends the value ties it to its id.
const (
	packRaw  = 0
	packZstd = 1
)

// Sizes of chunks in plain bytes.
const (
	maxSingle = 128 << 10 // a file up to this is one chunk
	minChunk  = 16 << 10
	avgChunk  = 64 << 10
	maxChunk  = 256 << 10
	maxList   = 16 << 20 // a chunk that lists the chunks of a large file
)

// packer compresses and restores chunks. The zero value is ready; the codecs
// are made when they are first needed, since many processes need one or none.
type packer struct {
	enc     *zstd.Encoder
	encOnce sync.Once
	dec     *zstd.Decoder
	decOnce sync.Once
	room    sync.Pool // *[]byte, in which chunks are packed
}

func (p *packer) encoder() *zstd.Encoder {
	p.encOnce.Do(func() {
		var err error
		p.enc, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2),
			zstd.WithWindowSize(maxChunk), zstd.WithEncoderCRC(false), zstd.WithLowerEncoderMem(true))
		if err != nil {
			panic(err) // the options are constants
		}
	})
	return p.enc
}

func (p *packer) decoder() *zstd.Decoder {
	p.decOnce.Do(func() {
		var err error
		p.dec, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxMemory(maxList),
			zstd.WithDecoderLowmem(true), zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			panic(err) // the options are constants
		}
	})
	return p.dec
}

func (p *packer) close() {
	if p.dec != nil {
		p.dec.Close()
	}
}

// pack builds the stored form, sealed for its id. It keeps nothing of plain,
// and the result is no larger than it looks: a stage counts on that.
func (p *packer) pack(id uint64, sum [32]byte, plain []byte) []byte {
	const front = 1 + sha256.Size
	room, _ := p.room.Get().(*[]byte)
	if room == nil {
		room = new([]byte)
	}
	out := append((*room)[:0], packZstd)
	out = append(out, sum[:]...)
	out = binary.AppendUvarint(out, uint64(len(plain)))
	out = p.encoder().EncodeAll(plain, out)
	if len(out) >= front+len(plain) {
		out = append(out[:front], plain...)
		out[0] = packRaw
	}
	value := seal(uintKey(id), append(make([]byte, 0, len(out)+sumSize), out...))
	if *room = out; cap(out) <= 2*maxChunk {
		p.room.Put(room)
	}
	return value
}

// unpack restores a stored chunk into dst, which is grown when it is too
// small, and checks its hash. size is what the reference to it promises.
func (p *packer) unpack(id uint64, stored []byte, size int64, dst []byte) (plain []byte, sum [32]byte, err error) {
	value, err := unseal(uintKey(id), stored)
	if err != nil {
		return nil, sum, err
	}
	d := &decoder{in: value}
	packing, sum := d.byte(), d.id()
	switch packing {
	case packRaw:
		dst = append(dst[:0], d.in...)
	case packZstd:
		if plain := d.int63(); plain != size || plain > maxList {
			return nil, sum, errors.New("its size is wrong")
		}
		if int64(cap(dst)) < size {
			dst = make([]byte, 0, size)
		}
		if dst, err = p.decoder().DecodeAll(d.in, dst[:0]); err != nil {
			return nil, sum, err
		}
	default:
		return nil, sum, errors.New("its packing is unknown")
	}
	switch {
	case d.err != nil:
		return nil, sum, d.err
	case int64(len(dst)) != size:
		return nil, sum, errors.New("its size is wrong")
	case sha256.Sum256(dst) != sum:
		return nil, sum, errors.New("its hash is wrong")
	}
	return dst, sum, nil
}

// chunk reads and checks one chunk, and returns its hash.
func (im *Image) chunk(tx *bolt.Tx, r ref, dst []byte) (plain []byte, sum [32]byte, err error) {
	stored := tx.Bucket(bucketChunks).Get(uintKey(r.id))
	if stored == nil {
		err := imageError("read", ErrCorrupt, fmt.Sprintf("its chunk %d is missing", r.id))
		err.missing = true
		return nil, sum, err
	}
	defer im.resident.read(tx, len(stored))
	plain, sum, err = im.packer.unpack(r.id, stored, r.size, dst)
	if err != nil {
		return nil, sum, imageError("read", ErrCorrupt, fmt.Sprintf("its chunk %d: %v", r.id, err))
	}
	return plain, sum, nil
}

// listedRefs reads the references of a file that has too many for its node.
func (im *Image) listedRefs(tx *bolt.Tx, n *Node) ([]ref, error) {
	list := *n.body.list
	plain, _, err := im.chunk(tx, list, nil)
	if err != nil {
		return nil, err
	}
	d := &decoder{in: plain}
	refs := d.refs(n.Size, n.Lines, maxList)
	if err := d.end(); err != nil {
		return nil, imageError("read", ErrCorrupt, fmt.Sprintf("its list of chunks %d: %v", list.id, err))
	}
	return refs, nil
}

// hashed is the id of the chunk that holds plain bytes with this hash; 0 when
// none is committed.
func hashed(tx *bolt.Tx, sum [32]byte) uint64 {
	stored := tx.Bucket(bucketByHash).Get(sum[:])
	// A damaged entry costs a second copy of the chunk, nothing else.
	value, err := unseal(sum[:], stored)
	if err != nil || len(value) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(value)
}

// lastChunkID is the highest id ever stored. The bucket's sequence remembers
// it when that chunk is gone, so that no id is used twice.
func lastChunkID(tx *bolt.Tx) uint64 {
	b := tx.Bucket(bucketChunks)
	last, _ := b.Cursor().Last()
	if len(last) == 8 {
		return max(b.Sequence(), binary.BigEndian.Uint64(last))
	}
	return b.Sequence()
}

func countLines(b []byte) int64 { return int64(bytes.Count(b, newline)) }
