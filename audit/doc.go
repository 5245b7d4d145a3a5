// Package audit is the log: what an agent asked for, what it was allowed, and what
// came of it, in a form that cannot be changed without showing.
//
// # What it promises
//
//   - No effect without a record. [Log.Append] returns when its record is on disk;
//     if it returns an error (always [ErrUnavailable]) the effect must not happen.
//   - What was acknowledged stays. A record of Append survives a crash of the host,
//     a record of [Log.Note] survives a crash of the process at once and a crash of
//     the host at most 10 ms later.
//   - No gap. The records of a stream are numbered from 1; every crash leaves a
//     prefix of what was numbered, so a missing number is tampering.
//   - The bytes stored are the bytes hashed. A record is one line of JSON that is
//     written once and never parsed and written again.
//   - Content cannot break it. Whatever a model or a script puts into a path, a name
//     or an argument, the record fits in [MaxRecord] and its append does not fail
//     for it.
//
// It does not promise that the newest records are still there (that takes a
// receipt kept elsewhere), nor that who can write the database has not written
// all of it anew: the chain is hashed, not signed. [Report.NotChecked] says so.
//
// # A record
//
// The keys of a line stand in one fixed order, the order of the fields of [Record];
// the facts inside args, cap and env are sorted by name. Otherwise a line is
// RFC 8785 (JCS): no white space, integers within ±(2^53-1) and no other numbers,
// the escapes of ECMAScript, everything else as UTF-8. The order is ours because
// n, prev and t then stand in front, where a reader finds them without parsing and
// where only the sequencer has to write; it is fixed by the encoder, so it is just
// as canonical. A required key (v to ev) is always there, any other only when it
// has a value that is not empty or zero. [Decode] takes these lines and no others.
//
// A byte that is not UTF-8 is written as the four characters \xNN. A fact longer
// than [MaxFact] is cut and ends in "…"; NAME.sha256 and NAME.bytes (of a list
// NAME.items) say what it was. A field of the record that had to be cut does the
// same in args as .FIELD.sha256; no fact of a caller has a dot in its name.
//
// The raw arguments are kept as a digest only: argd is their HMAC-SHA256 under a
// salt of 128 bits that lies in the body of the record, beside the log. The record
// holds the SHA-256 of the body, so a body can be pruned, and with it the salt
// that a guess would need, while the chain stays whole.
//
// # The chain
//
// prev is the leaf hash of the record before, SHA-256(0x00 || line) as in RFC 6962.
// The prev of record 1 is SHA-256(0x02 || "mcp-vdisk/audit/1\n" || stream), so the
// chain of one stream cannot stand in for another. Record n is leaf n-1 of the
// stream's tree: a tree of size s holds the records 1 to s. Streams are one for
// each image, named by its UUID, and [StreamSystem].
//
// Order is n alone. t is the wall clock and mono, with boot, the clock that cannot
// be set; when t goes back against the record before, or the two part by more than
// 2 s, a clock.step record comes first.
//
// # On disk
//
//	r/STREAM/N  the line          N: 8 bytes, big endian
//	b/STREAM/N  the body          {"salt":"…"}
//	h/STREAM    the head          {"n":…,"leaf":"…","settled":…}
//
// in Badger, every value in the LSM tree, and the file tail beside it.
//
// # The life of a record
//
//  1. The caller's goroutine trims the entry, digests the arguments, encodes all but
//     the front of the line, asks for free space and takes one of 1,024 places in the
//     queue, all within its context.
//  2. Under one lock the record gets its number, its time, prev and leaf, and is put
//     at the end of the queue, which is one for all streams. A note is now written
//     to the tail with one write(2), and before it whatever else is numbered but not
//     on disk.
//  3. The sequencer's goroutine takes a group off the front of the queue, at once
//     when somebody waits, within 10 ms otherwise, and commits lines, bodies and
//     heads in one synced transaction. While it does the next group gathers.
//  4. The waiters are let go. When all that the tail holds is durable it is
//     truncated.
//
// So the database holds a prefix of the order of numbering, and the tail holds
// everything from there to the newest note. [New] puts the two together: frames
// that are in the database already are skipped, a torn last frame, which nobody
// was told of, is dropped, and a tail that does not follow is refused and kept.
//
// # When it fails
//
// Little free space refuses new records and ends by itself; notes are taken a
// little longer than intents, for what an effect itself takes. A tail that cannot be
// written fails the note; if what was half written cannot be cut off again, and
// whenever a commit gives an error (it may have happened or not), the log stops:
// every further record is refused until the database is closed and opened, and
// New has read what is really there.
//
// # Reading
//
// [Log.Query] scans with a filter on the raw bytes; there are no secondary indexes
// to be tampered with. [Log.Verify] checks a stream, [Log.Dangling] gives the
// intents that a crash left without an outcome. All of them see what was numbered
// before they were called, and go on working when the log has stopped.
package audit
