// Package hostos holds the few things that mcp-vdisk asks of the operating
// system and that the standard library does not offer portably: advisory file
// locks with a named holder, making a directory entry durable, free space, and
// giving up root.
//
// It is a leaf: every other package may import it, it imports none of them.
// Each primitive has two implementations. The Linux one (`*_linux.go`) uses
// the system call meant for the purpose; the other (`*_other.go`) is what
// remains on systems that lack it, and is also what the build tag `portable`
// selects on Linux so that it can be tested there. [Implementations] says
// which one a binary carries.
//
// Nothing here keeps state, starts a goroutine or logs.
package hostos
