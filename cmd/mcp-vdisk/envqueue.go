package main

import (
	"context"
	"fmt"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// requests is the queue of requests for packages, which lies in the state's database and
// is opened on first use. Nil when it cannot be had, which is logged once: scripts run
// with what is current then, nobody can ask for packages, and `env doctor` tells why.
func (h *hub) requests() *queue.Queue {
	h.asked.Do(func() {
		h.queue, h.queueErr = queue.Open(h.st.db, queue.Options{Room: h.st.log.Room})
		if h.queueErr != nil {
			h.log.Error("no requests for packages are taken, and scripts get what is current", "error", h.queueErr)
		}
	})
	return h.queue
}

// ownEnv opens the environment that scripts get: the one that has the queue.
func (h *hub) ownEnv(box *sandboxrun.Runner) (*pyenv.Env, error) {
	o := h.envOptions(box)
	if q := h.requests(); q != nil {
		o.Queue, o.Record, o.Waiting = q, h.recordDeed, h.requestWaits
	}
	return pyenv.Open(o)
}

// resume goes on with the requests that another process left, once. It comes before
// anybody asks for packages here. A command that only looks does not need it: what it
// began would end with it.
func (h *hub) resume(ctx context.Context, env *pyenv.Env) {
	if h.requests() == nil {
		return
	}
	h.resumed.Do(func() {
		changed, err := env.Resume(context.WithoutCancel(ctx))
		for _, r := range changed {
			h.log.Info("a request for packages was interrupted", "request", r.ID, "workspace", r.Workspace, "state", r.State, "attempt", r.Attempt)
		}
		if err != nil {
			h.log.Error("not all requests for packages go on", "error", err)
		}
	})
}

// pickUp goes on with what was approved, or asked for, before this daemon began, also
// when nobody connects. Without such requests it costs one look.
func (h *hub) pickUp(ctx context.Context) {
	q := h.requests()
	if q == nil {
		return
	}
	open, err := q.Open()
	if len(open) == 0 && err == nil {
		return
	}
	if _, _, err := h.sandbox(ctx); err != nil {
		h.log.Warn("requests for packages wait, as nothing can be run here", "open", len(open), "error", err)
	}
}

// queueProblems are what is wrong with the requests and bindings, in sentences for the
// operator.
func (h *hub) queueProblems() (list []string) {
	q := h.requests()
	if q == nil {
		return []string{fmt.Sprintf("nobody can ask for packages, and scripts get what is current: %s", h.queueErr)}
	}
	if _, err := q.List(queue.Filter{}); err != nil {
		list = append(list, fmt.Sprintf("not all requests for packages can be read, and those that cannot are neither changed nor removed: %s", err))
	}
	if _, err := q.Open(); err != nil && len(list) == 0 {
		list = append(list, fmt.Sprintf("not all requests for packages can be found: %s", err))
	}
	if _, err := q.Bindings(); err != nil {
		list = append(list, fmt.Sprintf("what a disk is bound to cannot be read, so that nothing is removed by mcp-vdisk env gc: %s", err))
	}
	return list
}
