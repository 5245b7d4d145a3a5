// Package hostcopy carries files between the computer of the person and a stream. It
// runs in the front, with the rights of whoever called, and touches nothing but what
// they named; the back touches the disk, and neither the other's.
//
// Files travel as tar (archive/tar). A directory of the host is held open while it is
// read or filled, and what is in it is reached by single names through that, so that
// links which are swapped in lead nowhere (os.Root). No link of the host is followed but
// one that the person named; none is made that leads out of what is copied.
//
// What goes to a person (Warn) has each name in quotes or plain, never with control
// characters.
package hostcopy

import "archive/tar"

// Header chooses the tar format that both ends speak: PAX, with times to the
// nanosecond. POSIX wants UTF-8 in it; archive/tar writes and reads the bytes of names
// as they are, and no other program sees the stream.
func Header(h *tar.Header) *tar.Header {
	h.Format = tar.FormatPAX
	return h
}
