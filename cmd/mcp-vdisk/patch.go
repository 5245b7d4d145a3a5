package main

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// patch prints changes as git does: what "git apply" and GNU patch -p1 (2.7 and
// later) make of it is the text files, empty files, links and executable bits of
// the second version. What the format has no words for (directories, times, other
// permission bits) and contents that are no text are lines that both pass over.
//
// Removals come first, so that a name is free when something of another kind
// takes it. Patch still puts removals off to its end: where a directory takes the
// name of a file or the reverse, only git apply follows.
func (d differ) patch(effects []workspace.Effect) error {
	var removals, others []workspace.Effect
	for _, e := range effects {
		split, err := d.splits(e)
		switch {
		case err != nil:
			return err
		case split:
			removals = append(removals, workspace.Effect{Path: e.Path, What: workspace.Deleted, Before: e.Before})
			others = append(others, workspace.Effect{Path: e.Path, What: workspace.Created, After: e.After})
		case e.After == nil:
			removals = append(removals, e)
		default:
			others = append(others, e)
		}
	}
	for _, e := range append(removals, others...) {
		if err := d.show(e); err != nil {
			return err
		}
	}
	return nil
}

// splits says whether a change is written as a removal and a creation: one of
// kind is, unless the removal is not applied because the content is no text.
func (d differ) splits(e workspace.Effect) (bool, error) {
	if e.Before == nil || e.After == nil || e.Before.Kind == e.After.Kind {
		return false, nil
	}
	_, text, err := d.content(e.Path, e.Before)
	return text || e.Before.Kind == workspace.KindDir, err
}

// show prints one change.
func (d differ) show(e workspace.Effect) error {
	for _, line := range notes(e) {
		d.b.printf("# %s: %s\n", e.Path, line)
	}
	before, textBefore, err := d.content(e.Path, e.Before)
	if err != nil {
		return err
	}
	after, textAfter, err := d.content(e.Path, e.After)
	if err != nil {
		return err
	}
	changed := e.What == workspace.Created || e.What == workspace.Modified || e.What == workspace.Deleted
	switch {
	case !hasContent(e.Before) && !hasContent(e.After):
	case !changed:
		d.header(e)
	case textBefore && textAfter:
		return d.unified(e, before, after)
	default:
		d.unread(e)
	}
	return nil
}

// hasContent says whether git knows of a node: it keeps no directories.
func hasContent(n *workspace.Node) bool { return n != nil && n.Kind != workspace.KindDir }

// content is what git takes for the content of a node, of a link its target; ok
// is false when it is no text, and true with nothing for what has none.
func (d differ) content(p workspace.Path, n *workspace.Node) (text string, ok bool, err error) {
	switch {
	case !hasContent(n):
		return "", true, nil
	case n.Kind == workspace.KindSymlink:
		return n.Target, true, nil
	}
	return d.text(p, n)
}

// unified prints a change of text.
func (d differ) unified(e workspace.Effect, before, after string) error {
	d.header(e)
	if before == "" && after == "" {
		// Without it patch takes the removal of an empty file for done.
		d.b.printf("index %s..%s\n", emptyID(e.Before), emptyID(e.After))
	}
	from, to := diffName("a", e.Path), diffName("b", e.Path)
	if !hasContent(e.Before) {
		from = "/dev/null"
	}
	if !hasContent(e.After) {
		to = "/dev/null"
	}
	unified, err := udiff.ToUnified(from, to, before, udiff.Lines(before, after), udiff.DefaultContextLines)
	d.b.printf("%s", unified)
	return err
}

// header prints the lines before a content, or nothing where git sees the same
// mode on both sides of a content that stays.
func (d differ) header(e workspace.Effect) {
	var modes string
	switch before, after := gitMode(e.Before), gitMode(e.After); {
	case before == "":
		modes = "new file mode " + after + "\n"
	case after == "":
		modes = "deleted file mode " + before + "\n"
	case before != after || before == gitLink:
		// Patch touches a link only when told that it is one.
		modes = "old mode " + before + "\nnew mode " + after + "\n"
	case e.What != workspace.Modified:
		return
	}
	d.b.printf("diff --git %s %s\n%s", diffName("a", e.Path), diffName("b", e.Path), modes)
}

// unread prints a change of contents that are not shown. The lines have no git
// header: git apply refuses a whole diff with a content that it cannot make.
func (d differ) unread(e workspace.Effect) {
	if e.Before != nil && e.After != nil && gitMode(e.Before) != gitMode(e.After) && e.Before.Kind == e.After.Kind {
		d.header(e)
	}
	d.b.printf("# %s: %s\n", e.Path, sizes(e))
	d.b.printf("Binary files %s and %s differ\n", diffName("a", e.Path), diffName("b", e.Path))
}

// emptyID is the short name that git has for an empty content, or for none.
func emptyID(n *workspace.Node) string {
	if !hasContent(n) {
		return "0000000"
	}
	return "e69de29"
}

const gitLink = "120000"

// gitMode is the mode as git writes it, "" for what it does not keep.
func gitMode(n *workspace.Node) string {
	switch {
	case !hasContent(n):
		return ""
	case n.Kind == workspace.KindSymlink:
		return gitLink
	case n.Mode&0o111 != 0:
		return "100755"
	}
	return "100644"
}

// knownMode says whether a mode is one of the two that git tells apart.
func knownMode(n *workspace.Node) bool {
	return n.Kind == workspace.KindFile && (n.Mode == 0o644 || n.Mode == 0o755) || n.Kind == workspace.KindSymlink
}

// notes are what changed and is not in the format of git.
func notes(e workspace.Effect) []string {
	before, after := e.Before, e.After
	switch {
	case before == nil && !knownMode(after):
		return []string{fmt.Sprintf("new %s mode %04o", kindName(after), after.Mode)}
	case after == nil && !knownMode(before):
		return []string{fmt.Sprintf("deleted %s mode %04o", kindName(before), before.Mode)}
	case before == nil || after == nil:
		return nil
	case before.Kind != after.Kind:
		return []string{fmt.Sprintf("%s became %s", kindName(before), kindName(after))}
	case before.Mode != after.Mode && !(knownMode(before) && knownMode(after)):
		return []string{fmt.Sprintf("mode %04o became %04o", before.Mode, after.Mode)}
	case e.What == workspace.Touched:
		const form = "2006-01-02T15:04:05.999999999Z07:00"
		return []string{fmt.Sprintf("time %s became %s", before.ModTime.Format(form), after.ModTime.Format(form))}
	}
	return nil
}

func kindName(n *workspace.Node) string {
	switch n.Kind {
	case workspace.KindDir:
		return "directory"
	case workspace.KindSymlink:
		return "link"
	}
	return "file"
}

// diffName is a path as git and patch read it: in double quotes, with the escapes
// of C, unless it is plain. They take a space for the end of a bare name.
func diffName(side string, p workspace.Path) string {
	name := side + "/" + p.Rel()
	var b strings.Builder
	for rest := name; rest != ""; {
		r, n := utf8.DecodeRuneInString(rest)
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + rest[:n])
		case r == utf8.RuneError && n == 1 || !unicode.IsPrint(r):
			for _, c := range []byte(rest[:n]) {
				fmt.Fprintf(&b, `\%03o`, c)
			}
		default:
			b.WriteString(rest[:n])
		}
		rest = rest[n:]
	}
	if quoted := b.String(); quoted != name || strings.Contains(name, " ") {
		return `"` + quoted + `"`
	}
	return name
}
