package tools

import (
	"cmp"
	"context"
	"fmt"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
)

// forgotten is the error for a job that is not remembered: what the audit log
// knows of it.
func (t *Tools) forgotten(ctx context.Context, id string) error {
	h, err := t.history(ctx, id)
	switch {
	case err != nil:
		return err
	case h.intent == nil:
		return refuse(NotFound, "a result of run_script ends with the id of its job", "there is no job %s on this disk", id)
	case h.end == nil:
		return t.lost(id, h)
	case h.end.Ev == audit.EvRecover:
		return t.lost(id, h)
	}
	how := "it ended"
	if o := h.end.Out; o != nil {
		switch {
		case o.Exit != nil:
			how = fmt.Sprintf("exit %d", *o.Exit)
		case o.Outcome != "":
			how = o.Outcome
		default:
			how = cmp.Or(o.Code, how)
		}
	}
	saved, err := t.savedBy(id, h)
	if err != nil {
		return err
	}
	return refuse(NotFound, "its output is gone; run the script again if it is needed", "the result of job %s is no longer kept: %s, %s", id, how, saved)
}

// lost is the error for a job that ended with its server.
func (t *Tools) lost(id string, h history) error {
	saved, err := t.savedBy(id, h)
	switch {
	case err != nil:
		return err
	case saved == notSaved:
		return refuse(NotFound, "run the script again", "job %s is lost, not committed: the server stopped while it ran", id)
	}
	return refuse(NotFound, "list_files and read_file show what is there", "the result of job %s is lost with the server that ran it, but its changes were %s", id, saved)
}

const notSaved = "nothing of it was saved"

// savedBy finds the commit that a job's run made, or a later call that saved it.
func (t *Tools) savedBy(id string, h history) (string, error) {
	for _, call := range append([]string{id}, h.saves...) {
		c, found, err := t.cfg.Image.FindCommit(call)
		if err != nil {
			return "", err
		}
		if found {
			return "saved as " + version(c.Seq), nil
		}
	}
	if h.saved {
		return "saved in a version that is no longer kept", nil
	}
	return notSaved, nil
}

// history is what the log says of a job.
type history struct {
	intent, end *audit.Record
	saves       []string // calls that were about to save its changes
	saved       bool     // one of the calls made a commit, by the log
}

func (t *Tools) history(ctx context.Context, id string) (history, error) {
	var h history
	q := audit.Query{Stream: t.streamName, Match: map[string][]string{"call": {id}}}
	err := t.cfg.Log.Query(ctx, q, func(_ []byte, r audit.Record) error {
		h.saved = h.saved || r.Ha != r.Hb
		switch {
		case r.Tool != "run_script" || r.Args["job"] != nil:
		case r.Ev == audit.EvCallIntent:
			h.intent = &r
		case r.Ev == audit.EvCallOutcome, r.Ev == audit.EvRecover:
			h.end = &r
		}
		return nil
	})
	if err != nil || h.intent == nil {
		return h, err
	}
	q.Match = map[string][]string{"args.job": {id}, "ev": {string(audit.EvCallIntent)}}
	err = t.cfg.Log.Query(ctx, q, func(_ []byte, r audit.Record) error {
		h.saves = append(h.saves, r.Call)
		return nil
	})
	for _, call := range h.saves {
		q.Match = map[string][]string{"call": {call}}
		err = cmp.Or(err, t.cfg.Log.Query(ctx, q, func(_ []byte, r audit.Record) error {
			h.saved = h.saved || r.Ha != r.Hb
			return nil
		}))
	}
	return h, err
}
