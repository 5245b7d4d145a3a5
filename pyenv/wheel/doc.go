// Package wheel reads wheels that nobody has to trust, and unpacks them.
//
// A wheel is a zip file with a promise of its contents (PEP 427). Readers of zip
// files disagree about what a strange one holds, and whoever makes such a wheel
// can show one thing to the check and another to the unpacker. So nothing here
// is lenient: the bytes are read once, by one reader, and whatever two readers
// might understand differently is refused.
//
// # The life of a wheel
//
//  1. [CheckSHA256]: the file is the one that was locked.
//  2. [Open]: the zip is walked header by header, from the first byte to the
//     last; names, types and sizes are checked; METADATA, WHEEL, entry points,
//     .pth files and RECORD are read; every file gets its place in the layer.
//  3. Whoever decides looks at the [Wheel]: what it needs, what it would put on
//     the import path, which code it would like to run at every start.
//  4. [Wheel.Verify] or [Wheel.Unpack]: every content is inflated once, with its
//     size, CRC and hash checked as it goes by.
//
// # What a layer gets
//
// Unpack writes below site-packages, bin, data and include, files with mode 0444
// or 0555, made with O_EXCL below an os.Root. The same wheel gives the same
// paths, bytes and modes everywhere, so layers can be compared by their digest.
// Left out, on purpose:
//
//   - bytecode in __pycache__: it runs in place of the source beside it, whatever
//     that says;
//   - top-level .pth and .start files: their path lines are told as
//     [Wheel.PthPaths], their code as [Wheel.Startup], and neither has an effect
//     until somebody approves it;
//   - what the wheel says about its own installation (INSTALLER, REQUESTED,
//     direct_url.json, signatures of RECORD). RECORD and INSTALLER are written
//     anew.
//
// # Promises
//
// Nothing of a wheel is executed, no process is started, no network is asked.
// What fails leaves no file behind and nothing outside the directory. A killed
// process may leave files there: the directory is one that nobody reads before
// Unpack has returned, and that the caller publishes by renaming it. Memory stays
// below 64 MiB for any input, disk below the [Options] caps.
//
// Every refusal is an [*Error] with a [Code], which is stable, and names the
// entry; errors of the disk or of the reader are passed on as they are.
package wheel
