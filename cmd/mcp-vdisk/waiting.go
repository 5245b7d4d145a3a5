package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// requestWaits is told of each request that begins to wait for a person: it says so in the
// log, and to the program of the setting env.notify. It does not block.
func (h *hub) requestWaits(r queue.Request) {
	h.log.Info("a request for packages waits for a person", "request", r.ID, "workspace", r.Workspace, "packages", wanted(r), "decide", "mcp-vdisk env approve "+r.ID)
	h.notices.tell(func(ctx context.Context) ([]byte, error) {
		return json.Marshal(h.waitingNews(ctx, r))
	})
}

// waitingNews is what the program of env.notify reads. Names of packages and wheels are a
// stranger's texts.
type waitingNews struct {
	Request   string    `json:"request"`
	Disk      string    `json:"disk"` // its name if that is known, else its uuid
	Workspace string    `json:"workspace"`
	Packages  []string  `json:"packages"`
	Wheel     string    `json:"wheel,omitempty"` // file of the workspace
	Expires   time.Time `json:"expires,omitzero"`
}

func (h *hub) waitingNews(ctx context.Context, r queue.Request) waitingNews {
	n := waitingNews{Request: r.ID, Disk: h.disksOf(ctx, r)[r.Workspace], Workspace: r.Workspace, Packages: append([]string{}, r.Specs...), Expires: r.Expires}
	if r.Wheel != nil {
		n.Wheel = r.Wheel.File
	}
	return n
}

// notNotified says why a person heard nothing of a request.
func (h *hub) notNotified(err error) {
	h.log.Warn("the program of env.notify told nobody of a request", "error", err)
}

// waiting is how many requests wait for a person. It reads them by itself: whether they
// can be worked on here does not matter, and neither does a sandbox that is being made.
func (h *hub) waiting() (n int, err error) {
	q, err := queue.Open(h.st.db, queue.Options{})
	if err != nil {
		return 0, err
	}
	list, err := q.Open()
	for _, r := range list {
		if r.State == queue.PendingApproval && r.Expires.After(time.Now()) {
			n++
		}
	}
	return n, err
}

// atWork says whether this process makes something for scripts, or will without anybody's
// doing.
func (h *hub) atWork(ctx context.Context) bool {
	h.lazy.Lock()
	env := h.python
	h.lazy.Unlock()
	if env == nil {
		return false
	}
	if env.Busy() {
		return true
	}
	st, err := env.Status(ctx, "")
	return err == nil && st.Building != ""
}

// waitingText is how commands tell of it.
func waitingText(n int) string {
	if n == 1 {
		return "1 waits for a person; mcp-vdisk env requests shows it"
	}
	return fmt.Sprintf("%d wait for a person; mcp-vdisk env requests shows them", n)
}
