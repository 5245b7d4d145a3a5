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

// TestUsingDocument runs docs/using.md: each command of its console blocks, in the order
// of the page, in one home, and compares what it prints with what the page shows. What
// differs from run to run (see changing) may differ; a line "…" of the page stands for
// any number of lines. -update writes the page.
func TestUsingDocument(t *testing.T) {
	t.Parallel()
	page := document(t, "docs/using.md")
	h := newHome(t)
	ran := 0
	written := console.ReplaceAllStringFunc(page, func(block string) string {
		var out strings.Builder
		for _, step := range steps(block) {
			have := h.run(t, step.command)
			ran++
			same, shown := step.matches(have), step.output
			if !same && !*updateGolden {
				t.Errorf("docs/using.md, line %d: $ %s\nprints\n%s\nthe page has\n%s", lineOf(page, block), step.command, have, step.output)
			}
			if !same || !strings.Contains(step.output, "…") { // all of it from one run
				shown = have
			}
			out.WriteString("$ " + step.command + "\n" + shown)
		}
		return "```console\n" + out.String() + "```\n"
	})
	if *updateGolden && written != page {
		if err := os.WriteFile("../../docs/using.md", []byte(written), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if ran < 30 {
		t.Errorf("only %d commands were found", ran)
	}
}

func lineOf(page, part string) int {
	before, _, _ := strings.Cut(page, part)
	return strings.Count(before, "\n") + 1
}

var console = regexp.MustCompile("(?ms)^```console\n(.*?)^```\n")

// home is where a person works, with the program on the PATH.
type home struct{ dir, bin, state string }

func newHome(t *testing.T) home {
	dir := passable(t)
	h := home{filepath.Join(dir, "home"), filepath.Join(dir, "bin"), filepath.Join(dir, "state")}
	for _, d := range []string{h.dir, h.bin} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(program, filepath.Join(h.bin, "mcp-vdisk")); err != nil {
		t.Fatal(err)
	}
	return h
}

// run returns what a command prints, on both streams, as somebody would read it whose
// state directory lies where it does by default. A line "(exit N)" is added when it fails.
func (h home) run(t *testing.T, command string) string {
	t.Helper()
	cmd := exec.Command("/bin/bash", "-c", command)
	cmd.Dir = h.dir
	cmd.Env = []string{"HOME=" + h.dir, "PATH=" + h.bin + ":/usr/bin:/bin", "MCP_VDISK_STATE=" + h.state, "TZ=UTC", "LC_ALL=C.UTF-8"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	text := strings.NewReplacer("--state "+h.state+" ", "", h.state, "~/.local/share/mcp-vdisk", h.dir, "/home/you").Replace(out.String())
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	if err != nil {
		text += "(" + strings.Replace(err.Error(), "exit status", "exit", 1) + ")\n"
	}
	return text
}

// step is a command of the page, and what the page says that it prints.
type step struct{ command, output string }

func steps(block string) (list []step) {
	body := strings.TrimSuffix(strings.TrimPrefix(block, "```console\n"), "```\n")
	for line := range strings.Lines(body) {
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch last := len(list) - 1; {
		case isCommand:
			list = append(list, step{command: strings.TrimSuffix(command, "\n")})
		case last >= 0 && list[last].output == "" && strings.HasSuffix(list[last].command, "\\"):
			list[last].command += "\n" + strings.TrimSuffix(line, "\n")
		case last >= 0:
			list[last].output += line
		}
	}
	return list
}

// changing are parts of what is printed that differ from run to run, or from host to host.
var changing = []struct {
	pattern *regexp.Regexp
	word    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "UUID"},
	{regexp.MustCompile(`\b[0-9A-HJKMNP-TV-Z]{26}\b`), "ULID"},
	{regexp.MustCompile(`\b[0-9a-f]{12,64}\b`), "HASH"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?(\.\d+)?( ?UTC|Z)?`), "TIME"},
	{regexp.MustCompile(`file [0-9.]+ B\b|[0-9.]+ ?([kKMG]i?B)\b`), "SIZE"},
	{regexp.MustCompile(`operator:[\w.-]+`), "operator:YOU"},
	{regexp.MustCompile(`[0-9.]+ ?(µs|ms|s|seconds?)\b`), "SPAN"},
	{regexp.MustCompile(`\b(pid|uid|gid) \d+`), "$1 N"},
	{regexp.MustCompile(`[ \t]+`), " "},
}

func lasting(line string) string {
	for _, c := range changing {
		line = c.pattern.ReplaceAllString(line, c.word)
	}
	return strings.TrimSpace(line)
}

// matches compares line by line.
func (s step) matches(have string) bool {
	var pattern strings.Builder
	for line := range strings.Lines(s.output) {
		if strings.TrimSpace(line) == "…" {
			pattern.WriteString(`(?:.*\n)*`)
			continue
		}
		pattern.WriteString(regexp.QuoteMeta(lasting(line)) + `\n`)
	}
	var lines strings.Builder
	for line := range strings.Lines(have) {
		lines.WriteString(lasting(line) + "\n")
	}
	return regexp.MustCompile(`\A` + pattern.String() + `\z`).MatchString(lines.String())
}
