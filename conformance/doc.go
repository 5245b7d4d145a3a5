// Package conformance will hold the suites that prove a sandbox backend, a lease
// provider and the audit log on the host they run on.
//
// A capability is declared only if a suite proves it here: every rule has a
// stable id, a control, and a mutant, a backend that is broken in just that way
// and on which exactly that rule must fail. The suites take anybody's
// implementation; this package knows the contracts of sandboxrun,
// workspace/lease and audit, and none of their insides.
package conformance
