package tools

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/live"
)

// sandbox is the one of this host, found and tried once for all tests.
var sandbox = sync.OnceValues(func() (*sandboxrun.Runner, error) {
	ctx := context.Background()
	box, err := sandboxrun.New(ctx, sandboxrun.Config{})
	if err != nil {
		return nil, err
	}
	if rep := box.Probe(ctx); !rep.OK {
		return nil, errors.New(rep.Cause + "; " + rep.Remedy)
	}
	return box, nil
})

// scripted is a disk on which scripts run. A host that cannot run them fails
// the test: what was not tried is not known to work.
func (s setup) scripted(t testing.TB) *disk {
	t.Helper()
	box, err := sandbox()
	if err != nil {
		t.Fatalf("scripts cannot run on this host: %v", err)
	}
	t.Cleanup(box.DropSpare) // the Runner is for all tests, what waits in it for this one
	change := s.config
	s.config = func(c *Config) {
		view, err := live.Open(filepath.Join(t.TempDir(), "live"), c.Image)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { view.Close() })
		c.Box, c.Live = box, view
		if change != nil {
			change(c)
		}
	}
	return s.disk(t)
}

func newScripted(t testing.TB) *disk { return setup{}.scripted(t) }

// bash runs a script that must be answered with a result, however it ended.
func (d *disk) bash(source string) Result {
	d.t.Helper()
	return d.script(args{"language": "bash", "source": source})
}

func (d *disk) python(source string) Result {
	d.t.Helper()
	return d.script(args{"language": "python", "source": source})
}

func (d *disk) script(a args) Result {
	d.t.Helper()
	r := d.call("run_script", a)
	if !r.OK() {
		d.t.Fatalf("run_script %s: %s", shorten(a), r)
	}
	return r
}

// running waits until so many scripts run in their sandboxes.
func (d *disk) running(n int) {
	d.until("scripts run", func() bool {
		n := n
		d.jobs.mu.Lock()
		defer d.jobs.mu.Unlock()
		for _, j := range d.jobs.all {
			j.mu.Lock()
			if j.info.State == jobRuns {
				n--
			}
			j.mu.Unlock()
		}
		return n <= 0
	})
}

// until asks again and again until cond holds.
func (d *disk) until(what string, cond func() bool) {
	d.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !cond(); <-tick.C {
		if time.Now().After(end) {
			d.t.Errorf("not in time: %s", what)
			return
		}
	}
}
