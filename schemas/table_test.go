package schemas

import (
	"strings"
	"testing"
)

func TestSchemasLoadNothingFromOutside(t *testing.T) {
	for _, ref := range []string{"file:///etc/hostname", "http://127.0.0.1:1/x.json", "other.json", "write_file"} {
		_, err := compile("probe", []byte(`{"properties":{"a":{"$ref":"`+ref+`"}}}`), nil)
		if err == nil || !strings.Contains(err.Error(), "not embedded") {
			t.Errorf("$ref %s: %v", ref, err)
		}
	}
}

func TestNearest(t *testing.T) {
	tests := []struct{ tool, key, want string }{
		{"write_file", "file_path", "path"},
		{"write_file", "filePath", "path"},
		{"write_file", "old_string", "old_text"},
		{"write_file", "old_str", "old_text"},
		{"write_file", "new_string", "content"},
		{"write_file", "file_text", "content"},
		{"write_file", "contents", "content"},
		{"write_file", "Path", "path"},
		{"write_file", "replaceAll", "replace_all"},
		{"write_file", "colour", ""},
		{"write_file", "", ""},
		{"read_file", "view_range", "offset"},
		{"read_file", "start_line", "offset"},
		{"read_file", "encodng", "encoding"},
		{"read_file", "contains", ""},
		{"list_files", "glob", "pattern"},
		{"list_files", "regex", "contains"},
		{"list_files", "directory", "path"},
		{"delete_file", "force", "recursive"},
		{"run_script", "command", "source"},
		{"run_script", "code", "source"},
		{"run_script", "timeout", "timeout_s"},
		{"run_script", "data", "stdin"},
		{"run_script", strings.Repeat("path", 1<<20), ""},
		{"python_env", "package", "packages"},
		{"python_env", "requestId", "request_id"},
	}
	for _, tt := range tests {
		if got := table()[tt.tool].nearest(tt.key); got != tt.want {
			t.Errorf("%s: nearest(%.40q) = %q, want %q", tt.tool, tt.key, got, tt.want)
		}
	}
}

func TestSynonymsNameArguments(t *testing.T) {
	all := map[string]bool{}
	for _, e := range table() {
		for _, name := range e.names {
			all[name] = true
		}
	}
	for key, names := range synonyms {
		if key != plainName(key) {
			t.Errorf("synonym %q would never be found", key)
		}
		for _, name := range names {
			if !all[name] {
				t.Errorf("synonym %q leads to %q, which no tool has", key, name)
			}
		}
	}
}
