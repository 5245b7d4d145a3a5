package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
)

// Text is the card for a terminal of so many columns: 40 to 72, what is more or less
// counts as that, and 0 as 72. No line is wider, whatever the card holds. Lines end with
// "\n"; there are no control characters and no escapes in it, and no tabs.
//
// The order is: who asks for what and why, in the agent's own words; the packages, those
// that are not usual first; why a person is asked; what will happen; the commands.
func (c Card) Text(columns int) string {
	p := c.page(columns)
	p.decide(c)
	return p.String()
}

const (
	minColumns = 40
	maxColumns = 72
)

// page is all but how to answer.
func (c Card) page(columns int) *page {
	if columns <= 0 {
		columns = maxColumns
	}
	p := &page{columns: min(max(columns, minColumns), maxColumns)}
	p.para("", "", "Python packages for a workspace")
	p.blank()
	p.who(c)
	p.blank()
	p.what(c)
	p.packages(c)
	p.why(c)
	p.effect(c)
	return p
}

// page is text that is being written, of a number of columns.
type page struct {
	columns int
	text    strings.Builder
}

func (p *page) String() string { return p.text.String() }

func (p *page) blank() { p.text.WriteByte('\n') }

// para writes a text with first before its first line and rest before the others. Both
// are ours, and short. A line that begins within quotes gets a mark, like those of the
// reason: no words of a stranger may look like a line of the card.
func (p *page) para(first, rest, text string) {
	const mark = "> "
	text = clean(text)
	columns := p.columns - max(len(first), len(rest))
	if strings.Contains(text, `"`) {
		columns -= len(mark)
	}
	var q quotes
	for i, line := range wrap(text, columns) {
		if i > 0 {
			first = rest
		}
		if q.open {
			first += mark
		}
		p.text.WriteString(first + line + "\n")
		q.read(line)
	}
}

// quotes knows whether a text that is read piece by piece is within quotes.
type quotes struct{ open, escaped bool }

func (q *quotes) read(s string) {
	for _, r := range s {
		switch {
		case q.escaped:
			q.escaped = false
		case r == '\\':
			q.escaped = q.open
		case r == '"':
			q.open = !q.open
		}
	}
}

// field writes "Workspace   text".
func (p *page) field(name, text string) {
	p.para(fmt.Sprintf("%-11s", name), strings.Repeat(" ", 11), text)
}

func (p *page) bullet(text string) { p.para("  - ", "    ", text) }

func (p *page) head(text string) {
	p.blank()
	p.para("", "", text)
}

const stamp = "2006-01-02 15:04 UTC"

func (p *page) who(c Card) {
	if id := plainID(c.ID); id != "" {
		p.field("Request", id)
	}
	workspace := show(c.Workspace)
	if c.Name != "" {
		workspace += " " + quote(c.Name, 80)
	}
	p.field("Workspace", workspace)
	if c.Approval != "" { // nobody asks
		return
	}
	from := "an unnamed client"
	if c.Client != "" {
		from = quote(c.Client, 80) + ", as the client calls itself"
	}
	if c.Session != "" {
		from += "; session " + show(c.Session)
	}
	p.field("From", from)
	if !c.Created.IsZero() {
		when := c.Created.UTC().Format(stamp)
		if age := c.Now.Sub(c.Created); age >= time.Minute {
			when += ", " + span(age) + " ago"
		}
		p.field("When", when)
	}
	p.reason(c.Reason)
}

// reason shows an agent's words like those of a quoted mail: each line is marked, so that
// none can be taken for one of the card.
func (p *page) reason(text string) {
	const most = 500 // characters
	text, cut := clip(clean(text), most)
	if text == "" {
		p.field("Reason", "none was given")
		return
	}
	p.field("Reason", "in the agent's own words, which nobody has checked:")
	for _, line := range wrap(text, p.columns-len("  > ")) {
		p.text.WriteString("  > " + line + "\n")
	}
	if cut {
		p.para("  ", "  ", fmt.Sprintf("(cut after %d characters)", most))
	}
}

func (p *page) what(c Card) {
	var asked []string
	for _, s := range c.Asked {
		asked = append(asked, show(s))
	}
	if c.Upload != "" {
		asked = append(asked, "the wheel "+quote(c.Upload, 200)+" of the workspace")
	}
	p.field("Asks for", strings.Join(asked, ", "))
	brings := count(len(c.Rows), "package")
	if len(c.Rows) > 0 {
		brings += fmt.Sprintf(": %s to download, about %s on disk, built in about %s", megabytes(c.Download), megabytes(c.Disk), seconds(c.Build))
	}
	if c.Unsized > 0 {
		brings += fmt.Sprintf("; the size of %d is not known", c.Unsized)
	}
	if c.Kept > 0 {
		brings += fmt.Sprintf("; %d more are here already", c.Kept)
	}
	p.field("Brings", brings)
	if host := c.oneHost(); host != "" {
		p.field("All from", host)
	}
}

func seconds(d time.Duration) string {
	if d < 2*time.Minute {
		return count(int(d/time.Second), "second")
	}
	return span(d)
}

// oneHost is where all packages come from, "" if they come from several places.
func (c Card) oneHost() string {
	host := ""
	for _, r := range c.Rows {
		if r.Index == "" || host != "" && r.Index != host {
			return ""
		}
		host = r.Index
	}
	if host == "" {
		return ""
	}
	return show(host)
}

// packages lists what is not usual, a package to a line or more, and then the rest close
// together.
func (p *page) packages(c Card) {
	if len(c.Rows) == 0 {
		return
	}
	one := c.oneHost() != ""
	usual := slices.IndexFunc(c.Rows, func(r Row) bool { return !r.Unusual })
	if usual < 0 {
		usual = len(c.Rows)
	}
	if usual > 0 {
		p.head("Packages that are not usual (age, size)")
		for _, r := range c.Rows[:usual] {
			p.row(r, c.Now, one)
		}
	}
	if rest := c.Rows[usual:]; len(rest) > 0 {
		p.head("Packages that the catalog allows, or that are as usual")
		var list []string
		for _, r := range rest {
			text := fmt.Sprintf("%s %s (%s, %s", show(r.Name), show(r.Version), age(c.Now, r.Uploaded), size(r.Size))
			if !one {
				text += ", " + host(r.Index)
			}
			list = append(list, text+")")
		}
		p.para("  ", "  ", strings.Join(list, ", "))
	}
	p.para("  ", "  ", "Not looked up: reports of faults and of malware.")
}

// row is "! name version   3 y   1.2 MB", and what else there is to say below.
func (p *page) row(r Row, now time.Time, oneHost bool) {
	const right = 18
	name := show(r.Name) + " " + show(r.Version)
	facts := fmt.Sprintf("%8s%10s", age(now, r.Uploaded), size(r.Size))
	if len(facts) != right || 2+columnsOf(name) > p.columns-right {
		p.para("! ", "  ", name)
		p.para("    ", "    ", strings.Join(strings.Fields(age(now, r.Uploaded)+", "+size(r.Size)), " "))
	} else {
		gap := strings.Repeat(" ", p.columns-right-2-columnsOf(name))
		p.text.WriteString("! " + name + gap + facts + "\n")
	}
	licence := "licence not told"
	if text := clean(r.License); text != "" {
		licence = "licence " + quote(text, 80)
	}
	details := []string{licence}
	if !oneHost {
		details = append(details, "from "+host(r.Index))
	}
	for _, m := range r.Marks {
		details = append(details, show(m))
	}
	if r.Asked {
		details = append(details, "asked for")
	}
	if len(r.NeededBy) > 0 {
		details = append(details, "needed by "+few(r.NeededBy, 3))
	}
	p.para("    ", "    ", strings.Join(details, "; "))
}

func host(index string) string {
	switch index {
	case "":
		return "where, is not known"
	case uploaded:
		return "the workspace"
	case imported:
		return "the operator"
	}
	return show(index)
}

func size(n int64) string {
	if n <= 0 {
		return "size ?"
	}
	return megabytes(n)
}

// age is short: "3 h", "12 d", "5 mo", "3 y".
func age(now, then time.Time) string {
	d := now.Sub(then)
	switch {
	case then.IsZero():
		return "age ?"
	case d < 0:
		return "future"
	case d >= 730*day:
		return fmt.Sprintf("%d y", d/(365*day))
	case d >= 60*day:
		return fmt.Sprintf("%d mo", d/(30*day))
	case d >= 2*day:
		return fmt.Sprintf("%d d", d/day)
	}
	return fmt.Sprintf("%d h", d/time.Hour)
}

// maxOfRule is how many findings of one rule are told in full; the names of the others
// are in the rows above.
const maxOfRule = 6

func (p *page) why(c Card) {
	switch {
	case len(c.Findings) == 0:
	case c.Tier == Ask:
		p.head("Why a person is asked")
	default:
		p.head("Why this cannot be installed")
	}
	told := map[string]int{}
	for _, f := range c.Findings {
		told[f.Rule]++
		if told[f.Rule] <= maxOfRule {
			p.bullet(show(f.Rule) + ": " + f.Sentence)
		}
	}
	for _, rule := range sortedKeys(told) {
		if more := told[rule] - maxOfRule; more > 0 {
			p.bullet(fmt.Sprintf("%s: %d more, marked above", show(rule), more))
		}
	}
	if len(c.Notes) > 0 {
		p.head("To know")
		for _, n := range c.Notes {
			p.bullet(n)
		}
	}
}

func (p *page) effect(c Card) {
	if c.Tier == Reject {
		return
	}
	p.head("What happens")
	base := "the base"
	if c.Base != "" {
		base = show(c.Base)
	}
	if c.Kind == lock.Iso {
		p.bullet("Only this workspace changes, from its next script on: it gets a layer of its own in the place of " + base + ".")
	} else {
		p.bullet("Only this workspace gets the packages, from its next script on; " + base + " stays as it is.")
		if slices.Contains(c.Choices, Isolated) {
			p.bullet("Isolated, they come in a layer of its own, in the place of the base.")
		}
	}
	if moved := moved(c.Replaces); moved != "" {
		p.bullet("Instead of the base's: " + moved + ".")
	}
	if moved := moved(c.Moves); moved != "" {
		p.bullet("Instead of what the workspace has: " + moved + ".")
	}
	if c.Lock != "" {
		p.bullet("An approval is for lock " + show(c.Lock) + ": these files, by their hashes, and no others.")
	}
}

func moved(list []Change) string {
	var texts []string
	for _, m := range list {
		texts = append(texts, fmt.Sprintf("%s %s -> %s", show(m.Name), show(m.From), show(m.To)))
	}
	return few(texts, 20)
}

// decide tells the commands. They can be copied, also where they are broken.
func (p *page) decide(c Card) {
	id := plainID(c.ID)
	if c.Approval != "" {
		p.head("To approve:")
		p.command(clean(c.Approval))
		return
	}
	if len(c.Choices) == 0 || id == "" {
		p.head("There is nothing to decide.")
		return
	}
	until := ""
	if !c.Expires.IsZero() {
		until = ", until " + c.Expires.UTC().Format(stamp)
	}
	p.head("To decide" + until + ":")
	for _, choice := range c.Choices {
		switch choice {
		case Approve:
			p.command("mcp-vdisk env approve " + id)
		case Isolated:
			p.command("mcp-vdisk env approve " + id + " --isolated")
		case Deny:
			p.command("mcp-vdisk env deny " + id)
		}
	}
}

// command is broken at spaces, with the backslash that a shell wants there.
func (p *page) command(text string) {
	lines := wrap(text, p.columns-len("    ")-len(` \`))
	if 2+len(text) <= p.columns {
		lines = []string{text}
	}
	for i, line := range lines {
		indent, end := "  ", ` \`
		if i > 0 {
			indent = "    "
		}
		if i == len(lines)-1 {
			end = ""
		}
		p.text.WriteString(indent + line + end + "\n")
	}
}

// plainID keeps of an id what a shell takes as one word; 32 characters are more than a
// ULID has.
func plainID(id string) string {
	id = strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '-':
			return r
		}
		return -1
	}, id)
	return strings.TrimLeft(id[:min(len(id), 32)], "-")
}
