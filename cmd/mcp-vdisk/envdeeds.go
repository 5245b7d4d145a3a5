package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// recordDeed writes what happens to a request for packages, or to a binding, into the log
// of its disk, in as many records as it takes. All of them are durable when it returns
// nil; after an error the deed must not be done.
//
// What strangers say (reason, note, names) is text of the record, cut to audit.MaxFact
// bytes with a digest of the whole.
func (h *hub) recordDeed(ctx context.Context, d pyenv.Deed) error {
	stream := d.Request.Workspace
	if stream == "" && d.Binding != nil {
		stream = d.Binding.Workspace
	}
	if stream == "" {
		return fmt.Errorf("%w: a deed of kind %q is about no workspace", audit.ErrUnavailable, d.Kind)
	}
	records, err := deedRecords(d)
	if err != nil {
		return err
	}
	if d.Err != nil { // that the server ends must not keep it out of the log
		ctx = context.WithoutCancel(ctx)
	}
	for i, r := range records {
		r.Img = stream
		// What is durable is a prefix of what was written: waiting for the last is
		// waiting for all.
		write := h.st.log.Note
		if i == len(records)-1 {
			write = h.st.log.Append
		}
		if _, err := write(ctx, stream, audit.Entry{Record: r}); err != nil {
			return err
		}
	}
	return nil
}

// deedEvents are the events of the deeds.
var deedEvents = map[pyenv.DeedKind]audit.Event{
	pyenv.DeedRequest: audit.EvEnvRequest,
	pyenv.DeedDecide:  audit.EvEnvDecide,
	pyenv.DeedBuild:   audit.EvEnvBuild,
	pyenv.DeedBind:    audit.EvEnvBind,
}

// deedRecords are the records of a deed, without the disk.
func deedRecords(d pyenv.Deed) ([]audit.Record, error) {
	ev := deedEvents[d.Kind]
	if ev == "" {
		return nil, fmt.Errorf("%w: there is no deed of kind %q", audit.ErrUnavailable, d.Kind)
	}
	rec := audit.Record{Ev: ev, Call: d.Request.Call, Cli: d.Request.Client, Act: "server", Dec: "allow"}
	every := audit.Facts{}
	set(every, "request", d.Request.ID)
	set(every, "session", d.Request.Session)
	set(every, "lock", cmp.Or(d.LockID, d.Request.Lock))
	var rest []fact
	switch d.Kind {
	case pyenv.DeedRequest:
		rec.Act, rest = "agent", asked(d.Request)
	case pyenv.DeedDecide:
		rest = decided(&rec, d)
	case pyenv.DeedBuild:
		rest = built(d)
	case pyenv.DeedBind:
		rest = bound(d)
	}
	if d.Lock != nil {
		rest = append(rest, fact{"wheels", len(d.Lock.Packages)})
		rest = append(rest, wheelFacts(wheelsOf(*d.Lock))...)
	}
	if d.Err != nil {
		rec.Out, rec.Reason, rec.Err = &audit.Out{Code: codeOf(d.Err)}, d.Err.Error(), codeOf(d.Err)
	}
	var list []audit.Record
	for _, facts := range spread(every, rest) {
		rec.Args = facts
		list = append(list, rec)
	}
	return list, nil
}

// asked is what was asked for.
func asked(r queue.Request) []fact {
	rest := texts("packages", r.Specs)
	if w := r.Wheel; w != nil {
		rest = append(rest, fact{"wheel_file", w.File}, fact{"wheel_path", w.Path}, fact{"wheel_sha256", w.SHA256})
	}
	return append(rest, some(fact{"reason", r.Reason})...)
}

// decided is what was decided and why. Without a decision a rule has: nobody could
// approve that.
func decided(rec *audit.Record, d pyenv.Deed) []fact {
	rest := texts("packages", d.Request.Specs)
	by := d.Decision
	if by == nil {
		by = d.Request.Decision
	}
	verdict := "reject"
	switch {
	case by == nil:
		rec.Dec, rec.Act = "deny", "rule"
	case by.Approve:
		verdict = "approve"
	default:
		verdict, rec.Dec = "deny", "deny"
	}
	rest = append(rest, fact{"verdict", verdict})
	if by != nil {
		rec.Act = by.By
		rest = append(rest, some(fact{"by", by.By}, fact{"how", by.How}, fact{"note", by.Note}, fact{"decided_lock", by.Lock})...)
	}
	if d.Request.Iso {
		rest = append(rest, fact{"isolated", true})
	}
	if f := d.Request.Failure; f != nil {
		rec.Err, rec.Reason = f.Code, f.Sentence
		if b := f.Blocking; b != nil {
			rest = append(rest, fact{"blocking", strings.TrimSpace(b.Name + " " + b.Version)})
		}
	}
	return append(rest, findings(d.Request.Findings)...)
}

// findings are the tier of the worst, and for each rule the packages that it is about.
func findings(list []queue.Finding) []fact {
	if len(list) == 0 {
		return nil
	}
	tier := ""
	about := map[string][]string{}
	for _, f := range list {
		if stricter(f.Tier, tier) {
			tier = f.Tier
		}
		about[f.Rule] = append(about[f.Rule], cmp.Or(f.Package, "all"))
	}
	rest := []fact{{"tier", tier}, {"findings", len(list)}}
	for _, rule := range slices.Sorted(maps.Keys(about)) {
		rest = append(rest, texts("rule-"+rule, about[rule])...)
	}
	return rest
}

// stricter says whether a tier lets less through than another; one that is not known lets
// nothing through.
func stricter(a, b string) bool {
	order := []string{"", string(policy.Auto), string(policy.Ask), string(policy.Reject)}
	rank := func(tier string) int {
		if i := slices.Index(order, tier); i >= 0 {
			return i
		}
		return len(order)
	}
	return rank(a) > rank(b)
}

// built is what is built.
func built(d pyenv.Deed) []fact {
	rest := some(fact{"layer", d.Request.Layer})
	if l := d.Lock; l != nil {
		if id, err := l.LayerID(); err == nil && d.Request.Layer == "" {
			rest = append(rest, fact{"layer", id})
		}
		rest = append(rest, some(fact{"base", l.Base}, fact{"python", l.Python.Full})...)
		if l.Kind == lock.Iso {
			rest = append(rest, fact{"isolated", true})
		}
	}
	return rest
}

// bound is what the workspace has from now on.
func bound(d pyenv.Deed) []fact {
	rest := some(fact{"layer", d.Request.Layer})
	if by := d.Decision; by != nil {
		rest = append(rest, some(fact{"by", by.By}, fact{"how", by.How})...)
	}
	b := d.Binding
	if b == nil { // what there was is enough
		return rest
	}
	rest = append(rest, fact{"rev", b.Rev})
	rest = append(rest, some(fact{"python", b.Python}, fact{"base", b.Base}, fact{"iso", b.Iso})...)
	return slices.Concat(rest, texts("layers", b.Layers), texts("locks", b.Locks), texts("requests", b.Requests))
}

// fact is one of those that may not all have room in one record.
type fact struct {
	name  string
	value any
}

// set sets a fact that there is.
func set(f audit.Facts, name, value string) {
	if value != "" {
		f[name] = value
	}
}

// some are the facts that are not empty texts.
func some(list ...fact) []fact {
	return slices.DeleteFunc(list, func(f fact) bool { return f.value == "" })
}

// texts is a list, in as many facts as it takes: the log cuts what is long.
func texts(name string, list []string) (facts []fact) {
	for from, part := 0, 1; from < len(list); part++ {
		to, size := from, 2
		for to < len(list) && (to == from || size+jsonSize(list[to])+1 <= audit.MaxFact) {
			size += jsonSize(list[to]) + 1
			to++
		}
		n := name
		if part > 1 {
			n = fmt.Sprintf("%s-%d", name, part)
		}
		facts = append(facts, fact{n, list[from:to]})
		from = to
	}
	return facts
}

// wheelFacts name every wheel.
func wheelFacts(wheels []pyenv.Package) []fact {
	facts := make([]fact, 0, len(wheels))
	for _, p := range wheels {
		facts = append(facts, fact{"wheel-" + p.Name, p.Name + " " + p.Version + " " + p.SHA256})
	}
	return facts
}

// factsAtOnce is how many bytes of facts one record takes; the log leaves out what is
// over 3 KiB.
const factsAtOnce = 2900

// spread puts facts into as many records as it takes, at least one. Each has every.
func spread(every audit.Facts, rest []fact) []audit.Facts {
	fixed := len(`{"part":1000,"parts":1000}`)
	for name, value := range every {
		fixed += factSize(fact{name, value})
	}
	list, size := []audit.Facts{maps.Clone(every)}, fixed
	for _, f := range rest {
		n := factSize(f)
		if size+n > factsAtOnce && len(list[len(list)-1]) > len(every) {
			list, size = append(list, maps.Clone(every)), fixed
		}
		list[len(list)-1][f.name] = f.value
		size += n
	}
	if len(list) > 1 {
		for i := range list {
			list[i]["part"], list[i]["parts"] = i+1, len(list)
		}
	}
	return list
}

// factSize is how many bytes a fact takes in a record, or some more.
func factSize(f fact) int {
	n := len(f.name) + len(`"":,`) + jsonSize(f.value)
	if long := jsonSize(f.value); long > audit.MaxFact { // it is cut, with digest and size
		const digest = 64
		n += audit.MaxFact - long + 2*len(f.name) + digest + len(`".sha256":"",".bytes":1000000000,`)
	}
	return n
}

func jsonSize(v any) int {
	b, _ := json.Marshal(v) // cannot fail on texts, numbers and lists of texts
	return len(b)
}

// queueCodes are the codes of errors of the queue, for the log.
var queueCodes = []struct {
	is   error
	code string
}{
	{queue.ErrConflict, "conflict"},
	{queue.ErrFull, "queue_full"},
	{queue.ErrNotFound, "not_found"},
	{queue.ErrUnreadable, "unreadable"},
	{queue.ErrInvalid, "invalid"},
	{queue.ErrUnavailable, "unavailable"},
	{audit.ErrUnavailable, "unavailable"},
}

// queueCode is the code of an error of the queue, "" when it has none.
func queueCode(err error) string {
	for _, k := range queueCodes {
		if errors.Is(err, k.is) {
			return k.code
		}
	}
	return ""
}
