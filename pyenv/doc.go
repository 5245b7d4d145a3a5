// Package pyenv gives scripts their Python, with packages.
//
// An [Env] belongs to an environment root, a directory of the user who runs the
// server; several state directories may share one. In it nothing that is in use ever
// changes: interpreters and layers of packages are made, given their name when they are
// complete, and mounted read-only into the sandbox of a script.
//
// # The life of a base layer
//
//  1. [Env.Ensure] makes the interpreter (package python): a copy, proved in the
//     sandbox.
//  2. It takes a lock (package lock): which wheel of which package, by hash. One comes
//     with this program for each common Python; another is resolved (package resolve)
//     by pip, in a jail that has the network and nothing of the host, from files that
//     are a week old at least.
//  3. Wheels that the wheelhouse lacks are fetched, in that jail.
//  4. The layer is built (package store) by the rules of package wheel.
//  5. Its packages are imported once, in the sandbox that scripts get. One that needs
//     a library of the system that is not there shows now, not in somebody's script.
//  6. The file current names layer, lock and interpreter, and is replaced in one step.
//
// Every step can be killed, and the next Ensure goes on from what is complete.
//
// # The life of a script
//
// [Env.Setup] gives a run its mounts (package attach): the interpreter and the base that
// is current, checked right then, and held so that nobody removes them. Without a base
// it is the interpreter alone; without that, the Python of the host below /usr. So
// scripts always run, and [Env.Status] says what they lack and why. With Options.Strict
// it is the other way round: everything is read and compared before each run, and a script
// is refused when anything differs or cannot be had.
//
// A `python3` that the host's PATH happens to name is never run: one below /root or
// /home lies outside what the sandbox shows, and one in a writable directory is whoever's
// who writes there.
//
// # On disk
//
//	python/  layers/  wheelhouse/  locks/  current  boot/  tools/  jobs/   of the packages below
//	wanted        id of the lock that Lock made, for the next base
//	extras.json   wheels that Import took for the base
//	ensure.lock   held by whoever makes a base
//
// # Promises
//
// No code of a package, of pip or of an interpreter runs outside a sandbox. Opening and
// looking start no process and ask no network; Status waits for nothing that is built.
// Errors are an [*Error], whose texts hold nothing of the host and no credential.
package pyenv
