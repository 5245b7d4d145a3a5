// Package pyenv decides which Python a script gets.
//
// A script must never run an interpreter that the host's PATH happens to name:
// a `python3` below /root or /home (pyenv, Homebrew) lies outside what the
// sandbox shows, and one in a writable directory is whoever's who writes there.
// So the interpreter is chosen by absolute path from a fixed list, and only if
// its real file lies below /usr, which the sandbox mounts read-only. What it
// is, its version and its packages are found out by running it inside the
// sandbox, never on the host.
//
// Promises: nothing is written, nothing of the host's environment is read, and
// no code of a third party runs outside the sandbox. Package layers, requests
// and approvals build on this choice.
package pyenv
