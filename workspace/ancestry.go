package workspace

import (
	"encoding/hex"

	bolt "go.etcd.io/bbolt"
)

// Link is a commit as a step of the history: without what it changed.
type Link struct {
	Seq    uint64
	ID     string // hex
	Parent string // hex; all zero for the first
	Call   string // id of the call that made it
}

// Ancestry returns up to limit commits before another one, newest first, or from
// the newest on when that is the zero Link. It ends at the first commit, or where
// the history has been cut. It reads the heads of records only, about a million
// per second.
//
// Errors: ErrCorrupt.
func (im *Image) Ancestry(before Link, limit int) ([]Link, error) {
	var list []Link
	err := im.view("history", func(tx *bolt.Tx) error {
		seq, id := before.Seq-1, before.Parent
		if before == (Link{}) {
			h, err := readHead(tx)
			if err != nil {
				return err
			}
			seq, id = h.seq, hex.EncodeToString(h.id[:])
		}
		for ; seq > 0 && len(list) < limit; seq-- {
			r, err := recordHead(tx, seq)
			if err != nil || r == nil {
				return err
			}
			l := Link{Seq: seq, ID: id, Parent: hex.EncodeToString(r.parent[:]), Call: r.call}
			list, id = append(list, l), l.Parent
		}
		return nil
	})
	return list, err
}
