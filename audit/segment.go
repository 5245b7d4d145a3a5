package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/dgraph-io/badger/v4"
)

// segmentSize is how many records one goroutine of a verification reads at a time.
const segmentSize = 8192

// segment is a piece of a stream. Because prev stands in the record, a piece can
// be checked alone; only its first prev is left to compare.
type segment struct {
	stream   string
	from, to uint64

	records uint64
	bodies  uint64
	gone    uint64
	first   leaf // prev of the first record
	last    leaf // leaf of the last record
	calls   []callEvent
	view    view // of the record that is being read
	bad     *fault
	err     error
}

// callEvent is a record that opens or closes a call.
type callEvent struct {
	move move
	call string
	n    uint64
}

func (s *segment) read(ctx context.Context, txn *badger.Txn) error {
	records := newWalk(txn, recordPrefix, s.stream, s.from)
	defer records.it.Close()
	bodies := newWalk(txn, bodyPrefix, s.stream, s.from)
	defer bodies.it.Close()
	for n := s.from; n <= s.to && s.bad == nil; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if at, ok := records.at(); !ok || at != n {
			s.bad = &fault{n, ReasonMissing, fmt.Sprintf("record %d", n), found(at, ok)}
			return nil
		}
		var commitment string
		err := records.it.Item().Value(func(line []byte) error {
			commitment = s.record(n, line)
			return nil
		})
		if err == nil && s.bad == nil {
			err = s.body(n, commitment, &bodies)
		}
		if err != nil {
			return fmt.Errorf("%w: record %d of stream %s: %w", ErrUnreadable, n, s.stream, err)
		}
		records.it.Next()
	}
	return nil
}

func found(n uint64, ok bool) string {
	if !ok {
		return "nothing"
	}
	return fmt.Sprintf("record %d", n)
}

// record checks one line and returns what it says of its body.
func (s *segment) record(n uint64, line []byte) (commitment string) {
	v := &s.view
	if err := v.scan(line); err != nil {
		s.bad = &fault{n, ReasonContent, "a canonical record", err.Error()}
		return ""
	}
	if said := uint64(v.int(colN)); said != n {
		s.bad = &fault{n, ReasonNumber, fmt.Sprint(n), fmt.Sprint(said)}
		return ""
	}
	var prev leaf
	if text := v.bare(colPrev); len(text) != len(leafText{}) || !lowerHex(prev[:], text) {
		s.bad = &fault{n, ReasonContent, "a hash in prev", string(text)}
		return ""
	}
	switch {
	case s.records == 0:
		s.first = prev
	case prev != s.last:
		s.bad = seam(n, s.last, prev)
		return ""
	}
	s.records++
	s.last = leafOf(line)
	s.note(n, v)
	return string(v.bare(colBody))
}

// leafText is a hash in hex.
type leafText [2 * sha256.Size]byte

func lowerHex(to, text []byte) bool {
	var back leafText
	_, err := hex.Decode(to, text)
	hex.Encode(back[:], to)
	return err == nil && bytes.Equal(back[:], text)
}

// note keeps what decides which calls are open.
func (s *segment) note(n uint64, v *view) {
	if m := v.move(); m != passes {
		s.calls = append(s.calls, callEvent{m, v.text(colCall), n})
	}
}

// body compares the body of record n, if it is still there, with its commitment.
func (s *segment) body(n uint64, commitment string, bodies *walk) error {
	at, ok := bodies.at()
	if !ok || at > n {
		if commitment != "" {
			s.gone++
		}
		return nil
	}
	defer bodies.it.Next()
	return bodies.it.Item().Value(func(body []byte) error {
		if got := digestOf(string(body)); got != commitment {
			s.bad = &fault{n, ReasonBody, commitment, got}
			return nil
		}
		s.bodies++
		return nil
	})
}

// walk goes over the keys of one kind in a stream.
type walk struct {
	it     *badger.Iterator
	prefix []byte
}

func newWalk(txn *badger.Txn, kind, stream string, from uint64) walk {
	o := badger.DefaultIteratorOptions
	o.Prefix = streamPrefix(kind, stream)
	o.PrefetchValues = false
	w := walk{txn.NewIterator(o), o.Prefix}
	w.it.Seek(numberKey(kind, stream, from))
	return w
}

func (w *walk) at() (uint64, bool) {
	if !w.it.Valid() {
		return 0, false
	}
	return numberOf(w.it.Item().Key(), w.prefix)
}
