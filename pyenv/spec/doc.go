// Package spec reads what names a Python package: a project's name, a version,
// a version specifier, a requirement with its marker.
//
// Two doors lead in. [ParseRequest] is for text that a model or a person gave.
// It takes a name, extras and version specifiers, nothing else: a URL, a path,
// an option or a marker is [ErrBadSpec], so that no text of a stranger ever
// reaches a resolver's command line as anything but the name of a package on
// the index. [ParseRequirement] is for the Requires-Dist lines of a wheel. It
// takes all of PEP 508, and tells of a direct URL instead of following it.
//
// Names compare as PEP 503 says, extras as PEP 685, versions and specifiers as
// PEP 440, markers as the specification of dependency specifiers on
// packaging.python.org. Python's own library `packaging` is the oracle:
// testdata holds what it answered, and the tests ask for the same.
//
// Promises: nothing here starts a process, opens a file or asks the network.
// Every text has a limit, and the time taken grows no faster than its length.
// All values are immutable and may be used by many goroutines at once.
package spec
