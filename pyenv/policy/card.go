package policy

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
)

// Card is what a person sees who has to decide. NewCard fills what follows from a
// solution; who asks, and until when it can be decided, is for the caller to add. Texts
// of strangers are kept as they came: Text and Form clean them.
type Card struct {
	ID        string // of the request; letters, digits, "-" and "_"
	Workspace string // uuid
	Name      string // of the workspace, "" if it has none
	Client    string // as it calls itself
	Session   string
	Reason    string // in the agent's words
	Created   time.Time
	Expires   time.Time // undecided, the request ends then
	Now       time.Time

	Asked    []string // requirements
	Upload   string   // file name of a wheel of the workspace
	Rows     []Row    // new packages, those with findings first
	Kept     int      // packages of the lock that the workspace has already
	Download int64    // bytes of their wheels, as far as they are known
	Unsized  int      // packages whose size is not
	Disk     int64    // bytes that they unpack to; an estimate unless all wheels are there
	Build    time.Duration

	Tier     Tier
	Findings []Finding
	Notes    []string // sentences of the resolver: what it passed over

	Kind     lock.Kind
	Base     string   // id of the base that the workspace has
	Replaces []Change // of the base, for an isolated layer
	Moves    []Change // of what the workspace has besides
	Lock     string   // id: an approval is for it and nothing else

	Choices []Choice // that are offered; none unless the verdict is Ask

	// Approval is the command that approves what is no request, a rebase, say: Text tells
	// it in the place of those for a request.
	Approval string
}

// Row is one package.
type Row struct {
	Name, Version string
	Uploaded      time.Time // zero: not known
	Size          int64     // 0: not known
	License       string
	Index         string
	Marks         []string // rules that it breaks, and what its wheel has ("native")
	NeededBy      []string // "name version", shown as they are but for what clean drops
	Asked         bool
	Unusual       bool
}

// Choice is an answer to a card.
type Choice string

// The choices.
const (
	Approve  Choice = "approve"
	Isolated Choice = "isolated" // approve, as a layer of its own in the place of the base
	Deny     Choice = "deny"
)

// NewCard is the card for a solution and its verdict. A lock of kind X can be approved
// as it is or isolated, one of kind Iso only isolated; a caller that offers less takes
// away Choices. Errors: lock.ErrInvalid.
func NewCard(in Input, v Verdict) (Card, error) {
	id, err := in.Lock.ID()
	if err != nil {
		return Card{}, fmt.Errorf("the card: %w", err)
	}
	j := newJudgement(in)
	c := Card{
		Now: in.Now, Tier: v.Tier, Findings: v.Findings, Kind: in.Lock.Kind, Base: in.Lock.Base, Lock: id,
		Kept: len(j.all) - len(j.fresh), Download: j.total(), Replaces: in.changes(), Moves: j.moves(),
	}
	for _, r := range in.Requested {
		c.Asked = append(c.Asked, r.String())
	}
	for _, p := range j.fresh {
		c.Rows = append(c.Rows, j.row(p, v.Findings))
		if isUpload(p) {
			c.Upload = p.File
		}
		if j.size(p) == 0 {
			c.Unsized++
		}
	}
	slices.SortStableFunc(c.Rows, func(a, b Row) int { return cmp.Compare(place(a), place(b)) })
	c.Disk = j.disk()
	c.Build = buildTime(c.Download)
	switch {
	case v.Tier != Ask: // nobody has to, or nobody can
	case in.Lock.Kind == lock.Iso:
		c.Choices = []Choice{Isolated, Deny}
	default:
		c.Choices = []Choice{Approve, Isolated, Deny}
	}
	return c, nil
}

// place orders rows: what is not usual, what was asked for, the rest.
func place(r Row) int {
	switch {
	case r.Unusual:
		return 0
	case r.Asked:
		return 1
	}
	return 2
}

func (j *judgement) row(p lock.Package, findings []Finding) Row {
	w := j.Wheels[p.SHA256]
	r := Row{
		Name: p.Name, Version: p.Version, Uploaded: p.Uploaded, Size: j.size(p), License: p.License, Index: p.Index,
		NeededBy: j.needs.by[p.Name], Asked: j.needs.asked[p.Name],
	}
	for _, f := range findings {
		if f.Package == p.Name && !slices.Contains(r.Marks, f.Rule) {
			r.Marks = append(r.Marks, f.Rule)
		}
	}
	r.Unusual = len(r.Marks) > 0
	if w.Native || slices.Contains(p.Flags, "native") {
		r.Marks = append(r.Marks, "native")
	}
	if len(w.Scripts) > 0 || slices.Contains(p.Flags, "scripts") {
		r.Marks = append(r.Marks, "scripts")
	}
	return r
}

// moves are packages of the workspace's own layers that come in another version.
func (j *judgement) moves() []Change {
	var list []Change
	for _, p := range j.fresh {
		if h, ok := j.held[p.Name]; ok {
			list = append(list, Change{p.Name, h.Version, p.Version})
		}
	}
	return list
}

// unpacked is how many times its size a wheel takes on the disk, with bytecode: 66 MB of
// wheels of the base are some 260 MB.
const unpacked = 4

func (j *judgement) disk() int64 {
	var n int64
	for _, p := range j.fresh {
		size := j.size(p)
		if w, ok := j.Wheels[p.SHA256]; ok && w.Disk > 0 {
			n = saturate(n, w.Disk)
			continue
		}
		for range unpacked {
			n = saturate(n, size)
		}
	}
	return n
}

// buildTime is about what it takes to unpack, compile and try, once the wheels are there:
// 32 MB took some 7 seconds.
func buildTime(download int64) time.Duration {
	const start, perMegabyte = 2 * time.Second, 230 * time.Millisecond
	return start + time.Duration(min(download/1e6, 1e6))*perMegabyte
}
