// Package queue keeps what was asked for, what was decided about it, and which layers
// of packages a workspace is bound to.
//
// It decides nothing and builds nothing: whoever resolves, judges and builds moves a
// [Request] from state to state, and the queue sees to it that every move is one that
// may be made, that only one of two movers makes it, and that it is on disk before
// anybody hears of it.
//
// # The life of a request
//
//	received ─► resolving ─► rejected
//	                      ├► pending_approval ─► approved ─┐   denied, expired
//	                      └► auto_approved ────────────────┴► fetching ─► building ─► probing ─► ready
//
// [State.Next] is the whole table. Steps may be left out: a solution that is known
// needs no resolver, a layer that is there needs no building, so that a request for both
// may be ready at once, and so is one for what is in the base already. Every state that
// is not closed may end in failed or in cancelled. A worker that is told to stop puts
// its request back to received, approved or auto_approved; one that finds on the way
// what has to be asked, startup code in a wheel, say, puts it to pending_approval.
//
// # What it promises
//
//   - One move. [Queue.Move] compares and swaps: of two that find a request in one state
//     one moves it, the other gets [ErrConflict]. The same holds for [Queue.Bind].
//   - Durable. What a call has returned is there after kill -9 and after a loss of
//     power. A call that was killed, or that reports [ErrUnavailable], was done as a
//     whole or not at all. [Queue.Finish] binds and says ready in one step.
//   - An approval is for a lock. A request cannot be approved, fetched, built or be
//     ready but with the very lock that its [Decision] names, and while the decision
//     holds the lock cannot be changed. Who decides shows the lock that was read; if the
//     request has another one by then, the decision is refused. A request that goes
//     back to before its decision loses it.
//   - Asked twice is asked once. While a request of a workspace for the same packages and
//     the same wheel is open, [Queue.Submit] returns it.
//   - Bounded. [MaxOpen] requests of a workspace are open, and [MaxOpenAll] in all; of
//     its closed ones the newest [KeepClosed] stay, and few more. No record is over
//     [MaxRecord].
//   - Strangers learn nothing. For a workspace the request of another one is as unknown
//     as one that never was, or as a text that is no id.
//   - Nothing is lost to a version. A record that is damaged, or that another version of
//     this program wrote, is [ErrUnreadable]: it is neither changed nor removed, and what
//     is not concerned goes on. (A memo is a cache, and replaced.) [Queue.Bindings] is all of them or an error, so that
//     nobody takes a layer for unused because its binding could not be read.
//
// # On disk
//
// The records lie in the Badger database that also holds the log and the leases:
//
//	env/req/ID         a request
//	env/of/WS/ID       nothing: that the request is of the workspace
//	env/open/WS/HASH   the ID of the open request for what HASH stands for
//	env/last           the ID given out last
//	env/bind/WS        a binding
//	env/memo/KEY       the lock that a resolver came to, and until when that is good
//
// An ID is a ULID, higher than all before it whatever the clock says, so their order is
// that of arrival. A record is JSON with a number for its form; reading is strict: it is
// what this package would write, byte for byte, or it is unreadable.
//
// Every change is one transaction. Badger remembers what it read, a missing key too: of
// two that read one record and change it one fails, and begins again. All that submit
// read and write env/last, so that the limits hold. Reading takes a snapshot and waits
// for nobody.
//
// # Time
//
// The clock is passed in and is that of the wall: a person's week has to go on over a
// restart. Nothing but [Queue.Expire] and the age of a memo depends on it. Set back, it
// gives no request and no memo more than a week from then on; set ahead, it makes
// requests expire early, which are asked again.
//
// # When a workspace is gone
//
// A binding keeps its layers for as long as it is there, and nothing here can tell
// whether a disk is gone for good or only somewhere else. [Queue.Forget] is for who knows.
//
// # After a restart
//
// [Queue.Recover] puts what was at work back to its last durable point: resolving to
// received, fetching to probing to the approval. A request that has been tried
// [MaxAttempts] times since then fails, so that one that kills the daemon does not do it
// for ever.
package queue
