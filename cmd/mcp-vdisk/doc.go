// Command mcp-vdisk is the program: its commands, and the wiring of the
// packages into one disk with tools, sandbox and audit log.
//
// # Front and back
//
// Every command has two halves. The front (package front) runs as the caller: it
// reads the command line, and the caller's files are touched by it alone (image
// put and get, an image that is named by a path, the configuration). The back has
// the state directory open and does the work; it is what this package holds
// besides the commands themselves.
//
// A back serves one request ([back]), which names a verb ([verbs]). It is the
// daemon's ([daemon]), one of many on the same state; or it is alone, a goroutine
// of the caller's process or, for root, this program executed again as another
// user, because a sandbox that is set up by uid 0 is not one.
//
// # What is open
//
// A [hub] is an open state directory. It opens each disk once, however many use
// it: a [disk] is an image with its view for scripts, its jobs and the [right] to
// change it. A [session] is the use of a disk's tools by one client, within what
// its flags allow.
//
// Locks are taken in this order: right.mu, hub.mu, hub.lazy. What a lease calls
// back (hub.evict, hub.raise) runs under right.mu. hub.mu is not held while a disk
// is opened or closed.
//
// # Files
//
// One file per command; back.go and front/ hold what commands share, hub.go,
// disk.go, right.go and session.go what is open, daemon.go the daemon, state.go
// the state directory, settings.go config.toml, environment.go and ensure.go the Python
// of scripts, outbox.go and inbox.go the folders of a session (their backs are outfeed.go
// and infeed.go), backup.go and restoreback.go copies of the state directory (their form
// is package bundle), waiting.go and notifier.go how a person hears of requests. For
// conform the program is also a
// prober (package prober), and a lease provider with its clients (leaseproc).
package main
