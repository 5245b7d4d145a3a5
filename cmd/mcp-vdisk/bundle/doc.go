// Package bundle is the form of a backup of a state directory: one stream, tar in
// Zstandard (RFC 8878).
//
//	backup.json     what follows, with sizes; and of what it is a backup: Facts
//	VERSION         format of the state directory
//	config.toml     the settings in force
//	log             the database: audit log, leases, requests (audit.Dump)
//	images/NAME.vdisk
//	envs/…          what Python environments are made from, see Known
//	manifest.json   the SHA-256 of each entry before it
//
// # Promises
//
// A reader gets entries in the order that backup.json tells, with names out of one
// table and exactly the sizes that were told, and io.EOF only when the manifest agrees
// with all of them and nothing follows. Until then nothing of what was read counts: a
// backup that is cut off, damaged or changed anywhere is refused as a whole.
//
// That makes a backup whole, not authentic: who can write it anew can write another
// manifest.
//
// No name of a backup is a path of the host. Links, devices, sparse files and whatever
// else tar has are refused. What a reader holds in memory is bounded, whatever the
// sizes: 8 MiB of window, and MaxFacts.
package bundle
