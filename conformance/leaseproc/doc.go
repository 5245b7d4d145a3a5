// Package leaseproc puts a lease provider into a process of its own, and its
// clients into others, so that the lease suite can do to it what happens to
// processes: a kill -9 of the one that has the store, and several that ask at the
// same moment.
//
// All of them are this same program. A process whose first argument is [Arg] calls
// [Main] and is the server, which opens the provider and listens on a socket, or a
// client that makes one request. The suite runs in a third process, which holds a
// [Server]: that is the provider, as far as the suite can see, and [Server.Case]
// is what can be done to it.
//
//	s, err := leaseproc.Start(program, dir)
//	…
//	defer s.Close()
//	rep := conformance.RunLease(ctx, s, s.Case())
//
// A call is a connection, with a line of JSON each way; in between the server asks
// on it for what belongs to the caller's process: the function of a Guard, and the
// hooks of a provider. The clock is a [conformance.ManualClock] in the server.
//
// It knows nothing of any provider but the contract: the program hands Main an
// [Opener]. The protocol is between processes of one program and may change with it.
package leaseproc
