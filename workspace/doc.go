// Package workspace is the disk of an agent: one image file that holds a tree
// of files, directories and symbolic links, and the history of its changes.
//
// # One way in
//
// [Image.Commit] is the only way in which the tree changes, whoever asks: a
// file tool, a script's diff, an import, a restore. A commit is a list of
// changes that is applied all or not at all, after its preconditions, the
// commits that came between, and the quota were checked, in one transaction.
// Contents are stored ahead of it by a [Stage], so that a commit is short and
// no file has to fit in memory.
//
// Reads see one commit and never wait. A [File] goes on reading the version
// that it was opened at. No read holds a transaction longer than one chunk,
// one page of a listing, 512 entries of a walk, or 4,096 changes of the history
// (one commit, when that has more). The exceptions see one commit as a whole:
// [Image.TreeDigest], [Image.Sizes] and the survey of a [Image.GC], a second or so,
// [Image.Snapshot] and [Image.CopyTo], as long as they write. Such a reader blocks
// nobody; pages that are freed meanwhile are written to again only behind it.
//
// # History
//
// Every commit keeps what each path was before and after it, so that the past
// is read backwards from the head: [Image.NodeAt] and [Image.OpenAt] one path,
// [Image.Between] the difference of two commits, [Image.History] the commits
// themselves. [Image.Restoring] and [Image.Undoing] plan a commit that brings
// something back; history itself is never rewritten. What they bring back
// refers to the old chunks (see [Node.Content]). [Image.Checkpoint] gives a
// commit a name, and a digest of the tree that fsck and a stranger can check.
//
// The oldest commits can be dropped, never others, and none that a checkpoint
// needs: [Image.GC] does so when it is told, [Image.Trim] when the history takes
// more than its budget, beside commits. Everything that looks back says ErrNotFound
// about what is no longer kept. Which chunks go is decided against a survey of all
// references and against what commits and stages began to refer to since; from then
// on none of them finds those chunks any more.
//
// # Paths
//
// A path is a key in the image's own name space and never reaches a system
// call. [Clean] is the door for text that a model or a person gave, [FromBytes]
// the one for names that a scan found; there is no third. What they let
// through is within the limits, holds no "..", and names nothing reserved.
// Symlinks are resolved here, by [Image.Resolve], never by the host.
//
// # On disk
//
// An image is a bbolt database with pages of 4,096 bytes:
//
//	meta     "format"    version of all this
//	         "identity"  uuid, label, created, quota in bytes and entries
//	         "head"      seq and id of the newest commit, exact totals of the tree
//	         "fence"     install uuid and highest fencing token seen
//	tree     components joined by 0x00 → node: kind, mode, time, seq of the commit
//	         that last changed it; size, newlines, SHA-256; up to 128 bytes of
//	         content, or references {chunk, length, newlines}; when there are more
//	         than 1,024, a reference to a chunk that lists them
//	chunks   id (u64, rising, never used twice) → packing, SHA-256, bytes (zstd when
//	         that is smaller)
//	byhash   SHA-256 of the plain bytes → id
//	pending  's' ‖ stage ‖ SHA-256 → id of a chunk that no commit uses yet
//	commits  seq → id, parent, call, actor, message, time, totals, source, counts,
//	         changes [path, node before, node after]; seq ‖ part → further changes
//	refs     name → checkpoint: seq, commit id, digest of the tree, totals, time,
//	         message
//
// A content up to 128 KiB is one chunk, a larger one is cut by FastCDC into
// chunks of 16 to 256 KiB. Values have one canonical encoding each, and end in
// CRC-32C over key and value, for bbolt's data pages have no checksum. A
// chunk's SHA-256 is checked whenever it is read; what fails is [ErrCorrupt]
// and is not served.
//
// The id of a commit is a hash over its parent's id and its record, which has
// the nodes before and after with the hashes of their contents: it fixes the
// whole history, and with it the state of the disk.
//
// # After a crash
//
// When Commit has returned, the commit survives a killed process and a power
// cut. When it has not, the disk is as before or as after, never between.
// Checkpoint and DropCheckpoint promise the same. A GC that was cut off leaves a
// whole image, and the rest to the next one; Compact the old file or the new one.
// Create leaves no file or a whole one. Chunks that were staged and not
// committed are swept when the image is next opened for writing.
//
// A full file system is [ErrNoSpace], an image at its limits [ErrQuota]; either
// way the disk is as before, goes on being read, and is written again when
// there is room, without being opened anew. An image opens on a full file
// system, too; what could not be swept then is swept by the first commit that
// finds room.
//
// One process has an image open for writing, or several for reading: the file
// is locked, and the kernel drops the lock when its holder dies. Opening for
// reading changes no byte. Clocks have no part in this: the order of commits is
// that of their numbers.
//
// # Memory
//
// On Linux, committing or reading a file takes at most 64 MiB more than an idle
// process has, whatever its size: a [Stage] keeps 8 MiB of packed chunks, a
// [File] one chunk, and pages of the image that were read are given back.
//
// # Damage
//
// Damage does not end the process, and no byte is served that is not the one
// that was written. Faults of the memory map and panics of bbolt become
// ErrCorrupt. Open looks at the structure of the file before bbolt does: it
// refuses what bbolt could follow for ever, and opens other damage for reading
// only, see [Image.Damage]. [Check] reads all of an image without bbolt, names
// what is damaged, and repairs what the image itself proves: the commits say
// what the tree must be, their ids that they are the ones that were made, and
// every content has its hash.
package workspace
