// Package lock says which files a layer is made of.
//
// A [Lock] is what a resolver decided and somebody approved: every
// distribution, its one wheel and the hash of it, for one interpreter. A layer
// is built from a lock and from nothing else, with no index and no resolver, so
// what was approved is what is mounted. Its form on disk is canonical JSON
// (sorted keys, no floats, a newline at the end): equal locks are equal bytes.
//
// A lock has two ids. [Lock.ID] is the hash of all of it: what was asked, from
// which index, over which base. [Lock.LayerID] is the hash of what the bytes of the
// layer depend on, so that two locks which come to the same wheels share a layer.
//
// Reading is strict. A lock that somebody edited is refused unless it is in the
// exact form that [Lock.Encode] writes, and then it has another id than before.
//
// Promises: no process, no file, no network.
package lock
