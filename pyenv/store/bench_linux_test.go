package store

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
)

// BenchmarkBaseLayer builds the base layer from a full wheelhouse, and shows how
// long each stage takes.
func BenchmarkBaseLayer(b *testing.B) {
	files := baseWheels(b)
	p := newPlace(b)
	l := p.baseLock(files)
	sum := newStopwatch()
	var layer *Layer
	for b.Loop() {
		steps := newStopwatch()
		var err error
		layer, err = p.Build(b.Context(), Build{Lock: l, Python: p.py, Box: p.box, Progress: steps.step})
		must(b, err)
		for stage, d := range steps.took {
			sum.took[stage] += d
		}
		b.StopTimer()
		must(b, p.Drop(layer.ID))
		b.StartTimer()
	}
	for _, stage := range []Stage{StageOpen, StageUnpack, StageCompile, StageFonts, StageSync, StagePublish} {
		b.ReportMetric(sum.took[stage].Seconds()/float64(b.N), string(stage)+"-s/op")
	}
	b.ReportMetric(float64(len(layer.Manifest.Files)), "files")
	b.ReportMetric(float64(layer.Manifest.Size>>20), "MiB")
}

// BenchmarkLayer is what a workspace costs whose layer is there: finding it for the
// first time in a process, finding it again, holding it for a run, and building
// what is built.
func BenchmarkLayer(b *testing.B) {
	p := newPlace(b)
	l := p.baseLock(baseWheels(b))
	layer, err := p.build(l)
	must(b, err)
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			r, err := Open(p.Dir())
			must(b, err)
			_, err = r.Layer(layer.ID)
			must(b, err)
			must(b, r.Close())
		}
	})
	b.Run("again", func(b *testing.B) {
		for b.Loop() {
			_, err := p.Layer(layer.ID)
			must(b, err)
		}
	})
	b.Run("use", func(b *testing.B) {
		for b.Loop() {
			release, err := p.Use(layer.ID)
			must(b, err)
			release()
		}
	})
	b.Run("built", func(b *testing.B) {
		for b.Loop() {
			_, err := p.build(l)
			must(b, err)
		}
	})
	b.Run("verify", func(b *testing.B) {
		b.SetBytes(layer.Manifest.Size)
		for b.Loop() {
			faults, err := p.Verify(b.Context(), layer)
			must(b, err)
			if len(faults) > 0 {
				b.Fatal(faults)
			}
		}
	})
}

// baseRequest is what the base layer is asked for.
var baseRequest = strings.Fields("python-docx openpyxl python-pptx lxml Pillow numpy matplotlib pypdf reportlab markdown pdfplumber")

// baseWheels are the wheels of the base layer as the index has them today. The
// index is the one that pip is configured for; without an answer from it the test
// is skipped.
func baseWheels(t testing.TB) []string {
	t.Helper()
	dir := os.Getenv(pyenvtest.WheelsEnv)
	if dir == "" {
		dir = t.TempDir()
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		args := []string{"-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check", "--retries", "1", "--only-binary", ":all:", "--dest", dir}
		out, err := exec.CommandContext(ctx, "/usr/bin/python3", append(args, baseRequest...)...).CombinedOutput()
		if err != nil {
			t.Skipf("SKIP no package index answers pip: %v: %s", err, lastLine(out))
		}
	}
	list, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	must(t, err)
	if len(list) < len(baseRequest) {
		t.Fatalf("only %d wheels", len(list))
	}
	return list
}

// baseLock puts the wheels of the base layer into the wheelhouse.
func (p *place) baseLock(files []string) lock.Lock {
	p.t.Helper()
	var list []lock.Package
	for _, file := range files {
		data, err := os.ReadFile(file)
		must(p.t, err)
		pkg := packageOf(p.t, filepath.Base(file), data)
		f, err := os.Open(file)
		must(p.t, err)
		must(p.t, p.AddWheel(p.t.Context(), f, pkg.SHA256, pkg.Size))
		f.Close()
		list = append(list, pkg)
	}
	return lockFor(lock.Base, p.py, list...)
}

// stopwatch measures the stages of a build.
type stopwatch struct {
	last  time.Time
	stage Stage
	took  map[Stage]time.Duration
}

func newStopwatch() *stopwatch {
	return &stopwatch{last: time.Now(), stage: "start", took: map[Stage]time.Duration{}}
}

func (s *stopwatch) step(st Step) {
	now := time.Now()
	s.took[s.stage] += now.Sub(s.last)
	s.last, s.stage = now, st.Stage
}
