package archive_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/archive"
)

func newImage(t testing.TB, o workspace.CreateOptions) *workspace.Image {
	t.Helper()
	im, err := workspace.Create(filepath.Join(t.TempDir(), "test.vdisk"), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { im.Close() })
	return im
}

func raw(t testing.TB, rel string) workspace.Path {
	t.Helper()
	p, err := workspace.FromBytes([]byte(rel))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// fill commits files by name; a name that ends in "/" is a folder, a content that begins
// with "->" a link.
func fill(t testing.TB, im *workspace.Image, files map[string]string) {
	t.Helper()
	stage := im.Stage(t.Context())
	defer stage.Discard()
	var changes []workspace.Change
	at := time.Unix(1_600_000_000, 0)
	for name, text := range files {
		at = at.Add(time.Hour + time.Nanosecond)
		c := workspace.Change{Op: workspace.OpPut, Path: raw(t, strings.TrimSuffix(name, "/")), ModTime: at, Parents: true, Mode: 0o640}
		to, link := strings.CutPrefix(text, "->")
		switch {
		case strings.HasSuffix(name, "/"):
			c.Op, c.Mode = workspace.OpMkdir, 0o750
		case link:
			c.Op, c.Target = workspace.OpSymlink, to
		default:
			var err error
			if c.Content, err = stage.Add(strings.NewReader(text)); err != nil {
				t.Fatal(err)
			}
		}
		changes = append(changes, c)
	}
	if _, err := im.Commit(t.Context(), workspace.Txn{Stage: stage, Changes: changes}); err != nil {
		t.Fatal(err)
	}
}

// odd is a tree with what is hard to carry.
func odd() map[string]string {
	files := map[string]string{
		"plain.txt": "hello\n", "empty": "", "empty folder/": "", "déjà": "UTF-8", "not \xff UTF-8": "latin", "new\nline": "1",
		"-rf": "x", "*": "x", `back\slash`: "x", " ": "blank", "link": "->plain.txt", "dangling": "->/nowhere/\xfe", "tab\t/inside": "x",
		strings.Repeat("n", 255): "long", strings.Repeat("é", 127): "long", "a.b": "sorts before a/b", "a/b": "below", "a b": "too",
		"big": strings.Repeat("0123456789abcdef\n", 40_000), "zeros": strings.Repeat("\x00", 1<<20),
		"link to a long name": "->" + strings.Repeat("t/", 2047) + "t",
	}
	files[strings.Repeat("d/", 127)+"deep"] = "128 levels"
	files[strings.Repeat(strings.Repeat("x", 200)+"/", 20)[:4020]] = "a long path"
	return files
}

func export(t testing.TB, im *workspace.Image, o archive.ExportOptions) ([]byte, archive.Stated) {
	t.Helper()
	var b bytes.Buffer
	s, err := archive.Export(t.Context(), im, &b, o)
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), s
}

// take imports an archive into a new disk.
func take(t testing.TB, r io.Reader, l archive.Limits, o workspace.CreateOptions) (*workspace.Image, archive.Report, error) {
	t.Helper()
	im := newImage(t, o)
	stage := im.Stage(t.Context())
	defer stage.Discard()
	changes, rep, err := archive.Import(t.Context(), r, stage, l)
	if err != nil {
		return im, rep, err
	}
	_, err = im.Commit(t.Context(), workspace.Txn{Stage: stage, Changes: changes})
	return im, rep, err
}

func digest(t testing.TB, im *workspace.Image) [32]byte {
	t.Helper()
	d, _, err := im.ContentDigest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	im := newImage(t, workspace.CreateOptions{Label: "odd = \nthings"})
	fill(t, im, odd())
	first, stated := export(t, im, archive.ExportOptions{})
	if info, err := im.Info(); err != nil || stated.Content != digest(t, im) || stated.Entries != info.Entries || stated.Bytes != info.Bytes || stated.Version != 2 || stated.Label != info.Label {
		t.Errorf("it states %+v, the disk has %+v, %v", stated, info, err)
	}
	unpacked := unzstd(t, first)
	for name, b := range map[string][]byte{"tar.zst": first, "tar": unpacked, "tar.gz": gzipped(t, unpacked)} {
		back, rep, err := take(t, bytes.NewReader(b), archive.Limits{}, workspace.CreateOptions{Label: "odd = \nthings"})
		if err != nil {
			t.Fatal(name, err)
		}
		if rep.Stated == nil || *rep.Stated != stated || rep.Format != archive.Format(name) || rep.Entries != stated.Entries || rep.Bytes != stated.Bytes {
			t.Errorf("%s: %+v", name, rep)
		}
		if digest(t, back) != stated.Content {
			t.Errorf("%s: the disk holds something else", name)
		}
		if again, _ := export(t, back, archive.ExportOptions{}); !bytes.Equal(again, first) {
			t.Errorf("%s: the second archive differs from the first", name)
		}
	}
}

func TestEmptyDisk(t *testing.T) {
	t.Parallel()
	b, stated := export(t, newImage(t, workspace.CreateOptions{}), archive.ExportOptions{})
	back, rep, err := take(t, bytes.NewReader(b), archive.Limits{}, workspace.CreateOptions{})
	if err != nil || rep.Entries != 0 || digest(t, back) != stated.Content {
		t.Error(rep, err)
	}
}

// An archive is of one commit, also of an old one, whatever is committed meanwhile.
func TestExportIsOfOneCommit(t *testing.T) {
	t.Parallel()
	im := newImage(t, workspace.CreateOptions{})
	files := map[string]string{}
	for i := range 1500 {
		files[fmt.Sprintf("d%d/f%d", i%30, i)] = fmt.Sprint(i)
	}
	fill(t, im, files)
	quiet, stated := export(t, im, archive.ExportOptions{})
	n := 0
	busy, _ := export(t, im, archive.ExportOptions{Entry: func(workspace.Entry) {
		if n++; n%100 == 0 {
			fill(t, im, map[string]string{fmt.Sprintf("d%d/new", n%30): "x", fmt.Sprintf("d%d/f%d", n%30, n): "changed"})
			if _, err := im.Commit(t.Context(), workspace.Txn{Changes: []workspace.Change{{Op: workspace.OpRemove, Path: raw(t, fmt.Sprintf("d%d", (n/100+15)%30)), Recursive: true}}}); err != nil {
				t.Error(err)
			}
		}
	}})
	if !bytes.Equal(quiet, busy) {
		t.Error("changes that came meanwhile are in the archive")
	}
	old, again := export(t, im, archive.ExportOptions{Seq: 2})
	if !bytes.Equal(quiet, old) || again != stated {
		t.Error("the archive of the old commit is another one")
	}
	if _, err := archive.Export(t.Context(), im, io.Discard, archive.ExportOptions{Seq: 999}); !errors.Is(err, workspace.ErrNotFound) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	if _, err := archive.Export(ctx, im, io.Discard, archive.ExportOptions{}); !errors.Is(err, why) {
		t.Error(err)
	}
	if _, err := archive.Export(t.Context(), im, &full{}, archive.ExportOptions{}); !errors.Is(err, errFull) {
		t.Error(err)
	}
}

var errFull = errors.New("full")

type full struct{}

func (*full) Write([]byte) (int, error) { return 0, errFull }

// Other programs read what Export writes, every name and time of it.
func TestOtherProgramsReadIt(t *testing.T) {
	t.Parallel()
	im := newImage(t, workspace.CreateOptions{})
	files := odd()
	fill(t, im, files)
	b, _ := export(t, im, archive.ExportOptions{})
	dir := t.TempDir()
	file := filepath.Join(dir, "a.tar.zst")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a.tar"), unzstd(t, b), 0o600); err != nil {
		t.Fatal(err)
	}
	programs := map[string][]string{
		"tar":     {"tar", "--warning=no-unknown-keyword", "-x", "-p", "-f", filepath.Join(dir, "a.tar")},
		"python3": {"python3", "-c", "import tarfile, sys\nt = tarfile.open(sys.argv[1]); t.extractall('.', filter='fully_trusted')", filepath.Join(dir, "a.tar")},
	}
	if _, err := exec.LookPath("zstd"); err == nil {
		programs["tar --zstd"] = []string{"tar", "--zstd", "--warning=no-unknown-keyword", "-x", "-p", "-f", file}
	}
	for name, argv := range programs {
		if _, err := exec.LookPath(argv[0]); err != nil {
			t.Logf("skip %s: %v", name, err)
			continue
		}
		out := filepath.Join(dir, strings.ReplaceAll(name, " ", ""))
		if err := os.Mkdir(out, 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir = out
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%.2000s", name, err, said)
			continue
		}
		sameOnHost(t, name, im, out)
	}
}

func sameOnHost(t *testing.T, name string, im *workspace.Image, out string) {
	t.Helper()
	root, err := os.OpenRoot(out)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	n := 0
	err = im.WalkAt(t.Context(), workspace.Path{}, 2, func(e workspace.Entry) error {
		n++
		st, err := root.Lstat(e.Path.Rel())
		if err != nil {
			t.Errorf("%s: %s: %v", name, e.Path, err)
			return nil
		}
		// Python keeps times as floating point numbers.
		if d := st.ModTime().Sub(e.Node.ModTime).Abs(); d != 0 && (name != "python3" || d > time.Microsecond) && e.Node.Kind != workspace.KindSymlink {
			t.Errorf("%s: %s: time %v, want %v", name, e.Path, st.ModTime(), e.Node.ModTime)
		}
		if e.Node.Kind != workspace.KindSymlink && uint32(st.Mode().Perm()) != e.Node.Mode {
			t.Errorf("%s: %s: mode %v, want %o", name, e.Path, st.Mode(), e.Node.Mode)
		}
		switch e.Node.Kind {
		case workspace.KindSymlink:
			if to, err := root.Readlink(e.Path.Rel()); err != nil || to != e.Node.Target {
				t.Errorf("%s: %s leads to %q, want %q, %v", name, e.Path, to, e.Node.Target, err)
			}
		case workspace.KindFile:
			f, err := im.OpenNode(e.Path, e.Node)
			if err != nil {
				return err
			}
			want, err := io.ReadAll(f.Reader())
			if err != nil {
				return err
			}
			if got, err := root.ReadFile(e.Path.Rel()); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %s has another content, %v", name, e.Path, err)
			}
		}
		return nil
	})
	if err != nil || n == 0 {
		t.Error(n, err)
	}
}

func unzstd(t testing.TB, b []byte) []byte {
	t.Helper()
	z, err := zstd.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}
