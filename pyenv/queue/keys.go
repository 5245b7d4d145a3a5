package queue

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"

	"github.com/dgraph-io/badger/v4"
)

// The keys; doc.go says what lies there. No part of one has a "/".
const (
	requestPrefix = "env/req/"
	ofPrefix      = "env/of/"
	openPrefix    = "env/open/"
	lastKey       = "env/last"
	bindPrefix    = "env/bind/"
	memoPrefix    = "env/memo/"
)

func requestKey(id string) string { return requestPrefix + id }
func ofKey(ws, id string) string  { return ofPrefix + ws + "/" + id }
func bindKey(ws string) string    { return bindPrefix + ws }
func memoKey(key string) string   { return memoPrefix + key }

// openKey is the same for two requests that ask for the same.
func openKey(r Request) string {
	asked := []any{r.Specs}
	if r.Wheel != nil {
		asked = append(asked, r.Wheel.SHA256)
	}
	return openPrefix + r.Workspace + "/" + hash(asked)
}

// hash names a value: the SHA-256 of its JSON. The value is made of texts and numbers.
func hash(v any) string {
	b, _ := json.Marshal(v) // cannot fail on those
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// read returns a copy of a value, nil if there is none. The transaction remembers the
// read in both cases.
func read(txn *badger.Txn, key string) ([]byte, error) {
	item, err := txn.Get([]byte(key))
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, stored(err)
	}
	value, err := item.ValueCopy([]byte{})
	return value, stored(err)
}

func readRequest(txn *badger.Txn, id string) (Request, error) {
	value, err := read(txn, requestKey(id))
	switch {
	case err != nil:
		return Request{}, err
	case value == nil:
		return Request{}, ErrNotFound
	}
	r, err := decode[Request](value)
	if err == nil && r.ID != id {
		err = unreadable("it is that of another request")
	}
	if err != nil {
		return Request{}, about(requestKey(id), err)
	}
	return r, nil
}

// writeRequest stores a request, and returns it as it will be read.
func writeRequest(txn *badger.Txn, r Request) (Request, error) {
	value, err := encode(r)
	if err != nil {
		return Request{}, err
	}
	if r, err = decode[Request](value); err != nil {
		return Request{}, err
	}
	err = txn.Set([]byte(requestKey(r.ID)), value)
	if r.State.Closed() {
		err = errors.Join(err, txn.Delete([]byte(openKey(r))))
	}
	return r, stored(err)
}

// keysBelow lists the keys that begin with a prefix, without it, in order. It stops
// after most of them; 0 is no limit.
func keysBelow(txn *badger.Txn, prefix string, most int) (keys []string) {
	o := badger.DefaultIteratorOptions
	o.Prefix, o.PrefetchValues = []byte(prefix), false
	it := txn.NewIterator(o)
	defer it.Close()
	for it.Rewind(); it.Valid() && (most == 0 || len(keys) < most); it.Next() {
		keys = append(keys, string(it.Item().Key()[len(prefix):]))
	}
	return keys
}
