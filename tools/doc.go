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
//     and every path goes through workspace.Clean; a call that can change the
//     disk is given its fence by the session's lease;
//  3. whatever was refused so far is a durable call.refused record, and nothing
//     happened;
//  4. a tool that changes something writes its call.intent, durably;
//  5. the tool does its work: reads come from the image, every change is one
//     Commit of it, a script runs on a view of it and commits what it changed;
//  6. the outcome (for a tool that only reads, the one call.read) is in the log
//     before the result is released.
//
// # The life of a script
//
// A run_script call starts a job, whose id is that of the call:
//
//  1. the job waits for its turn: so many scripts run at once, in the order of
//     their calls, and what they may write to memory together is bounded;
//  2. it pins a generation of the live view, a directory that is equal to one
//     commit and does not change; no file tool waits for it;
//  3. the script runs. What it prints is cleaned as it comes and kept in the order
//     of arrival, 8 MiB at most: in memory while it is little, else in a file
//     without a name;
//  4. what it changed is committed, checked path by path against what was committed
//     since its start, or, when it is not to be saved or others changed the same
//     paths, kept: {"job":J,"commit":"always"} saves it later;
//  5. the outcome of the call goes into the log, and the job is remembered for an
//     hour, with its output.
//
// A call is answered at the job's end, or after 45 s, when the job is handed over:
// it goes on, and {"job":J} asks for it. An offset into the output means the same
// for as long as the job is remembered, so consecutive pages are the output, no
// byte lost and none twice. A job that was not handed over ends with its call.
// Every job ends with the jobs of its disk ([Jobs.Close]) or the process; after a
// crash the log and the image tell what came of it.
//
// # The life of a request for packages
//
// python_env makes a request, in the environments of the disk and not on the disk, and
// waits for a while: until what was asked for is there, or nothing will come of it, or a
// person has to decide. The catalog of the operator decides, or a person; no argument of
// a tool does. The answer tells the agent what to say to the person, in one sentence.
// What the request came to is in the log by the environments' own records; the call's
// has the packages and the path of the wheel, and what is no name of a package it leaves
// out, for that may be a URL with a password.
//
// # Sessions
//
// A [Tools] is one session. Those of one disk share its image, view, log and
// [Jobs], and with other disks the [Turns] of the host; policy, [Lease] and the
// way to the person are a session's own:
//
//   - a script runs and is committed under the policy and the fence of the session
//     that started it, also when that has ended. If the disk was taken over
//     meanwhile the image refuses the commit: FENCED, and the changes are kept;
//   - any session of the disk may ask for a job and is answered for itself. Saving
//     what a job left is under the asker's policy and lease, and is recorded as the
//     asker's; a conflict is told to each session before it may save over it;
//   - a session that only reads may ask for a job, and neither stop it nor save what
//     it left. Without the right to change the disk a session may stop only what it
//     started itself.
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
// settles the intents that have no outcome. Output and kept changes do not outlive
// the process.
//
// Calls run side by side, and each request of the transport has a goroutine of its
// own. Jobs have goroutines that Close waits for.
//
// # Files
//
// One file per tool. call.go is the life of a call, code.go the codes and what
// becomes one, result.go what is answered, policy.go what a session may do, lease.go
// whether it may change the disk,
// paths.go how a path is found, mcp.go and stdio.go the protocol, question.go and trip.go
// how the server asks its client, elicit.go what it asks. Of scripts,
// run_script.go is the arguments, script.go one run, script_report.go what is told
// of it; job.go is a run from its call until it is forgotten, jobs.go all of them,
// job_info.go and job_stop.go what the owner of the disk sees of them and how he
// ends them, job_calls.go the calls about one, kept.go changes on their way into the disk,
// forgotten.go what the log knows; turns.go is the queue, clean.go, transcript.go
// and spool.go are the output. Of Python, python_env.go is the arguments,
// python_request.go a request and the wait for it, python_result.go and python_error.go
// what is told of them, python_status.go what there is, python_hint.go what a script is
// told that lacks a package, elicit.go the question to the person at the client.
package tools
