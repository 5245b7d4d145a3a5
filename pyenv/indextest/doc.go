// Package indextest is a package index on loopback, a good one and every kind of bad
// one.
//
// [New] starts it; [Index.Add] puts files on it, by their bytes, such as those of
// pyenv/wheeltest. It answers as PEP 503 (HTML) and PEP 691 (JSON) say, by what the
// client accepts, with hashes, sizes and upload times (PEP 700), yanked files (PEP 592),
// Requires-Python, and the metadata of wheels beside them (PEP 658, PEP 714). Fields of
// [File] and [Options] bend it: other bytes than those whose hash it tells, answers that
// break off or never come, 401 without a password. [Index.Handle] replaces any answer.
// It keeps a list of what it was asked for, so that a test can say "no wheel was
// downloaded".
//
// It is for tests only. No other code imports it.
package indextest
