package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// folder is a folder as the format of git can tell of it: what is not a directory,
// by path, as a mode and a content.
type folder map[string]string

// TestPatchApplies makes random trees with odd names, prints how they differ, and
// has the programs that people use make one out of the other.
func TestPatchApplies(t *testing.T) {
	appliers := map[string][]string{
		"patch": {"patch", "-p1", "--no-backup-if-mismatch", "-i"},
		"git":   {"git", "apply", "--whitespace=nowarn"},
	}
	for name, argv := range appliers {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(name); err != nil {
				t.Skipf("%s is not installed: %s", name, err)
			}
			for seed := range uint64(40) {
				rng := rand.New(rand.NewPCG(seed, 1))
				before := randomFolder(rng, nil)
				after := randomFolder(rng, before)
				if name == "patch" {
					after.keepKinds(before)
				}
				applyPatch(t, argv, seed, before, after)
			}
		})
	}
}

func applyPatch(t *testing.T, argv []string, seed uint64, before, after folder) {
	t.Helper()
	diff := diffOf(t, before, after)
	if len(diff) == 0 {
		return
	}
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	before.write(t, there)
	file := filepath.Join(dir, "a.diff")
	if err := os.WriteFile(file, diff, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(argv[0], append(argv[1:], file)...)
	cmd.Dir = there
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+dir, "GIT_CONFIG_GLOBAL="+filepath.Join(dir, "none"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("seed %d: %s: %s\n%s\n%s", seed, argv[0], err, out, diff)
	}
	if got := readHost(t, there); !maps.Equal(got, after) {
		for _, p := range slices.Sorted(maps.Keys(got)) {
			if got[p] != after[p] {
				t.Errorf("%q is %q, want %q", p, got[p], after[p])
			}
		}
		t.Fatalf("seed %d: got %q\nwant %q\n%s", seed, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(after)), diff)
	}
}

// diffOf puts two trees into a disk, one after the other.
func diffOf(t *testing.T, before, after folder) []byte {
	t.Helper()
	im, err := workspace.Create(filepath.Join(t.TempDir(), "a.vdisk"), workspace.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	from := before.commit(t, im, nil)
	to := after.commit(t, im, before)
	effects, err := im.Between(t.Context(), from, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := (differ{b: &back{stdout: &out}, im: im}).patch(effects); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func (h folder) commit(t *testing.T, im *workspace.Image, old folder) uint64 {
	t.Helper()
	stage := im.Stage(context.Background())
	defer stage.Discard()
	var changes []workspace.Change
	for p := range old {
		if _, stays := h[p]; !stays {
			changes = append(changes, workspace.Change{Op: workspace.OpRemove, Path: diskPath(t, p)})
		}
	}
	for _, p := range slices.Sorted(maps.Keys(h)) {
		if old[p] == h[p] {
			continue
		}
		mode, text, _ := strings.Cut(h[p], " ")
		c := workspace.Change{Op: workspace.OpPut, Path: diskPath(t, p), Mode: 0o644, Parents: true, Replace: true}
		switch mode {
		case gitLink:
			c.Op, c.Target = workspace.OpSymlink, text
		case "100755":
			c.Mode = 0o755
		}
		if c.Op == workspace.OpPut {
			var err error
			if c.Content, err = stage.Add(strings.NewReader(text)); err != nil {
				t.Fatal(err)
			}
		}
		changes = append(changes, c)
	}
	done, err := im.Commit(t.Context(), workspace.Txn{Message: "test", Stage: stage, Changes: changes})
	if err != nil {
		t.Fatal(err)
	}
	return done.Seq
}

func diskPath(t *testing.T, rel string) workspace.Path {
	t.Helper()
	p, err := workspace.FromBytes([]byte(rel))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (h folder) write(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for p, v := range h {
		mode, text, _ := strings.Cut(v, " ")
		name := filepath.Join(dir, p)
		err := os.MkdirAll(filepath.Dir(name), 0o755)
		switch {
		case err != nil:
		case mode == gitLink:
			err = os.Symlink(text, name)
		case mode == "100755":
			err = os.WriteFile(name, []byte(text), 0o755)
		default:
			err = os.WriteFile(name, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func readHost(t *testing.T, dir string) folder {
	t.Helper()
	h := folder{}
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		p, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		if e.Type() == fs.ModeSymlink {
			to, err := os.Readlink(name)
			h[p] = gitLink + " " + to
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(name)
		mode := "100644"
		if info.Mode()&0o111 != 0 {
			mode = "100755"
		}
		h[p] = mode + " " + string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// keepKinds drops what has the name of a directory of old, or the reverse.
func (h folder) keepKinds(old folder) {
	for p := range h {
		for q := range old {
			if strings.HasPrefix(q, p+"/") || strings.HasPrefix(p, q+"/") {
				delete(h, p)
			}
		}
	}
}

// oddNames are the names that a line of text does not hold as they are.
var oddNames = []string{
	"plain", "two words", " led", "trailed ", "tab\there", "line\nbreak", "esc\x1b[31m", `quo"te`, `back\slash`, "'",
	"\xff\xfe", "grün", "\u202eturned", "-dash", "\"whole\"", "cr\r", "\x7f", "b", "a", "x y b", "\u3000wide",
}

// randomFolder makes a tree; given an older one, a change of it.
func randomFolder(rng *rand.Rand, old folder) folder {
	h := folder{}
	put := func(p, v string) {
		for q := range h {
			if q == p || strings.HasPrefix(q, p+"/") || strings.HasPrefix(p, q+"/") {
				return
			}
		}
		h[p] = v
	}
	for _, p := range slices.Sorted(maps.Keys(old)) {
		switch rng.IntN(5) {
		case 0: // gone
		case 1:
			put(p, randomContent(rng, ""))
		case 2: // the name is taken by a directory
			put(p+"/in", randomContent(rng, ""))
		default:
			put(p, randomContent(rng, old[p]))
		}
	}
	for range 8 {
		p := oddNames[rng.IntN(len(oddNames))]
		if rng.IntN(3) == 0 {
			p += "/" + oddNames[rng.IntN(len(oddNames))]
		}
		put(p, randomContent(rng, ""))
	}
	return h
}

// randomContent is a new one, or one like old.
func randomContent(rng *rand.Rand, old string) string {
	mode := []string{"100644", "100755", gitLink}[rng.IntN(3)]
	if mode == gitLink {
		return gitLink + " " + []string{"to", "../up", "/abs/olute", "sp ace", "\xfe", "new\nline"}[rng.IntN(6)]
	}
	oldMode, text, _ := strings.Cut(old, " ")
	if oldMode == gitLink {
		text = "" // it may be no text, which is not applied
	}
	lines := strings.SplitAfter(text, "\n")
	for range rng.IntN(12) {
		at := rng.IntN(len(lines) + 1)
		line := []string{"same\n", "\n", "-- a\n", "++ b\n", "crlf\r\n", fmt.Sprintf("%d\n", rng.IntN(99))}[rng.IntN(6)]
		lines = slices.Insert(lines, at, line)
	}
	text = strings.Join(lines, "")
	if rng.IntN(3) == 0 {
		text = strings.TrimSuffix(text, "\n")
	}
	return mode + " " + text
}
