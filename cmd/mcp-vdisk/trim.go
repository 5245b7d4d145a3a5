package main

import (
	"cmp"
	"context"
	"errors"

	"github.com/oklog/ulid/v2"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// trimmer keeps the history of a disk within its budget, beside its sessions. It does
// nothing before the first commit: by then it is known that the log and the disk belong
// together, and what is dropped cannot be what would have shown that they do not.
type trimmer struct {
	cancel context.CancelFunc // nil while it does not work
	ended  chan struct{}
}

func (t *trimmer) start(d *disk) {
	ctx, cancel := context.WithCancel(context.Background())
	t.cancel, t.ended = cancel, make(chan struct{})
	changed := d.image.Changed()
	go func() {
		defer close(t.ended)
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			changed = d.image.Changed()
			if !d.image.TrimDue() {
				continue
			}
			if err := d.trim(ctx); err != nil && ctx.Err() == nil {
				d.hub.log.Warn("the history of a disk could not be kept within its budget", "disk", d.name, "error", err)
			}
		}
	}()
}

// stop ends it, between two of its steps.
func (t *trimmer) stop() {
	if t.cancel != nil {
		t.cancel()
		<-t.ended
		t.cancel = nil
	}
}

// trim drops what is over the budget. Its record comes before that, and another one
// tells what came of it.
func (d *disk) trim(ctx context.Context) error {
	g := collection{d: d, act: "system", about: audit.Facts{"why": "the history is over its budget"}}
	r, err := d.image.Trim(ctx, func(plan workspace.GCResult) error { return g.begin(ctx, plan) })
	return g.end(ctx, r, err)
}

// collection is a gc of a disk as the log tells of it.
type collection struct {
	d     *disk
	act   string
	about audit.Facts
	rec   audit.Record // zero before it began
	size  int64        // of the file after it was compacted
}

// begin records what is about to be dropped.
func (g *collection) begin(ctx context.Context, plan workspace.GCResult) error {
	info, err := g.d.image.Info()
	if err != nil {
		return err
	}
	g.rec = audit.Record{Ev: audit.EvImageGC, Call: ulid.Make().String(), Img: info.UUID, Hb: info.Commit, Ha: info.Commit, Args: audit.Facts{}}
	for k, v := range g.about {
		g.rec.Args[k] = v
	}
	addPlan(g.rec.Args, plan)
	rec := g.rec
	rec.Act, rec.Dec = g.act, "allow"
	_, err = g.d.hub.st.log.Append(ctx, info.UUID, audit.Entry{Record: rec})
	if err != nil {
		g.rec = audit.Record{}
	}
	return err
}

func addPlan(f audit.Facts, r workspace.GCResult) {
	f["commits"], f["chunks"], f["bytes"] = r.Commits, r.Chunks, r.Bytes
	if r.Sizes.Oldest > 0 {
		f["oldest"] = versionText(r.Sizes.Oldest)
	}
}

// end records what came of it.
func (g *collection) end(ctx context.Context, r workspace.GCResult, err error) error {
	if g.rec.Ev == "" {
		return err
	}
	rec := g.rec
	rec.Act, rec.Dec = g.act, "allow"
	rec.Out = &audit.Out{OK: err == nil, Changed: r.Commits, Bytes: r.Bytes}
	if err != nil {
		rec.Reason = err.Error()
		if errors.Is(err, context.Canceled) {
			rec.Reason = "it was ended before it was done"
		}
	}
	rec.Args = audit.Facts{}
	for k, v := range g.about {
		rec.Args[k] = v
	}
	addPlan(rec.Args, r)
	if g.size > 0 {
		rec.Args["file_bytes"] = g.size
	}
	_, logErr := g.d.hub.st.log.Note(context.WithoutCancel(ctx), rec.Img, audit.Entry{Record: rec})
	return cmp.Or(err, logErr)
}
