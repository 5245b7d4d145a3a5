package main_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// The seven tools, in the order in which every list shows them.
var sevenTools = []string{"write_file", "read_file", "list_files", "make_directory", "delete_file", "run_script", "python_env"}

func TestLegacyVersions(t *testing.T) {
	t.Parallel()
	state := newState(t)
	for asked, want := range map[string]string{
		"2024-11-05": "2024-11-05", "2025-03-26": "2025-03-26", "2025-06-18": "2025-06-18", "2025-11-25": "2025-11-25",
		"2026-07-28": "2025-11-25", // has no initialize
		"1999-01-01": "2025-11-25",
	} {
		s := serve(t, state)
		var hello struct {
			ProtocolVersion, Instructions string
			Capabilities                  map[string]any
			ServerInfo                    struct{ Name, Version string }
		}
		if err := json.Unmarshal(s.helloAs(asked).Result, &hello); err != nil {
			t.Fatal(err)
		}
		if hello.ProtocolVersion != want || hello.ServerInfo.Name != "mcp-vdisk" || hello.ServerInfo.Version == "" || hello.Capabilities["tools"] == nil {
			t.Errorf("initialize with %s: %+v, want %s", asked, hello, want)
		}
		checkInstructions(t, hello.Instructions)
		checkList(t, s.answer(s.ask("tools/list", nil)).Result)
		if r := s.ok("write_file", object{"path": "a.txt", "content": asked}); !strings.Contains(r.Text, "/workspace/a.txt") {
			t.Errorf("write_file in %s: %s", asked, r.Text)
		}
		if m := s.answer(s.ask("logging/setLevel", object{"level": "debug"})); m.Error != nil {
			t.Errorf("logging/setLevel in %s: %s", asked, m.line)
		}
		if m := s.answer(s.ask("tools/call", callParams("nothing", object{}))); m.Error == nil || m.Error.Code != -32602 {
			t.Errorf("an unknown tool in %s: %s", asked, m.line)
		}
		s.end()
		for _, m := range s.all() {
			if m.Method != "" {
				t.Errorf("sent unasked: %s", m.line)
			}
		}
	}
	if log := must(t, state, "audit", "query", "proto=2025-03-26", "-o", "ndjson"); !strings.Contains(log, `"cli":"test 1"`) || !strings.Contains(log, `"tool":"nothing"`) {
		t.Errorf("the log names client and version:\n%s", log)
	}
}

func checkInstructions(t *testing.T, text string) {
	t.Helper()
	if n := utf8.RuneCountInString(text); n > 2048 || n < 500 || !strings.Contains(text, "/workspace") {
		t.Errorf("the instructions are %d characters, at most 2,048 may be:\n%s", n, text)
	}
}

// checkList holds a result of tools/list to the order, the size and the
// annotations.
func checkList(t *testing.T, result json.RawMessage) {
	t.Helper()
	var list struct {
		Tools json.RawMessage
	}
	var tools []struct {
		Name, Description string
		InputSchema       struct {
			Type                 string
			AdditionalProperties *bool
			Required             []string
		}
		OutputSchema json.RawMessage
		Annotations  struct {
			Title                                                        string
			ReadOnlyHint, DestructiveHint, IdempotentHint, OpenWorldHint *bool
		}
	}
	if err := json.Unmarshal(result, &list); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(list.Tools, &tools); err != nil {
		t.Fatal(err)
	}
	if len(list.Tools) > 6000 {
		t.Errorf("tools/list is %d bytes, at most 6,000 may be", len(list.Tools))
	}
	var names []string
	for _, tool := range tools {
		names = append(names, tool.Name)
		a := tool.Annotations
		if a.Title == "" || a.ReadOnlyHint == nil || a.DestructiveHint == nil || a.IdempotentHint == nil || a.OpenWorldHint == nil {
			t.Errorf("%s lacks annotations: %+v", tool.Name, a)
			continue
		}
		if reads := tool.Name == "read_file" || tool.Name == "list_files"; *a.ReadOnlyHint != reads || reads && *a.DestructiveHint {
			t.Errorf("%s: readOnlyHint %t, destructiveHint %t", tool.Name, *a.ReadOnlyHint, *a.DestructiveHint)
		}
		if s := tool.InputSchema; s.Type != "object" || s.AdditionalProperties == nil || *s.AdditionalProperties || tool.OutputSchema != nil {
			t.Errorf("%s: schema %+v", tool.Name, s)
		}
		if strings.HasPrefix(tool.Description, "UNAVAILABLE") {
			t.Errorf("%s: %s", tool.Name, tool.Description)
		}
	}
	if !slices.Equal(names, sevenTools) {
		t.Errorf("tools/list: %v, want %v", names, sevenTools)
	}
}

// modern is the _meta that every request of 2026-07-28 carries.
func modern(version string) object {
	return object{
		"io.modelcontextprotocol/protocolVersion":    version,
		"io.modelcontextprotocol/clientInfo":         object{"name": "modern", "version": "2"},
		"io.modelcontextprotocol/clientCapabilities": object{},
	}
}

func TestModernEra(t *testing.T) {
	t.Parallel()
	state := newState(t)
	s := serve(t, state)
	meta := modern("2026-07-28")

	// Nothing comes before the first request: there is no handshake.
	var found struct {
		ResultType        string
		SupportedVersions []string
		Capabilities      map[string]any
		Instructions      string
	}
	m := s.answer(s.ask("server/discover", object{"_meta": meta}))
	if err := json.Unmarshal(m.Result, &found); err != nil {
		t.Fatalf("%s: %s", err, m.line)
	}
	for _, v := range []string{"2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"} {
		if !slices.Contains(found.SupportedVersions, v) {
			t.Errorf("server/discover does not name %s: %s", v, m.line)
		}
	}
	if found.Capabilities["tools"] == nil || found.ResultType != "complete" || !strings.Contains(m.line, `"io.modelcontextprotocol/serverInfo":{"name":"mcp-vdisk"`) {
		t.Errorf("server/discover: %s", m.line)
	}
	checkInstructions(t, found.Instructions)

	m = s.answer(s.ask("tools/list", object{"_meta": meta}))
	checkList(t, m.Result)
	if !strings.Contains(m.line, `"resultType":"complete"`) || !strings.Contains(m.line, `"ttlMs"`) {
		t.Errorf("tools/list: %.300s", m.line)
	}

	call := func(tool string, args object) message {
		p := callParams(tool, args)
		p["_meta"] = meta
		return s.answer(s.ask("tools/call", p))
	}
	m = call("write_file", object{"path": "a.txt", "content": "modern\n"})
	if r := m.result(t); r.IsError || !strings.Contains(m.line, `"resultType":"complete"`) {
		t.Errorf("write_file: %s", m.line)
	}
	if r := call("run_script", object{"language": "bash", "source": "cat a.txt"}).result(t); r.IsError || !strings.Contains(r.Text, "modern") {
		t.Errorf("run_script: %s", r.Text)
	}
	if r := call("read_file", object{"path": "../x"}).result(t); !r.IsError || !strings.HasPrefix(r.Text, "PATH_ESCAPE") {
		t.Errorf("a refusal: %s", r.Text)
	}

	for _, c := range []struct {
		name, method string
		params       object
		code         int
	}{
		{"initialize is gone", "initialize", object{"_meta": meta}, -32601},
		{"ping is gone", "ping", object{"_meta": meta}, -32601},
		{"an unknown tool", "tools/call", object{"_meta": meta, "name": "nothing", "arguments": object{}}, -32602},
		{"a version of the future", "tools/list", object{"_meta": modern("2099-01-01")}, -32022},
		{"an unknown method", "tools/destroy", object{"_meta": meta}, -32601},
	} {
		if m := s.answer(s.ask(c.method, c.params)); m.Error == nil || m.Error.Code != c.code {
			t.Errorf("%s: %s, want %d", c.name, m.line, c.code)
		}
	}

	// A cancel is as silent as ever, and eras mix on one connection.
	id := s.ask("tools/call", object{"_meta": meta, "name": "run_script", "arguments": object{"language": "bash", "source": "sleep 30"}})
	within(t, patience, "the script runs", func() bool { return len(s.scripts()) > 0 })
	s.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
	s.ok("write_file", object{"path": "b.txt", "content": "old\n"})
	s.end()
	for _, m := range s.all() {
		if string(m.ID) == id {
			t.Errorf("sent for a cancelled request: %s", m.line)
		}
	}
	log := must(t, state, "audit", "query", "proto=2026-07-28", "-o", "ndjson")
	if !strings.Contains(log, `"cli":"modern 2"`) || !strings.Contains(log, `"tool":"nothing"`) {
		t.Errorf("the log names client and version, of refusals too:\n%s", log)
	}
}

func TestPoliciesOfASession(t *testing.T) {
	t.Parallel()
	state := newState(t)
	s := serve(t, state)
	s.hello()
	s.ok("write_file", object{"path": "kept.txt", "content": "kept\n"})
	s.end()
	overwrite := object{"path": "kept.txt", "content": ""}
	remove := object{"path": "kept.txt"}
	script := object{"language": "bash", "source": "rm kept.txt"}
	for _, c := range []struct {
		name    string
		flags   []string
		listed  []string
		refused map[string]object
		code    string
	}{
		{"read-only", []string{"--read-only"}, []string{"read_file", "list_files"},
			map[string]object{"write_file": overwrite, "delete_file": remove, "run_script": script, "make_directory": {"path": "d"}, "python_env": {"action": "status"}}, "READ_ONLY"},
		{"no-delete", []string{"--no-delete"}, []string{"write_file", "read_file", "list_files", "make_directory", "run_script", "python_env"},
			map[string]object{"write_file": overwrite, "delete_file": remove, "run_script": script}, "DELETE_DISABLED"},
		{"tools", []string{"--tools", "read_file,write_file"}, []string{"write_file", "read_file"},
			map[string]object{"delete_file": remove, "run_script": script, "list_files": {}}, "NOT_ALLOWED"},
	} {
		s := serve(t, state, c.flags...)
		s.hello()
		var list struct{ Tools []struct{ Name string } }
		if err := json.Unmarshal(s.answer(s.ask("tools/list", nil)).Result, &list); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, tool := range list.Tools {
			names = append(names, tool.Name)
		}
		if !slices.Equal(names, c.listed) {
			t.Errorf("%s lists %v, want %v", c.name, names, c.listed)
		}
		for tool, args := range c.refused {
			if r := s.call(tool, args); !r.IsError || !strings.HasPrefix(r.Text, c.code+": ") {
				t.Errorf("%s: %s answers %s, want %s", c.name, tool, r.Text, c.code)
			}
		}
		if r := s.ok("read_file", object{"path": "kept.txt"}); !strings.HasPrefix(r.Text, "kept\n") {
			t.Errorf("%s: the file holds %s", c.name, r.Text)
		}
		s.end()
	}
	must(t, state, "audit", "verify")
}
