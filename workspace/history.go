package workspace

import (
	"context"
	"encoding/binary"

	bolt "go.etcd.io/bbolt"
)

// LogQuery says which commits History returns. The zero value is the newest
// ones.
type LogQuery struct {
	Under  []Path // only commits that changed one of these paths or something below; none is any commit
	Call   string // only commits that this call made; "" is any
	Before uint64 // only commits with a lower sequence number; 0 is no limit
	Limit  int    // at most so many; 0 is 100
}

const defaultHistory = 100

// History returns commits, newest first. With Under their Effects are only
// those at or below one of its paths. Commits that are no longer kept are left
// out.
//
// The memory it takes is that of its result, whatever it looks at: who shows
// many large commits asks for them one by one, with Limit 1 and Before.
//
// Errors: ErrCorrupt, the cause of ctx.
func (im *Image) History(ctx context.Context, q LogQuery) ([]Commit, error) {
	if q.Limit <= 0 {
		q.Limit = defaultHistory
	}
	under := newSubtrees(q.Under)
	var log []Commit
	next := q.Before
	err := im.readHistory(ctx, "log", func(tx *bolt.Tx) (cost int, more bool, err error) {
		if next, err = commitBefore(tx, next); err != nil || next == 0 {
			return 0, false, err
		}
		r, err := matching(tx, next, &q, under, &cost)
		if err == nil && r != nil {
			log = append(log, r.commit())
		}
		return cost, len(log) < q.Limit, err
	})
	if err != nil {
		return nil, err
	}
	return log, nil
}

// matching reads commit seq with its changes below under; nil when the query
// does not mean it. cost counts the changes that were looked at.
func matching(tx *bolt.Tx, seq uint64, q *LogQuery, under subtrees, cost *int) (*record, error) {
	if q.Call != "" {
		if r, err := recordHead(tx, seq); err != nil || r == nil || r.call != q.Call {
			return nil, err
		}
	}
	var changes []Effect
	r, err := scanRecord(tx, seq, func(c rawChange) error {
		if *cost++; !under.has(c.path) {
			return nil
		}
		e, err := c.effect()
		changes = append(changes, e)
		return err
	})
	if err != nil || r == nil || under != nil && len(changes) == 0 {
		return nil, err
	}
	r.changes = changes
	return r, nil
}

// commitBefore is the newest commit below seq, or at all when seq is 0; 0 when
// there is none.
func commitBefore(tx *bolt.Tx, seq uint64) (uint64, error) {
	c := tx.Bucket(bucketCommits).Cursor()
	var k []byte
	if seq > 0 {
		if k, _ = c.Seek(uintKey(seq)); k != nil {
			k, _ = c.Prev()
		} else {
			k, _ = c.Last()
		}
	} else {
		k, _ = c.Last()
	}
	switch {
	case k == nil:
		return 0, nil
	case len(k) < 8:
		return 0, imageError("log", ErrCorrupt, "it has a commit under an impossible key")
	}
	return binary.BigEndian.Uint64(k), nil
}
