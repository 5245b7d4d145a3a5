package tools

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
)

// Pieces of what is never in the log: contents, sources, arguments and input of
// scripts, and what they print.
const (
	contentSecret = "zqxvkjwpyh-Content"
	oldTextSecret = "mtrslgunxo-OldText"
	sourceSecret  = "wyqhzkvjrp-Source"
	stdinSecret   = "pnkxzhyqwt-Stdin"
	argSecret     = "jvkzrmqxyl-Args"
	outputSecret  = "hgtzwlnqku-Output"
)

// TestNoBodiesInLog: whatever happens to a call, the bytes on disk of the log
// hold nothing of a body, plain or encoded.
func TestNoBodiesInLog(t *testing.T) {
	d := setup{config: func(c *Config) { c.Policy.Tools = []string{"write_file", "read_file", "list_files", "run_script"} }}.scripted(t)
	calls := []struct {
		tool string
		a    any
	}{
		{"write_file", args{"path": "a", "content": contentSecret + " " + oldTextSecret}},
		{"write_file", args{"path": "a", "content": contentSecret, "mode": "append"}},
		{"write_file", args{"path": "a", "content": contentSecret, "mode": "replace", "old_text": oldTextSecret}},
		{"write_file", args{"path": "b", "content": b64(contentSecret), "encoding": "base64"}},
		{"write_file", args{"path": "a", "content": contentSecret, "mode": "replace", "old_text": oldTextSecret}}, // NO_MATCH, shows the file
		{"write_file", args{"path": "a", "content": contentSecret, "mode": "replace", "old_text": contentSecret[:4]}},
		{"write_file", args{"path": "a", "content": contentSecret, "if_version": "v99"}}, // VERSION_CONFLICT, shows the file
		{"write_file", args{"path": "../a", "content": contentSecret}},
		{"write_file", args{"path": "a", "content": contentSecret, "old_text": oldTextSecret}},
		{"write_file", args{"path": "a", "content": []string{contentSecret}}},
		{"write_file", args{"path": "a", "content": contentSecret, "mode": 7}},
		{"write_file", args{"path": "a", "content": map[string]any{"text": contentSecret}}},
		{"write_file", `{"path":"a","content":"` + contentSecret + `\ud800"}`},
		{"write_file", `{"path":"a","content":"x" ` + contentSecret},
		{"write_file", `{"path":"a","content":` + contentSecret + `}`},
		{"write_file", contentSecret},
		{"write_file", `"` + contentSecret + `"`},
		{"write_file", args{"path": "a", "content": contentSecret + "!", "encoding": "base64"}},
		{"read_file", args{"path": "a"}},
		{"list_files", args{"contains": "[a-z]{10}-Con"}},
		{"run_script", args{"language": "bash", "source": "cat a; cat; echo $1; echo " + outputSecret + " # " + sourceSecret, "stdin": stdinSecret, "args": []string{argSecret}}},
		{"run_script", args{"language": "python", "source": "raise ValueError('" + sourceSecret + outputSecret + "')", "stdin": stdinSecret, "args": []string{argSecret}}},
		{"run_script", args{"language": "bash", "source": "echo " + outputSecret + "; mkdir .system # " + sourceSecret}},
		{"run_script", args{"language": "bash", "source": sourceSecret, "path": "a"}},
		{"run_script", args{"language": "bash", "source": sourceSecret, "args": []any{argSecret, 1}}},
		{"run_script", args{"language": "bash", "source": sourceSecret, "args": []any{argSecret + "\x00"}}},
		{"run_script", args{"language": "bash", "source": sourceSecret, "args": argSecret}},
		{"run_script", args{"language": "perl", "source": sourceSecret, "stdin": stdinSecret}},
		{"make_directory", args{"path": "d", "content": contentSecret}},
		{"nope", args{"content": contentSecret}},
	}
	shown := ""
	for _, c := range calls {
		shown += d.call(c.tool, c.a).String()
	}
	for _, s := range []string{contentSecret, argSecret, stdinSecret, outputSecret} {
		if !strings.Contains(shown, s) {
			t.Errorf("the calls never showed %s, so the test is worth nothing", s)
		}
	}
	d.verify()
	if n := len(d.records(audit.Query{})); n < len(calls) {
		t.Errorf("%d records", n)
	}
	var raw []byte
	err := d.log.Query(t.Context(), audit.Query{}, func(line []byte, _ audit.Record) error {
		raw = append(raw, line...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	d.close()
	err = filepath.WalkDir(filepath.Join(d.dir, "db"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var b []byte
			b, err = os.ReadFile(path)
			raw = append(raw, b...)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Count(raw, []byte("write_file")) < len(calls) {
		t.Fatal("the records cannot be seen in the raw bytes, so the test is worth nothing")
	}
	for _, s := range []string{contentSecret, oldTextSecret, sourceSecret, stdinSecret, argSecret, outputSecret} {
		// The start alone too: what is cut, or compressed, holds no piece either.
		for _, form := range []string{s, s[:10], base64.StdEncoding.EncodeToString([]byte(s)), hex.EncodeToString([]byte(s))} {
			if i := bytes.Index(raw, []byte(form)); i >= 0 {
				t.Errorf("%s is in the log: …%q…", form, raw[max(i-80, 0):min(i+60, len(raw))])
			}
		}
	}
}
