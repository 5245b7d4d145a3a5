// Package front is the caller's half of every command: it runs as the caller,
// touches the caller's files and terminal, and asks the other half, the back, for
// everything that has to do with the state directory.
//
// # Who the back is
//
// One process at a time has a state directory open. Mostly that is the daemon: a
// back that serves many fronts at the same time, over a socket below the state
// directory. `serve` starts it when there is none and passes messages between
// its client and it; any other command asks it when it is there, and otherwise is
// served by a back of its own, which is this process or, for root, one that gave
// root up.
//
// # The start of the daemon
//
// Many fronts may find at once that there is none. Each takes start.lock, looks
// again, and only the first starts it; the lock is released when the daemon says
// that it listens, or why it cannot. The daemon holds daemon.lock for its life and
// opens everything before it removes the socket that a dead one left, which it
// may, for it holds the lock.
//
// # What they say to each other
//
// Each sends one line of JSON, the [Hello]: that much stays the same for every
// revision. Then the front sends one [Request], with the descriptor of a disk that
// the caller opened, and streams go both ways in [Frames] until the back says how
// it ended. A daemon of another build, or with other settings, makes room when a
// new session begins and nothing would be lost by that: it tells the shims to send
// no more, answers what it has, and ends.
//
// With the tools of a disk goes the caller's pip configuration, which may hold
// credentials: the front sends it in frames of its own before the first message by which
// packages could be asked for, and the other side keeps it in memory alone.
//
// # When the daemon dies
//
// The shim of a session remembers which requests have no answer. When the
// connection ends before the session it answers the calls among them, whose
// outcome is not known, connects to the next daemon, repeats the client's
// handshake and goes on; what only asks is asked again, also a call that changes
// nothing, and a call that never left is made. Five daemons in a row that answer
// nothing are enough. What lease the session had it tells the next daemon as the
// last one told it: see [Hold].
//
// # Folders beside a session
//
// The front of a session with an outbox or an inbox has further connections, see
// [Caller.Beside]: they start no daemon, and go on with the one that the session finds.
// Without a daemon there is nobody who may touch the caller's files, and so no folders.
//
// # What it holds
//
// One message each way, and the requests without an answer, of which the daemon
// takes so many and no more. It reads from its client when the daemon does.
//
// # Root
//
// As root nothing below the state directory is read, and what runs is another
// user: see prepareState and becomeBack.
package front
