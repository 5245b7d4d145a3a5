package tools

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
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
	s       *script
	effects []workspace.Effect
	saved   bool
	seq     uint64
	barred  error // why the changes could not have been saved, though nobody asked to
}

func (r report) result() Result {
	lines := append([]string{r.headline()}, r.remedy()...)
	lines = append(lines, r.output()...)
	if hint := r.moduleHint(); hint != "" {
		lines = append(lines, hint)
	}
	if p, ok := r.worthGetting(); ok {
		lines = append(lines, r.s.t.getLine(p))
	}
	return textResult(r.facts(), lines...)
}

// headline says first whether the changes are on the disk.
func (r report) headline() string {
	took := r.s.res.Duration.Round(10 * time.Millisecond)
	changed := r.changed()
	switch {
	case r.saved && changed > 0:
		return fmt.Sprintf("SAVED as %s (%s, %s): %s", version(r.seq), r.ending(), took, r.counts())
	case changed > 0:
		return fmt.Sprintf("NOT SAVED (%s, %s): %s", r.ending(), took, r.counts())
	case r.barred != nil:
		return fmt.Sprintf("NOT SAVED (%s, %s)", r.ending(), took)
	case r.s.success():
		return fmt.Sprintf("%s, %s; nothing changed on the disk", r.ending(), took)
	}
	return fmt.Sprintf("FAILED (%s, %s); nothing changed on the disk", r.ending(), took)
}

// ending is the outcome in words.
func (r report) ending() string {
	res := r.s.res
	switch res.Outcome {
	case sandboxrun.Exited:
		return fmt.Sprintf("exit %d", res.ExitCode)
	case sandboxrun.Signaled:
		return "killed by " + res.Signal
	case sandboxrun.TimedOut:
		return "timed out after " + r.s.spec.Limits.Timeout.Round(10*time.Millisecond).String()
	case sandboxrun.OutputLimit:
		return "killed: more than " + size(r.s.spec.Limits.OutputMax) + " of output"
	case sandboxrun.DiskLimit:
		how := "killed"
		if res.ExitCode >= 0 {
			how = fmt.Sprintf("exit %d", res.ExitCode)
		}
		return fmt.Sprintf("%s, out of disk: at most %s and %s may be written in one run", how,
			size(r.s.spec.Limits.WriteBytes), plural(r.s.spec.Limits.WriteFiles, "file"))
	}
	return strings.ReplaceAll(string(res.Outcome), "_", " ")
}

// remedy says how to keep what was dropped.
func (r report) remedy() []string {
	if r.barred != nil {
		e := asError(r.barred)
		return []string{fmt.Sprintf("note: its changes could not have been saved either: %s", e), "hint: " + e.Hint}
	}
	if r.saved || r.changed() == 0 {
		return nil
	}
	if r.s.args.Commit == "never" {
		return []string{`hint: commit was "never"; run it again without that to save`}
	}
	return []string{`hint: only exit 0 saves; to save whatever a script leaves, run it again with commit:"always"`}
}

// changed counts the paths that differ by more than their time.
func (r report) changed() int64 {
	var n int64
	for _, e := range r.effects {
		if e.What != workspace.Touched {
			n++
		}
	}
	return n
}

// changeOrder is the order in which kinds of changes are told. Touched is the
// last: it is counted and never listed.
var changeOrder = []workspace.EffectKind{workspace.Created, workspace.Modified, workspace.Deleted, workspace.Mode, workspace.Touched}

func (r report) counts() string {
	var parts []string
	for _, kind := range changeOrder {
		n := 0
		for _, e := range r.effects {
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

// output is what the script printed, then what it changed, together within
// MaxText.
func (r report) output() []string {
	paths := r.paths()
	left := MaxText - 1500
	for _, l := range paths {
		left -= len(l) + 1
	}
	out, errs := r.s.res.Stdout, r.s.res.Stderr
	// Standard error is what explains a failure: it keeps at least a third.
	errRoom := max(left/3, left-len(out.Text)-cutLine)
	errText := excerptOutput(errs, errRoom)
	outText := excerptOutput(out, left-len(errText))
	var lines []string
	if outText != "" {
		lines = append(lines, "stdout:", outText)
	}
	if errText != "" {
		lines = append(lines, "stderr:", errText)
	}
	if len(lines) == 0 && r.changed() == 0 {
		lines = append(lines, "(no output)")
	}
	lines = append(lines, paths...)
	if n := r.s.res.Skipped; len(n) > 0 {
		var kinds []string
		for _, k := range slices.Sorted(maps.Keys(n)) {
			kinds = append(kinds, plural(int64(n[k]), k))
		}
		lines = append(lines, "not kept, a disk holds only files, directories and links: "+strings.Join(kinds, ", "))
	}
	return lines
}

// cutLine is what the line that counts what was left out may take.
const cutLine = 200

// excerptOutput shows the beginning and the end of a stream in about room bytes,
// with a line between them that counts what is left out.
func excerptOutput(o sandboxrun.Output, room int) string {
	text, room := cleanOutput(o.Text), max(room, 0)
	if len(text) > room {
		head, tail := cutAt(text, room*3/4), cutAt(text, len(text)-room/4)
		text = fmt.Sprintf("%s\n[… %s of %s left out; let the script write long output to a file, and page through that with read_file …]\n%s",
			text[:head], size(o.Total-int64(head+len(text)-tail)), size(o.Total), text[tail:])
	}
	return strings.TrimRight(text, "\n")
}

// cutAt moves a place in a text back to the border of a character.
func cutAt(s string, at int) int {
	for at > 0 && at < len(s) && !utf8.RuneStart(s[at]) {
		at--
	}
	return at
}

func (r report) paths() []string {
	lines := []string{"changed:"}
	room, left := maxChangeText, int64(0)
	for _, kind := range changeOrder[:len(changeOrder)-1] {
		for _, e := range r.effects {
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

// ansi matches terminal control sequences: CSI, control strings such as OSC, and
// the shorter escapes (ECMA-48 §5.3–5.6, ECMA-35 §13.2).
var ansi = regexp.MustCompile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)|[ -/]*[0-~])")

// cleanOutput makes a script's output safe to show: valid UTF-8, without
// terminal escapes and control characters. A line that a progress bar wrote over
// becomes lines of its own.
func cleanOutput(b []byte) string {
	s := strings.ToValidUTF8(string(ansi.ReplaceAll(b, nil)), "�")
	s = strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) && c != '\n' && c != '\t' {
			return -1
		}
		return c
	}, s)
}

var missingModule = regexp.MustCompile(`ModuleNotFoundError: No module named '([A-Za-z0-9_.]+)'`)

// moduleHint names the way to a package that the script lacked.
func (r report) moduleHint() string {
	m := missingModule.FindSubmatch(r.s.res.Stderr.Text)
	if m == nil || r.s.args.Language != "python" && !strings.Contains(string(r.s.res.Stderr.Text), "Traceback") {
		return ""
	}
	name, _, _ := strings.Cut(string(m[1]), ".")
	return fmt.Sprintf(`hint: ask for the package with python_env {"action":"request","packages":[%q],"reason":"…"}; pip does not work here`, name)
}

// worthGetting is what a person would take out of the disk: the one file that
// was made or changed, or the directory that holds all of them.
func (r report) worthGetting() (workspace.Path, bool) {
	var common workspace.Path
	found := false
	if !r.saved {
		return common, false
	}
	for _, e := range r.effects {
		if e.After == nil || e.After.Kind == workspace.KindDir || e.What == workspace.Touched {
			continue
		}
		if !found {
			common, found = e.Path, true
			continue
		}
		for !under(e.Path, common) {
			common = common.Dir()
		}
	}
	return common, found
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
