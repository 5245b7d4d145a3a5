package tools

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

// maxAnswer is the room of an answer about packages in bytes, its facts included. Names
// and sentences come from strangers, and may have any length.
const maxAnswer = 4000

// rooms are the bytes that one such text may take: what is usual, and what is tried
// after that until the answer fits.
var rooms = []int{500, 250, 120, 60, 24}

// fitted is an answer with as much of its texts as there is room for.
func fitted(build func(room int) Result) (r Result) {
	for _, room := range rooms {
		r = build(room)
		facts, err := json.Marshal(r.Facts)
		if err == nil && len(r.String())+len(facts) <= maxAnswer {
			break
		}
	}
	return r
}

// requestResult is what is told of a request: how it is, what came of it or what is in
// its way, and how to go on. st is what the workspace has; flags are those that the person
// needs to reach this server, see Config.EnvArgs.
func requestResult(r queue.Request, st pyenv.Status, flags string) Result {
	return fitted(func(room int) Result {
		a := requestAnswer{r: r, st: st, flags: flags, room: room}
		return a.result()
	})
}

// requestAnswer is an answer in the making.
type requestAnswer struct {
	r     queue.Request
	st    pyenv.Status
	flags string
	room  int
}

func (a requestAnswer) result() Result {
	var res Result
	switch {
	case a.r.State == queue.Ready:
		res = textResult(nil, a.ready()...)
	case a.r.State == queue.PendingApproval:
		res = textResult(nil, a.pending()...)
	case a.r.State.AtWork():
		res = textResult(nil, a.atWork()...)
	default:
		e := a.failure()
		res = errorResult(e, a.failed(e)...)
	}
	res.Facts = a.facts()
	return res
}

// ready says what was added.
func (a requestAnswer) ready() []string {
	lines := []string{"READY: " + a.asked() + a.verb(" is", " are") + " installed for this workspace"}
	switch added := a.added(); {
	case a.r.Layer == "":
		lines[0] = "READY: " + a.asked() + a.verb(" was", " were") + " there already, nothing had to be added"
		lines = append(lines, "there: "+a.list(shownPackages(added, a.names())))
	case len(added) > 0:
		lines = append(lines, "added: "+a.list(shownPackages(added, a.names())))
	}
	if a.r.Iso {
		lines = append(lines, "note: they are in a layer in the place of the base, whose packages may have other versions now")
	}
	if len(a.st.Layers) > 0 {
		lines = append(lines, "layers: "+a.list(a.st.Layers))
	}
	return append(lines, "next: "+a.next())
}

// maxFindings is how many reasons are told; a person sees all.
const maxFindings = 4

// pending says what is in the way, and what to tell the person who can decide.
func (a requestAnswer) pending() []string {
	until := ""
	if !a.r.Expires.IsZero() {
		until = ", until " + a.r.Expires.UTC().Format("2006-01-02 15:04 UTC")
	}
	lines := []string{fmt.Sprintf("PENDING APPROVAL: a person has to decide about %s (request %s%s)", a.asked(), a.r.ID, until)}
	lines = append(lines, a.findings(a.r.Findings)...)
	return append(lines,
		fmt.Sprintf("tell the person: To let this workspace have %s, run `%s` on the computer where this server runs.", a.asked(), a.approve()),
		"next: "+a.next())
}

// approve is the command that lets a workspace have what it asked for. One that can only
// be had in the place of the base needs the flag that says so.
func (a requestAnswer) approve() string {
	command := "mcp-vdisk env approve " + a.flags + a.r.ID
	if a.r.Iso {
		command += " --isolated"
	}
	return command
}

// findings are reasons, the worst first, and how many more there are.
func (a requestAnswer) findings(list []queue.Finding) (lines []string) {
	for i, f := range list {
		if i == maxFindings {
			return append(lines, fmt.Sprintf("in the way: %d more, which the person sees", len(list)-i))
		}
		lines = append(lines, "in the way: "+plainLine(f.Sentence, a.room))
	}
	return lines
}

// doing says what is done in a state.
var doing = map[queue.State]string{
	queue.Received:     "it waits for its turn",
	queue.Resolving:    "versions that go together are looked for",
	queue.AutoApproved: "nobody has to be asked, and it waits for its turn",
	queue.Approved:     "it was approved, and waits for its turn",
	queue.Fetching:     "its files are downloaded",
	queue.Building:     "it is unpacked and compiled",
	queue.Probing:      "it is imported once, to see that it works",
}

func (a requestAnswer) atWork() []string {
	return []string{
		fmt.Sprintf("AT WORK: %s (request %s, %s: %s)", a.asked(), a.r.ID, a.r.State, doing[a.r.State]),
		"next: " + a.next(),
	}
}

// failure is the error of a request of which nothing will come.
func (a requestAnswer) failure() *Error {
	switch a.r.State {
	case queue.Denied:
		return &Error{Code: NotAllowed, Rule: "env.denied", Sentence: "a person has denied " + a.asked() + a.words(), Hint: a.next()}
	case queue.Expired:
		return &Error{Code: NotAllowed, Rule: "env.expired", Sentence: fmt.Sprintf("nobody has decided about %s in %d days", a.asked(), queue.PendingFor/(24*time.Hour)), Hint: a.next()}
	case queue.Cancelled:
		return &Error{Code: Cancelled, Rule: "env.cancelled", Sentence: "the request for " + a.asked() + " was cancelled", Hint: a.next()}
	}
	f, code, hint := a.reason(), NotReady, a.next()
	own := plainLine(f.Hint, a.room)
	rejected := a.r.State == queue.Rejected
	if rejected { // the fault is the request's, not the host's
		code = InvalidArgument
	}
	switch {
	case own != "" && rejected:
		hint = strings.TrimSuffix(own, ".") + ". Otherwise " + hint
	case own != "":
		hint += ". For them: " + own
	}
	return &Error{Code: envCode(f.Code, code), Rule: envRule(f.Code), Sentence: plainLine(f.Sentence, a.room), Hint: hint}
}

// reason is why nothing comes of a request: its failure, or the worst of the findings.
func (a requestAnswer) reason() queue.Failure {
	switch {
	case a.r.Failure != nil:
		return *a.r.Failure
	case len(a.r.Findings) > 0:
		return queue.Failure{Code: a.r.Findings[0].Rule, Sentence: a.r.Findings[0].Sentence}
	}
	return queue.Failure{Code: string(a.r.State), Sentence: "nothing came of it"}
}

// words are what the person said who denied a request.
func (a requestAnswer) words() string {
	if a.r.Decision == nil || plainLine(a.r.Decision.Note, a.room) == "" {
		return ""
	}
	return fmt.Sprintf(", with the words %q", plainLine(a.r.Decision.Note, a.room))
}

// failed is what is said behind the error.
func (a requestAnswer) failed(e *Error) []string {
	lines := []string{fmt.Sprintf("request %s is %s: %s", a.r.ID, a.r.State, a.asked())}
	if b := a.blocking(); b != nil {
		lines = append(lines, "blocking: "+blockingLine(b))
	}
	if a.r.State == queue.Rejected {
		lines = append(lines, a.findings(slices.DeleteFunc(slices.Clone(a.r.Findings), func(f queue.Finding) bool {
			return plainLine(f.Sentence, a.room) == e.Sentence
		}))...)
	}
	return lines
}

// next is how the agent goes on. What has ended is not to be tried again and again.
func (a requestAnswer) next() string {
	wait := fmt.Sprintf(`python_env {"action":"wait","request_id":%q}`, a.r.ID)
	switch a.r.State {
	case queue.Ready:
		return "available in the next run_script"
	case queue.PendingApproval:
		return wait + " waits for the decision; or go on without"
	case queue.Rejected:
		return "go on without, or ask for something else; the same request gets the same answer"
	case queue.Denied:
		return "go on without; a person has decided, so do not ask for it again"
	case queue.Expired:
		return "go on without, and tell the person that nobody answered the request"
	case queue.Cancelled:
		return "go on without, or ask the person what they want"
	case queue.Failed:
		return "go on without, and tell the person; to ask again does not help before they have looked at it"
	}
	return wait + " waits for it; scripts run meanwhile, without it"
}

// facts are the same for programs.
func (a requestAnswer) facts() map[string]any {
	f := map[string]any{
		"state": string(a.r.State), "request_id": a.r.ID, "asked": a.cut(a.specs()), "layers": a.cut(a.st.Layers),
		"packages": []string{}, "suggestions": []string{}, "next": a.next(),
	}
	if a.r.State == queue.Ready {
		f["packages"] = a.cut(named(a.added()))
	}
	if a.r.State == queue.PendingApproval {
		f["approve"] = a.approve()
	}
	if hint := plainLine(a.reason().Hint, a.room); hint != "" {
		f["suggestions"] = []string{hint}
	}
	if b := a.blocking(); b != nil {
		f["blocking"] = b
	}
	return f
}

// asked is what was asked for, as a part of a sentence.
func (a requestAnswer) asked() string { return a.list(a.specs()) }

func (a requestAnswer) specs() []string {
	list := slices.Clone(a.r.Specs)
	if a.r.Wheel != nil {
		list = append(list, "the wheel "+strconv.Quote(plainLine(a.r.Wheel.Path, min(a.room, 80))))
	}
	return list
}

func (a requestAnswer) verb(one, more string) string {
	if len(a.specs()) == 1 {
		return one
	}
	return more
}

// names are those of the packages that were asked for, normalised.
func (a requestAnswer) names() (names []string) {
	for _, s := range a.r.Specs {
		if r, err := spec.ParseRequest(s); err == nil {
			names = append(names, r.Name)
		}
	}
	if a.r.Wheel != nil {
		name, _, _ := strings.Cut(a.r.Wheel.File, "-")
		names = append(names, spec.NormalizeName(name))
	}
	return names
}

// added are the packages of the request's layer, those that were asked for first; of a
// request for what was there, those.
func (a requestAnswer) added() []pyenv.Package {
	names := a.names()
	asked := func(p pyenv.Package) bool { return slices.Contains(names, p.Name) }
	list := slices.DeleteFunc(slices.Clone(a.st.Packages), func(p pyenv.Package) bool {
		return a.r.Layer != "" && p.Layer != a.r.Layer || a.r.Layer == "" && !asked(p)
	})
	slices.SortStableFunc(list, func(p, q pyenv.Package) int {
		return cmp.Compare(rank(asked(p)), rank(asked(q)))
	})
	return list
}

func rank(first bool) int {
	if first {
		return 0
	}
	return 1
}

// shownPackages are packages as "name version". Of those that were asked for and are
// imported by another name, that is told too.
func shownPackages(packages []pyenv.Package, asked []string) (list []string) {
	for _, p := range packages {
		text := p.Name + " " + p.Version
		if m := p.Modules; len(m) > 0 && slices.Contains(asked, p.Name) && !slices.Contains(m, strings.ReplaceAll(p.Name, "-", "_")) {
			text += " (import " + m[0] + ")"
		}
		list = append(list, text)
	}
	return list
}

// blocking is the distribution in the way, nil if it is not one.
func (a requestAnswer) blocking() map[string]string {
	f := a.r.Failure
	if f == nil || f.Blocking == nil {
		return nil
	}
	return blockingFacts(*f.Blocking, a.room)
}

func blockingFacts(b queue.Blocking, room int) map[string]string {
	facts := map[string]string{}
	for key, text := range map[string]string{
		"name": b.Name, "version": b.Version, "pinned_by": b.PinnedBy, "needed_by": b.NeededBy, "wanted": b.Wanted,
	} {
		if text = plainLine(text, min(room, 120)); text != "" {
			facts[key] = text
		}
	}
	if facts["name"] == "" {
		return nil
	}
	return facts
}

// blockingLine is "bar 1.0, pinned by base-0123456789abcdef; needed by foo 1.0; wanted is
// bar>=2".
func blockingLine(b map[string]string) string {
	line := b["name"]
	if b["version"] != "" {
		line += " " + b["version"]
	}
	if b["pinned_by"] != "" {
		line += ", pinned by " + b["pinned_by"]
	}
	if b["needed_by"] != "" {
		line += "; needed by " + b["needed_by"]
	}
	if b["wanted"] != "" && b["wanted"] != b["name"] {
		line += "; wanted is " + b["wanted"]
	}
	return line
}

// cut is a list with short items, of which so many are left as there is room for, and
// at least one.
func (a requestAnswer) cut(list []string) []string {
	out := []string{}
	left := a.room
	for _, s := range list {
		s = plainLine(s, min(a.room, 100))
		if left -= len(s) + len(`"",`); left < 0 && len(out) > 0 {
			break
		}
		out = append(out, s)
	}
	return out
}

// list joins what cut leaves of a list, and counts the rest.
func (a requestAnswer) list(list []string) string {
	shown := a.cut(list)
	text := strings.Join(shown, ", ")
	if more := len(list) - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// plainLine is a text that may be a stranger's as one line: terminal escapes, what does
// not show and what changes the order of the rest are dropped, and it is cut to a number
// of bytes.
func plainLine(s string, most int) string {
	const mark = "…"
	if s = policy.Clean(cleanOutput([]byte(s))); len(s) <= most {
		return s
	}
	return strings.TrimRight(s[:cutAt(s, most-len(mark))], " ") + mark
}

var ruleForm = regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}$`)

// envRule is a code of environments as the rule of an error.
func envRule(code string) string {
	if !ruleForm.MatchString(code) {
		code = "failed"
	}
	return "env." + code
}
