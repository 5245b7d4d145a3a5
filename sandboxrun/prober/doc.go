// Package prober is the program that looks at a sandbox from inside.
//
// It is this same binary: a process whose first argument is [Arg] never gets
// past the initialization of this package. It tries, one by one, what a script
// must not be able to do, and says what happened, as lines of JSON. It judges
// nothing: what is right is a matter of package conformance, on the other side
// of the wall. So a sandbox cannot grade itself.
//
// # How it tries
//
// It makes the system calls themselves, without a shell or a library between,
// because what these refuse is no proof of what the kernel refuses. A call that
// could change the process that makes it (chroot, unshare, a signal that ends
// it) is made in a child of its own, which is this program once more.
//
// Nothing is tried that would harm a host that lets it happen: files are opened
// and not written, names that could be made are removed again, and the calls
// that administer the host are given arguments with which they do nothing.
//
// The prober imports none of our packages and trusts its orders: they come from
// [Order] on standard input, not as arguments, which the sandbox could read in
// /proc and which hold paths of the host.
//
// It exists on Linux, on amd64 and arm64. Elsewhere [Main] returns at once.
package prober
