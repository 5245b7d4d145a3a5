package pyenv

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
)

// theBase is the base layer as the index that pip is configured for has it, made once
// for all tests.
var theBase = sync.OnceValues(func() (*real, error) {
	box, err := theBox()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "base-")
	if err != nil {
		return nil, err
	}
	r := &real{}
	if r.Env, err = Open(Options{Root: filepath.Join(dir, "envs"), Box: box}); err != nil {
		return nil, err
	}
	if r.pip, _, err = resolve.ReadConfig(os.Environ(), os.Getenv("HOME")); err != nil {
		return nil, err
	}
	r.rep, err = r.Ensure(context.Background(), EnsureRequest{Pip: r.pip})
	return r, err
})

// real is a root with the base layer.
type real struct {
	*Env
	pip resolve.Config
	rep EnsureReport
}

// newReal skips a test when no index answers.
func newReal(t testing.TB) *real {
	t.Helper()
	newBox(t)
	r, err := theBase()
	if errors.Is(err, resolve.ErrIndexUnreachable) || errors.Is(err, resolve.ErrNotFound) {
		t.Skip("SKIP no package index answers: ", err)
	}
	if err != nil {
		t.Fatal(err, detailOf(err))
	}
	return r
}

// TestRealBase: the base is made by the lock that comes with the program, where there
// is one for this Python, and the second time nobody is asked.
func TestRealBase(t *testing.T) {
	r := newReal(t)
	t.Logf("%d packages, %.1f MB fetched, %s; notes %q", len(r.rep.Packages), float64(r.rep.FetchedBytes)/1e6, r.rep.Took.Round(time.Millisecond), r.rep.Notes)
	down := resolve.Config{IndexURL: "http://127.0.0.1:9/simple"}
	rep, err := r.Ensure(t.Context(), EnsureRequest{Pip: down})
	must(t, err)
	if rep.Built || rep.Fetched > 0 || rep.Base != r.rep.Base {
		t.Errorf("%+v", rep)
	}
	t.Logf("again: %s", rep.Took.Round(time.Millisecond))
	doc, err := r.Doctor(t.Context(), false)
	must(t, err)
	if len(doc.Problems) > 0 {
		t.Errorf("%q", doc.Problems)
	}
	t.Logf("notes of doctor: %q, font %s, resolver %s", doc.Notes, doc.CJKFont, doc.Resolver)
}

// TestRealLock: the base list of today's index is resolved, and a lock has all that is
// known of each file.
func TestRealLock(t *testing.T) {
	r := newReal(t)
	p := newPlace(t)
	p.base = r.base
	l, err := p.Lock(t.Context(), EnsureRequest{Pip: r.pip})
	if err != nil {
		t.Fatal(err, detailOf(err))
	}
	if len(l.Packages) < len(r.base) || l.Cutoff.IsZero() || l.Resolver == "" {
		t.Errorf("%+v", l)
	}
	for _, pkg := range l.Packages {
		if pkg.Size == 0 || pkg.Uploaded.IsZero() || pkg.Uploaded.After(l.Cutoff) {
			t.Errorf("incomplete, or too young: %+v", pkg)
		}
		t.Logf("%s %s, %d bytes of %s, %s", pkg.Name, pkg.Version, pkg.Size, pkg.Uploaded.Format(time.DateOnly), pkg.License)
	}
}

// imports are what the base is for.
const imports = "import docx, openpyxl, pptx, lxml, PIL, numpy, matplotlib, pypdf, reportlab, markdown, pdfplumber"

// TestCase04: everything of the base can be imported, with -I and -E too, and no
// bytecode is written or missing.
func TestCase04(t *testing.T) {
	r := newReal(t)
	for _, flags := range [][]string{{"-s"}, {"-I"}, {"-E"}} {
		res, _ := run(t, r.Env, append(append([]string{"python3"}, flags...), "-v", "-c", imports+"; print('ok')")...)
		if res.ExitCode != 0 || string(res.Stdout.Text) != "ok\n" {
			t.Errorf("%v: exit %d %s", flags, res.ExitCode, res.Stderr.Text)
		}
		if bytes.Contains(res.Stderr.Text, []byte("# wrote ")) {
			t.Errorf("%v: bytecode was written", flags)
		}
	}
	out := prints(t, r.Env, `import sys, numpy
names = [m for m in list(sys.modules.values()) if getattr(m, "__file__", None) and m.__file__.endswith(".py") and m.__file__.startswith("/opt/mcp/layers/") and not m.__cached__]
print(sys.executable, len(names))
try: open(numpy.__path__[0] + "/x", "w")
except OSError as e: print(e.errno)`)
	if out != "/opt/mcp/python/bin/python3 0\n30" {
		t.Errorf("printed %q", out)
	}
}

// makeDocuments makes one document of each kind, reads it back, and prints what it
// read.
const makeDocuments = `import io
import matplotlib.pyplot as plt
fig = plt.figure(); plt.plot([1, 3, 2]); fig.savefig("chart.png"); plt.close(fig)

import docx
d = docx.Document(); d.add_heading("Report", 1); d.add_paragraph("Grüße, 世界"); d.add_picture("chart.png"); d.add_table(2, 2).cell(0, 0).text = "cell"
d.save("r.docx")
d = docx.Document("r.docx"); print(d.paragraphs[1].text, d.tables[0].cell(0, 0).text, len(d.inline_shapes))

import openpyxl
from openpyxl.chart import BarChart, Reference
w = openpyxl.Workbook(); s = w.active; s["A1"] = 41.5; s["A2"] = "=A1+0.5"; w.create_sheet("Ümlaut")["B2"] = "x"
c = BarChart(); c.add_data(Reference(s, min_col=1, min_row=1, max_row=2)); s.add_chart(c, "D1"); w.save("t.xlsx")
w = openpyxl.load_workbook("t.xlsx"); print(w.sheetnames, w.active["A1"].value, w.active["A2"].value)

import pptx
from pptx.util import Inches
p = pptx.Presentation(); l = p.slides.add_slide(p.slide_layouts[0]); l.shapes.title.text = "Title"
p.slides.add_slide(p.slide_layouts[6]).shapes.add_picture("chart.png", Inches(1), Inches(1)); p.save("s.pptx")
p = pptx.Presentation("s.pptx"); print(len(p.slides), p.slides[0].shapes.title.text)

from reportlab.pdfgen.canvas import Canvas
c = Canvas("p.pdf")
for n in range(3): c.drawString(100, 700, f"page {n + 1}"); c.drawImage("chart.png", 100, 300, 200, 150); c.showPage()
c.save()
import pypdf, pdfplumber
print(len(pypdf.PdfReader("p.pdf").pages), pypdf.PdfReader("p.pdf").pages[1].extract_text().strip(), pdfplumber.open("p.pdf").pages[2].extract_text().strip())
import markdown; print(markdown.markdown("**b**"))
import lxml.etree, PIL.Image; print(PIL.Image.open("chart.png").size, lxml.etree.fromstring("<a/>").tag)
`

// TestRealDocuments: documents that a script makes are what their formats say, as far
// as it can be seen without the programs that made them.
func TestRealDocuments(t *testing.T) {
	r := newReal(t)
	res, files := run(t, r.Env, "python3", "-s", "-c", makeDocuments)
	if res.ExitCode != 0 {
		t.Fatalf("%s", res.Stderr.Text)
	}
	want := "Grüße, 世界 cell 1\n['Sheet', 'Ümlaut'] 41.5 =A1+0.5\n2 Title\n3 page 2 page 3\n<p><strong>b</strong></p>\n(640, 480) a\n"
	if string(res.Stdout.Text) != want {
		t.Errorf("printed %s, want %s", res.Stdout.Text, want)
	}
	for name, part := range map[string]string{
		"r.docx": "word/document.xml application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml",
		"t.xlsx": "xl/workbook.xml application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml",
		"s.pptx": "ppt/presentation.xml application/vnd.openxmlformats-officedocument.presentationml.presentation.main+xml",
	} {
		main, kind, _ := strings.Cut(part, " ")
		n, err := checkOffice(files[name], main, kind)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%s: %d bytes, %d relationships", name, len(files[name]), n)
	}
	if err := checkPDF(files["p.pdf"], 3); err != nil {
		t.Errorf("p.pdf: %v", err)
	}
	if _, err := checkOffice(files["p.pdf"], "x", "x"); err == nil {
		t.Error("a PDF is no package")
	}
	if err := checkPDF(files["p.pdf"][:len(files["p.pdf"])-400], 3); err == nil {
		t.Error("a PDF without its end is none")
	}
}

// office is a package of ISO/IEC 29500-2.
type office struct {
	parts map[string][]byte
	types struct {
		Default []struct {
			Extension   string `xml:",attr"`
			ContentType string `xml:",attr"`
		}
		Override []struct {
			PartName    string `xml:",attr"`
			ContentType string `xml:",attr"`
		}
	}
}

// checkOffice checks a package: every part has a content type, all XML can be read, and
// every relationship leads to a part. main is the one that the package is about.
func checkOffice(b []byte, main, kind string) (relationships int, err error) {
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return 0, err
	}
	o := office{parts: map[string][]byte{}}
	for _, f := range z.File {
		if _, double := o.parts[f.Name]; double || !filepath.IsLocal(f.Name) {
			return 0, fmt.Errorf("the entry %q", f.Name)
		}
		r, err := f.Open()
		if err != nil {
			return 0, err
		}
		if o.parts[f.Name], err = io.ReadAll(r); err != nil { // which checks the CRC
			return 0, err
		}
	}
	if err := xml.Unmarshal(o.parts["[Content_Types].xml"], &o.types); err != nil {
		return 0, fmt.Errorf("[Content_Types].xml: %w", err)
	}
	if got := o.typeOf(main); got != kind {
		return 0, fmt.Errorf("%s is of the type %q", main, got)
	}
	for name, body := range o.parts {
		if name == "[Content_Types].xml" || strings.HasSuffix(name, "/") {
			continue
		}
		if o.typeOf(name) == "" {
			return 0, fmt.Errorf("%s has no content type", name)
		}
		if strings.HasSuffix(name, ".xml") || strings.HasSuffix(name, ".rels") {
			if err := wellFormed(body); err != nil {
				return 0, fmt.Errorf("%s: %w", name, err)
			}
		}
		n, err := o.related(name, body)
		if err != nil {
			return 0, err
		}
		relationships += n
	}
	for _, t := range o.types.Override {
		if o.parts[strings.TrimPrefix(t.PartName, "/")] == nil {
			return 0, fmt.Errorf("a type for %s, which is not there", t.PartName)
		}
	}
	if relationships == 0 {
		return 0, errors.New("it has no relationships")
	}
	return relationships, nil
}

func (o office) typeOf(part string) string {
	for _, t := range o.types.Override {
		if strings.EqualFold(t.PartName, "/"+part) {
			return t.ContentType
		}
	}
	for _, t := range o.types.Default {
		if strings.EqualFold("."+t.Extension, path.Ext(part)) {
			return t.ContentType
		}
	}
	return ""
}

// related follows the relationships of a .rels part.
func (o office) related(name string, body []byte) (n int, err error) {
	if path.Ext(name) != ".rels" {
		return 0, nil
	}
	var rels struct {
		Relationship []struct {
			Id         string `xml:",attr"`
			Type       string `xml:",attr"`
			Target     string `xml:",attr"`
			TargetMode string `xml:",attr"`
		} `xml:"Relationship"`
	}
	if err := xml.Unmarshal(body, &rels); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	source := path.Dir(path.Dir(name)) // "word/_rels/document.xml.rels" is of word/document.xml
	ids := map[string]bool{}
	for _, r := range rels.Relationship {
		target := strings.TrimPrefix(r.Target, "/")
		if target == r.Target {
			target = path.Join(source, r.Target)
		}
		switch {
		case r.Id == "" || ids[r.Id] || r.Type == "":
			return 0, fmt.Errorf("%s: the relationship %q", name, r.Id)
		case r.TargetMode != "External" && o.parts[target] == nil:
			return 0, fmt.Errorf("%s leads to %s, which is not there", name, target)
		}
		ids[r.Id] = true
		n++
	}
	return n, nil
}

func wellFormed(b []byte) error {
	d := xml.NewDecoder(bytes.NewReader(b))
	for {
		if _, err := d.Token(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

var (
	pdfEnd     = regexp.MustCompile(`startxref\s+(\d+)\s+%%EOF\s*$`)
	pdfXref    = regexp.MustCompile(`^xref\s+0 (\d+)\s+`)
	pdfEntry   = regexp.MustCompile(`^(\d{10}) \d{5} ([nf])\s?\s?$`)
	pdfPages   = regexp.MustCompile(`/Type\s*/Page[^s]`)
	pdfCounted = regexp.MustCompile(`/Count (\d+)`)
)

// checkPDF checks a file of ISO 32000-1 §7.5 with a table of cross-references: its
// header, that every entry of the table leads to its object, and the number of pages.
func checkPDF(b []byte, pages int) error {
	end := pdfEnd.FindSubmatch(b)
	if !bytes.HasPrefix(b, []byte("%PDF-1.")) || end == nil {
		return errors.New("it does not begin or end as a PDF does")
	}
	at, _ := strconv.Atoi(string(end[1]))
	if at >= len(b) {
		return fmt.Errorf("startxref %d is behind its end", at)
	}
	head := pdfXref.FindSubmatch(b[at:])
	if head == nil {
		return fmt.Errorf("at %d is no table", at)
	}
	n, _ := strconv.Atoi(string(head[1]))
	table := b[at+len(head[0]):]
	for i := range n {
		if len(table) < 20*(i+1) {
			return errors.New("the table is cut off")
		}
		e := pdfEntry.FindSubmatch(bytes.TrimRight(table[20*i:20*i+20], "\r\n"))
		if e == nil {
			return fmt.Errorf("entry %d of the table is %q", i, table[20*i:20*i+20])
		}
		offset, _ := strconv.Atoi(string(e[1]))
		if string(e[2]) == "n" && (offset >= len(b) || !bytes.HasPrefix(b[offset:], fmt.Appendf(nil, "%d 0 obj", i))) {
			return fmt.Errorf("object %d is not at %d", i, offset)
		}
	}
	count := pdfCounted.FindSubmatch(b)
	if got := len(pdfPages.FindAll(b, -1)); got != pages || count == nil || string(count[1]) != strconv.Itoa(pages) {
		return fmt.Errorf("it has %d pages and counts %q", got, count)
	}
	return nil
}

// TestRealFontCache: no chart of a session builds a font cache, neither the first nor
// the second.
func TestRealFontCache(t *testing.T) {
	r := newReal(t)
	const chart = `import time; start = time.perf_counter()
import logging; logging.basicConfig(level=logging.DEBUG)
import matplotlib.font_manager, matplotlib.pyplot as plt, os
plt.plot([1, 2]); plt.title("Chart"); plt.savefig("c.png")
print(sorted(f for f in os.listdir(os.environ["MPLCONFIGDIR"]) if not f.endswith(".matplotlib-lock")), "%.2f" % (time.perf_counter() - start))`
	for i := range 2 {
		res, files := run(t, r.Env, "python3", "-s", "-c", chart)
		if res.ExitCode != 0 || len(files["c.png"]) < 1000 {
			t.Fatalf("%s", res.Stderr.Text)
		}
		said := string(res.Stderr.Text)
		if strings.Contains(said, "generated new fontManager") || !strings.Contains(said, "Using fontManager instance from /tmp/mpl/fontlist-") {
			t.Errorf("chart %d: %s", i+1, said)
		}
		t.Logf("chart %d: %s", i+1, res.Stdout.Text)
	}
}

// TestRealImport: a package of the operator's over the base, for which nobody is asked.
func TestRealImport(t *testing.T) {
	r := newReal(t)
	house := wheeltest.Wheel{Name: "housestyle", Requires: []string{"python-docx>=1"}, Files: []wheeltest.File{
		{Name: "housestyle/__init__.py"},
		{Name: "housestyle/build.py", Body: "import docx, sys\nd = docx.Document(); d.add_paragraph('in our style'); d.save(sys.argv[1])\n"},
	}}
	_, err := r.Import(t.Context(), house.FileName(), bytes.NewReader(house.Bytes()), true)
	must(t, err)
	rep, err := r.Ensure(t.Context(), EnsureRequest{Pip: resolve.Config{IndexURL: "http://127.0.0.1:9/simple"}})
	if err != nil {
		t.Fatal(err, detailOf(err))
	}
	if rep.Base == r.rep.Base || len(rep.Packages) != len(r.rep.Packages)+1 || rep.Fetched > 0 {
		t.Errorf("%+v", rep)
	}
	res, files := run(t, r.Env, "python3", "-m", "housestyle.build", "out.docx")
	if res.ExitCode != 0 {
		t.Fatalf("%s", res.Stderr.Text)
	}
	if _, err := checkOffice(files["out.docx"], "word/document.xml", "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"); err != nil {
		t.Error(err)
	}
	t.Logf("a base from a full wheelhouse: %s", rep.Took.Round(time.Millisecond))
}

// TestRealTwoVersions: two workspaces have two versions of one package of the index, a
// third has neither; the base stays as it is. A fourth that asks for the same as the first
// needs neither a resolver nor a download.
func TestRealTwoVersions(t *testing.T) {
	r := newReal(t)
	db, err := badger.Open(badger.DefaultOptions("").WithInMemory(true).WithLogger(nil))
	must(t, err)
	defer db.Close()
	q, err := queue.Open(db, queue.Options{})
	must(t, err)
	e, err := Open(Options{Root: r.o.Root, Box: r.o.Box, Queue: q})
	must(t, err)
	defer e.Close()
	ask := func(ws, what string, pip resolve.Config) queue.Request {
		t.Helper()
		got, err := e.Request(t.Context(), Ask{Workspace: ws, Packages: []string{what}, Pip: &pip})
		must(t, err)
		got, err = e.Wait(t.Context(), ws, got.ID, false)
		must(t, err)
		if got.State == queue.PendingApproval && slices.Equal(rules(got), []string{policy.SeveralIndexes}) { // as pip of this host has it
			_, err = e.Decide(t.Context(), got.ID, Ruling{Approve: true, Lock: got.Lock, By: "operator"})
			must(t, err)
			got, err = e.Wait(t.Context(), ws, got.ID, false)
			must(t, err)
		}
		if got.State != queue.Ready {
			t.Fatalf("%s: %s %+v %+v", what, got.State, got.Failure, got.Findings)
		}
		return got
	}
	was, err := e.Status(t.Context(), "")
	must(t, err)
	first := ask(wsA, "tabulate==0.8.10", r.pip)
	ask(wsB, "tabulate==0.9.0", r.pip)
	const see = "import importlib.util as u, importlib.metadata as m; print(m.version('tabulate') if u.find_spec('tabulate') else 'none')"
	p := &place{Env: e, t: t}
	check := func(ws, want string) {
		t.Helper()
		s, release, err := e.Setup(t.Context(), ws)
		must(t, err)
		defer release()
		if got := p.runSetup(s, see); got != want || s.Base != was.Base {
			t.Errorf("%s sees %s, want %s; base %s, was %s", ws, got, want, s.Base, was.Base)
		}
	}
	check(wsA, "0.8.10")
	check(wsB, "0.9.0")
	check(wsC, "none")
	start := time.Now()
	again := ask(workspace(4), "Tabulate==0.8.10", r.pip)
	took := time.Since(start)
	if again.Layer != first.Layer {
		t.Errorf("%+v", again)
	}
	check(workspace(4), "0.8.10")
	t.Logf("known: ready in %s", took)
	start = time.Now()
	big := ask(wsA, "pandas", r.pip)
	t.Logf("pandas on request: %s, notes %q", time.Since(start).Round(time.Millisecond), big.Notes)
	s, release, err := e.Setup(t.Context(), wsA)
	must(t, err)
	defer release()
	t.Logf("pandas %s", p.runSetup(s, "import pandas, tabulate; print(pandas.DataFrame({'a': [1, 2]}).a.sum(), pandas.__version__)"))
}
