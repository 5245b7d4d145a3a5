// Package conformance holds the suites that prove on the host they run on what
// this module promises. RunHost tries what a script must not be able to do; the
// suites of a sandbox backend, a lease provider and the audit log are to come.
//
// A capability is declared only if a suite proves it here: every rule has a
// stable id, a control, and a mutant, an implementation that is broken in just
// that way and on which that rule must fail. The suites take anybody's
// implementation; this package knows the contracts of sandboxrun,
// workspace/lease and audit, and none of their insides.
//
// Importing it makes a program one that can be started again as the prober and
// as a server of its own process (see sandboxrun/prober): such a process ends in
// the initialization of the package.
package conformance
