package wheel_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/tags"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
)

// baseLayer is what the base layer is asked for.
var baseLayer = strings.Fields("python-docx openpyxl python-pptx lxml Pillow numpy matplotlib pypdf reportlab markdown pdfplumber")

// TestRealWheels: every wheel of the base layer, as an index has it today, passes
// every rule and unpacks to what its RECORD says. The index is the one that pip
// is configured for; without an answer from it the test is skipped.
func TestRealWheels(t *testing.T) {
	if os.Getenv("MCP_VDISK_SOAK") != "1" {
		t.Skip("SKIP it would download 70 MB once more: TestRealBase of pyenv unpacks the same wheels; this is for make soak")
	}
	list := downloadBase(t)
	if len(list) < len(baseLayer) {
		t.Fatalf("only %d wheels", len(list))
	}
	var files int
	var bytes int64
	var took time.Duration
	l := newLayer(t)
	for _, path := range list {
		start := time.Now()
		w, m := unpackReal(t, l, path)
		took += time.Since(start)
		if w == nil {
			continue
		}
		files, bytes = files+len(m.Files), bytes+w.Size
		checkInstalled(t, l.dir, w, m)
	}
	t.Logf("%d wheels, %d files, %d MB, opened and unpacked in %s", len(list), files, bytes>>20, took.Round(time.Millisecond))
}

// downloadBase fetches the wheels without running anything of theirs.
func downloadBase(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	args := []string{"-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check", "--retries", "1", "--only-binary", ":all:", "--dest", dir}
	out, err := exec.CommandContext(ctx, "/usr/bin/python3", append(args, baseLayer...)...).CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		t.Skipf("SKIP no package index answers pip: %v: %s", err, lines[len(lines)-1])
	}
	list, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// unpackReal opens a wheel for the Python that downloaded it and unpacks it; nil
// when that failed.
func unpackReal(t *testing.T, l layer, path string) (*wheel.Wheel, *wheel.Manifest) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	w, err := wheel.Open(f, st.Size(), filepath.Base(path), wheel.Options{})
	if err != nil {
		t.Errorf("%s: %v", filepath.Base(path), err)
		return nil, nil
	}
	if len(w.Startup) > 0 {
		t.Errorf("%s runs code at every start: %v", w.File.FileName, w.Startup)
	}
	if _, ok := (tags.Target{Minor: 11, Arch: "x86_64", LibcMajor: 2, LibcMinor: 99}).Fits(w.File); !ok && strings.Contains(w.File.FileName, "cp311") && strings.Contains(w.File.FileName, "manylinux") && strings.Contains(w.File.FileName, "x86_64") {
		t.Errorf("%s does not fit CPython 3.11", w.File.FileName)
	}
	m, err := w.Unpack(t.Context(), l.root)
	if err != nil {
		t.Errorf("%s: %v", w.File.FileName, err)
		return nil, nil
	}
	return w, m
}

// checkInstalled reads the RECORD that Unpack wrote, and every file that it lists.
func checkInstalled(t *testing.T, dir string, w *wheel.Wheel, m *wheel.Manifest) {
	t.Helper()
	var record string
	for _, f := range m.Files {
		if strings.HasSuffix(f.Path, ".dist-info/RECORD") {
			record = f.Path
		}
	}
	in, err := os.Open(filepath.Join(dir, record))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	rows, err := csv.NewReader(in).ReadAll()
	if err != nil || len(rows) != len(m.Files) {
		t.Fatalf("%s: %d rows for %d files, %v", w.File.FileName, len(rows), len(m.Files), err)
	}
	for _, row := range rows {
		b, err := os.ReadFile(filepath.Join(dir, wheel.SitePackages, row[0]))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(b)
		if row[1] != "" && (row[1] != "sha256="+base64.RawURLEncoding.EncodeToString(sum[:]) || row[2] != fmt.Sprint(len(b))) {
			t.Errorf("%s: %s is not what RECORD says", w.File.FileName, row[0])
		}
	}
}
