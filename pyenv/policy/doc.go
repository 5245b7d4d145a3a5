// Package policy decides who may say yes to a set of Python packages: the catalog
// alone, a person, or nobody.
//
// # The life of a decision
//
//  1. [Parse] reads the [Catalog], the operator's list of what is installed without
//     asking, of what never is, and of limits.
//  2. [Judge] looks at a solution, every package of it, and gives a [Verdict]: the
//     worst [Tier] of its findings. What has no solution, or breaks a rule that nobody
//     can lift, gets its verdict by [FromRefusal].
//  3. A person sees a [Card], as text on a terminal ([Card.Text]) or as the form of a
//     client ([Card.Form]), and approves the one lock that it names.
//  4. When the wheels are there, Judge is asked again, with what is in them. Code that
//     would run at every start, modules that hide others and true sizes show only now.
//
// # Rules
//
//	denied_name       reject  the catalog denies it; wins over everything
//	upload            ask     a wheel comes from the workspace, not from an index
//	startup_code      ask     it would run code at every start of Python (or reject, as the catalog says)
//	near_name         ask     its name is almost one that is known; with not_listed only
//	not_listed        ask     the catalog does not allow it, or not this version
//	cooldown          ask     it is younger than the catalog's days, or nobody knows how old it is
//	yanked            ask     its author has withdrawn it
//	override          ask     the base has another version; a layer of its own is needed
//	import_collision  ask     two packages bring one module
//	index_host        ask     it comes from a host that the catalog does not name
//	several_indexes   ask     more than one index is asked, so that one can answer for another
//	size_wheel        ask     one wheel is over its limit
//	size_closure      ask     all together are, in bytes or in files
//
// What a workspace has already, by hash, in its base or its own layers, was decided
// when it came; of these rules only denied_name is applied to it.
//
// # Promises
//
// Nothing here opens a file, asks the network or looks at a clock: the same input gives
// the same verdict, to the byte. What is not known counts as not allowed: the zero
// [Tier] is not [Auto], the zero Catalog allows nothing.
//
// Texts of strangers (an agent's reason, names, licences, reasons of yanking) are in no
// sentence and on no card but in quotes, without control characters, terminal escapes
// and direction marks, and cannot start a line.
//
// All values are plain data. Functions change none that they are given, and may be
// called by many goroutines at once.
package policy
