package tools

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// What a result names of the changed paths; the rest are counted.
const (
	maxChanges    = 50
	maxChangeText = MaxText / 4
)

// report tells what came of a script.
type report struct {
	change
	s       *script
	asked   bool // its changes were to be saved
	saved   bool
	kept    bool // they can be saved later
	tooMuch bool // they were too much for that
}

// result tells it all; err is why the changes were not saved, or could not have
// been.
func (r report) result(err error) Result {
	r.log()
	told := &ending{last: r.last(), tail: append(r.lines(), r.notes()...)}
	if r.saved {
		told.made = r.worthGetting()
	}
	var failed *Error
	// A script that was stopped for a takeover is told so in any case.
	if err != nil && (r.asked || errors.Is(err, workspace.ErrFenced)) {
		failed, told.head = r.failure(err)
	} else {
		told.head = append([]string{r.headline(err)}, barred(err)...)
		told.remedy = r.remedy(err)
	}
	facts := r.facts()
	if err != nil && len(r.effects) == 0 {
		delete(facts, "changed") // nobody knows
	}
	tail := told.lastLines(r.s.t)
	res := textResult(facts, slices.Concat(told.head, told.remedy, r.output(tail), tail)...)
	res.Err, res.told = failed, told
	return res
}

// failure is the error of changes that were to be saved and were not.
func (r report) failure(err error) (*Error, []string) {
	e, list := asError(err), []string(nil)
	var clash *conflict
	switch {
	case errors.As(err, &clash):
		if e, list = r.s.t.clashed(r.s.job, clash, r.s.ending()); r.tooMuch {
			e.Hint = tooMuch
		}
	case e.Code == Cancelled:
	default:
		own := *e
		if e.late != "" { // too late to stop it
			own.Sentence = e.late
		}
		e = &own
		e.Sentence = fmt.Sprintf("nothing was saved (%s): %s", r.s.ending(), e.Sentence)
		if r.kept {
			e.Hint += "; " + r.saveLater()
		}
	}
	head := []string{e.Error()}
	if e.Hint != "" {
		head = append(head, "hint: "+e.Hint)
	}
	return e, append(head, list...)
}

// headline says first whether the changes are on the disk.
func (r report) headline(barred error) string {
	took := r.s.res.Duration.Round(10 * time.Millisecond)
	changed := r.changed()
	switch {
	case r.saved && changed > 0:
		return fmt.Sprintf("SAVED as %s (%s, %s): %s", version(r.seq), r.s.ending(), took, r.counts())
	case changed > 0:
		return fmt.Sprintf("NOT SAVED (%s, %s): %s", r.s.ending(), took, r.counts())
	case barred != nil:
		return fmt.Sprintf("NOT SAVED (%s, %s)", r.s.ending(), took)
	case r.s.success():
		return fmt.Sprintf("%s, %s; nothing changed on the disk", r.s.ending(), took)
	}
	return fmt.Sprintf("FAILED (%s, %s); nothing changed on the disk", r.s.ending(), took)
}

// barred says why changes could not have been saved though nobody asked to.
func barred(err error) []string {
	if err == nil {
		return nil
	}
	e := asError(err)
	return []string{fmt.Sprintf("note: its changes could not have been saved either: %s", e), "hint: " + e.Hint}
}

// remedy says how to keep what was dropped.
func (r report) remedy(barred error) []string {
	switch {
	case r.kept:
		return []string{"hint: " + r.saveLater()}
	case r.tooMuch:
		return []string{"hint: " + tooMuch}
	}
	return nil
}

func (r report) saveLater() string {
	return fmt.Sprintf(`the changes are kept for %s; run_script {"job":%q,"commit":"always"} saves them`, inWords(r.s.t.jobs.limits.KeepJobs), r.s.job.id)
}

const tooMuch = `these changes are too much to be kept; run the script again with commit:"always" to save whatever it leaves`

// changed counts the paths that differ by more than their time.
func (c change) changed() int64 {
	var n int64
	for _, e := range c.effects {
		if e.What != workspace.Touched {
			n++
		}
	}
	return n
}

// changeOrder is the order in which kinds of changes are told. Touched is the
// last: it is counted and never listed.
var changeOrder = []workspace.EffectKind{workspace.Created, workspace.Modified, workspace.Deleted, workspace.Mode, workspace.Touched}

func (c change) counts() string {
	var parts []string
	for _, kind := range changeOrder {
		n := 0
		for _, e := range c.effects {
			if e.What == kind {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", thousands(int64(n)), kind))
		}
	}
	return strings.Join(parts, ", ")
}

// output is what the script printed: of a long output the beginning and the
// end. Together with the other lines it stays within MaxText.
func (r report) output(tail []string) []string {
	left := MaxText - 2000
	for _, l := range tail {
		left -= len(l) + 1
	}
	out, errs := r.s.res.Stdout, r.s.res.Stderr
	// Standard error is what explains a failure: it keeps at least a third.
	errRoom := max(left/3, left-len(out.Text)-cutLine)
	errText, errHead := excerptOutput(errs, errRoom)
	outText, outHead := excerptOutput(out, left-len(errText))
	lines := r.s.job.rest(outHead, errHead)
	if outText != "" {
		lines = append(lines, "stdout:", outText)
	}
	if errText != "" {
		lines = append(lines, "stderr:", errText)
	}
	if len(lines) == 0 && r.changed() == 0 {
		lines = append(lines, "(no output)")
	}
	return lines
}

// rest says how to read what was left out of both streams, of which so many
// bytes of the beginning are shown; -1 is all.
func (j *job) rest(out, errs int) []string {
	first := int64(-1)
	for s, head := range map[sandboxrun.Stream]int{sandboxrun.Stdout: out, sandboxrun.Stderr: errs} {
		if head < 0 {
			continue
		}
		at, err := j.out.offset(s, int64(head))
		if err != nil {
			return nil
		}
		if first < 0 || at < first {
			first = at
		}
	}
	if first < 0 {
		return nil
	}
	return []string{fmt.Sprintf(`hint: the output is cut; run_script {"job":%q,"output_offset":%d} shows what is left out, page by page`, j.id, first)}
}

// maxLast is how much of a stream's end is told where the transcript ends earlier.
const maxLast = 2000

// last are the ends of streams that are not in the transcript.
func (r report) last() []string {
	if _, lost := r.s.job.out.length(); lost == 0 {
		return nil
	}
	var lines []string
	for s, o := range []sandboxrun.Output{r.s.res.Stdout, r.s.res.Stderr} {
		text := cleanOutput(o.Text)
		if text = text[cutAt(text, max(len(text)-maxLast, 0)):]; text != "" {
			lines = append(lines, "the end of "+streamNames[s]+":", strings.TrimSuffix(text, "\n"))
		}
	}
	return lines
}

// notes are what is said behind the changed paths.
func (r report) notes() []string {
	var lines []string
	if n := r.s.res.Skipped; len(n) > 0 {
		var kinds []string
		for _, k := range slices.Sorted(maps.Keys(n)) {
			kinds = append(kinds, plural(int64(n[k]), k))
		}
		lines = append(lines, "not kept, a disk holds only files, directories and links: "+strings.Join(kinds, ", "))
	}
	for _, hint := range []string{r.moduleHint(), r.socketHint()} {
		if hint != "" {
			lines = append(lines, hint)
		}
	}
	return append(lines, r.s.job.line())
}

// cutLine is what the line that counts what was left out may take.
const cutLine = 200

// excerptOutput shows the beginning and the end of a stream in about room bytes,
// with a line between them that counts what is left out. head is how much of the
// beginning is shown, -1 for all.
func excerptOutput(o sandboxrun.Output, room int) (text string, head int) {
	text, room = cleanOutput(o.Text), max(room, 0)
	if len(text) <= room {
		return strings.TrimRight(text, "\n"), -1
	}
	head, tail := cutAt(text, room*3/4), cutAt(text, len(text)-room/4)
	text = fmt.Sprintf("%s\n[… %s of %s left out …]\n%s", text[:head], size(o.Total-int64(head+len(text)-tail)), size(o.Total), text[tail:])
	return strings.TrimRight(text, "\n"), head
}

// cutAt moves a place in a text back to the border of a character.
func cutAt(s string, at int) int {
	for at > 0 && at < len(s) && !utf8.RuneStart(s[at]) {
		at--
	}
	return at
}

// lines list what changed.
func (c change) lines() []string {
	lines := []string{"changed:"}
	room, left := maxChangeText, int64(0)
	for _, kind := range changeOrder[:len(changeOrder)-1] {
		for _, e := range c.effects {
			if e.What != kind {
				continue
			}
			line := changeLine(e)
			if left > 0 || len(lines) > maxChanges || len(line) > room {
				left++
				continue
			}
			lines, room = append(lines, line), room-len(line)
		}
	}
	if left > 0 {
		lines = append(lines, fmt.Sprintf("… and %s more", thousands(left)))
	}
	if len(lines) == 1 {
		return nil
	}
	return lines
}

func changeLine(e workspace.Effect) string {
	n := cmp.Or(e.After, e.Before)
	line := fmt.Sprintf("  %-8s %s", e.What.String(), e.Path)
	switch {
	case n.Kind == workspace.KindDir:
		return fmt.Sprintf("  %-8s %s", e.What.String(), slashed(e.Path))
	case n.Kind == workspace.KindFile && e.After != nil:
		return line + "  " + size(n.Size)
	}
	return line
}

// socketHint says why a program that wanted a socket of another family failed.
func (r report) socketHint() string {
	if r.s.success() || !bytes.Contains(r.s.res.Stderr.Text, []byte("Address family not supported")) {
		return ""
	}
	return `hint: scripts have IPv4 and IPv6 sockets on 127.0.0.1 only; with Python's multiprocessing use the start method "fork" or "spawn". Its person can allow AF_UNIX by the setting script.unix_sockets`
}

// maxGot is how many paths one command is told to get.
const maxGot = 3

// worthGetting is what a person would take out of the disk: the one file that was made or
// changed, or the directory that holds all of them. Where only the root does, it is what
// they lie in below the root, if that is little; else all of the disk. No two have one name.
// A link is not a thing to get: what it leads to is.
func (c change) worthGetting() []workspace.Path {
	var all []workspace.Path // for each name at the root, the directory that holds all below it
	for _, e := range c.effects {
		if e.After == nil || e.After.Kind != workspace.KindFile || e.What == workspace.Touched {
			continue
		}
		last := len(all) - 1 // effects are in the order of the tree
		if last >= 0 && all[last].Components()[0] == e.Path.Components()[0] {
			all[last] = above(all[last], e.Path)
		} else {
			all = append(all, e.Path)
		}
	}
	if len(all) > maxGot {
		return []workspace.Path{{}}
	}
	names := map[string]bool{}
	for _, p := range all {
		names[p.Base()] = true
	}
	if len(names) == len(all) {
		return all
	}
	for i, p := range all { // the directories at the root that have them
		for p.Depth() > 1 {
			p = p.Dir()
		}
		all[i] = p
	}
	return all
}

// above is the longest path that both are or lie below.
func above(dir, p workspace.Path) workspace.Path {
	for !under(p, dir) {
		dir = dir.Dir()
	}
	return dir
}

// under tells whether p is dir or lies below it.
func under(p, dir workspace.Path) bool {
	for p.Depth() > dir.Depth() {
		p = p.Dir()
	}
	return p == dir
}

func (r report) facts() map[string]any {
	res := r.s.res
	f := map[string]any{
		"outcome": string(res.Outcome), "saved": r.saved, "duration_ms": res.Duration.Milliseconds(),
		"stdout_bytes": res.Stdout.Total, "stderr_bytes": res.Stderr.Total,
		"stdout_cut": res.Stdout.Cut, "stderr_cut": res.Stderr.Cut, "changed": r.changed(),
	}
	if res.Outcome == sandboxrun.Exited {
		f["exit_code"] = res.ExitCode
	}
	if r.saved && r.changed() > 0 {
		f["version"] = version(r.seq)
	}
	return f
}

// log adds the changes to the call's outcome record.
func (r report) log() {
	out := &r.s.c.out
	out.Changed = int64(len(r.effects))
	out.Bytes = r.s.res.Stdout.Total + r.s.res.Stderr.Total
	r.s.c.changes = ChangeFacts(r.effects)
}

// ChangeFacts is what the log says of the changes of a commit.
func ChangeFacts(effects []workspace.Effect) []audit.ChangeFact {
	var facts []audit.ChangeFact
	for _, e := range effects {
		f := audit.ChangeFact{Path: e.Path.String(), Kind: e.What.String()}
		if e.After != nil && e.After.Kind == workspace.KindFile {
			f.SHA256 = hexDigest(*e.After)
		}
		facts = append(facts, f)
	}
	return facts
}
