package tools

import (
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/schemas"
)

// TestHandlersMatchSchemas: every tool that is offered has a handler, and no
// other exists.
func TestHandlersMatchSchemas(t *testing.T) {
	d := newDisk(t)
	handlers := d.handlers()
	for _, name := range schemas.Names() {
		if handlers[name] == nil {
			t.Errorf("%s has no handler", name)
		}
	}
	if len(handlers) != len(schemas.Names()) {
		t.Errorf("%d handlers for %d tools", len(handlers), len(schemas.Names()))
	}
}

// TestRefusedArguments: what the arguments alone show to be wrong is refused
// before any effect, in words that name the argument, and recorded.
func TestRefusedArguments(t *testing.T) {
	for _, c := range []struct {
		name, tool, raw string
		code            Code
		words           []string
	}{
		{"no arguments", "write_file", ``, InvalidArgument, []string{"content: is missing", "path: is missing"}},
		{"null arguments", "write_file", `null`, InvalidArgument, []string{"path: is missing"}},
		{"no JSON", "write_file", `{"path":`, InvalidArgument, []string{"not valid JSON"}},
		{"two objects", "write_file", `{"path":"a","content":"b"}{}`, InvalidArgument, []string{"one JSON object"}},
		{"a list", "write_file", `["a","b"]`, InvalidArgument, []string{"must be a JSON object"}},
		{"a string", "write_file", `"a"`, InvalidArgument, []string{"must be a JSON object"}},
		{"invalid UTF-8", "write_file", "{\"path\":\"a\",\"content\":\"\xff\"}", InvalidArgument, []string{"content", "UTF-8"}},
		{"lone surrogate in the content", "write_file", `{"path":"a","content":"\ud800"}`, InvalidArgument, []string{"content", "surrogate"}},
		{"lone surrogate in an unknown key", "write_file", `{"path":"a","content":"b","x":"\udfff"}`, InvalidArgument, []string{"x", "surrogate"}},
		{"lone surrogate as a key", "write_file", `{"path":"a","content":"b","\ud800":1}`, InvalidArgument, []string{"surrogate"}},
		{"lone surrogate in args", "run_script", `{"language":"bash","source":"","args":["\ud800"]}`, InvalidArgument, []string{"args[0]", "surrogate"}},
		{"unknown key", "write_file", `{"path":"a","content":"b","file_path":"c"}`, InvalidArgument, []string{"file_path", "is not an argument of write_file", "did you mean path?"}},
		{"key given twice", "write_file", `{"path":"a","path":"b","content":"c"}`, InvalidArgument, []string{"path: is given twice"}},
		{"missing content", "write_file", `{"path":"a"}`, InvalidArgument, []string{"content: is missing"}},
		{"null content", "write_file", `{"path":"a","content":null}`, InvalidArgument, []string{"content: is missing"}},
		{"number as content", "write_file", `{"path":"a","content":5}`, InvalidArgument, []string{"content: must be a string, not a number"}},
		{"boolean as content", "write_file", `{"path":"a","content":true}`, InvalidArgument, []string{"content: must be a string, not a boolean"}},
		{"list as content", "write_file", `{"path":"a","content":["x"]}`, InvalidArgument, []string{"content: must be a string, not an array"}},
		{"unknown mode", "write_file", `{"path":"a","content":"b","mode":"truncate"}`, InvalidArgument, []string{`mode: must be one of "overwrite"`}},
		{"two faults", "write_file", `{"path":7,"content":5}`, InvalidArgument, []string{"content: must be a string", "path: must be a string"}},
		{"replace without old_text", "write_file", `{"path":"a","content":"b","mode":"replace"}`, InvalidArgument, []string{"old_text: is missing"}},
		{"replace with empty old_text", "write_file", `{"path":"a","content":"b","mode":"replace","old_text":""}`, InvalidArgument, []string{"old_text: is missing"}},
		{"replace of nothing", "write_file", `{"path":"a","content":"b","mode":"replace","old_text":"b"}`, InvalidArgument, []string{"the same as old_text"}},
		{"replace of line ends", "write_file", `{"path":"a","content":"b\r\n","mode":"replace","old_text":"b\n"}`, InvalidArgument, []string{"the same as old_text", "line ends"}},
		{"replace in base64", "write_file", `{"path":"a","content":"Yg==","mode":"replace","old_text":"b","encoding":"base64"}`, InvalidArgument, []string{"encoding"}},
		{"old_text without replace", "write_file", `{"path":"a","content":"b","old_text":"c"}`, InvalidArgument, []string{`mode "replace"`}},
		{"replace_all without replace", "write_file", `{"path":"a","content":"b","replace_all":true}`, InvalidArgument, []string{`mode "replace"`}},
		{"create with if_version", "write_file", `{"path":"a","content":"b","mode":"create","if_version":"v1"}`, InvalidArgument, []string{"if_version"}},
		{"no version", "write_file", `{"path":"a","content":"b","if_version":"latest"}`, InvalidArgument, []string{"if_version", `"v17"`}},
		{"empty version", "write_file", `{"path":"a","content":"b","if_version":""}`, InvalidArgument, []string{"if_version", `"v17"`}},
		{"empty version to delete", "delete_file", `{"path":"a","if_version":""}`, InvalidArgument, []string{"if_version"}},
		{"empty version to read", "read_file", `{"path":"a","at":""}`, InvalidArgument, []string{"at"}},
		{"version zero", "delete_file", `{"path":"a","if_version":"v0"}`, InvalidArgument, []string{"if_version"}},
		{"negative version", "delete_file", `{"path":"a","if_version":"-1"}`, InvalidArgument, []string{"if_version"}},
		{"number as version", "delete_file", `{"path":"a","if_version":3}`, InvalidArgument, []string{"if_version: must be a string"}},
		{"no base64", "write_file", `{"path":"a","content":"a b!","encoding":"base64"}`, InvalidArgument, []string{"base64"}},
		{"base64 without padding", "write_file", `{"path":"a","content":"YQ","encoding":"base64"}`, InvalidArgument, []string{"padding"}},
		{"URL base64", "write_file", `{"path":"a","content":"_-8=","encoding":"base64"}`, InvalidArgument, []string{"base64"}},
		{"recursive as a word", "delete_file", `{"path":"a","recursive":"yes"}`, InvalidArgument, []string{"recursive: must be true or false"}},
		{"recursive as a number", "delete_file", `{"path":"a","recursive":1}`, InvalidArgument, []string{"recursive: must be true or false"}},
		{"args as a list of arguments", "delete_file", `[{"path":"a"}]`, InvalidArgument, []string{"must be a JSON object"}},
		{"offset zero", "read_file", `{"path":"a","offset":0}`, InvalidArgument, []string{"offset: must be at least 1"}},
		{"offset of half a line", "read_file", `{"path":"a","offset":1.5}`, InvalidArgument, []string{"offset: must be a whole number"}},
		{"huge offset", "read_file", `{"path":"a","offset":1e400}`, InvalidArgument, []string{"offset"}},
		{"lines and bytes", "read_file", `{"path":"a","offset":1,"byte_offset":0}`, InvalidArgument, []string{"do not go together"}},
		{"lines of base64", "read_file", `{"path":"a","limit":1,"encoding":"base64"}`, InvalidArgument, []string{"byte_offset"}},
		{"limit of 1,001", "list_files", `{"limit":1001}`, InvalidArgument, []string{"limit: must be at most 1000"}},
		{"limit as text", "list_files", `{"limit":"ten"}`, InvalidArgument, []string{"limit: must be a whole number"}},
		{"no glob", "list_files", `{"pattern":"[a"}`, InvalidArgument, []string{"pattern", "glob"}},
		{"no regexp", "list_files", `{"contains":"(a"}`, InvalidArgument, []string{"contains", "RE2"}},
		{"look-ahead", "list_files", `{"contains":"(?=a)"}`, InvalidArgument, []string{"RE2"}},
		{"made-up cursor", "list_files", `{"cursor":"abc"}`, InvalidArgument, []string{"cursor"}},
		{"cursor of an escape", "list_files", `{"cursor":"` + cursor{Path: "../x"}.encode() + `"}`, InvalidArgument, []string{"cursor"}},
		{"no language", "run_script", `{"source":"x"}`, InvalidArgument, []string{"language: is missing"}},
		{"unknown language", "run_script", `{"language":"perl","source":"x"}`, InvalidArgument, []string{`"python", "bash"`}},
		{"neither source nor path", "run_script", `{"language":"bash"}`, InvalidArgument, []string{"either source or path"}},
		{"source and path", "run_script", `{"language":"bash","source":"x","path":"a"}`, InvalidArgument, []string{"either source or path"}},
		{"args as a string", "run_script", `{"language":"bash","source":"x","args":"a b"}`, InvalidArgument, []string{"args: must be an array of strings"}},
		{"numbers in args", "run_script", `{"language":"bash","source":"x","args":["a",1]}`, InvalidArgument, []string{"args[1]: must be a string, not a number"}},
		{"null in args", "run_script", `{"language":"bash","source":"x","args":[null]}`, InvalidArgument, []string{"args[0]: must be a string, not null"}},
		{"NUL in args", "run_script", `{"language":"bash","source":"x","args":["a","b\u0000c"]}`, InvalidArgument, []string{"args[1]", "NUL"}},
		{"timeout over an hour", "run_script", `{"language":"bash","source":"x","timeout_s":3601}`, InvalidArgument, []string{"timeout_s: must be at most 3600"}},
		{"timeout of 0 s", "run_script", `{"language":"bash","source":"x","timeout_s":0}`, InvalidArgument, []string{"timeout_s: must be at least 1"}},
		{"unknown commit", "run_script", `{"language":"bash","source":"x","commit":true}`, InvalidArgument, []string{"commit"}},
		{"no action", "python_env", `{}`, InvalidArgument, []string{"action: is missing"}},
		{"21 packages", "python_env", `{"action":"request","packages":[` + strings.Repeat(`"a",`, 20) + `"a"]}`, InvalidArgument, []string{"at most 20 items"}},
		{"packages with status", "python_env", `{"action":"status","packages":["a"]}`, InvalidArgument, []string{`packages: does not go with action "status"`, `{"action":"status"}`}},
		{"timeout with status", "python_env", `{"action":"status","timeout_s":1}`, InvalidArgument, []string{"timeout_s: does not go with"}},
		{"request_id with request", "python_env", `{"action":"request","packages":["a"],"request_id":"x"}`, InvalidArgument, []string{"request_id: does not go with action \"request\""}},
		{"packages with wait", "python_env", `{"action":"wait","request_id":"x","packages":["a"]}`, InvalidArgument, []string{"packages: does not go with", `"request_id"`}},
		{"wheel with wait", "python_env", `{"action":"wait","request_id":"x","wheel":"a.whl"}`, InvalidArgument, []string{"wheel: does not go with"}},
		{"reason with wait", "python_env", `{"action":"wait","request_id":"x","reason":"r"}`, InvalidArgument, []string{"reason: does not go with"}},
		{"nothing requested", "python_env", `{"action":"request","reason":"r"}`, InvalidArgument, []string{"give packages, a wheel, or both", `"packages":["pandas>=2"]`}},
		{"empty request", "python_env", `{"action":"request","packages":[],"wheel":""}`, InvalidArgument, []string{"give packages, a wheel, or both"}},
		{"wait for nothing", "python_env", `{"action":"wait"}`, InvalidArgument, []string{"request_id: is missing", `{"action":"status"}`}},
		{"timeout of a minute", "python_env", `{"action":"wait","request_id":"x","timeout_s":60}`, InvalidArgument, []string{"timeout_s: must be at most 50"}},
		{"long reason", "python_env", `{"action":"request","packages":["a"],"reason":"` + strings.Repeat("x", 501) + `"}`, InvalidArgument, []string{"reason: "}},
		{"long package", "python_env", `{"action":"request","packages":["` + strings.Repeat("a", 201) + `"]}`, InvalidArgument, []string{"env.bad_spec: ", "packages[0]: "}},
		{"packages as a string", "python_env", `{"action":"request","packages":"pandas"}`, InvalidArgument, []string{"env.bad_spec: ", "packages: must be an array of strings"}},
		{"a URL", "python_env", `{"action":"request","packages":["ok","pkg @ https://example.invalid/pkg.whl"]}`, InvalidArgument, []string{"env.bad_spec: packages[1]: ", "names a URL"}},
		{"wheel outside", "python_env", `{"action":"request","wheel":"/workspace/../x.whl"}`, PathEscape, []string{"env.bad_path: "}},
		{"wheel of the container", "python_env", `{"action":"request","wheel":".system/x.whl"}`, ReservedPath, []string{"env.bad_path: "}},
		{"wheel with NUL", "python_env", `{"action":"request","wheel":"x\u0000.whl"}`, InvalidPath, []string{"env.bad_path: "}},
		{"blank wheel", "python_env", `{"action":"request","wheel":" "}`, InvalidPath, []string{"env.bad_path: "}},
		{"the root as a wheel", "python_env", `{"action":"request","wheel":"/workspace"}`, IsADirectory, []string{"env.bad_path: "}},
		{"no wheel", "python_env", `{"action":"request","wheel":"dist/x.tar.gz"}`, InvalidPath, []string{"env.bad_path: ", "does not end in .whl"}},
		{"wheel as a list", "python_env", `{"action":"request","wheel":["x.whl"]}`, InvalidArgument, []string{"wheel: must be a string"}},
		{"no tool", "nope", `{"path":"a"}`, NotFound, []string{`there is no tool "nope"`, "write_file, read_file"}},
		{"no name", "", `{}`, NotFound, []string{"there is no tool"}},
		{"a name in another case", "Write_File", `{"path":"a","content":"b"}`, NotFound, []string{"there is no tool"}},
		{"a name of bytes", "wr\xff\x00", `{}`, NotFound, []string{"there is no tool"}},
	} {
		t.Run(c.tool+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			d := newDisk(t)
			text := d.refused(c.code, c.tool, c.raw)
			wantText(t, text, append(c.words, "\nhint: ")...)
			if n := len(d.records(audit.Query{})); n != 1 {
				t.Errorf("%d records", n)
			}
			if d.tree() != "" {
				t.Errorf("the disk has\n%s", d.tree())
			}
			d.verify()
		})
	}
}

// TestCoercedArguments: what can mean only one thing is taken for it.
func TestCoercedArguments(t *testing.T) {
	d := newDisk(t)
	d.write("full/f", "1\n2\n3\n")
	d.fails(DirectoryNotEmpty, "delete_file", `{"path":"full","recursive":"false"}`)
	d.fails(DirectoryNotEmpty, "delete_file", `{"path":"full","recursive":null}`)
	wantText(t, d.ok("read_file", `{"path":"full/f","offset":"2","limit":1.0}`), "2\n", "lines 2-2 of 3")
	wantText(t, d.ok("read_file", `{"path":"full/f","offset":20e-1,"byte_offset":null}`), "lines 2-3 of 3")
	d.ok("write_file", `{"path":"full/f","content":"x","mode":null,"encoding":null,"if_version":null,"old_text":null,"replace_all":"false"}`)
	wantText(t, d.ok("list_files", `null`), "/workspace/full/")
	wantText(t, d.ok("list_files", ``), "/workspace/full/")
	wantText(t, d.ok("delete_file", `{"path":"full","recursive":"true"}`), "deleted, with 1 entry in it: /workspace/full")
	d.verify()
}

// TestLargeArguments: what is too large for one call is refused, with the way
// round it.
func TestLargeArguments(t *testing.T) {
	d := setup{config: func(c *Config) {
		c.Limits = Limits{WriteBytes: 1000, SourceBytes: 1000, StdinBytes: 1000}
	}}.disk(t)
	kib := strings.Repeat("x", 1001)
	wantText(t, d.refused(TooLarge, "write_file", args{"path": "a", "content": kib}), "1.0 kB", `mode "append"`)
	d.refused(TooLarge, "write_file", args{"path": "a", "content": kib, "mode": "replace", "old_text": "y"})
	d.refused(TooLarge, "run_script", args{"language": "bash", "source": kib})
	d.refused(TooLarge, "run_script", args{"language": "bash", "source": "", "stdin": kib})
	d.refused(TooLarge, "run_script", args{"language": "bash", "source": "", "args": strings.Fields(strings.Repeat("a ", 1001))})
	d.refused(TooLarge, "run_script", args{"language": "bash", "source": "", "args": []string{strings.Repeat("a", 100_001)}})
	d.write("a", kib[:1000])
	d.ok("write_file", args{"path": "a", "content": kib[:1000], "mode": "append"})
	if n := len(d.content("a")); n != 2000 {
		t.Errorf("the file has %d bytes", n)
	}
}
