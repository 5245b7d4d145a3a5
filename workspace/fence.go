package workspace

import (
	"encoding/binary"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// Fence is the fencing token of a lease, and the install whose counter gave it
// out. An image remembers the highest one, which is the zero Fence until it was
// changed under a lease; a commit under a lower one, under one of another
// install, or under none at all is refused from then on.
type Fence struct {
	Install [16]byte
	Token   uint64
}

// Fence returns the highest fence that the image has seen.
//
// Errors: ErrCorrupt.
func (im *Image) Fence() (Fence, error) {
	var f Fence
	err := im.view("read fence", func(tx *bolt.Tx) (err error) {
		f, err = metaValue(tx, keyFence, decodeFence)
		return err
	})
	return f, err
}

// RaiseFence makes f the highest fence, durably: what arrives later under a lower
// one is refused. The same one again changes nothing.
//
// Errors: ErrFenced when the image has seen a higher token or one of another
// install; ErrReadOnly, ErrNoSpace, ErrCorrupt.
func (im *Image) RaiseFence(f Fence) error {
	return im.update("raise fence", 0, func(tx *bolt.Tx) error { return raise(tx, "raise fence", f) })
}

// AdoptFence replaces the fence by f, whatever it was. It is for an image that
// came from another install, when it is known that nobody holds a lease of it
// there any more, or that must not get at it.
//
// Errors: ErrReadOnly, ErrNoSpace, ErrCorrupt.
func (im *Image) AdoptFence(f Fence) error {
	return im.update("adopt fence", 0, func(tx *bolt.Tx) error { return putMeta(tx, keyFence, f.encode()) })
}

// raise checks f against the image's fence and remembers the higher one.
func raise(tx *bolt.Tx, op string, f Fence) error {
	seen, err := metaValue(tx, keyFence, decodeFence)
	switch {
	case err != nil:
		return err
	case f == seen:
		return nil
	case seen == Fence{}: // never under a lease
	case f == Fence{}:
		return imageError(op, ErrFenced, fmt.Sprintf("it is under lease %d, and this change came without one", seen.Token))
	case f.Install != seen.Install:
		return imageError(op, ErrFenced, "it was last changed under a lease of another state directory")
	case f.Token < seen.Token:
		return imageError(op, ErrFenced, fmt.Sprintf("token %d is older than %d", f.Token, seen.Token))
	}
	return putMeta(tx, keyFence, f.encode())
}

func (f Fence) encode() []byte {
	return binary.AppendUvarint(append([]byte(nil), f.Install[:]...), f.Token)
}

func decodeFence(in []byte) (Fence, error) {
	d := &decoder{in: in}
	var f Fence
	copy(f.Install[:], d.raw(16))
	f.Token = d.uint()
	return f, d.end()
}
