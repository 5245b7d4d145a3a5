package main_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// document reads a document of the repository. The tests may run from elsewhere,
// with the documents beside them.
func document(t *testing.T, name string) string {
	t.Helper()
	for _, dir := range []string{"../..", "testdata/documents"} {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
			return string(data)
		}
	}
	t.Fatalf("%s is not to be found from here", name)
	return ""
}

// Every command that the README shows works, in the order in which it is shown.
func TestReadmeCommands(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	if err := os.WriteFile(filepath.Join(h.dir, "README.md"), []byte("# A file of the person\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(h.dir, ".local", "share"), 0o755); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, line := range regexp.MustCompile(`(?m)^\$ (mcp-vdisk .*)$`).FindAllStringSubmatch(document(t, "README.md"), -1) {
		cmd := exec.Command("/bin/sh", "-ec", line[1])
		cmd.Dir = h.dir
		cmd.Env = []string{"HOME=" + h.dir, "PATH=" + h.bin + ":/usr/bin:/bin", "MCP_VDISK_STATE=" + h.state}
		if isRoot() && strings.Contains(line[1], "config set") {
			continue // it would write the configuration of this host
		}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := typing(cmd, "set"); err != nil { // what config set asks for
			t.Errorf("%s: %v\n%s", line[1], err, &out)
		}
		ran++
	}
	if ran < 10 {
		t.Errorf("only %d commands were found in the README", ran)
	}
}

// docs/limits.md names every setting with its default, and no other.
func TestLimitsDocument(t *testing.T) {
	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+\\.[a-z_0-9]+)` \\| `\"?([^`\"]*)\"?` \\|").FindAllStringSubmatch(document(t, "docs/limits.md"), -1) {
		documented[row[1]] = row[2]
	}
	out, err := exec.Command(program, "config", "show", "--defaults", "--state", filepath.Join(passable(t), "state")).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range regexp.MustCompile(`(?m)^([a-z_.0-9]+) = "?([^"\n]*)"?$`).FindAllStringSubmatch(string(out), -1) {
		if got, ok := documented[row[1]]; !ok || got != row[2] {
			t.Errorf("docs/limits.md says %q of %s, the program %q", got, row[1], row[2])
		}
		delete(documented, row[1])
	}
	for key := range documented {
		t.Errorf("docs/limits.md names %s, which is no setting", key)
	}
}
