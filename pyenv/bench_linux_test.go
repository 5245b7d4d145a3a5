package pyenv

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
)

// BenchmarkBulkBaseBuild builds the base layer from a full wheelhouse, proof by import
// included.
func BenchmarkBulkBaseBuild(b *testing.B) {
	took, _ := builds(b)
	b.ReportMetric(took[len(took)/2].Seconds(), "value-s")
	b.ReportMetric(15, "limit-s")
}

// BenchmarkBulkStatusBesideBuild is the slow end of asking for the status every
// millisecond meanwhile.
func BenchmarkBulkStatusBesideBuild(b *testing.B) {
	_, asked := builds(b)
	b.ReportMetric(float64(asked[len(asked)*99/100].Microseconds())/1e3, "value-ms")
	b.ReportMetric(20, "limit-ms")
}

// builds builds the base layer while somebody asks for the status, and returns how long
// each build and each answer took, sorted.
func builds(b *testing.B) (took, asked []time.Duration) {
	r := newReal(b)
	for b.Loop() {
		root, err := r.store()
		must(b, err)
		must(b, root.Drop(r.rep.Base))
		must(b, os.Remove(filepath.Join(r.o.Root, "current")))
		done := make(chan error, 1)
		var rep EnsureReport
		go func() {
			var err error
			rep, err = r.Ensure(b.Context(), EnsureRequest{Pip: noIndex})
			done <- err
		}()
		asked = append(asked, untilDone(b, r.Env, done)...)
		if !rep.Built || rep.Fetched > 0 || rep.Base != r.rep.Base {
			b.Fatalf("%+v", rep)
		}
		took = append(took, rep.Took)
	}
	slices.Sort(took)
	slices.Sort(asked)
	return took, asked
}

// noIndex is an index that does not answer.
var noIndex = resolve.Config{IndexURL: "http://127.0.0.1:9/simple"}

// untilDone asks for the status until something is done, and returns how long each
// answer took.
func untilDone(b *testing.B, e *Env, done <-chan error) (took []time.Duration) {
	for {
		start := time.Now()
		_, err := e.Status(b.Context(), "")
		took = append(took, time.Since(start))
		must(b, err)
		select {
		case err := <-done:
			must(b, err)
			return took
		case <-time.After(time.Millisecond):
		}
	}
}

// BenchmarkEnsureAgain is Ensure where all is there.
func BenchmarkEnsureAgain(b *testing.B) {
	r := newReal(b)
	b.ReportMetric(median(b, func() {
		_, err := r.Ensure(b.Context(), EnsureRequest{Pip: noIndex})
		must(b, err)
	}), "value-ms")
	b.ReportMetric(1000, "limit-ms")
}

// BenchmarkAttach finds out the mounts of a run with the base, checks what is mounted
// and holds it, as each script does.
func BenchmarkAttach(b *testing.B) {
	r := newReal(b)
	b.ReportMetric(median(b, func() {
		s, release, err := r.Setup(b.Context(), "")
		must(b, err)
		if s.Base != r.rep.Base {
			b.Fatalf("%+v", s)
		}
		release()
	}), "value-ms")
	b.ReportMetric(5, "limit-ms")
}

// median runs f for the benchmark's rounds, and returns the median in milliseconds.
func median(b *testing.B, f func()) float64 {
	f() // what is done once for a process
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		f()
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return float64(took[len(took)/2].Microseconds()) / 1e3
}

// BenchmarkBindKnown is the request of another workspace for what one has already: nothing
// is resolved, fetched or built. Queue, binding and three records of the log are durable
// when it returns.
func BenchmarkBindKnown(b *testing.B) {
	o := newShop(b, []string{"foo"}, module("foo", "1"))
	dir := filepath.Join(b.TempDir(), "db")
	db, err := audit.OpenDB(dir, nil)
	must(b, err)
	o.away()
	log, err := audit.New(db, filepath.Join(dir, "tail"), audit.Options{})
	must(b, err)
	b.Cleanup(func() { log.Close() })
	o.db = db
	o.start()
	o.o.Record = func(ctx context.Context, d Deed) error {
		_, err := log.Append(ctx, d.Request.Workspace, audit.Entry{Record: audit.Record{Ev: audit.EvEnvBind, Args: audit.Facts{"request": d.Request.ID, "lock": d.LockID}}})
		return err
	}
	o.is(o.ask(wsA, "foo"), queue.Ready)
	asked, n := len(o.index.Requests()), 0
	b.ReportMetric(median(b, func() {
		r, err := o.Request(b.Context(), Ask{Workspace: workspace(n), Packages: []string{"foo"}})
		must(b, err)
		o.is(r, queue.Ready)
		n++
	}), "value-ms")
	b.ReportMetric(5, "limit-ms")
	if len(o.index.Requests()) != asked {
		b.Error("the index was asked")
	}
}
