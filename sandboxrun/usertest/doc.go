// Package usertest runs the tests of a package as an ordinary user when root
// started them.
//
// Nothing is ever sandboxed as root, and a test that root ran would see what no
// user of the program sees. So [Main] starts the test binary again as another
// user, with a home of its own and an empty environment, and hands over the files
// that go test asked for. Tests that an ordinary user started just run.
//
// It is for tests only. What a killed test leaves is a directory in /tmp.
package usertest
