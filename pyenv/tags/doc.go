// Package tags decides which wheel of a project fits an interpreter.
//
// A wheel's file name says what it was built for: tags of Python, ABI and
// platform (PEP 425). [Target] is what a CPython on Linux can use, best first:
// glibc (PEP 600) or musl (PEP 656), x86_64 or aarch64. [Target.Choose] picks
// from the files of an index, and tells what it passed over: a newer version
// that has no fitting wheel is never skipped in silence, and a project without
// one gets an answer that names the tags that were seen and the one that was
// wanted.
//
// A Target describes the interpreter inside the sandbox, which has to be asked;
// nothing here looks at the host. Free-threaded builds are not known.
//
// Promises: no process, no file, no network. All values are immutable.
package tags
