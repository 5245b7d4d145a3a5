//go:build !failpoint

package hostos

// Failpoint marks a step at which a test can kill the process, to see what a
// crash right there leaves. In a program that is not built with the tag
// failpoint it does nothing, and costs nothing.
func Failpoint(string) {}
