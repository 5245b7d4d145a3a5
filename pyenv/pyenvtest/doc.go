// Package pyenvtest is what the tests of the packages below pyenv start with: a
// user that is not root, a sandbox, and a directory, each once for a test binary.
//
// [Main] drops root as usertest does and keeps what pip is configured by, for the
// tests that ask a real index. [Box] is the sandbox; without one a test is skipped,
// and says why. [Dir] is for what tests share and is removed at the end. Every
// package has a user of its own, for their tests run at the same time.
//
// [Start] plays a role of a test in a process of its own, which may [Die]; [Fill] makes a
// disk full.
//
// It is for tests only. No other code imports it.
package pyenvtest
