// Package resolve finds out which wheels a request needs, and gets them.
//
// Both are done by pip, for users' indexes, proxies, certificates and credentials
// are in pip's configuration, and because what it decides is what they would get
// elsewhere. But pip believes what it downloads: `--only-binary :all:` does not keep
// it from building a source archive that a wheel of an index names by URL, and
// building is running. So nothing of it runs on the host.
//
// # The life of a request
//
//  1. [ReadConfig], in the process of the person who asks: the keys of pip's
//     configuration that say where packages come from, and none that say where they
//     go. A [Config] may hold credentials and never shows them.
//  2. [FindTool]: the pinned pip that [InstallTool] has unpacked, or one of the
//     host, whose lacks are noted.
//  3. [Pip.Resolve]: `pip install --dry-run --report` in a sandboxrun.Jail, over
//     requirements that pyenv/spec has parsed and the pins of what is there already.
//     pip itself cannot start a process there. Its report is read strictly; a second
//     command in a jail asks the indexes for what it lacks (sizes, times, what was
//     passed over) and, where pip has failed, for the reason.
//  4. [Pip.Fetch]: `pip download --no-deps --require-hashes` of what was locked.
//     Every file is hashed again, here, before anybody gets it.
//
// # Promises
//
// No code of a package runs, in the jail or outside of it. This process asks no
// network. What an index says decides what is proposed, never what is believed: names,
// versions, hashes and URLs are parsed, a direct URL is refused, and texts of the
// index or of pip are in no error or note but as parsed names, versions and tags.
//
// Credentials reach pip by a file or a variable inside the jail, never by its
// command line, which others on the host can read. No error, note or lock has them.
//
// Every failure is an [*Error] with a [Code], one sentence, and what blocks; a ctx that
// ended is the cause it had.
package resolve
