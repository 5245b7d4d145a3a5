// Package pythontest gives the tests of the packages below pyenv an interpreter that
// python.Make has made, once for a test binary.
//
// It is the one that the program has on a host without any configuration: a copy of
// the Python of the system, proved in the sandbox. [System] returns it with the
// environment root that it is in; a host without a sandbox or without a Python below
// /usr skips the test, which says so.
//
// It is for tests only, and apart from pyenvtest because package python has tests,
// too. No other code imports it.
package pythontest
