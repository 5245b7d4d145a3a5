package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// requestsArgs are those of what shows requests: one of them, or many.
type requestsArgs struct {
	ID      string // or its beginning; "" is many
	Brief   bool   // without the card
	Waiting bool   // with the card only if it waits for a person
	All     bool   // also those that are closed
	Columns int    // of the card; 0 is its own width
	JSON    bool
}

// checkRequestID takes the beginning of a ULID, in upper or lower case. It is asked on
// both sides.
func checkRequestID(id string) error {
	const most, digits = 26, "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	if id == "" || len(id) > most || strings.Trim(strings.ToUpper(id), digits) != "" {
		return exit.Fail(exit.Usage, "mcp-vdisk env requests lists them", "%q is not the id of a request, and not how one begins", id)
	}
	return nil
}

func (a *app) envRequestsCmd() *cobra.Command {
	var q requestsArgs
	var image string
	cmd := &cobra.Command{
		Use:   "requests [ID]",
		Short: "List what agents have asked for, or show one request with all a person has to know",
		Long: `requests lists the requests for packages that are open, the newest last: those that wait
for a person (pending_approval), and those that are worked on. With an ID, or with as much
of its beginning as makes it the only one, it shows that request: what is asked for, what
it brings, why a person is asked, and what became of it.`,
		Example: "  mcp-vdisk env requests\n  mcp-vdisk env requests 01KB8Z6Q",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.JSON, q.Columns = a.json, columnsOf(a.Stdout)
			if len(args) == 1 {
				if err := checkRequestID(args[0]); err != nil {
					return err
				}
				if q.All || cmd.Flags().Changed("image") {
					return exit.Fail(exit.Usage, "leave the others out", "an id names one request, whatever --all and --image say")
				}
				q.ID = args[0]
				return a.askLong(cmd.Context(), "env.request", q, nil, a.Stdout)
			}
			if image == "" { // that was checked, if it was given
				return a.askLong(cmd.Context(), "env.requests", q, nil, a.Stdout)
			}
			a.Image = image
			return a.askLongAbout(cmd.Context(), "env.requests", q, nil, a.Stdout)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().StringVar(&image, "image", "", "`NAME` of a disk: only what is asked for on it")
	cmd.Flags().BoolVar(&q.All, "all", false, "also those that are closed")
	return cmd
}

// askLongAbout is askLong about a disk.
func (a *app) askLongAbout(ctx context.Context, verb string, q any, stdin io.Reader, stdout io.Writer) error {
	r, err := a.NewRequest(verb, q)
	if err != nil {
		return err
	}
	r.Long = true
	return a.Ask(ctx, r, front.OpenRead, stdin, stdout)
}

// requestFacts is a request as --json tells it.
type requestFacts struct {
	Disk string `json:"disk"` // its name if that is known, else its uuid
	queue.Request

	// Of one that is shown alone:
	Card      string          `json:"card,omitempty"`
	Choices   []policy.Choice `json:"choices,omitempty"`    // what can be decided
	NotListed []string        `json:"not_listed,omitempty"` // what approve --always would allow
}

// requests are where requests are kept, and who works on them: also on those that another
// process left.
func (b *back) requests(ctx context.Context) (*pyenv.Env, *queue.Queue, error) {
	_, env, err := b.hub.sandbox(ctx)
	if err != nil {
		return nil, nil, err
	}
	q := b.hub.requests()
	if q == nil {
		return nil, nil, exit.Fail(exit.State, "mcp-vdisk env doctor says why", "requests for packages cannot be read")
	}
	b.hub.resume(ctx, env)
	return env, q, nil
}

func backEnvRequests(ctx context.Context, b *back) error {
	var q requestsArgs
	if err := b.args(&q); err != nil {
		return err
	}
	disk, ws, err := b.workspace(ctx)
	if err != nil {
		return err
	}
	_, kept, err := b.requests(ctx)
	if err != nil {
		return err
	}
	all, lost := kept.List(queue.Filter{})
	list := slices.DeleteFunc(slices.Clone(all), func(r queue.Request) bool {
		return r.State.Closed() && !q.All || ws != "" && r.Workspace != ws
	})
	facts := b.requestFacts(ctx, list...)
	if q.JSON {
		err = b.printJSON(facts)
	} else {
		b.printRequests(facts, idLength(all), emptyRequests(q.All, disk))
	}
	return cmp.Or(err, b.queueFailure(ctx, "", lost))
}

// workspace is the disk that the request names, if it does, and its uuid.
func (b *back) workspace(ctx context.Context) (disk, uuid string, err error) {
	if b.req.Image == (front.ImageRef{}) {
		return "", "", nil
	}
	d, err := b.open(ctx, want{readOnly: true})
	if err != nil {
		return "", "", err
	}
	disk, uuid = d.name, d.info.UUID
	return disk, uuid, d.release()
}

// requestFacts adds to requests the names of their disks.
func (b *back) requestFacts(ctx context.Context, list ...queue.Request) []requestFacts {
	names := b.hub.disksOf(ctx, list...)
	facts := make([]requestFacts, 0, len(list))
	for _, r := range list {
		facts = append(facts, requestFacts{Disk: names[r.Workspace], Request: r})
	}
	return facts
}

// disksOf gives the workspaces of requests the names of their disks, or where nobody
// knows one, their uuid. Each disk of the state directory is opened once at most.
func (h *hub) disksOf(ctx context.Context, list ...queue.Request) map[string]string {
	names, unknown := map[string]string{}, 0
	for _, r := range list {
		if _, ok := names[r.Workspace]; ok {
			continue
		}
		names[r.Workspace] = r.Workspace
		if d := h.named(r.Workspace); d != nil {
			names[r.Workspace] = d.name
		} else {
			unknown++
		}
	}
	there, err := h.st.imageNames()
	if err != nil {
		return names
	}
	for _, name := range there {
		if unknown == 0 {
			break
		}
		d, err := h.open(ctx, want{ref: front.ImageRef{Name: name}, readOnly: true, unsettled: true})
		if err != nil {
			continue
		}
		if names[d.info.UUID] == d.info.UUID {
			names[d.info.UUID] = name
			unknown--
		}
		d.release()
	}
	return names
}

func emptyRequests(all bool, disk string) string {
	on := ""
	if disk != "" {
		on = " on " + harmless(disk)
	}
	if all {
		return "nobody has asked for packages" + on + " yet"
	}
	return "no request for packages is open" + on + "; --all shows those that are closed"
}

// idLength is how much of an id tells each request from all others. That of one second
// is the least: more requests will come.
func idLength(list []queue.Request) int {
	n := 8
	for i := 1; i < len(list); i++ { // they are sorted: neighbours have most in common
		a, b := list[i-1].ID, list[i].ID
		for n < len(b) && a[:n] == b[:n] {
			n++
		}
	}
	return n
}

// tableColumns is what the lines of the list keep to. A uuid in the place of a name, and
// an id that has to be long, may make them longer.
const tableColumns = 72

func (b *back) printRequests(list []requestFacts, id int, none string) {
	if len(list) == 0 {
		b.printf("%s\n", none)
		return
	}
	now := time.Now()
	b.printf("%-*s  %-16s  %-5s  %-7s  %s\n", id, "ID", "STATE", "AGE", "ENDS IN", "ASKED BY")
	for _, f := range list {
		ends := "-"
		if !f.Expires.IsZero() {
			ends = shortSpan(f.Expires.Sub(now))
		}
		line := fmt.Sprintf("%-*s  %-16s  %-5s  %-7s  ", id, f.ID[:id], f.State, shortSpan(now.Sub(f.Created)), ends)
		client := "-"
		if f.Client != "" {
			client = fit(policy.Quote(f.Client, 40), tableColumns-len(line))
		}
		b.printf("%s%s\n", line, client)
		line = strings.Repeat(" ", id+2) + fit(harmless(f.Disk), 36) + ": "
		b.printf("%s%s\n", line, fewer(specsOf(f.Request), tableColumns-policy.Columns(line)))
	}
}

// wanted is what a request asks for, in one line.
func wanted(r queue.Request) string { return strings.Join(specsOf(r), ", ") }

func specsOf(r queue.Request) []string {
	list := slices.Clone(r.Specs)
	if r.Wheel != nil {
		list = append(list, "the wheel "+policy.Quote(r.Wheel.File, 80))
	}
	return list
}

// shortSpan is a time of at most five columns. One that is over is "0 s": the clock that
// ends a request looks now and then.
func shortSpan(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d m", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d d", min(d/(24*time.Hour), 999))
}

// fit cuts a text to so many columns.
func fit(s string, columns int) string {
	if policy.Columns(s) <= columns {
		return s
	}
	short := ""
	for _, r := range s {
		if policy.Columns(short+string(r)) >= columns {
			break
		}
		short += string(r)
	}
	return short + "…"
}

// fewer shows as many of a list as fit, and how many more there are.
func fewer(list []string, columns int) string {
	for n := len(list); n > 0; n-- {
		text := strings.Join(list[:n], ", ")
		if n < len(list) {
			text += fmt.Sprintf(" and %d more", len(list)-n)
		}
		if policy.Columns(text) <= columns || n == 1 {
			return fit(text, columns)
		}
	}
	return ""
}

// request asks for one request, as it is now.
func (a *app) request(ctx context.Context, q requestsArgs) (f requestFacts, err error) {
	var out bytes.Buffer
	q.JSON = true
	if err := a.askLong(ctx, "env.request", q, nil, &out); err != nil {
		return f, err
	}
	if err := json.Unmarshal(out.Bytes(), &f); err != nil {
		return f, fmt.Errorf("the answer about request %s: %w", q.ID, err)
	}
	return f, nil
}

func backEnvRequest(ctx context.Context, b *back) error {
	var q requestsArgs
	if err := b.args(&q); err != nil {
		return err
	}
	if err := checkRequestID(q.ID); err != nil {
		return err
	}
	env, kept, err := b.requests(ctx)
	if err != nil {
		return err
	}
	r, err := kept.Any(q.ID)
	if err != nil {
		return b.queueFailure(ctx, q.ID, err)
	}
	f := b.requestFacts(ctx, r)[0]
	if !q.Brief && (!q.Waiting || r.State == queue.PendingApproval) {
		card, err := b.card(ctx, env, f)
		if err != nil {
			return err
		}
		f.Card, f.Choices, f.NotListed = card.Text(q.Columns), card.Choices, notListed(card)
	}
	if q.JSON {
		return b.printJSON(f)
	}
	b.printf("%s", f.Card)
	b.printState(f, q.Columns)
	return nil
}

// card is what a person sees of a request. Only one that waits can be decided.
func (b *back) card(ctx context.Context, env *pyenv.Env, f requestFacts) (c policy.Card, err error) {
	r := f.Request
	if c = bareCard(r); r.Lock != "" {
		whole, err := env.Card(ctx, r)
		switch {
		case err == nil:
			c = whole
		case !r.State.Closed(): // the lock of a closed one may be gone
			return c, b.envFailure(ctx, err)
		}
	}
	if f.Disk != r.Workspace {
		c.Name = f.Disk
	}
	if r.State != queue.PendingApproval {
		c.Choices = nil
	}
	return c, nil
}

// bareCard is the card of a request that has no solution: who asks for what, and why it
// was refused, if it was.
func bareCard(r queue.Request) policy.Card {
	c := policy.Card{
		ID: r.ID, Workspace: r.Workspace, Client: r.Client, Session: r.Session, Reason: r.Reason,
		Created: r.Created, Now: time.Now(), Asked: r.Specs, Tier: policy.Reject,
	}
	if r.Wheel != nil {
		c.Upload = r.Wheel.File
	}
	for _, x := range r.Findings {
		c.Findings = append(c.Findings, policy.Finding{Rule: x.Rule, Package: x.Package, Sentence: x.Sentence, Tier: policy.Tier(x.Tier)})
	}
	if len(c.Findings) > 0 && r.State != queue.Rejected {
		c.Tier = policy.Ask
	}
	return c
}

// notListed are the packages of a card that the catalog does not allow, sorted.
func notListed(c policy.Card) (names []string) {
	for _, f := range c.Findings {
		if f.Rule == policy.NotListed && f.Package != "" {
			names = append(names, f.Package)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// printState tells below a card what became of the request.
func (b *back) printState(f requestFacts, columns int) {
	line := func(name, text string) {
		if text != "" {
			b.field(name, text, columns)
		}
	}
	b.printf("\n")
	line("State", fmt.Sprintf("%s since %s", f.State, stamped(f.Updated)))
	if d := f.Decision; d != nil {
		verdict := "denied"
		if d.Approve {
			verdict = "approved"
		}
		by := d.By
		if d.How != "" {
			by += " (" + d.How + ")"
		}
		line("Decided", fmt.Sprintf("%s by %s, %s", verdict, harmless(by), stamped(d.At)))
		if d.Note != "" {
			line("Note", policy.Quote(d.Note, 500))
		}
	}
	if x := f.Failure; x != nil {
		line("Failure", harmless(x.Code+": "+x.Sentence))
		line("Hint", harmless(x.Hint))
		line("Blocking", blocking(x.Blocking))
	}
	line("Layer", f.Layer)
}

// field writes a name and a text beside it, as cards do.
func (b *back) field(name, text string, columns int) {
	const wide, least, most = 11, 40, 72
	if columns <= 0 || columns > most {
		columns = most
	}
	for i, part := range policy.Wrap(text, max(columns, least)-wide) {
		if i > 0 {
			name = ""
		}
		b.printf("%-*s%s\n", wide, name, part)
	}
}

func stamped(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// blocking is such as "numpy 2.4.6, pinned by the base, needed by pandas 3.1.1, wanted <2".
func blocking(x *queue.Blocking) string {
	if x == nil {
		return ""
	}
	text := strings.TrimSpace(x.Name + " " + x.Version)
	for _, p := range [][2]string{{"pinned by", x.PinnedBy}, {"needed by", x.NeededBy}, {"wanted", x.Wanted}} {
		if p[1] != "" {
			text += ", " + p[0] + " " + p[1]
		}
	}
	return harmless(text)
}

// queueFailure is an error of the queue as a command tells it; id is what was looked for.
func (b *back) queueFailure(ctx context.Context, id string, err error) error {
	var several *queue.Ambiguous
	switch {
	case err == nil:
		return nil
	case errors.Is(err, queue.ErrNotFound):
		return exit.Because(err, exit.NotFound, "mcp-vdisk env requests --all lists them", "no request begins with %s", id)
	case errors.As(err, &several):
		n := idLength(several.Matches)
		for _, f := range b.requestFacts(ctx, several.Matches...) {
			fmt.Fprintf(b.stderr, "%s  %-16s  %s: %s\n", f.ID[:n], f.State, safe(f.Disk), fewer(specsOf(f.Request), 30))
		}
		return exit.Because(err, exit.Usage, "say more of the id", "%s", several)
	case errors.Is(err, queue.ErrConflict):
		return exit.Because(err, exit.Refused, "look at it again: mcp-vdisk env requests "+id, "request %s has changed meanwhile, and nothing was decided", id)
	case errors.Is(err, queue.ErrUnreadable), errors.Is(err, queue.ErrUnavailable):
		return exit.Because(err, exit.State, "", "%s", err)
	}
	return b.envFailure(ctx, err)
}
