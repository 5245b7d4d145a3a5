// Package attach says what a run is shown so that its Python has its layers.
//
// [Plan] turns an interpreter and layers of the environment root into the mounts
// and the environment of a sandboxrun.Run:
//
//	/opt/mcp/python        the interpreter
//	/opt/mcp/layers/<id>   each layer
//	<site-packages>/zz_mcpvdisk_layers.pth    which of their directories are on the import path
//	<site-packages>/zz_mcpvdisk_startup.pth   startup code that was approved, if any
//	/opt/mcp/shim          pip, uv and the like, which say how packages are had
//	/tmp/mpl/fontlist-*    the font cache of a layer that has matplotlib
//
// # Why like this
//
// Directories in PYTHONPATH come before the standard library, so that a layer
// could replace it, and vanish with -I and -E. A .pth file in site-packages does
// neither. The one that is shown has path lines only, which Python does not
// execute; the .pth files of wheels are not in a layer at all.
//
// The directories with programs of layers are the last of the PATH: a wheel that
// has a `git` does not get to be git.
//
// matplotlib wants a directory that it can write, and makes its font cache there
// when it has none, which takes seconds. /tmp/mpl is the script's own, with the
// cache in it as a file that cannot be written.
//
// # Promises
//
// Everything is mounted read-only. Right before a run, each source is opened and
// looked at: it is in the environment root, with no link on the way, belongs to
// the user of this process, and nobody else can write it. Nothing of what is in
// it is read, but for names; store.Root.Verify does that.
//
// What is written, by [Prepare] and by Plan, is below boot/ in the root: files
// that hold what they are named for, replaced whole, so that many processes can
// share a root. A crash leaves the old or the new one.
package attach
