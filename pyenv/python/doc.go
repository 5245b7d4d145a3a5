// Package python makes, proves and loads the interpreter that scripts run.
//
// It has one place in every sandbox, [Prefix], wherever its files lie on the
// host, and layers are attached to it by two files that it has for the purpose,
// [LayersPth] and [StartupPth]. A `python3` that the host's PATH happens to name
// is never run: one below /root or /home (pyenv, Homebrew) lies outside what the
// sandbox shows, and one in a writable directory is whoever's who writes there.
//
// # The life of an interpreter
//
//  1. A source is chosen: the prefix or the archive of the [Options], else the
//     Python of the system if it lies below /usr. One that was asked for and
//     cannot be used is an error, never a reason to take the next.
//  2. Its program, standard library and shared libraries are copied below the
//     environment root. Never copied: what is installed in it, pip, ensurepip,
//     bytecode, links that lead elsewhere, sitecustomize.
//  3. It is asked in the sandbox where it looks for packages; there it gets the
//     two placeholders, and pip, ensurepip and the like become a sentence that
//     says how packages are had here. Bytecode is made, in the sandbox.
//  4. It is proved: what it says of itself must fit what it has to be, and a
//     directory named in a placeholder must end up on its import path, after the
//     standard library.
//  5. It gets its name. Before that nobody can see it, and a crash leaves a
//     directory that the next Make removes.
//
// Why a copy, and not a virtual environment of /usr/bin/python3: the standard
// library of a virtual environment is that of /usr, with its ensurepip, before
// anything that could stand in its place; and an update of the system would
// change the interpreter under layers that were compiled for another one. It
// costs 35 MB and some seconds, once.
//
// # On disk
//
//	python/<id>/SOURCE   where it came from
//	python/<id>/FACTS    what it answered, and the hashes of the files that ran then
//	python/<id>/MANIFEST every file, directory and link of it, with mode, size and hash
//	python/<id>/prefix/  what the sandbox shows at Prefix; nothing in it names the host
//
// The id is made of the kind and of a hash of what was copied. So a system whose
// Python has changed gives another interpreter at the next Make, and the old one
// stays as it was for layers that need it. One that differs from its MANIFEST, which
// Verify finds out and nothing else looks at, has the same id still: Repair makes it
// again. [Use] keeps one in its place for as long as a script runs it.
//
// # Promises
//
// No code of an interpreter runs outside the sandbox. What is written is one
// directory below the root, whole or not at all; several processes may share the
// root. Errors are those of errors.go, and texts for the operator: they name
// paths of the host.
package python
