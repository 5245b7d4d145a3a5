package schemas_test

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/mcp-vdisk/mcp-vdisk/schemas"
)

var update = flag.Bool("update", false, "rewrite testdata/faults.txt with what Validate answers now")

// testdata/faults.txt holds calls (tool and arguments on a line) and, indented below each, the error's text.
func TestFaultTexts(t *testing.T) {
	path := filepath.Join("testdata", "faults.txt")
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	lines := bufio.NewScanner(bytes.NewReader(want))
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "    ") {
			continue
		}
		got.WriteString(line + "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		tool, args, _ := strings.Cut(line, " ")
		_, err := schemas.Validate(tool, []byte(args))
		if err == nil {
			t.Errorf("%s is accepted", line)
			continue
		}
		got.WriteString("    " + err.Error() + "\n")
	}
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("texts have changed (go test -update rewrites them); now\n%s", got.Bytes())
	}
}

func TestNormalised(t *testing.T) {
	tests := []struct{ name, tool, in, want string }{
		{"nothing", "list_files", ``, `{}`},
		{"null", "list_files", `null`, `{}`},
		{"empty object", "list_files", ` { } `, `{}`},
		{"null members", "list_files", `{"path":null,"recursive":null,"limit":null,"colour":null}`, `{}`},
		{"keys sorted", "write_file", `{"path":"a","content":"b"}`, `{"content":"b","path":"a"}`},
		{"escaped key", "list_files", `{"\u0070ath":"a"}`, `{"path":"a"}`},
		{"text untouched", "write_file", `{"path":"a","content":"\r\n\u0000<&>\ud83d\ude00é \"\\u12"}`, `{"content":"\r\n\u0000<&>😀é \"\\u12","path":"a"}`},
		{"replacement character as such", "write_file", `{"path":"a","content":"\ufffd�"}`, `{"content":"��","path":"a"}`},
		{"boolean true", "list_files", `{"recursive":"true"}`, `{"recursive":true}`},
		{"boolean false", "list_files", `{"recursive":"false"}`, `{"recursive":false}`},
		{"integer in a string", "list_files", `{"limit":"12"}`, `{"limit":12}`},
		{"zero in a string", "python_env", `{"action":"wait","timeout_s":"0"}`, `{"action":"wait","timeout_s":0}`},
		{"minus zero", "python_env", `{"action":"wait","timeout_s":-0}`, `{"action":"wait","timeout_s":0}`},
		{"integral float", "list_files", `{"limit":2.0}`, `{"limit":2}`},
		{"exponents", "list_files", `{"limit":1E2}`, `{"limit":100}`},
		{"negative exponent", "list_files", `{"limit":2000e-1}`, `{"limit":200}`},
		{"long zeros", "list_files", `{"limit":2.` + strings.Repeat("0", 5000) + `}`, `{"limit":2}`},
		{"above 2^53", "read_file", `{"path":"a","byte_offset":9007199254740993}`, `{"byte_offset":9007199254740993,"path":"a"}`},
		{"above 2^53 in a string", "read_file", `{"path":"a","byte_offset":"9007199254740993"}`, `{"byte_offset":9007199254740993,"path":"a"}`},
		{"largest", "read_file", `{"path":"a","byte_offset":9223372036854775807}`, `{"byte_offset":9223372036854775807,"path":"a"}`},
		{"a string stays a string", "write_file", `{"path":"12","content":"true"}`, `{"content":"true","path":"12"}`},
		{"strings in an array stay strings", "run_script", `{"language":"bash","args":["1","true","null",""]}`, `{"args":["1","true","null",""],"language":"bash"}`},
		{"empty strings", "run_script", `{"language":"bash","source":"","stdin":""}`, `{"language":"bash","source":"","stdin":""}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := schemas.Validate(tt.tool, []byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// A caller chooses an error code by kind and path alone.
func TestKinds(t *testing.T) {
	tests := []struct {
		name, tool, in, path string
		kind                 schemas.Kind
	}{
		{"wrong-typed path", "read_file", `{"path":5}`, "path", schemas.KindType},
		{"path as a list", "read_file", `{"path":["a"]}`, "path", schemas.KindType},
		{"path as an object", "read_file", `{"path":{"a":1}}`, "path", schemas.KindType},
		{"path missing", "read_file", `{}`, "path", schemas.KindMissing},
		{"path null", "read_file", `{"path":null}`, "path", schemas.KindMissing},
		{"path not UTF-8", "read_file", "{\"path\":\"a\xff\"}", "path", schemas.KindEncoding},
		{"path with a lone surrogate", "read_file", `{"path":"\udc00"}`, "path", schemas.KindEncoding},
		{"item with a lone surrogate", "run_script", `{"language":"bash","args":["a","\ud800x"]}`, "args[1]", schemas.KindEncoding},
		{"key with a lone surrogate", "read_file", `{"\ud800":1}`, "", schemas.KindEncoding},
		{"lone surrogate in an unknown argument", "read_file", `{"path":"a","x":{"y":["\ud800\u0041"]}}`, "x.y[0]", schemas.KindEncoding},
		{"path twice", "read_file", `{"path":"a","path":"b"}`, "path", schemas.KindSyntax},
		{"path twice, once null", "read_file", `{"path":null,"path":"b"}`, "path", schemas.KindSyntax},
		{"path twice, once escaped", "read_file", `{"path":"a","p\u0061th":"b"}`, "path", schemas.KindSyntax},
		{"twice inside", "read_file", `{"path":"a","x":{"y":1,"y":1}}`, "x.y", schemas.KindSyntax},
		{"blank", "read_file", " \n", "", schemas.KindSyntax},
		{"list of arguments", "read_file", `["a"]`, "", schemas.KindType},
		{"unknown", "read_file", `{"path":"a","colour":1}`, "colour", schemas.KindUnknown},
		{"enum", "read_file", `{"path":"a","encoding":"latin1"}`, "encoding", schemas.KindEnum},
		{"too small", "read_file", `{"path":"a","offset":0}`, "offset", schemas.KindRange},
		{"too large", "list_files", `{"limit":1001}`, "limit", schemas.KindRange},
		{"larger than any number", "list_files", `{"limit":1e999999999999999999999}`, "limit", schemas.KindRange},
		{"smaller than any number", "list_files", `{"limit":-1e99}`, "limit", schemas.KindRange},
		{"fraction", "list_files", `{"limit":2.5}`, "limit", schemas.KindType},
		{"smallest fraction", "list_files", `{"limit":1e-999999999999999999999}`, "limit", schemas.KindType},
		{"item", "python_env", `{"action":"request","packages":["a",1]}`, "packages[1]", schemas.KindType},
		{"item too long", "python_env", `{"action":"request","packages":["` + strings.Repeat("a", 201) + `"]}`, "packages[0]", schemas.KindRange},
		{"deep", "read_file", strings.Repeat("[", 1<<20), "", schemas.KindSyntax},
		{"deep in an argument", "read_file", `{"path":` + strings.Repeat(`{"a":`, 1<<20), "", schemas.KindSyntax},
		{"many values", "run_script", `{"args":[` + strings.Repeat("1,", 1<<20) + `1]}`, "", schemas.KindSyntax},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := schemas.Validate(tt.tool, []byte(tt.in))
			var invalid *schemas.Invalid
			if !errors.As(err, &invalid) {
				t.Fatalf("error is %v", err)
			}
			if len(invalid.Faults) != 1 || invalid.Faults[0].Path != tt.path || invalid.Faults[0].Kind != tt.kind {
				t.Errorf("faults are %+v, want one at %q of kind %d", invalid.Faults, tt.path, tt.kind)
			}
		})
	}
}

func TestUnknownTool(t *testing.T) {
	_, err := schemas.Validate("nope\x1b[31m"+strings.Repeat("x", 1<<20), nil)
	if !errors.Is(err, schemas.ErrUnknownTool) {
		t.Fatalf("error is %v", err)
	}
	checkText(t, err.Error())
}

// Whatever the arguments hold, the text stays short and printable.
func TestErrorTextIsBounded(t *testing.T) {
	var many strings.Builder
	for i := range 5000 {
		many.WriteString(`,"k` + strconv.Itoa(i) + strings.Repeat("é", i%50) + `":1`)
	}
	tests := []struct{ name, tool, in string }{
		{"long value", "write_file", `{"path":"a","content":"b","mode":"` + strings.Repeat("é", 1<<20) + `"}`},
		{"control bytes in a value", "write_file", `{"path":"a","content":"b","mode":"\u001b[31m\u0000\u009b\u202e\n"}`},
		{"long key", "list_files", `{"` + strings.Repeat("k", 1<<20) + `":1}`},
		{"control bytes in a key", "list_files", `{"a\nb\u001b":1}`},
		{"long digits", "list_files", `{"limit":` + strings.Repeat("9", 1<<20) + `}`},
		{"long digits in a string", "list_files", `{"limit":"` + strings.Repeat("9", 1<<20) + `"}`},
		{"many keys", "list_files", `{"limit":0` + many.String() + `}`},
		{"many items", "run_script", `{"language":"bash","args":[` + strings.Repeat("1,", 5000) + `1]}`},
		{"rubbish", "list_files", "{\x00\xff\x1b[31m" + strings.Repeat("\xf0", 1<<20)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := schemas.Validate(tt.tool, []byte(tt.in))
			var invalid *schemas.Invalid
			if !errors.As(err, &invalid) {
				t.Fatalf("error is %v", err)
			}
			checkText(t, err.Error())
			for _, f := range invalid.Faults {
				checkText(t, f.String())
			}
			if len(invalid.Faults) > 20 || (len(invalid.Faults) == 20) != (invalid.More > 0) {
				t.Errorf("%d faults and %d more", len(invalid.Faults), invalid.More)
			}
		})
	}
}

func checkText(t *testing.T, text string) {
	t.Helper()
	bad := func(r rune) bool { return !strconv.IsPrint(r) }
	if len(text) == 0 || len(text) > 2000 || !utf8.ValidString(text) || strings.ContainsFunc(text, bad) {
		t.Errorf("text of %d bytes is not fit to be shown: %.100q", len(text), text)
	}
}

func TestFaultOrderIsStable(t *testing.T) {
	in := []byte(`{"z":1,"y":2,"x":3,"mode":"?","encoding":"?","replace_all":"maybe","path":1,"if_version":17}`)
	_, err := schemas.Validate("write_file", in)
	first := err.Error()
	for range 200 {
		if _, err := schemas.Validate("write_file", in); err.Error() != first {
			t.Fatalf("texts differ:\n%s\n%s", first, err)
		}
	}
}

func TestValidateConcurrently(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for _, name := range schemas.Names() {
				for range 50 {
					if _, err := schemas.Validate(name, []byte(`{"path":"a","content":"b","language":"bash","action":"status"}`)); err == nil {
						t.Errorf("%s takes what it should not", name)
					}
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkValidate(b *testing.B) {
	for name, in := range map[string]string{
		"small": `{"path":"/workspace/a.txt","content":"hello","mode":"append"}`,
		"4MiB":  `{"path":"/workspace/a.txt","content":"` + strings.Repeat(`0123456789abcde\n`, 1<<18) + `"}`,
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(in)))
			for b.Loop() {
				if _, err := schemas.Validate("write_file", []byte(in)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
