// Package live keeps a plain directory equal to a disk image, for the programs
// that cannot read an image: scripts in a sandbox see it as the lower layer of
// /workspace.
//
// It is a cache. The image is the truth, and nothing that happens to the
// directory gets back into it: what differs is thrown away when it is found.
// File tools never read it.
//
// # On disk
//
//	DIR/UUID/lock        held by the process that has the view open
//	DIR/UUID/live.state  "clean ID SEQ BOOT", or "moving A>B BOOT" while work is under way
//	DIR/UUID/tree/       the files; mode 0700 above it keeps other users out
//
// # Sync
//
// [View.Sync] applies what the commits since the last one changed. When the
// state is not clean (a process was killed, the file is gone or from another
// image), or the directory turns out not to be what it should, it compares the
// whole directory with the image instead and rewrites what differs. That looks
// at kind, size, time and mode; at contents too when the state was written
// before the machine last started, since only then can data be lost that a file
// system had promised: nothing here is ever synced to the disk.
//
// A file is written under another name and renamed into place, never changed where
// it stands; a directory's children are written before its own mode is narrowed.
// Everything happens relative to open directories (os.Root), one component at
// a time, after a look that the component is a directory and no link. Links are
// stored as they are: they mean something inside the sandbox only. The view has
// no setuid or setgid bits, and all of it belongs to the process's user.
//
// The owner of a View sees to it that no sandbox runs on the directory while
// Sync works.
package live
