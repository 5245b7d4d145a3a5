package conformance

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// artifactRules are about what is taken out of a workspace.
func artifactRules() []backendRule {
	rule := func(id, meaning string, check func(*trial)) backendRule {
		return required(id, meaning, "artifact_collection", collects, check)
	}
	return []backendRule{
		rule("artifact.exact_set", "the artifacts are the regular files, each once, sorted by path", checkExactSet),
		rule("artifact.content", "an artifact has the bytes, size, mode and digest of its file", checkContent),
		rule("artifact.declared_only", "with a declaration only what it names is collected", checkDeclaredOnly),
		rule("artifact.declaration_checked", "a declaration that leads out of the workspace is refused: ErrPolicy", checkDeclaration),
		rule("artifact.no_symlinks", "no link is followed, within the workspace or out of it", checkNoSymlinks),
		rule("artifact.special_files", "what is no regular file is no artifact, and nobody waits for it", checkSpecialFiles),
		rule("artifact.bounded", "artifacts larger than the spec allows are refused: ErrPolicy", checkBounded),
	}
}

// expectPaths fails unless the artifacts are these.
func (t *trial) expectPaths(h sandboxrun.Handle, want ...string) []sandboxrun.Artifact {
	list, err := t.tryArtifacts(h)
	switch {
	case errors.Is(err, errHung):
		t.fail("the collection does not end")
	case err != nil:
		t.fail("artifacts: %v", err)
	case !slices.Equal(paths(list), want):
		t.fail("expected %q, got %q", want, paths(list))
	}
	return list
}

func checkExactSet(t *trial) {
	h := t.create(nil)
	if list := t.artifacts(h); len(list) > 0 {
		t.broken("control: an empty workspace has artifacts: %q", paths(list))
	}
	t.ok(h, `mkdir -p d/empty; echo 1 >b; echo 2 >d/a; echo 3 >'d/two words'; : >d.txt; echo 4 >gone`)
	t.ok(h, `rm gone; mv b a`)
	t.expectPaths(h, "a", "d.txt", "d/a", "d/two words")
}

func checkContent(t *trial) {
	h := t.create(nil)
	t.ok(h, `printf '\000\377binary\n' >file; chmod 750 file; : >empty`)
	list := t.artifacts(h)
	want := []byte("\x00\xffbinary\n")
	sum := sha256.Sum256(want)
	i := slices.IndexFunc(list, func(a sandboxrun.Artifact) bool { return a.Path == "file" })
	if i < 0 {
		t.broken("control: the file is not there: %q", paths(list))
	}
	a := list[i]
	if !bytes.Equal(a.Bytes, want) || a.Size != int64(len(want)) || a.Mode != 0o750 || a.SHA256 != hex.EncodeToString(sum[:]) {
		t.fail("bytes %q, size %d, mode %o, digest %q", a.Bytes, a.Size, a.Mode, a.SHA256)
	}
}

func checkDeclaredOnly(t *trial) {
	const script = `mkdir -p out/deep outer; echo 1 >out/a; echo 2 >out/deep/b; echo 3 >outer/c; echo 4 >other; echo 5 >single`
	all := t.create(nil)
	t.ok(all, script)
	if list := t.artifacts(all); len(list) != 5 {
		t.broken("control: without a declaration: %q", paths(list))
	}
	h := t.create(func(s *sandboxrun.Spec) { s.Artifacts = []string{"single", "out", "missing"} })
	t.ok(h, script)
	t.expectPaths(h, "out/a", "out/deep/b", "single")
}

func checkDeclaration(t *trial) {
	t.create(func(s *sandboxrun.Spec) { s.Artifacts = []string{"a/b"} }) // the control
	for _, bad := range []string{"..", "../out", "a/../../out", "/etc/passwd", "", "a//b", "a\x00"} {
		s := t.spec
		s.Artifacts = []string{"fine", bad}
		if _, err := t.tryCreate(s); !errors.Is(err, sandboxrun.ErrPolicy) {
			t.fail("%q: expected ErrPolicy, got %v", bad, err)
		}
	}
}

func checkNoSymlinks(t *trial) {
	secret := newMark()
	outside := t.tempDir()
	t.must(os.WriteFile(filepath.Join(outside, "secret"), []byte(secret), 0o644))
	h := t.create(nil)
	t.ok(h, `mkdir dir; echo 1 >real; echo 2 >dir/file
ln -s "$1/secret" outward; ln -s "$1" outdir; ln -s outward chain; ln -s "../../../../../../$1/secret" dotted
ln -s real inward; ln -s dir indir; ln -s no/such/file dangling; ln -s loop loop; ln -s / root; ln -s /proc/self/fd/0 fd`, outside)
	for _, a := range t.expectPaths(h, "dir/file", "real") {
		if bytes.Contains(a.Bytes, []byte(secret)) {
			t.fail("%q has the content of a file of the host", a.Path)
		}
	}
}

func checkSpecialFiles(t *trial) {
	h := t.create(nil)
	t.ok(h, `echo 1 >plain; mkfifo pipe; mkdir empty`)
	t.expectPaths(h, "plain")
}

func checkBounded(t *trial) {
	h := t.create(func(s *sandboxrun.Spec) { s.ArtifactBytes = 1000 })
	t.ok(h, `head -c 400 /dev/zero >a; head -c 600 /dev/zero >b`)
	if list := t.artifacts(h); len(list) != 2 {
		t.broken("control: two files within the bound: %q", paths(list))
	}
	t.ok(h, `printf x >>b`)
	if list, err := t.tryArtifacts(h); !errors.Is(err, sandboxrun.ErrPolicy) {
		t.fail("1001 bytes with a bound of 1000: expected ErrPolicy, got %q, error %v", paths(list), err)
	}
}
