// Package tools is the seven tools over one disk, and the MCP server that offers
// them.
//
// # The life of a call
//
// [Tools.Call] is the one way in, whether a call comes over MCP ([Tools.ServeStdio]),
// from a terminal or from another Go program ([Tools.Dispatch]):
//
//  1. schemas.Validate checks the arguments: names, types, limits;
//  2. the policy of the session and the arguments among themselves are checked,
//     and every path goes through workspace.Clean;
//  3. whatever was refused so far is a durable call.refused record, and nothing
//     happened;
//  4. a tool that changes something writes its call.intent, durably;
//  5. the tool does its work: reads come from the image, every change is one
//     Commit of it, a script runs on a view of it and commits what it changed;
//  6. the outcome (for a tool that only reads, the one call.read) is in the log
//     before the result is released.
//
// # Promises
//
// Call never panics and always answers; a failure is a [Code], one plain sentence
// and a hint. Nothing of the host is in a result: no path, no text of a library,
// no stack. A result's text is complete: what a program finds in its facts is
// also said in words. If the log cannot be written, nothing is done.
//
// After a crash each change is whole or absent, because the image makes it so,
// and every change has its intent in the log; whoever opens the disk next
// settles the intents that have no outcome.
//
// One script runs on a disk at a time; file tools run side by side and wait for
// it. Quick calls never wait behind the calls of a script on the transport:
// each request has a goroutine of its own.
//
// # Files
//
// One file per tool. call.go is the life of a call, code.go the codes and what
// becomes one, result.go what is answered, policy.go what a session may do,
// paths.go how a path is found, mcp.go and stdio.go the protocol.
package tools
