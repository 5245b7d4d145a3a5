package workspace

import (
	"time"

	bolt "go.etcd.io/bbolt"
)

// Commit is one step in the history of an image.
type Commit struct {
	Seq     uint64
	ID      string // hex of sha256(parent ‖ record); fixes the whole history up to here
	Parent  string // hex; all zero for the first
	Call    string // id of the call that made it
	Actor   string
	Message string
	Time    time.Time
	Effects []Effect // by path, in the order of the tree
}

// Heads are the ids of the head before and after a call of Image.Commit that
// returned c: equal when it changed nothing.
func (c Commit) Heads() (before, after string) {
	if len(c.Effects) == 0 && c.Parent == "" {
		return c.ID, c.ID
	}
	return c.Parent, c.ID
}

// Log returns up to limit commits with a sequence number above after, oldest
// first.
func (im *Image) Log(after uint64, limit int) ([]Commit, error) {
	var log []Commit
	err := im.view("log", func(tx *bolt.Tx) error {
		h, err := readHead(tx)
		if err != nil {
			return err
		}
		seq := after + 1
		if k, _ := tx.Bucket(bucketCommits).Cursor().First(); len(k) >= 8 && seq > after {
			seq = max(seq, keyUint(k)) // older ones were dropped
		}
		for ; seq <= h.seq && seq > after && len(log) < limit; seq++ {
			r, err := readRecord(tx, seq)
			if err != nil {
				return err
			}
			if r != nil {
				log = append(log, r.commit())
			}
		}
		return nil
	})
	return log, err
}

// findBatch is how many commits one read transaction of FindCommit looks at.
const findBatch = 4096

// FindCommit looks for the commit that a call made, newest first, since a call
// whose fate is unknown is one of the last. There is no index: a miss reads the
// heads of all records that are kept, about a million per second.
func (im *Image) FindCommit(call string) (Commit, bool, error) {
	if call == "" {
		return Commit{}, false, nil
	}
	var found *record
	next := ^uint64(0)
	for found == nil && next > 0 {
		err := im.view("find commit", func(tx *bolt.Tx) (err error) {
			if next == ^uint64(0) {
				h, err := readHead(tx)
				if err != nil {
					return err
				}
				next = h.seq
			}
			for range findBatch {
				if next == 0 || found != nil {
					return nil
				}
				if found, err = findIn(tx, next, call); err != nil || found != nil {
					return err
				}
				if next, err = commitBefore(tx, next); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return Commit{}, false, err
		}
	}
	if found == nil {
		return Commit{}, false, nil
	}
	return found.commit(), true, nil
}

// findIn returns commit seq if the call made it.
func findIn(tx *bolt.Tx, seq uint64, call string) (*record, error) {
	r, err := recordHead(tx, seq)
	if err != nil || r == nil || r.call != call {
		return nil, err
	}
	return readRecord(tx, seq)
}
