package queue

import (
	"strings"

	"github.com/dgraph-io/badger/v4"
)

// Get returns a request of a workspace. An id of another workspace, one that nobody has
// and a text that is no id are the same ErrNotFound.
//
// Errors: ErrNotFound, ErrUnreadable, ErrUnavailable.
func (q *Queue) Get(ws, id string) (r Request, err error) {
	if !validWorkspace(ws) || !validID(id) {
		return Request{}, ErrNotFound
	}
	err = q.view(func(txn *badger.Txn) error {
		// The workspace is asked before the record: one that cannot be read is
		// nobody else's business either.
		mine, err := read(txn, ofKey(ws, id))
		if err != nil {
			return err
		}
		if mine == nil {
			return ErrNotFound
		}
		r, err = readRequest(txn, id)
		return err
	})
	if err == nil && r.Workspace != ws {
		return Request{}, ErrNotFound
	}
	return r, err
}

// maxMatches is how many requests an Ambiguous names.
const maxMatches = 20

// Any returns the request, of whatever workspace, whose id begins with prefix, in upper
// or lower case. It is for the operator. A whole id is its own prefix.
//
// Errors: ErrNotFound, also for an empty prefix; an *Ambiguous; ErrUnreadable;
// ErrUnavailable.
func (q *Queue) Any(prefix string) (Request, error) {
	prefix = strings.ToUpper(prefix)
	if prefix == "" || len(prefix) > idLength || strings.Trim(prefix, idDigits) != "" {
		return Request{}, ErrNotFound
	}
	var found []Request
	err := q.view(func(txn *badger.Txn) error {
		for _, rest := range keysBelow(txn, requestPrefix+prefix, maxMatches) {
			r, err := readRequest(txn, prefix+rest)
			if err != nil {
				return err
			}
			found = append(found, r)
		}
		return nil
	})
	switch {
	case err != nil:
		return Request{}, err
	case len(found) == 0:
		return Request{}, ErrNotFound
	case len(found) > 1:
		return Request{}, &Ambiguous{Prefix: prefix, Matches: found}
	}
	return found[0], nil
}

const (
	idLength = 26
	idDigits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ" // Crockford's base 32
)
