// Package exit holds what a command ends with: a code that scripts may rely on, a
// sentence for people, and what to do about it.
//
// The codes are part of what the program promises; the README lists them. A
// command fails with a [Failure], made where the cause is known: where nobody
// chose a code it is 1. A failure of the back travels to the front as JSON and is
// reported there, once, so nothing prints it on the way. The text is one sentence
// without a final stop that begins with what it is about; the hint is one
// instruction.
package exit
