package tools

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// target finds the place that a change of path means. Links on the way are
// followed inside the image; a link at the end is followed too when follow is
// set, so that writing through a link changes what it points to.
func (t *Tools) target(path string, follow bool) (workspace.Path, *workspace.Node, error) {
	p, err := workspace.Clean(path)
	if err != nil {
		return p, nil, err
	}
	if p, err = t.cfg.Image.ResolveParent(p); err != nil {
		return p, nil, err
	}
	n, err := t.cfg.Image.Lstat(p)
	switch {
	case errors.Is(err, workspace.ErrNotFound):
		return p, nil, nil
	case err != nil:
		return p, nil, err
	case n.Kind != workspace.KindSymlink || !follow:
		return p, &n, nil
	}
	to, n, err := t.cfg.Image.Resolve(p)
	if errors.Is(err, workspace.ErrNotFound) {
		return p, nil, refuse(NotFound, "delete the link first, or write to another name", "%s is a link to something that is not there", p)
	}
	return to, &n, err
}

// source finds an existing file or directory to read, with hints for the ways
// in which paths are usually missed.
func (t *Tools) source(path string) (workspace.Path, workspace.Node, error) {
	p, err := workspace.Clean(path)
	if err != nil {
		return p, workspace.Node{}, err
	}
	to, n, err := t.cfg.Image.Resolve(p)
	if err != nil {
		return to, n, t.missing(err, path, p)
	}
	return to, n, nil
}

// onRoot says why a tool cannot work on the root itself; nil if it can.
func onRoot(tool string) error {
	switch tool {
	case "write_file", "run_script":
		return refuse(IsADirectory, "name a file inside it; list_files shows what it holds", "%s is a directory", workspace.Mount)
	case "delete_file":
		return refuse(InvalidPath, "delete the files and directories inside it one by one", "%s itself cannot be deleted", workspace.Mount)
	}
	return nil
}

// missing makes NOT_FOUND say more where more is known.
func (t *Tools) missing(err error, given string, p workspace.Path) error {
	if !errors.Is(err, workspace.ErrNotFound) {
		return err
	}
	e := asError(err)
	if near, ok := t.cfg.Image.Similar(p); ok {
		e.Hint = fmt.Sprintf("there is a name that differs only in how its characters are written: %s", near)
		return e
	}
	if note := cmp.Or(vanished(given), hostNote(given)); note != "" {
		e.Hint = note
	}
	return e
}

var (
	hostPath  = regexp.MustCompile(`^((/home|/Users|/tmp|/mnt/data)(/|$)|[A-Za-z]:[\\/])`)
	scratched = regexp.MustCompile(`^(/tmp|/dev/shm|~|/home/user|\$HOME)(/|$)`)
)

// hostNote warns of a path that looks like one of the user's computer.
func hostNote(given string) string {
	if !hostPath.MatchString(given) {
		return ""
	}
	return "note: this is on the virtual disk, not on the user's computer"
}

// vanished tells where a script's scratch files went.
func vanished(given string) string {
	if !scratched.MatchString(given) {
		return ""
	}
	return "what scripts write to /tmp, /dev/shm or ~ vanishes after each run; let them write below /workspace"
}

// getLine tells the person how to take files out of the disk: a command that a POSIX
// shell takes as it stands, whatever the names are.
func (t *Tools) getLine(paths ...workspace.Path) string {
	var b strings.Builder
	b.WriteString("to get it")
	if t.cfg.GetLater {
		b.WriteString(", once this session has ended")
	}
	b.WriteString(": mcp-vdisk image get " + t.cfg.GetArgs)
	for _, p := range paths {
		b.WriteString(ShellQuote(p.String()) + " ")
	}
	return b.String() + "."
}

// plainWord is what a POSIX shell takes as one word without quotes.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:@%+,=-]+$`)

// ShellQuote writes a word so that a POSIX shell reads it back as it is.
func ShellQuote(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// version is how a commit's number is written in results and arguments.
func version(seq uint64) string { return "v" + strconv.FormatUint(seq, 10) }

// parseVersion reads "v17" or "17", given as an argument.
func parseVersion(arg, s string) (uint64, error) {
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "v"), 10, 64)
	if err != nil || n == 0 {
		return 0, refuse(InvalidArgument, `give the version as a result showed it, such as "v17"`, "%s: %q is not a version", arg, short(s))
	}
	return n, nil
}

// changed is the error of a change to p that was overtaken by another.
func changed(p workspace.Path) error {
	return &workspace.Error{Op: "commit", Path: p, Kind: workspace.ErrVersionConflict}
}

// maxShown is the largest file whose content a VERSION_CONFLICT shows.
const maxShown = 8 << 10

// conflict makes a VERSION_CONFLICT say what stands there now, so that the next
// attempt needs no further call.
func (t *Tools) conflict(err error, p workspace.Path, want string) error {
	if !errors.Is(err, workspace.ErrVersionConflict) || want == "" {
		return err
	}
	n, lerr := t.cfg.Image.Lstat(p)
	if lerr != nil {
		return refuse(VersionConflict, "list_files shows what is there now", "%s is not there any more", p)
	}
	e := refuse(VersionConflict, "repeat the change on what it holds now", "%s is at %s, not %s", p, version(n.Version), want)
	if n.Kind != workspace.KindFile || n.Size > maxShown {
		return e
	}
	if body, ok := t.wholeText(p, n); ok {
		e.Hint += "; it holds:\n" + body
	}
	return e
}
