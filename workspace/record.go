package workspace

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
)

// record is a commit as it is stored. Its id is
//
//	sha256(parent id ‖ head ‖ changes)
//
// so an id fixes the whole history behind it. Version 1 of the encoding:
//
//	head:    version 1 · seq · call · actor · message · time ns · bytes · entries ·
//	         source · number of changes · number of each kind of effect (C M D P T)
//	change:  path · before (0 bytes: none) · after (0 bytes: none), as nodes
//
// The value under the 8-byte key seq is id ‖ parent ‖ head ‖ the first changes;
// further changes lie under seq ‖ part (u32), so that a commit of very many
// changes needs no value of that size. No change straddles two values.
type record struct {
	seq     uint64
	id      [32]byte
	parent  [32]byte
	call    string
	actor   string
	message string
	time    time.Time
	bytes   int64  // totals of the tree after the commit
	entries int64  //
	source  uint64 // chunk with the source of the script that made the commit; 0 for none
	stats   [len(statKinds)]int64
	changes []Effect
	stored  int64 // bytes that write put into the bucket
}

const (
	recordVersion = 1
	partBytes     = 64 << 10 // a value of a record is closed when it is this long
	maxText       = 64 << 10 // of call, actor and message each
	maxNode       = 64 << 10
)

// statKinds is the order of record.stats.
var statKinds = [...]byte{byte(Created), byte(Modified), byte(Deleted), byte(Mode), byte(Touched)}

func (r *record) appendHead(b []byte) []byte {
	b = append(b, recordVersion)
	b = binary.AppendUvarint(b, r.seq)
	b = appendText(b, r.call)
	b = appendText(b, r.actor)
	b = appendText(b, r.message)
	b = appendInt(b, r.time.UnixNano())
	b = binary.AppendUvarint(b, uint64(r.bytes))
	b = binary.AppendUvarint(b, uint64(r.entries))
	b = binary.AppendUvarint(b, r.source)
	b = binary.AppendUvarint(b, uint64(len(r.changes)))
	for _, n := range countKinds(r.changes) {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

// countKinds counts effects by kind, in the order of statKinds.
func countKinds(effects []Effect) (n [len(statKinds)]int64) {
	for i := range effects {
		n[bytes.IndexByte(statKinds[:], byte(effects[i].What))]++
	}
	return n
}

func appendChange(b []byte, e *Effect) []byte {
	b = appendText(b, e.Path.rel)
	for _, n := range [2]*Node{e.Before, e.After} {
		if n == nil {
			b = append(b, 0)
			continue
		}
		// The length stands in front of what it measures; most nodes are
		// shorter than 16 KiB, so encode behind and move.
		at := len(b)
		b = appendNode(b, n)
		size := binary.AppendUvarint(nil, uint64(len(b)-at))
		b = append(b, size...)
		copy(b[at+len(size):], b[at:len(b)-len(size)])
		copy(b[at:], size)
	}
	return b
}

// encode returns the values of a record without their checksums, and sets id.
func (r *record) encode() [][]byte {
	const ids = 2 * sha256.Size
	parts := [][]byte{r.appendHead(make([]byte, ids, 512))}
	for i := range r.changes {
		last := &parts[len(parts)-1]
		if len(*last) >= partBytes {
			parts = append(parts, nil)
			last = &parts[len(parts)-1]
		}
		*last = appendChange(*last, &r.changes[i])
	}
	first := parts[0]
	copy(first[sha256.Size:], r.parent[:])
	h := sha256.New()
	h.Write(first[sha256.Size:])
	for _, part := range parts[1:] {
		h.Write(part)
	}
	h.Sum(r.id[:0])
	copy(first, r.id[:])
	return parts
}

// write stores a record and returns its id.
func (r *record) write(b *bolt.Bucket) ([32]byte, error) {
	for i, part := range r.encode() {
		key := partKey(r.seq, i)
		if err := b.Put(key, seal(key, part)); err != nil {
			return r.id, fmt.Errorf("write commit record: %w", err)
		}
		r.stored += int64(len(key) + len(part) + sumSize)
	}
	return r.id, nil
}

// partKey is seq for the first value of a record, seq ‖ part for the others.
func partKey(seq uint64, part int) []byte {
	key := uintKey(seq)
	if part > 0 {
		key = binary.BigEndian.AppendUint32(key, uint32(part))
	}
	return key
}

// decodeHead reads the first value of a record up to its changes, of which it
// returns the number.
func (r *record) decodeHead(d *decoder) (changes uint64) {
	r.id, r.parent = d.id(), d.id()
	if v := d.byte(); d.err == nil && v != recordVersion {
		d.fail("unknown version of a commit record")
	}
	r.seq = d.uint()
	r.call, r.actor, r.message = d.text(maxText), d.text(maxText), d.text(maxText)
	r.time = time.Unix(0, d.int()).UTC()
	r.bytes, r.entries = d.int63(), d.int63()
	r.source = d.uint()
	changes = d.uint()
	for i := range r.stats {
		r.stats[i] = d.int63()
	}
	return changes
}

// decodeChanges reads the changes of one value to its end.
func (r *record) decodeChanges(d *decoder) {
	for d.err == nil && len(d.in) > 0 {
		c := d.change()
		if d.err != nil {
			return
		}
		e, err := c.effect()
		if err != nil {
			d.fail("%v", err)
			return
		}
		r.changes = append(r.changes, e)
	}
}

// rawChange is a change as it is stored; it points into the value.
type rawChange struct{ path, before, after []byte }

func (d *decoder) change() rawChange {
	return rawChange{path: d.bytes(MaxPath), before: d.bytes(maxNode), after: d.bytes(maxNode)}
}

// effect decodes a change.
func (c rawChange) effect() (Effect, error) {
	p, err := FromBytes(c.path)
	if err != nil {
		return Effect{}, fmt.Errorf("a path: %v", err)
	}
	var nodes [2]*Node
	for i, b := range [2][]byte{c.before, c.after} {
		if len(b) == 0 {
			continue
		}
		if nodes[i], err = decodeNode(b); err != nil {
			return Effect{}, fmt.Errorf("node of %v: %v", p, err)
		}
	}
	e, ok := newEffect(p, nodes[0], nodes[1])
	if !ok || p.IsRoot() {
		return Effect{}, fmt.Errorf("change of %v changes nothing", p)
	}
	return e, nil
}

// decodeRecord is the inverse of encode: values without their checksums.
func decodeRecord(parts [][]byte) (*record, error) {
	r := new(record)
	d := &decoder{in: parts[0]}
	count := r.decodeHead(d)
	for i := range parts {
		if i > 0 {
			d = &decoder{in: parts[i]}
		}
		r.decodeChanges(d)
		if err := d.end(); err != nil {
			return nil, err
		}
	}
	if uint64(len(r.changes)) != count || countKinds(r.changes) != r.stats {
		return nil, fmt.Errorf("it has %d changes, not %d, or miscounts their kinds", len(r.changes), count)
	}
	return r, nil
}

// readRecord reads commit seq with all its changes; nil when there is none.
func readRecord(tx *bolt.Tx, seq uint64) (*record, error) {
	var parts [][]byte
	first := uintKey(seq)
	c := tx.Bucket(bucketCommits).Cursor()
	for k, v := c.Seek(first); k != nil && bytes.HasPrefix(k, first); k, v = c.Next() {
		value, err := unseal(k, v)
		if err != nil || !bytes.Equal(k, partKey(seq, len(parts))) {
			return nil, recordError(seq, err)
		}
		parts = append(parts, value)
	}
	if parts == nil {
		return nil, nil
	}
	r, err := decodeRecord(parts)
	if err != nil || r.seq != seq {
		return nil, recordError(seq, err)
	}
	return r, nil
}

// recordHead reads commit seq without its changes; nil when there is none.
func recordHead(tx *bolt.Tx, seq uint64) (*record, error) {
	key := uintKey(seq)
	stored := tx.Bucket(bucketCommits).Get(key)
	if stored == nil {
		return nil, nil
	}
	value, err := unseal(key, stored)
	if err != nil {
		return nil, recordError(seq, err)
	}
	r := new(record)
	d := &decoder{in: value}
	if r.decodeHead(d); d.err != nil || r.seq != seq {
		return nil, recordError(seq, d.err)
	}
	return r, nil
}

// scanRecord passes the changes of commit seq to visit, undecoded, and returns
// the rest of the record; nil when there is none. It keeps nothing, however
// many there are. An error of visit means damage.
func scanRecord(tx *bolt.Tx, seq uint64, visit func(rawChange) error) (*record, error) {
	var r *record
	var count, seen uint64
	first, part := uintKey(seq), 0
	c := tx.Bucket(bucketCommits).Cursor()
	for k, v := c.Seek(first); k != nil && bytes.HasPrefix(k, first); k, v = c.Next() {
		value, err := unseal(k, v)
		if err != nil || !bytes.Equal(k, partKey(seq, part)) {
			return nil, recordError(seq, err)
		}
		d := &decoder{in: value}
		if part++; r == nil {
			r = new(record)
			count = r.decodeHead(d)
		}
		for ; d.err == nil && len(d.in) > 0; seen++ {
			change := d.change()
			if d.err != nil {
				break
			}
			if err := visit(change); err != nil {
				return nil, recordError(seq, err)
			}
		}
		if d.err != nil {
			return nil, recordError(seq, d.err)
		}
	}
	if r != nil && (r.seq != seq || seen != count) {
		return nil, recordError(seq, nil)
	}
	return r, nil
}

func recordError(seq uint64, err error) error {
	if err == nil {
		return imageError("read", ErrCorrupt, fmt.Sprintf("its commit %d is not whole", seq))
	}
	return imageError("read", ErrCorrupt, fmt.Sprintf("its commit %d: %v", seq, err))
}

// commit is the exported form.
func (r *record) commit() Commit {
	return Commit{
		Seq: r.seq, ID: hex.EncodeToString(r.id[:]), Parent: hex.EncodeToString(r.parent[:]),
		Call: r.call, Actor: r.actor, Message: r.message, Time: r.time, Effects: r.changes,
	}
}
