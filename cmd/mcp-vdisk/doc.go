// Command mcp-vdisk is the program: its commands, and the wiring of the
// packages into one disk with tools, sandbox and audit log.
//
// # Front and back
//
// Every command has two halves. The front runs as the caller: it reads the
// command line, and the caller's files are touched by it alone (image put and
// get, an image that is named by a path, the configuration). The back opens
// the state directory and does the work. They are joined by a socket on which
// a request goes one way and standard input, output and an exit code travel as
// frames ([frames]); an open image file travels as a descriptor.
//
// For an ordinary user the back is a goroutine of the same process. For root
// it is the same program executed again as another user ([becomeBack],
// [startBack]): a sandbox that is set up by uid 0 is not one.
//
// `serve` is a back that speaks MCP on the process's own standard input and
// output; as root it replaces its process by the dropped one.
//
// # Files
//
// One file per command; front_*.go and back_*.go hold what commands share,
// state.go the state directory, settings.go config.toml.
package main
