// Package archive carries the tree of a disk out as one file that other programs can
// read, and back in.
//
// # What an archive is
//
// A tar file (POSIX.1-2017, pax interchange format) in one zstd frame (RFC 8878), such
// as `tar --zstd -x` unpacks. It holds the tree of one commit and no history; what was
// committed while it was written is not in it. Entries are in the order of the tree,
// folders before what is in them, with permission bits, times to the nanosecond,
// symbolic links and empty folders. Names are raw bytes: one that is not UTF-8 is marked
// by hdrcharset=BINARY, as pax has it. The same tree, version and label give the same
// bytes.
//
// It begins with a global header that states the whole:
//
//	MCPVDISK.archive  1, the version of this
//	MCPVDISK.label    of the disk
//	MCPVDISK.version  the commit that it is of
//	MCPVDISK.entries  files, folders and links
//	MCPVDISK.bytes    sizes of all files and link targets
//	MCPVDISK.content  the content digest, see [workspace.Image.ContentDigest]
//
// and each file has its SHA-256 in hexadecimal in a record MCPVDISK.sha256 of its own.
// The keys have a vendor's name in capitals, as pax wants it of keys that it does not
// define. GNU tar tells of keys that it does not know, and unpacks all the same;
// --warning=no-unknown-keyword makes it silent.
//
// # What is let in
//
// [Import] takes an archive of its own or anybody's, plain, in zstd or in gzip, as
// hostile input. An entry is taken as it is or the whole archive is refused; nothing is
// renamed or left out, but for owners, setuid, setgid and sticky bits, and extended
// attributes, which a disk does not have. Refused are:
//
//   - names with "..", from the root, over the limits of a path, or reserved
//   - two entries of one name, also one spelled "./a" or "a//b", and an entry below
//     something that is no folder
//   - devices, FIFOs and whatever else is neither file, folder nor link
//   - hard links to anything but a file that came before; that becomes a copy
//   - global headers that would change the entries after them
//   - more bytes or entries than the limits say, before they are read where the archive
//     says how many they are, and headers that are out of proportion
//   - more than [Limits.Ratio] times what was read, unless the archive states its size
//   - an archive that is cut off, that goes on behind its end, whose compressed form fails
//     its checksum, or that does not hold what it states
//
// Import changes nothing. It stages contents and returns the changes that make the tree,
// for one commit: when it fails its stage is discarded, and the disk never saw any of it.
//
// # Memory
//
// Export keeps one chunk of a file and one entry for each path that was changed since
// the commit. Import keeps its changes, about 500 bytes each, and a window of at most 32 MiB
// of the compressed form.
package archive
