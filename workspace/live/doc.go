// Package live keeps plain directories equal to commits of a disk image, for
// the programs that cannot read an image: scripts in a sandbox see one as the
// lower layer of /workspace.
//
// It is a cache. The image is the truth, and nothing that happens to a directory
// gets back into it: what differs is thrown away when it is found. File tools
// never read it.
//
// # On disk
//
//	DIR/UUID/lock          held by the process that has the view open; its time is that of the last use
//	DIR/UUID/N/            a generation; N rises
//	DIR/UUID/N/live.state  "clean ID SEQ BOOT", or "moving A>B BOOT" while work is under way
//	DIR/UUID/N/tree/       the files; mode 0700 above keeps other users out
//
// # Generations
//
// [View.Pin] returns a generation that is equal to the newest commit and stays
// exactly as it is until it is released, whatever is committed meanwhile. It is
// one of three:
//
//  1. The newest generation, when that is up to date. Any number of scripts share it.
//  2. The newest generation, after the commits since were applied to it, when
//     nobody holds it.
//  3. A new one, made from the newest by hard links and then by applying the
//     commits since, while scripts still hold that one.
//
// An older generation goes with its last holder. So there are as many as commits
// that running scripts see, and one at rest.
//
// Generations share files, so a file is never changed where it stands, nor are its
// mode and time: another one is written under a temporary name and takes its
// place. Directories are not shared. A generation that is held is only read: a
// directory that its owner may not search is written anew from the image rather
// than opened up. Where the file system makes no links, or no more of a file, files
// are written anew too.
//
// # What is believed
//
// A clean state is. When it is not clean (a process was killed, the file is gone or
// from another image), or a commit cannot be applied to what is there, everything is
// compared with the image and what differs is written anew. That looks at
// kind, size, time and mode; at contents too when the state is of an earlier
// start of the machine, since only then can data be lost that a file system had
// promised: nothing here is ever synced to the disk. [View.Check] does not believe,
// and compares everything.
//
// # After a crash
//
// A new generation is not clean before it is whole, one that is being changed is not
// clean meanwhile, and one that is removed loses its state before its first
// file. So whatever a killed process leaves, the next [Open] keeps one generation,
// clean or to be compared, and removes the rest. Temporary names are not in
// the image, so the comparison removes them too.
//
// # A full disk
//
// Before a generation is made, and now and then while files are written, the free
// space of the host is looked at: 16 MiB stay free for the image and the log. What
// does not fit is workspace.ErrNoSpace; what was made of it is removed, and the
// generations in use are not touched.
//
// # Care
//
// Everything happens relative to open directories (os.Root), one component at a
// time, after a look that the component is a directory and no link. Links are
// stored as they are: they mean something inside the sandbox only. The view has no
// setuid or setgid bits, and all of it belongs to the process's user.
//
// What a script may notice: a file that several generations share has more than
// one link (st_nlink), and its st_ctime changes when they come and go.
package live
