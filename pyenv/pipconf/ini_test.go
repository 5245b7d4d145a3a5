package pipconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"reflect"
	"testing"
)

// TestIniAsPython: the same as Python's parser over odd files.
func TestIniAsPython(t *testing.T) {
	files := []string{
		"", "[a]\nx=1\n", "[a]\nx = 1\n y = 2\n", "[a]\nX : 1\n", "[a]\nx=\n  1\n  2\n\n  3\n", "[a]\nx=1\n# c\n  2\n", "[a]\nx=1\n  # c\n  2\n", "[a]\nx=1 ; c\n", "[a]\nx=1\n\n\n[b]\ny=2\n",
		"[DEFAULT]\nd=1\n[a]\nx=2\n[b]\nd=3\n", "[a]\nx=1\n[a]\n", "[a]\nx=1\nx=2\n", "[a]\nx=1\nX=2\n", "x=1\n", "[a]\nnothing\n", "[a]\n=1\n", "[a]\nx==1\n", "[a]\nx:y=1\n", "[a]\nx=y:1\n",
		"[a] trailing\nx=1\n", "  [a]\nx=1\n", "[a]\n  x=1\n  y=2\n", "[a]\n  x=1\ny=2\n", "[a]b]\nx=1\n", "[]\nx=1\n", "[a\nx=1\n", "[a]\nx=%(y)s\n", "[a]\nx=\"1\"\n", "[a]\r\nx=1\r\n", "[a]\nx=1\n\ty\n", ";[a]\n[a]\nx=1", "[a]\nx=1\n \n  2\n", "[DEFAULT]\n[DEFAULT]\nx=1\n[a]\n",
		"[a]\nx y = 1\n", "[a]\nx=1\n[b\n", "[a]\nx =\n", "[a]\n\n  y=1\n",
	}
	const script = `import configparser, json, sys
out = []
for text in json.load(sys.stdin):
    p = configparser.RawConfigParser()
    try:
        p.read_string(text.replace("\r\n", "\n"))
        out.append({s: dict(p.items(s)) for s in p.sections()})
    except configparser.Error:
        out.append(None)
json.dump(out, sys.stdout)`
	in, err := json.Marshal(files)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/usr/bin/python3", "-I", "-c", script)
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.Output()
	if err != nil {
		t.Skip("SKIP no python3: ", err)
	}
	var want []ini
	if err := json.Unmarshal(out, &want); err != nil {
		t.Fatal(err)
	}
	for i, text := range files {
		got, err := parseIni(text)
		if (err == nil) != (want[i] != nil) || err == nil && !reflect.DeepEqual(got, want[i]) {
			t.Errorf("%q: %v (%v), want %v", text, got, err, want[i])
		}
	}
}

// FuzzIni: no input is too odd, and no error shows it.
func FuzzIni(f *testing.F) {
	f.Add("[global]\nindex-url = x\n  y\n#c\n[a]\n")
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := parseIni(text); err != nil && !errors.Is(err, errIni) {
			t.Error(err)
		}
	})
}
