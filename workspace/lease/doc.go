// Package lease decides who may change a disk image, and gives out the number
// by which the image itself can tell a holder from one that was.
//
// # A lease and a token
//
// A lease is the right of one owner to one [Key], for a time. By itself it only
// keeps honest clients apart: a holder that was paused, or cut off, or killed
// too late, does not know that its time has passed, and acts. What makes the
// lease safe is the fencing token: every grant carries a number that is higher than
// that of any grant before, of whatever key, for ever. Whoever writes shows the
// number, and the thing written to keeps the highest that it has seen, in the
// same transaction as the data, and refuses a lower one. (M. Kleppmann, How to do
// distributed locking, 2016; M. Burrows, The Chubby lock service, OSDI 2006,
// §2.4, calls it a sequencer.)
//
// Two things are written to. What lies in the provider's own store goes through
// [Provider.Guard], which checks and writes in one transaction of that store. An
// image is a file of its own: it keeps a [Mark], the highest token and the
// install whose counter it comes from, and its commits are checked against that.
//
// # What it promises
//
//   - One holder. At most one grant of a key is alive at a time, and its token is
//     higher than those of all grants before.
//   - No token twice. It is on disk before anybody gets it; a release, a restart
//     or a crash does not set the counter back.
//   - Nobody is thrown out early. A grant is alive for its whole TTL, unless an
//     operator breaks it or a restart ends it (see below).
//   - Nobody stays for ever. A grant that is not renewed is dead when its TTL is
//     over, and dead for good: it cannot be renewed, even if nobody else came.
//   - The next holder finds nobody in. Before a key that was not released is
//     granted again, [Options.Evict] has returned without an error; it kills what
//     the old holder left running and waits for the end of it. If it fails,
//     nothing is granted. Then [Options.Record] stores the new token where the key
//     leads, and only then is it given out.
//
// It does not promise that a holder knows when it is dead. And a token protects
// what is recorded, not what a stale process has already sent elsewhere: for
// that scripts have no network.
//
// # Time
//
// Only the provider judges expiry, by a monotonic clock in its memory, and a
// grant is alive while now < deadline. Nothing is compared with the wall clock,
// so setting that does neither end a lease nor prolong one; Grant.ExpiresAt
// is for people to read. While the host is suspended the clock stands (on Linux
// and macOS), as the holders on that host do. Badger's own expiry of entries is
// not used: it counts in whole seconds of the wall clock and raises no conflict.
//
// A monotonic clock ends with its process. After a restart, clean or not, the
// leases of owners that lived in the process are over, for the owners are; those of
// resumable owners have their full TTL again, because longer is safe and shorter
// is not. Two things follow for resumable owners: a daemon that restarts more
// often than the TTL keeps a lost owner's lease alive, and a daemon that dies
// between writing a grant and answering leaves one behind that nobody knows.
// Both end with the TTL or with [Badger.Break]. And a lease that expired shortly
// before a crash comes back to life if nobody, its owner included, had been told.
//
// # The provider on Badger
//
// [Badger] keeps its records in the database that also holds the log:
//
//	L|KEY    who holds KEY, or held it and did not release: JSON, see record
//	K|KEY    the last token of KEY      8 bytes, big endian; stays for ever
//	G|KEY…   what was written by Guard under a lease of KEY
//	T        the last token given out   8 bytes, big endian
//	E        the epoch                  8 bytes, big endian
//	N        T when K was last kept     8 bytes, big endian
//	M        T when K was not kept      8 bytes, big endian
//	I        the install                16 bytes, random, written once
//
// KEY is the four parts of a Key, each with its length in front. There is one
// counter for all keys, so that it outlives all records of leases. The epoch rises
// at every opening; every transaction reads it, so that a provider over which
// another was opened can write nothing more.
//
// Acquire reads L and T and writes both, K and N, in one transaction. Badger remembers a
// read of a missing key too, so of two that were to grant one key or one token
// at the same time one fails with a conflict and starts again; Guard reads L for
// the same reason. Every commit is synced before its call returns.
//
// Badger admits one process, so the reach is one host, through the one daemon:
// [Info] says so. The interface knows nothing of Badger.
//
// # The life of a takeover
//
//  1. The holder's deadline passes, or an operator breaks the lease. From here on
//     its Renew, Release and Guard are refused.
//  2. Somebody acquires the key, and has its turn: calls about one key that
//     change something wait for one another.
//  3. Evict stops admitting the old holder's calls, kills its sandbox, waits.
//  4. L, T, K and N are written, synced.
//  5. Record stores {install, token} in the image. A result that arrives from now
//     on under an older token is refused there.
//  6. The deadline is set, and the grant returned.
//
// A failure or a crash between two of them leaves the key free and the token
// unused; the next call begins again at 3.
//
// # An image that knows a higher token
//
// An image whose mark has this install and a token above the last one of its own
// key was written to later than the state that is open: somebody has put back an
// old state, or another copy of it is at work. What other keys were given since
// proves nothing. [Badger.Check] says [ErrRestored], and the image is left alone
// until [Badger.Adopt] has raised the counter above the mark. A mark of another
// install, [ErrForeign], means that the image came from elsewhere; it takes over a
// new mark.
//
// A release that did not keep K leaves T above N. What it gave out is known only to
// be not above that T, which becomes M. That, and what a copy of this state did under
// the very same token, no number tells: whoever has a record of the changes
// compares that as well.
package lease
