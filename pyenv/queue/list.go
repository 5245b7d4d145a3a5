package queue

import (
	"errors"
	"slices"
	"strings"

	"github.com/dgraph-io/badger/v4"
)

// Filter says which requests are listed. The zero value is all of them.
type Filter struct {
	Workspace string  // "" is every one
	States    []State // none is every one
	Last      int     // the newest so many, 0 is no limit
}

// List returns the requests that a filter lets through, in order of arrival.
//
// Errors: ErrUnreadable, with all that could be read; ErrUnavailable.
func (q *Queue) List(f Filter) (list []Request, err error) {
	if f.Workspace != "" && !validWorkspace(f.Workspace) {
		return nil, nil
	}
	prefix := requestPrefix
	if f.Workspace != "" {
		prefix = ofPrefix + f.Workspace + "/"
	}
	var bad error
	err = q.view(func(txn *badger.Txn) error {
		for _, id := range slices.Backward(keysBelow(txn, prefix, 0)) {
			if f.Last > 0 && len(list) == f.Last {
				break
			}
			r, err := readRequest(txn, id)
			switch {
			case err != nil:
				bad = errors.Join(bad, err)
			case len(f.States) == 0 || slices.Contains(f.States, r.State):
				list = append(list, r)
			}
		}
		return nil
	})
	slices.Reverse(list)
	return list, errors.Join(err, bad)
}

// Open returns what is not closed, in order of arrival. Errors: as List.
func (q *Queue) Open() (list []Request, err error) {
	var bad error
	err = q.view(func(txn *badger.Txn) error {
		for _, rest := range keysBelow(txn, openPrefix, 0) {
			id, err := read(txn, openPrefix+rest)
			if err != nil {
				return err
			}
			r, err := readOpen(txn, openPrefix+rest, string(id))
			if err != nil {
				bad = errors.Join(bad, err)
				continue
			}
			list = append(list, r)
		}
		return nil
	})
	slices.SortFunc(list, func(a, b Request) int { return strings.Compare(a.ID, b.ID) })
	return list, errors.Join(err, bad)
}
