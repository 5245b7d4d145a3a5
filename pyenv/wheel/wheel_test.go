package wheel_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
)

func TestCase17And18DirectURL(t *testing.T) {
	for _, line := range []string{
		"evil @ http://127.0.0.1/evil.tar.gz", "evil@https://example.org/e.whl", "evil[x] @ file:///tmp/e.whl", `evil @ git+https://example.org/e ; extra == "dev"`,
		"evil @http://example.org/e.whl ; bogus == 'x'", "@ http://example.org/e.whl",
	} {
		wantCode(t, line, wheeltest.Wheel{Requires: []string{"numpy>=1", line}}, wheel.ErrDirectURL)
		text := "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\nRequires-Dist: " + line + "\n"
		if _, err := wheel.ParseMetadata([]byte(text)); !errors.Is(err, wheel.ErrDirectURL) {
			t.Errorf("metadata of an index with %q: %v", line, err)
		}
	}
	// What one reader takes for a line of text, another must not take for a header.
	for name, sep := range map[string]string{"CR": "\r", "CR LF": "\r\n", "LF": "\n"} {
		w := wheeltest.Wheel{Metadata: "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\nSummary: x" + sep + "Requires-Dist: evil @ http://example.org/e.tar.gz\n\n"}
		wantCode(t, "behind "+name, w, wheel.ErrDirectURL)
	}
}

func TestCase20HashMismatch(t *testing.T) {
	b := wheeltest.Wheel{}.Bytes()
	sum := sha256.Sum256(b)
	want := hex.EncodeToString(sum[:])
	if err := wheel.CheckSHA256(bytes.NewReader(b), int64(len(b)), want); err != nil {
		t.Error(err)
	}
	for i := range b {
		other := bytes.Clone(b)
		other[i] ^= 1
		if err := wheel.CheckSHA256(bytes.NewReader(other), int64(len(b)), want); !errors.Is(err, wheel.ErrHashMismatch) {
			t.Fatalf("byte %d is another: %v", i, err)
		}
	}
	for _, bad := range []string{"", "x", want[:63], strings.ToUpper(want)} {
		if err := wheel.CheckSHA256(bytes.NewReader(b), int64(len(b)), bad); !errors.Is(err, wheel.ErrHashMismatch) {
			t.Errorf("hash %q: %v", bad, err)
		}
	}
}

func TestCase21RECORD(t *testing.T) {
	row := func(change func(row []string)) func([][]string) [][]string {
		return func(rows [][]string) [][]string { change(rows[0]); return rows }
	}
	other := wheeltest.Digest("other")
	for name, c := range map[string]struct {
		record func([][]string) [][]string
		want   wheel.Code
	}{
		"missing row":      {func(rows [][]string) [][]string { return rows[1:] }, wheel.ErrRecordMissing},
		"only itself":      {func(rows [][]string) [][]string { return rows[len(rows)-1:] }, wheel.ErrRecordMissing},
		"empty":            {func([][]string) [][]string { return [][]string{} }, wheel.ErrRecordMissing},
		"extra row":        {func(rows [][]string) [][]string { return append(rows, []string{"x.py", "sha256=" + other, "5"}) }, wheel.ErrRecordExtra},
		"path of the host": {func(rows [][]string) [][]string { return append(rows, []string{"/etc/passwd", "", ""}) }, wheel.ErrRecordExtra},
		"other spelling":   {row(func(r []string) { r[0] = "./demo/__init__.py" }), wheel.ErrRecordExtra},
		"wrong hash":       {row(func(r []string) { r[1] = "sha256=" + other }), wheel.ErrRecordMismatch},
		"wrong size":       {row(func(r []string) { r[2] = "13" }), wheel.ErrRecordMismatch},
		"md5":              {row(func(r []string) { r[1] = "md5=XUFAKrxLKna5cZ2REBfFkg" }), wheel.ErrRecordWeak},
		"sha1":             {row(func(r []string) { r[1] = "sha1=qvTGHdzF6KLavt4PO0gs2a6pQ00" }), wheel.ErrRecordWeak},
		"no hash":          {row(func(r []string) { r[1] = "" }), wheel.ErrRecordWeak},
		"not base64":       {row(func(r []string) { r[1] = "sha256=" + strings.Repeat("*", 43) }), wheel.ErrRecordInvalid},
		"short hash":       {row(func(r []string) { r[1] = "sha256=" + other[:42] }), wheel.ErrRecordInvalid},
		"no size":          {row(func(r []string) { r[2] = "" }), wheel.ErrRecordInvalid},
		"twice":            {func(rows [][]string) [][]string { return append(rows, rows[0]) }, wheel.ErrRecordInvalid},
		"two columns":      {func(rows [][]string) [][]string { rows[0] = rows[0][:2]; return rows }, wheel.ErrRecordInvalid},
		"no RECORD":        {func([][]string) [][]string { return nil }, wheel.ErrRecordAbsent},
	} {
		wantCode(t, name, wheeltest.Wheel{Record: c.record}, c.want)
	}
	wantCode(t, "hash of a file that is dropped", wheeltest.Wheel{
		Files:  []wheeltest.File{{Name: "__pycache__/x.cpython-312.pyc", Body: "x"}},
		Record: row(func(r []string) { r[1] = "sha256=" + other }),
	}, wheel.ErrRecordMismatch)

	body := "answer = 42\n"
	s384, s512 := sha512.Sum384([]byte(body)), sha512.Sum512([]byte(body))
	for name, digest := range map[string]string{
		"sha384": "sha384=" + base64.RawURLEncoding.EncodeToString(s384[:]), "sha512": "sha512=" + base64.RawURLEncoding.EncodeToString(s512[:]),
	} {
		if _, err := newLayer(t).unpack(t, wheeltest.Wheel{Record: row(func(r []string) { r[1] = digest })}, wheel.Options{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	signed := with(wheeltest.File{Name: "demo-1.0.dist-info/RECORD.jws", Body: "{}"})
	signed.Record = func(rows [][]string) [][]string {
		return slices.DeleteFunc(rows, func(r []string) bool { return strings.HasSuffix(r[0], ".jws") })
	}
	if _, err := newLayer(t).unpack(t, signed, wheel.Options{}); err != nil {
		t.Errorf("signed: %v", err)
	}
}

func TestVerifyFindsWhatUnpackFinds(t *testing.T) {
	w := mustOpen(t, wheeltest.Wheel{}, wheel.Options{})
	if err := w.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	bad := mustOpen(t, wheeltest.Wheel{Record: func(rows [][]string) [][]string {
		rows[0][1] = "sha256=" + wheeltest.Digest("other")
		return rows
	}}, wheel.Options{})
	if err := bad.Verify(t.Context()); !errors.Is(err, wheel.ErrRecordMismatch) {
		t.Errorf("got %v", err)
	}
}

func TestCase27WheelMetadata(t *testing.T) {
	meta := func(lines ...string) string { return strings.Join(lines, "\n") + "\n" }
	good := []string{"Metadata-Version: 2.1", "Name: demo", "Version: 1.0"}
	second := with(wheeltest.File{Name: "other-1.0.dist-info/METADATA", Body: "x"})
	for name, w := range map[string]wheeltest.Wheel{
		"version 1.1":              {Metadata: meta("Metadata-Version: 2.1", "Name: demo", "Version: 1.1")},
		"another name":             {Metadata: meta("Metadata-Version: 2.1", "Name: other", "Version: 1.0")},
		"name twice":               {Metadata: meta(append(good, "Name: demo")...)},
		"no name":                  {Metadata: meta("Metadata-Version: 2.1", "Version: 1.0")},
		"no version":               {Metadata: meta("Metadata-Version: 2.1", "Name: demo")},
		"format 3":                 {Metadata: meta("Metadata-Version: 3.0", "Name: demo", "Version: 1.0")},
		"no format":                {Metadata: meta("Name: demo", "Version: 1.0")},
		"empty":                    {Metadata: "\n"},
		"no header":                {Metadata: meta(append(good, "hello")...)},
		"blank in name":            {Metadata: meta(append(good, "Requires-Dist : x")...)},
		"begins with continuation": {Metadata: " x\n" + meta(good...)},
		"folded requirement":       {Metadata: meta(append(good, "Requires-Dist: a", " @ http://example.org/e.whl")...)},
		"bad requirement":          {Metadata: meta(append(good, "Requires-Dist: a b c")...)},
		"bad python":               {Metadata: meta(append(good, "Requires-Python: >=3.x")...)},
		"binary":                   {Metadata: "\x7fELF\x00\x00\xff"},
		"wheel 2.0":                {Wheel: "Wheel-Version: 2.0\n"},
		"no wheel version":         {Wheel: "Generator: x\n"},
		"wheel version twice":      {Wheel: "Wheel-Version: 1.0\nWheel-Version: 1.0\n"},
		"two dist-info":            second,
		"two, one in upper case":   with(wheeltest.File{Name: "x.DIST-INFO/METADATA", Body: "x"}),
		"dist-info in purelib":     with(wheeltest.File{Name: "demo-1.0.data/purelib/numpy-9.dist-info/METADATA", Body: "x"}),
		"data key":                 with(wheeltest.File{Name: "demo-1.0.data/etc/passwd", Body: "x"}),
		"data without key":         with(wheeltest.File{Name: "demo-1.0.data/x", Body: "x"}),
		"data of another":          with(wheeltest.File{Name: "other-1.0.data/scripts/x", Body: "x"}),
		"huge metadata":            {Metadata: meta(good...) + "\n" + strings.Repeat("x", 5<<20)},
	} {
		if name == "huge metadata" {
			w.Metadata = meta(good...) + "\n" + noise(5<<20)
		}
		wantCode(t, name, w, wheel.ErrWheelMetadata)
	}
	b := wheeltest.Wheel{}.Bytes()
	for _, name := range []string{"other-1.0-py3-none-any.whl", "demo-1.1-py3-none-any.whl", "demo.whl", "../demo-1.0-py3-none-any.whl"} {
		if _, err := wheel.Open(bytes.NewReader(b), int64(len(b)), name, wheel.Options{}); !errors.Is(err, wheel.ErrWheelMetadata) {
			t.Errorf("as %s: %v", name, err)
		}
	}
	for _, name := range []string{"Demo-1.0.0-py3-none-any.whl", "demo-1-1build-py2.py3-none-any.whl"} {
		if _, err := wheel.Open(bytes.NewReader(b), int64(len(b)), name, wheel.Options{}); err != nil {
			t.Errorf("as %s: %v", name, err)
		}
	}
}

func TestMetadata(t *testing.T) {
	m, err := wheel.ParseMetadata([]byte("Metadata-Version: 2.4\r\nName: Zope.Interface\r\nVersion: 1.0.RC1\r\nSummary: short\r\nLicense-Expression: MIT\r\nRequires-Python: >=3.9,<4\r\n" +
		"Requires-Dist: A_b[X]>=1 ; extra == 'T' and python_version < '3.12'\r\nRequires-Dist: c (>=2)\r\nProvides-Extra: T_x\r\nDescription: one\r\n        two\r\n\r\nName: no header\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	if m.Name != "Zope.Interface" || m.Version.String() != "1.0rc1" || m.License != "MIT" || m.Summary != "short" || m.RequiresPython.String() != "<4,>=3.9" || !slices.Equal(m.Extras, []string{"t-x"}) {
		t.Errorf("got %+v", m)
	}
	if len(m.Requires) != 2 || m.Requires[0].String() != "a-b[x]>=1" || m.Requires[0].Marker.IsZero() || m.Requires[1].String() != "c>=2" {
		t.Errorf("requires %+v", m.Requires)
	}
}

func TestCase28ShippedBytecode(t *testing.T) {
	w := mustOpen(t, with(
		wheeltest.File{Name: "demo/__pycache__/__init__.cpython-312.pyc", Body: "evil"},
		wheeltest.File{Name: "demo-1.0.data/purelib/__pycache__/x.pyc", Body: "evil"},
		wheeltest.File{Name: "demo/plain.pyc", Body: "a module without source"},
		wheeltest.File{Name: "demo/beside.py", Body: "x"}, wheeltest.File{Name: "demo/beside.pyc", Body: "y"},
	), wheel.Options{})
	l := newLayer(t)
	m, err := w.Unpack(t.Context(), l.root)
	if err != nil {
		t.Fatal(err)
	}
	for path := range l.tree(t) {
		if strings.Contains(path, "__pycache__") {
			t.Errorf("%s was unpacked", path)
		}
	}
	for _, f := range m.Files {
		if strings.Contains(f.Path, "__pycache__") {
			t.Errorf("%s is in the manifest", f.Path)
		}
	}
	if !slices.Equal(w.Sourceless, []string{"demo/plain.pyc"}) {
		t.Errorf("without source: %v", w.Sourceless)
	}
}

func TestCase29StdlibShadow(t *testing.T) {
	for _, name := range []string{
		"json.py", "json/__init__.py", "json/x.txt", "sitecustomize.py", "usercustomize/__init__.py", "pip/__main__.py", "ensurepip.py", "os.pyc", "json.abi3.so",
		"_socket.cpython-312-x86_64-linux-gnu.so", "demo-1.0.data/purelib/json.py", "demo-1.0.data/platlib/asyncio/x.py",
	} {
		wantCode(t, name, with(wheeltest.File{Name: name, Body: "x"}), wheel.ErrStdlibShadow)
	}
	for _, name := range []string{"demo/json.py", "json.txt", "json_x.py", "demo-1.0.data/data/json.py", "demo-1.0.data/scripts/json.py", "numpy.libs/x.so.1", "yaml/__init__.py"} {
		if _, err := open(with(wheeltest.File{Name: name, Body: "x"}), wheel.Options{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := open(with(wheeltest.File{Name: "cgi.py", Body: "x"}), wheel.Options{Stdlib: []string{"os"}}); err != nil {
		t.Errorf("a module that the target no longer has: %v", err)
	}
}

func TestCase32Pth(t *testing.T) {
	pth := func(text string) wheeltest.Wheel { return with(wheeltest.File{Name: "demo.pth", Body: text}) }
	for _, text := range []string{"../x\n", "a/../../x\n", "/etc\n", "..\n", "a\\..\\x\n", "C:/x\n", "ok\n../x", "\xff\n", "a\x00b\n", "\ufeff../x\n", "ok\f../x\n", strings.Repeat("x", 70_000)} {
		wantCode(t, fmt.Sprintf("%.20q", text), pth(text), wheel.ErrPthPath)
	}
	for text, want := range map[string][2][]string{
		"lib\n# comment\n\n./more/x/../y \n": {{"lib", "more/y"}, nil},
		"import os; os.system('x')\nlib\n":   {{"lib"}, {"import os; os.system('x')"}},
		"import\tos\r\nx\r":                  {{"x"}, {"import\tos"}},
		"  import os\n":                      {nil, {"import os"}},
		"lib\fimport os\n":                   {{"lib"}, {"import os"}},
		"lib\u2028import os\n":               {{"lib"}, {"import os"}},
		"\ufeffimport os\n":                  {nil, {"import os"}},
		"important\n.\n":                     {{"important", "."}, nil},
	} {
		l := newLayer(t)
		w := mustOpen(t, pth(text), wheel.Options{})
		if _, err := w.Unpack(t.Context(), l.root); err != nil {
			t.Fatal(err)
		}
		var code []string
		for _, s := range w.Startup {
			if s.File != "demo.pth" {
				t.Errorf("%q: startup code of %s", text, s.File)
			}
			code = append(code, s.Lines...)
		}
		if !slices.Equal(w.PthPaths, want[0]) || !slices.Equal(code, want[1]) {
			t.Errorf("%q: paths %q, code %q", text, w.PthPaths, code)
		}
		for path := range l.tree(t) {
			if strings.HasSuffix(path, ".pth") {
				t.Errorf("%q: %s was unpacked", text, path)
			}
		}
	}
	elsewhere := mustOpen(t, with(
		wheeltest.File{Name: "demo/x.pth", Body: "import os\n"}, // no site module reads it there
		wheeltest.File{Name: "demo-1.0.data/purelib/y.pth", Body: "import y\n"}, wheeltest.File{Name: "z.start", Body: "z:main\n"},
	), wheel.Options{})
	if want := []wheel.Startup{{File: "demo-1.0.data/purelib/y.pth", Lines: []string{"import y"}}, {File: "z.start", Lines: []string{"z:main"}}}; !reflect.DeepEqual(elsewhere.Startup, want) {
		t.Errorf("startup is %+v", elsewhere.Startup)
	}
}

func TestCase33Scripts(t *testing.T) {
	entry := func(line string) wheeltest.Wheel {
		return wheeltest.Wheel{EntryPoints: "[console_scripts]\n" + line + "\n"}
	}
	for _, line := range []string{
		"../../x = m:main", "/x = m:main", ".. = m:main", ". = m:main", "-x = m:main", "a b = m:main", "x\x00 = m:main", " = m:main", "x", "x = m", "x = m:", "x = :main", "x = m:main()",
		"x = m:main;import os", "x = m main:y", "x = m:__import__('os')", "x = m:main\nx = m:other", "x = m\\n:main", "x = é:main", "[console_scripts", strings.Repeat("x", 200) + " = m:main",
	} {
		wantCode(t, fmt.Sprintf("%.40q", line), entry(line), wheel.ErrWheelMetadata)
		gui := entry(line)
		gui.EntryPoints = strings.Replace(gui.EntryPoints, "console", "gui", 1)
		wantCode(t, fmt.Sprintf("%.40q as gui", line), gui, wheel.ErrWheelMetadata)
	}
	wantCode(t, "script", with(wheeltest.File{Name: "demo-1.0.data/scripts/../x", Body: "x"}), wheel.ErrZipPath)

	w := with(
		wheeltest.File{Name: "demo-1.0.data/scripts/git", Body: "#!python\nprint(1)\n"}, wheeltest.File{Name: "demo-1.0.data/scripts/win", Body: "#!pythonw -E\r\nx"},
		wheeltest.File{Name: "demo-1.0.data/scripts/sh", Body: "#!/bin/sh\n"}, wheeltest.File{Name: "demo-1.0.data/scripts/like", Body: "#!python3\n"},
		wheeltest.File{Name: "demo-1.0.data/scripts/tiny", Body: "#!python"}, wheeltest.File{Name: "demo-1.0.data/scripts/empty", Body: ""},
		wheeltest.File{Name: "demo-1.0.data/data/share/demo.txt", Body: "d"}, wheeltest.File{Name: "demo-1.0.data/headers/demo.h", Body: "h"}, wheeltest.File{Name: "demo-1.0.data/platlib/more.py", Body: "p"},
	)
	w.EntryPoints = "# comment\n[console_scripts]\ncli = m.sub:main\nobj=m:app.run [extra]\n\n[other]\nanything goes = here\n[gui_scripts]\ngui = g:run\n"
	l := newLayer(t)
	opened := mustOpen(t, w, wheel.Options{})
	m, err := opened.Unpack(t.Context(), l.root)
	if err != nil {
		t.Fatal(err)
	}
	tree := l.tree(t)
	const python = "#!/opt/mcp/python/bin/python3"
	for path, want := range map[string]string{
		"bin/cli": "-r-xr-xr-x " + python + "\nimport sys\n\nfrom m.sub import main\n\nif __name__ == \"__main__\":\n    sys.exit(main())\n",
		"bin/obj": "-r-xr-xr-x " + python + "\nimport sys\n\nfrom m import app\n\nif __name__ == \"__main__\":\n    sys.exit(app.run())\n",
		"bin/git": "-r-xr-xr-x " + python + "\nprint(1)\n", "bin/win": "-r-xr-xr-x " + python + " -E\r\nx", "bin/sh": "-r-xr-xr-x #!/bin/sh\n", "bin/like": "-r-xr-xr-x #!python3\n",
		"bin/tiny": "-r-xr-xr-x " + python, "bin/empty": "-r-xr-xr-x ",
		"data/share/demo.txt": "-r--r--r-- d", "include/demo.h": "-r--r--r-- h", "site-packages/more.py": "-r--r--r-- p",
	} {
		if tree["layer/"+path] != want {
			t.Errorf("%s is %q, want %q", path, tree["layer/"+path], want)
		}
	}
	if tree["layer/bin/gui"] == "" || opened.Scripts[0].Name != "cli" || len(opened.Scripts) != 9 {
		t.Errorf("scripts: %v", opened.Scripts)
	}
	checkManifest(t, l, m)
}

// checkManifest compares a manifest with what lies on the disk, and RECORD with
// the manifest.
func checkManifest(t *testing.T, l layer, m *wheel.Manifest) {
	t.Helper()
	var found []wheel.Installed
	for path, text := range l.tree(t) {
		rel, ok := strings.CutPrefix(path, "layer/")
		mode, body, _ := strings.Cut(text, " ")
		if !ok || mode[0] == 'd' {
			continue
		}
		sum := sha256.Sum256([]byte(body))
		found = append(found, wheel.Installed{Path: rel, Exec: mode == "-r-xr-xr-x", Size: int64(len(body)), SHA256: hex.EncodeToString(sum[:])})
	}
	slices.SortFunc(found, func(a, b wheel.Installed) int { return strings.Compare(a.Path, b.Path) })
	if !reflect.DeepEqual(found, m.Files) {
		t.Errorf("on disk: %v\nmanifest: %v", found, m.Files)
	}
	record, err := os.ReadFile(filepath.Join(l.dir, "site-packages", "demo-1.0.dist-info", "RECORD"))
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(record), "\n"); lines != len(found) || !strings.Contains(string(record), "../bin/cli,sha256=") {
		t.Errorf("RECORD has %d lines for %d files:\n%s", lines, len(found), record)
	}
}

func TestSameWheelSameTree(t *testing.T) {
	w := with(wheeltest.File{Name: "demo/a/b.py", Body: "b"}, wheeltest.File{Name: "demo/a.py", Body: "a"}, wheeltest.File{Name: "z.py", Body: "z", Mode: 0o100755})
	w.EntryPoints = "[console_scripts]\ncli = demo:main\n"
	first, second := newLayer(t), newLayer(t)
	m1, err := first.unpack(t, w, wheel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m2, err := second.unpack(t, w, wheel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(m1, m2) || !maps.Equal(first.tree(t), second.tree(t)) {
		t.Errorf("%v\n%v", m1, m2)
	}
	shuffled := slices.Clone(m1.Files)
	slices.Reverse(shuffled)
	if wheel.Digest(shuffled) != wheel.Digest(m2.Files) {
		t.Error("the digest depends on the order")
	}
	shuffled[0].Exec = !shuffled[0].Exec
	if wheel.Digest(shuffled) == wheel.Digest(m2.Files) {
		t.Error("the digest does not depend on the mode")
	}
}

func TestTwoWheelsInOneLayer(t *testing.T) {
	l := newLayer(t)
	if _, err := l.unpack(t, with(), wheel.Options{}); err != nil {
		t.Fatal(err)
	}
	before := l.tree(t)
	other := wheeltest.Wheel{Name: "other", Files: []wheeltest.File{{Name: "ns/x.py", Body: "x"}, {Name: "demo/__init__.py", Body: "evil"}, {Name: "zz/y.py", Body: "y"}}}
	if _, err := l.unpack(t, other, wheel.Options{}); !errors.Is(err, wheel.ErrImportCollision) {
		t.Errorf("the same file: %v", err)
	}
	other.Files = []wheeltest.File{{Name: "a/x.py", Body: "x"}, {Name: "demo/__init__.py/x.py", Body: "evil"}}
	if _, err := l.unpack(t, other, wheel.Options{}); !errors.Is(err, wheel.ErrImportCollision) {
		t.Errorf("a directory over a file: %v", err)
	}
	if after := l.tree(t); !maps.Equal(before, after) {
		t.Errorf("before: %v\nafter: %v", before, after)
	}
	other.Files = []wheeltest.File{{Name: "demo/more.py", Body: "x"}}
	if _, err := l.unpack(t, other, wheel.Options{DirectURL: []byte(`{"url":"x"}`)}); err != nil {
		t.Errorf("a namespace: %v", err)
	}
	tree := l.tree(t)
	if tree["layer/site-packages/demo/more.py"] == "" || tree["layer/site-packages/other-1.0.dist-info/direct_url.json"] != `-r--r--r-- {"url":"x"}` || tree["layer/site-packages/other-1.0.dist-info/INSTALLER"] != "-r--r--r-- mcp-vdisk\n" {
		t.Errorf("got %v", tree)
	}
}

func TestWhatTheWheelSaysAboutItsInstallation(t *testing.T) {
	l := newLayer(t)
	dir := "demo-1.0.dist-info/"
	if _, err := l.unpack(t, with(wheeltest.File{Name: dir + "INSTALLER", Body: "evil"}, wheeltest.File{Name: dir + "direct_url.json", Body: "evil"}, wheeltest.File{Name: dir + "REQUESTED", Body: "evil"}, wheeltest.File{Name: dir + "licenses/LICENSE", Body: "MIT"}), wheel.Options{}); err != nil {
		t.Fatal(err)
	}
	for path, text := range l.tree(t) {
		if strings.Contains(text, "evil") {
			t.Errorf("%s is the wheel's own", path)
		}
	}
}

// failing is an archive that cannot be read any more after some reads.
type failing struct {
	*bytes.Reader
	left  int
	after func() error
}

func (f *failing) ReadAt(b []byte, at int64) (int, error) {
	if f.left--; f.left < 0 {
		if err := f.after(); err != nil {
			return 0, err
		}
	}
	return f.Reader.ReadAt(b, at)
}

// TestNothingIsLeftOfAFailure: whenever the archive fails, or the context ends,
// the layer is as before.
func TestNothingIsLeftOfAFailure(t *testing.T) {
	var files []wheeltest.File
	for i := range 20 {
		files = append(files, wheeltest.File{Name: fmt.Sprintf("demo/d%02d/m.py", i), Body: noise(1000 + i)})
	}
	w := with(files...)
	b := w.Bytes()
	broken := errors.New("the disk is broken")
	failures := 0
	for reads := range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		r := &failing{Reader: bytes.NewReader(b), left: reads, after: func() error { return broken }}
		want := broken
		if reads%2 == 1 {
			want = context.Canceled
			r.after = func() error { cancel(); return nil }
		}
		l := newLayer(t)
		opened, err := wheel.Open(r, int64(len(b)), w.FileName(), wheel.Options{NoSync: true})
		if err == nil {
			_, err = opened.Unpack(ctx, l.root)
		}
		cancel()
		if err == nil {
			continue
		}
		failures++
		if left := l.tree(t); len(left) != 1 {
			t.Errorf("after %d reads: left behind: %v", reads, left)
		}
		if !errors.Is(err, want) {
			t.Errorf("after %d reads: %v", reads, err)
		}
	}
	if failures < 50 {
		t.Errorf("only %d failures", failures)
	}
}

func TestOneWheelForMany(t *testing.T) {
	w := mustOpen(t, with(wheeltest.File{Name: "demo/x", Body: noise(300_000)}), wheel.Options{NoSync: true})
	errs := make(chan error)
	for range 4 {
		l := newLayer(t)
		go func() {
			_, err := w.Unpack(t.Context(), l.root)
			errs <- errors.Join(err, w.Verify(t.Context()))
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestTops(t *testing.T) {
	w := mustOpen(t, with(
		wheeltest.File{Name: "ns/part/__init__.py"}, wheeltest.File{Name: "mod.py"}, wheeltest.File{Name: "_ext.cpython-312-x86_64-linux-gnu.so", Body: "\x7fELF"},
		wheeltest.File{Name: "demo.libs/libx.so.1"}, wheeltest.File{Name: "README.txt"}, wheeltest.File{Name: "pkg/__init__.abi3.so"},
	), wheel.Options{})
	want := []wheel.Top{{Name: "_ext", Package: true}, {Name: "demo", Package: true}, {Name: "mod", Package: true}, {Name: "ns"}, {Name: "pkg", Package: true}}
	if !slices.Equal(w.Tops, want) || !w.Native {
		t.Errorf("got %+v, native %t", w.Tops, w.Native)
	}
}
