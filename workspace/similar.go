package workspace

import (
	"strings"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/text/unicode/norm"
)

// similarMost is how many siblings Similar compares before it gives up.
const similarMost = 20_000

// Similar looks for the path that was probably meant by one that does not
// exist: wherever a component is missing, exactly one sibling may be equal to
// it in Unicode's composed form and with every run of spaces taken as one. It
// is ok only when the whole path then exists.
func (im *Image) Similar(p Path) (name Path, ok bool) {
	err := im.view("similar", func(tx *bolt.Tx) error {
		t := im.tree(tx)
		at := Path{}
		for _, part := range p.Components() {
			next, err := at.Join(part)
			if err != nil {
				return err
			}
			n, err := t.get(next)
			if err != nil {
				return err
			}
			if n == nil {
				other, err := similarIn(t, at, part)
				if err != nil || other == "" {
					return err
				}
				next = at.join(other)
			}
			at = next
		}
		name, ok = at, at != p
		return nil
	})
	return name, ok && err == nil
}

// similarIn returns the one entry of dir that looks like name, or "".
func similarIn(t tree, dir Path, name string) (string, error) {
	want, found, seen := normal(name), "", 0
	err := t.children(dir, "", func(entry string, _, _ []byte) (bool, error) {
		if seen++; seen > similarMost {
			found = ""
			return false, nil
		}
		if normal(entry) != want {
			return true, nil
		}
		if found != "" {
			found = ""
			return false, nil
		}
		found = entry
		return true, nil
	})
	return found, err
}

// normal is what two names have in common that people see as one.
func normal(name string) string {
	return norm.NFC.String(strings.Join(strings.Fields(name), " "))
}
