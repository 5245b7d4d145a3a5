// Package store keeps the layers of Python packages that scripts are given, the
// wheels that they are made of and the locks that say which.
//
// An environment root may serve several state directories and many processes at
// once. Nothing in it is ever changed in place:
//
//	layers/{base,x,iso}-<16 hex>/   site-packages, bin, data, include, cache, manifest.json
//	wheelhouse/<sha256>.whl
//	locks/<id>.json
//	current                         what a new workspace gets
//	jobs/<id>/                      where resolvers work
//
// # The life of a layer
//
//  1. [Root.AddWheel] puts the wheels of a lock into the wheelhouse, each under its
//     hash.
//  2. [Root.Build] claims the layer's id. It checks hashes and wheels, that no two
//     of them, nor one of them and a package of another layer, are in each other's
//     way, and unpacks them into layers/.tmp-<id>-<random>.
//  3. The interpreter that scripts will have compiles the sources, in the sandbox.
//     Nothing of a wheel is run for that. Its bytecode is the only thing that is
//     taken from there. If matplotlib is among the wheels, it finds the fonts of
//     the host, in the sandbox too, once instead of in each run.
//  4. The manifest lists every file with mode, size and hash. All is made durable,
//     and the directory gets its name.
//  5. [Root.Use] holds it while a script runs. [Root.Verify] reads all of it.
//  6. [Root.GC] renames a layer that nobody needs to .trash-*, and removes it.
//
// # Promises
//
// A layer that can be seen is complete, and its id says what it holds: the same
// lock gives the same files with the same bytes, bytecode included, whoever builds
// it and where ([Manifest].Digest; the font cache is outside of it, for it tells of
// the host).
//
// A build that fails, is cancelled, runs out of disk or is killed leaves nothing
// that can be seen, and the next one is not in its way. A killed process leaves
// names that begin with ".tmp-" or ".trash-", which the next [Open], Build or GC
// removes.
//
// Who may do what is a matter of flock(2), which ends with the process:
//
//	layers/.tmp-<id>.lock        exclusive: building that layer, removing what builds of it left
//	layers/<id>                  shared: using it; exclusive: throwing it away
//	wheelhouse/.tmp-*, locks/.tmp-*   exclusive: writing it
//
// (A process that the dead one was just starting holds them until its exec.) On
// systems without it (hostos.Implementations) one process at a time may have a
// root.
//
// No code of a wheel runs on the host. Startup code of wheels is not in layers at
// all: the manifest tells it, and somebody has to approve.
package store
