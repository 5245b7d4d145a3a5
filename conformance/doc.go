// Package conformance holds the suites that prove an implementation on the host
// it runs on: RunBackend a sandbox backend and RunLease a lease provider, anybody's;
// RunHost what a script of ours must not be able to do. That of the audit log is
// to come.
//
//	rep := conformance.RunBackend(ctx, backend, sandboxrun.Spec{}, conformance.Case{})
//	rep.WriteTable(os.Stdout)
//	if !rep.OK() { … }
//
// It takes anybody's implementation. It knows the contracts of sandboxrun,
// workspace/lease and audit, and none of their insides: what it says of our
// own backend it found out as it would of another.
//
// # Rules
//
// A rule has an id that never changes its meaning; [Rules] lists them all, with
// a line for each that says what it promises. The first twelve are the seed's, in its
// order, and mean what they mean there, with two changes: a timeout is an outcome
// and an error is a sentinel (nothing is told apart by the text of a message), and the
// cancellation starts when the command is known to run rather than after 50 ms.
//
// A capability that is not declared is not tested: the rules that it brings are
// skipped. One that is declared is proved by what commands do. Only execution
// audit and the three about leases are taken at their word here; they are not
// about this contract.
//
// # What a finding means
//
//   - passed: the rule was tried and kept.
//   - failed: it was tried and broken. The detail says what was expected and seen.
//   - skipped, undeclared: the implementation does not promise it.
//   - skipped, unsupported_here: this host cannot show it either way.
//   - error: it could not be tried. A control failed, the implementation panicked, a
//     call did not return, or one that only prepares the trial returned an error.
//
// [Report.OK] is true when nothing failed or broke and no required rule was
// skipped. So a backend that promises little, and breaks nothing of it, is not OK;
// which limits a host can keep is the one thing that is left to it.
//
// # Why a pass can be believed
//
// Three things keep the suite from saying passed for the wrong reason.
//
// Each rule about behaviour has a control, an attempt that must end the other
// way: the process that is to be gone after a kill was seen before it; the ways
// to write that must fail in a read-only workspace all work in another; the
// listener that must not be reached from the sandbox is reached from outside. A
// control that fails is an error and never a pass, so a backend that does nothing
// at all passes no rule about what backends do (TestYesIsNotEnough).
//
// Each rule has a mutant: our backend, broken in just that way. On it this rule
// fails and every other rule ends as before (TestMutants). A rule without a mutant
// does not get in (TestEveryRuleHasAMutant).
//
// And there is a backend without a sandbox, a plain process that promises
// everything. The rules that it breaks are written down, and those that it keeps
// (TestLocalBoasts): what the suite takes a sandbox to be is the difference.
//
// # What it does to the host
//
// It makes temporary files and removes them, listens on 127.0.0.1 for a moment,
// and sets one environment variable of its process meanwhile. Processes are looked
// for in /proc by a random word among their arguments; the suite kills none. A call
// of the implementation that does not return is left behind with its goroutine.
//
// Importing it makes a program one that can be started again as the prober and
// as a server of its own process (see sandboxrun/prober): such a process ends in
// the initialization of the package.
package conformance
