package python

import _ "embed"

//go:embed stub.py
var stub []byte

// Stub is the source of a Python module that stands in the place of pip. Run as a
// script it says on stderr which call of the tool python_env does what its command
// line asks for, and exits with 1. It needs the standard library alone.
func Stub() []byte { return append([]byte{}, stub...) }
