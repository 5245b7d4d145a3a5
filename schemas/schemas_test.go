package schemas_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/mcp-vdisk/mcp-vdisk/schemas"
)

func TestNamesAreTheSevenInOrder(t *testing.T) {
	want := []string{"write_file", "read_file", "list_files", "make_directory", "delete_file", "run_script", "python_env"}
	if got := schemas.Names(); !slices.Equal(got, want) {
		t.Fatalf("Names() = %q, want %q", got, want)
	}
	for i, def := range schemas.Defs() {
		if def.Name != want[i] {
			t.Errorf("Defs()[%d] is %q, want %q", i, def.Name, want[i])
		}
	}
	for _, name := range []string{"", "nope", "Write_file", "write_file.json", "../write_file"} {
		if _, ok := schemas.Tool(name); ok {
			t.Errorf("Tool(%q) found something", name)
		}
	}
}

func TestResultsBelongToTheCaller(t *testing.T) {
	schemas.Names()[0] = "x"
	def, _ := schemas.Tool("write_file")
	clear(def.Schema)
	again, ok := schemas.Tool(schemas.Names()[0])
	if !ok || !json.Valid(again.Schema) {
		t.Fatal("what a caller did to its copy is seen by the next caller")
	}
}

// argument is one property as the test expects it: the word after the name is its type, a slice is its enum.
type argument struct {
	name, kind string
	enum       []string
	min, max   string
}

func TestArguments(t *testing.T) {
	tests := []struct {
		tool     string
		mutates  bool
		hints    schemas.Annotations
		required []string
		args     []argument
	}{
		{"write_file", true, schemas.Annotations{Title: "Write file", Destructive: true}, []string{"path", "content"}, []argument{
			{name: "path", kind: "string"},
			{name: "content", kind: "string"},
			{name: "mode", kind: "string", enum: []string{"overwrite", "create", "append", "replace"}},
			{name: "old_text", kind: "string"},
			{name: "replace_all", kind: "boolean"},
			{name: "encoding", kind: "string", enum: []string{"utf-8", "base64"}},
			{name: "if_version", kind: "string"},
		}},
		{"read_file", false, schemas.Annotations{Title: "Read file", ReadOnly: true, Idempotent: true}, []string{"path"}, []argument{
			{name: "path", kind: "string"},
			{name: "offset", kind: "integer", min: "1"},
			{name: "limit", kind: "integer", min: "1"},
			{name: "byte_offset", kind: "integer", min: "0"},
			{name: "byte_limit", kind: "integer", min: "1"},
			{name: "encoding", kind: "string", enum: []string{"auto", "utf-8", "base64"}},
			{name: "at", kind: "string"},
		}},
		{"list_files", false, schemas.Annotations{Title: "List files", ReadOnly: true, Idempotent: true}, nil, []argument{
			{name: "path", kind: "string"},
			{name: "recursive", kind: "boolean"},
			{name: "pattern", kind: "string"},
			{name: "contains", kind: "string"},
			{name: "limit", kind: "integer", min: "1", max: "1000"},
			{name: "cursor", kind: "string"},
		}},
		{"make_directory", true, schemas.Annotations{Title: "Make directory", Idempotent: true}, []string{"path"}, []argument{
			{name: "path", kind: "string"},
		}},
		{"delete_file", true, schemas.Annotations{Title: "Delete file", Destructive: true, Idempotent: true}, []string{"path"}, []argument{
			{name: "path", kind: "string"},
			{name: "recursive", kind: "boolean"},
			{name: "if_version", kind: "string"},
		}},
		{"run_script", true, schemas.Annotations{Title: "Run script", Destructive: true}, nil, []argument{
			{name: "language", kind: "string", enum: []string{"python", "bash"}},
			{name: "source", kind: "string"},
			{name: "path", kind: "string"},
			{name: "args", kind: "array"},
			{name: "stdin", kind: "string"},
			{name: "timeout_s", kind: "integer", min: "1", max: "3600"},
			{name: "commit", kind: "string", enum: []string{"on_success", "always", "never"}},
			{name: "job", kind: "string"},
			{name: "cancel", kind: "boolean"},
			{name: "output_offset", kind: "integer", min: "0"},
		}},
		{"python_env", true, schemas.Annotations{Title: "Python packages", Idempotent: true, OpenWorld: true}, []string{"action"}, []argument{
			{name: "action", kind: "string", enum: []string{"status", "request", "wait"}},
			{name: "packages", kind: "array"},
			{name: "wheel", kind: "string"},
			{name: "reason", kind: "string"},
			{name: "request_id", kind: "string"},
			{name: "timeout_s", kind: "integer", min: "0", max: "50"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.tool, func(t *testing.T) {
			def, ok := schemas.Tool(tt.tool)
			if !ok {
				t.Fatal("no such tool")
			}
			if def.Mutates != tt.mutates || def.Annotations != tt.hints {
				t.Errorf("mutates %v, annotations %+v; want %v, %+v", def.Mutates, def.Annotations, tt.mutates, tt.hints)
			}
			var s struct {
				Properties json.RawMessage
				Required   []string
			}
			decode(t, def.Schema, &s)
			if !slices.Equal(s.Required, tt.required) {
				t.Errorf("required %q, want %q", s.Required, tt.required)
			}
			if got := readArguments(t, s.Properties); fmt.Sprint(got) != fmt.Sprint(tt.args) {
				t.Errorf("arguments\n%v\nwant\n%v", got, tt.args)
			}
		})
	}
}

// readArguments reads properties in the order of the file, which is the order a model sees.
func readArguments(t *testing.T, properties []byte) []argument {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(properties))
	if _, err := dec.Token(); err != nil {
		t.Fatal(err)
	}
	var args []argument
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			t.Fatal(err)
		}
		var p struct {
			Type             string
			Enum             []string
			Minimum, Maximum json.Number
		}
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		args = append(args, argument{name.(string), p.Type, p.Enum, p.Minimum.String(), p.Maximum.String()})
	}
	return args
}

func TestToolsListIsSmall(t *testing.T) {
	var tools []any
	for _, def := range schemas.Defs() {
		tools = append(tools, map[string]any{"name": def.Name, "description": def.Description,
			"inputSchema": def.Schema, "annotations": def.Annotations})
	}
	list, err := json.Marshal(map[string]any{"tools": tools})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("tools/list: %d bytes", len(list))
	// 150 bytes are kept for the JSON-RPC frame and for a description that says the sandbox is unavailable.
	if len(list) > 6000-150 {
		t.Errorf("tools/list is %d bytes", len(list))
	}
	if bytes.Contains(list, []byte(`\u00`)) {
		t.Error("a description holds <, > or &, which JSON encoders write as six bytes")
	}
}

func TestInstructionsAreShort(t *testing.T) {
	n := utf8.RuneCountInString(schemas.Instructions())
	t.Logf("instructions: %d characters", n)
	if n == 0 || n > 2048 {
		t.Errorf("instructions are %d characters", n)
	}
	for _, word := range []string{"/workspace", "image get", "exit code 0", "no network", "python_env", "old_text", "if_version", "NOT SAVED", "VERSION_CONFLICT", "RUNNING", `"job"`} {
		if !strings.Contains(schemas.Instructions(), word) {
			t.Errorf("instructions do not mention %q", word)
		}
	}
}

// Each client takes another part of JSON Schema; this is what all take, and what openai-strict and gemini can be made from.
func TestSchemasKeepToTheSubset(t *testing.T) {
	name := regexp.MustCompile(`^[a-z][a-z0-9_]{0,23}$`)
	for _, def := range schemas.Defs() {
		var root map[string]any
		decode(t, def.Schema, &root)
		onlyKeys(t, def.Name, root, "type", "properties", "required", "additionalProperties")
		if root["type"] != "object" || root["additionalProperties"] != false {
			t.Errorf("%s: type %v, additionalProperties %v", def.Name, root["type"], root["additionalProperties"])
		}
		if !name.MatchString(def.Name) || len(def.Annotations.Title) == 0 || len(def.Description) == 0 {
			t.Errorf("%s: name, title or description is not as it should be", def.Name)
		}
		properties, ok := root["properties"].(map[string]any)
		if !ok {
			t.Fatalf("%s has no properties", def.Name)
		}
		for arg, schema := range properties {
			if !name.MatchString(arg) {
				t.Errorf("%s: bad argument name %q", def.Name, arg)
			}
			subset(t, def.Name+"."+arg, schema.(map[string]any))
		}
	}
}

func subset(t *testing.T, at string, p map[string]any) {
	t.Helper()
	switch p["type"] {
	case "string":
		onlyKeys(t, at, p, "type", "description", "enum")
		if enum, ok := p["enum"].([]any); ok {
			for _, word := range enum {
				if _, ok := word.(string); !ok {
					t.Errorf("%s: enum holds %v", at, word)
				}
			}
		}
	case "boolean":
		onlyKeys(t, at, p, "type", "description")
	case "integer":
		onlyKeys(t, at, p, "type", "description", "minimum", "maximum")
	case "array":
		onlyKeys(t, at, p, "type", "description", "items")
		items, _ := p["items"].(map[string]any)
		onlyKeys(t, at+"[]", items, "type")
		if items["type"] != "string" {
			t.Errorf("%s: items are %v, want strings", at, items["type"])
		}
	default:
		t.Errorf("%s: type %v", at, p["type"])
	}
}

func onlyKeys(t *testing.T, at string, m map[string]any, allowed ...string) {
	t.Helper()
	for key := range maps.Keys(m) {
		if !slices.Contains(allowed, key) {
			t.Errorf("%s: keyword %q is not in the subset", at, key)
		}
	}
}

// A number that a description states is a number that is enforced.
func TestDescriptionsStateTheLimits(t *testing.T) {
	tests := []struct{ tool, text, largest, above string }{
		{"run_script", "Default 600", `{"language":"bash","timeout_s":3600}`, `{"language":"bash","timeout_s":3601}`},
		{"python_env", "Up to 20", `{"action":"request","packages":` + list(20) + `}`, `{"action":"request","packages":` + list(21) + `}`},
		{"python_env", "up to 500 characters", `{"action":"request","reason":"` + strings.Repeat("é", 500) + `"}`,
			`{"action":"request","reason":"` + strings.Repeat("é", 501) + `"}`},
	}
	for _, tt := range tests {
		def, _ := schemas.Tool(tt.tool)
		if !strings.Contains(string(def.Schema), tt.text) {
			t.Errorf("%s does not say %q", tt.tool, tt.text)
		}
		if _, err := schemas.Validate(tt.tool, []byte(tt.largest)); err != nil {
			t.Errorf("%s: at the limit: %v", tt.text, err)
		}
		if _, err := schemas.Validate(tt.tool, []byte(tt.above)); err == nil {
			t.Errorf("%s: above the limit: no error", tt.text)
		}
	}
}

func list(n int) string {
	return "[" + strings.Repeat(`"a",`, n-1) + `"a"]`
}

func decode(t *testing.T, raw []byte, to any) {
	t.Helper()
	if err := json.Unmarshal(raw, to); err != nil {
		t.Fatal(err)
	}
}
