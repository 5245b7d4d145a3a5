package attach

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// baseList is what the base layer is asked for.
var baseList = strings.Fields("python-docx openpyxl python-pptx lxml Pillow numpy matplotlib pypdf reportlab markdown pdfplumber")

// realBase is the base layer as the index has it today: resolved, fetched and built,
// once for all tests and benchmarks. It is the index that pip is configured for.
type realBase struct {
	store *store.Root
	lock  lock.Lock
	layer *store.Layer
}

// real returns it, and skips the test when no index answers.
func (w world) real(t testing.TB) realBase {
	t.Helper()
	b, err := makeRealBase(t.Logf, w)
	var e *resolve.Error
	if errors.As(err, &e) && slices.Contains([]resolve.Code{resolve.ErrIndexUnreachable, resolve.ErrResolverUnavailable}, e.Code) {
		t.Skip("SKIP no package index answers: ", e)
	}
	if e != nil {
		t.Log(e.Detail)
	}
	must(t, err)
	return b
}

var theRealBase struct {
	once sync.Once
	base realBase
	err  error
}

func makeRealBase(logf func(string, ...any), w world) (realBase, error) {
	r := &theRealBase
	r.once.Do(func() { r.base, r.err = newRealBase(logf, w) })
	return r.base, r.err
}

func newRealBase(logf func(string, ...any), w world) (b realBase, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	config, warnings, err := resolve.ReadConfig(os.Environ(), os.Getenv("HOME"))
	if err != nil {
		return b, err
	}
	logf("configuration: %v %q", config, warnings)
	if b.store, err = store.Open(w.root); err != nil {
		return b, err
	}
	defer b.store.Close()
	pip, err := resolve.InstallTool(ctx, w.root, "", config, w.box, w.py)
	if err != nil {
		return b, err
	}
	specs, err := spec.ParseRequests(baseList)
	if err != nil {
		return b, err
	}
	start := time.Now()
	r, err := pip.Resolve(ctx, resolve.Request{Specs: specs, Config: config, Cutoff: start.Add(-7 * 24 * time.Hour)})
	if err != nil {
		return b, err
	}
	logf("%s: %d packages, resolved in %s; notes: %q", r.Resolver, len(r.Packages), since(start), r.Notes)
	start = time.Now()
	err = pip.Fetch(ctx, r.Packages, config, func(p lock.Package, f *os.File) error { return b.store.AddWheel(ctx, f, p.SHA256, p.Size) })
	if err != nil {
		return b, err
	}
	logf("fetched in %s", since(start))
	b.lock = lock.Lock{Schema: 1, Kind: lock.Base, Python: w.lockPython(), Requested: requested(specs), Resolver: r.Resolver, Packages: r.Packages}
	start = time.Now()
	b.layer, err = b.store.Build(ctx, store.Build{Lock: b.lock, Python: w.py, Box: w.box})
	logf("built in %s", since(start))
	return b, err
}

// requested is how a lock names what was asked for.
func requested(specs []spec.Requirement) (list []string) {
	for _, s := range specs {
		list = append(list, s.String())
	}
	slices.Sort(list)
	return list
}

func since(start time.Time) time.Duration { return time.Since(start).Round(time.Millisecond) }

// The same lock, built once more in another place, is the same layer.
func TestRealBaseIsBuiltEqual(t *testing.T) {
	if !pyenvtest.Soak() {
		t.Skip("SKIP a second build of the whole base layer is for make soak; TestCase03 of the store compares small ones")
	}
	w := newWorld(t)
	b := w.real(t)
	other, err := store.Open(filepath.Join(t.TempDir(), "other"))
	must(t, err)
	defer other.Close()
	first, err := store.Open(w.root)
	must(t, err)
	defer first.Close()
	for _, p := range b.lock.Packages {
		f, err := first.OpenWheel(p.SHA256)
		must(t, err)
		must(t, errors.Join(other.AddWheel(t.Context(), f, p.SHA256, p.Size), f.Close()))
	}
	layer, err := other.Build(t.Context(), store.Build{Lock: b.lock, Python: w.py, Box: w.box})
	must(t, err)
	if layer.ID != b.layer.ID || layer.Manifest.Digest != b.layer.Manifest.Digest {
		for i, f := range layer.Manifest.Files {
			if i < len(b.layer.Manifest.Files) && f != b.layer.Manifest.Files[i] {
				t.Errorf("%v, before %v", f, b.layer.Manifest.Files[i])
			}
		}
		t.Error("the two builds differ")
	}
	if faults, err := other.Verify(t.Context(), layer); err != nil || len(faults) > 0 {
		t.Errorf("it differs from its manifest: %v, %v", faults, err)
	}
}

// BenchmarkImportNumpy measures `import numpy` from a layer against the same files
// in the site-packages of an interpreter.
func BenchmarkImportNumpy(b *testing.B) {
	w := newWorld(b)
	l := w.real(b).layer
	other := b.TempDir()
	py, err := python.Make(b.Context(), other, python.Options{}, w.box)
	must(b, err)
	site := filepath.Join(py.Dir, strings.TrimPrefix(py.Facts.SitePackages, python.Prefix))
	out, err := exec.Command("cp", "-r", filepath.Join(l.Dir, "site-packages")+"/.", site).CombinedOutput()
	if err != nil {
		b.Fatal(err, string(out))
	}
	run := w.plan(b, Set{Layers: []*store.Layer{l}}, python.Executable, "-c", "import numpy")
	plain := run
	plain.Binds = []sandboxrun.Bind{{Source: py.Dir, Target: python.Prefix}}
	x, y := w.inTurns(b, func() sandboxrun.Run { return run }, func() sandboxrun.Run { return plain })
	b.ReportMetric(ms(x), "ours-ms")
	b.ReportMetric(ms(y), "site-packages-ms")
	b.ReportMetric(float64(x)/float64(y), "site-packages-ratio")
	b.ReportMetric(1.1, "site-packages-goal")
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// inTurns runs both, each first as often as the other, and returns the tenth
// percentiles: what other work on the machine disturbs least.
func (w world) inTurns(b *testing.B, runs ...func() sandboxrun.Run) (x, y time.Duration) {
	b.Helper()
	var took [2][]time.Duration
	for n := 0; b.Loop(); n++ {
		for k := range runs {
			i := (n + k) % 2
			run := runs[i]()
			start := time.Now()
			if res := w.do(b, run); res.ExitCode != 0 {
				b.Fatalf("exit %d: %s", res.ExitCode, res.Stderr.Text)
			}
			took[i] = append(took[i], time.Since(start))
		}
	}
	tenth := func(d []time.Duration) time.Duration {
		slices.Sort(d)
		return d[len(d)/10]
	}
	return tenth(took[0]), tenth(took[1])
}
