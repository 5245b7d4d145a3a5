package workspace

import (
	"fmt"
	"os"

	bolt "go.etcd.io/bbolt"
)

// plan is what a repair has to do, as inspect found it.
type plan struct {
	rebuild bool // the pages are damaged: nothing can be changed in this file
	header  bool // a copy of the header is damaged: any update writes it anew
	edits   []correction
	sweep   []mark // chunks of commits that never came
}

// correction puts one value, or deletes it when value is nil.
type correction struct{ bucket, key, value []byte }

func (p *plan) needed() bool {
	return p.rebuild || p.header || len(p.edits) > 0 || len(p.sweep) > 0
}

func (p *plan) put(bucket, key, value []byte) {
	p.edits = append(p.edits, correction{bucket, append([]byte(nil), key...), value})
}

func (p *plan) drop(bucket, key []byte) { p.put(bucket, key, nil) }

func (p *plan) meta(key, value []byte) { p.put(bucketMeta, key, value) }

func (p *plan) node(key []byte, n *Node) {
	if n == nil {
		p.drop(bucketTree, key)
		return
	}
	p.put(bucketTree, key, appendNode(nil, n))
}

// apply makes the edits in one transaction.
func (p *plan) apply(tx *bolt.Tx) error {
	for _, m := range p.sweep {
		if err := m.drop(tx); err != nil {
			return err
		}
	}
	for _, e := range p.edits {
		b := tx.Bucket(e.bucket)
		var err error
		if e.value == nil {
			err = b.Delete(e.key)
		} else {
			err = b.Put(e.key, seal(e.key, e.value))
		}
		if err != nil {
			return fmt.Errorf("repair image: %w", err)
		}
	}
	return nil
}

// repair carries out what a check planned, and checks again.
func repair(k *checker, path string) (*Report, error) {
	if !k.plan.rebuild {
		if !k.identified() {
			return k.report, errNoIdentity()
		}
		after, err := repairIn(k, k.f)
		if err != nil {
			return k.report, err
		}
		return compared(k.report, after.report), nil
	}
	if path == "" {
		k.findf(FindFile, "file", "Its pages are damaged. To repair it a new file has to be written beside it: put it into the state directory, or name it by its path.")
		return k.report, nil
	}
	after, kept, err := repairBeside(k, path)
	if err != nil {
		return k.report, err
	}
	r := compared(k.report, after.report)
	r.Kept = kept
	return r, nil
}

// identified says that the record of the identity, or the first commit, says
// which uuid the image has.
func (k *checker) identified() bool { return k.identity != nil || k.history.identity != nil }

// errNoIdentity refuses a repair that would leave an image which never opens.
func errNoIdentity() error {
	return imageError("repair", ErrCorrupt, "its record \"identity\" and its first commit are lost, and nothing else says what its uuid is; nothing was changed")
}

// repairIn applies a plan to the file that was checked, and checks it again.
func repairIn(k *checker, f *os.File) (*checker, error) {
	im, err := openUnder(f)
	if err != nil {
		return nil, err
	}
	defer im.Close()
	if err := im.update("repair", 0, k.plan.apply); err != nil {
		return nil, err
	}
	// Each update writes one copy of the header, in turn.
	for range 2 {
		if k.plan.header {
			if err := im.update("repair", 0, func(*bolt.Tx) error { return nil }); err != nil {
				return nil, err
			}
		}
	}
	return inspect(k.ctx, f, k.o)
}

// openUnder opens a locked file as a database, whatever is in it. Closing the
// image closes the file.
func openUnder(f *os.File) (*Image, error) {
	im, err := openFile(f, OpenOptions{}, func(*os.File) (string, error) { return "", nil })
	if err == nil {
		im.place = f.Name()
	}
	return im, err
}

// compared is the report after a repair, with what was found before it: what
// is not found any more was repaired.
func compared(before, after *Report) *Report {
	left := map[string]bool{}
	for i := range after.Findings {
		left[after.Findings[i].about()] = true
	}
	var repaired []Finding
	for _, f := range before.Findings {
		if !left[f.about()] {
			f.Repaired = true
			repaired = append(repaired, f)
		}
	}
	r := *after
	r.Findings = append(repaired, after.Findings...)
	return &r
}
