package workspace

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The model of an image: a map from relative paths to what a user sees.
type model map[string]item

type item struct {
	kind Kind
	mode uint32
	body string // content or target
}

func (m model) dir(p string) string {
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		return p[:i]
	}
	return ""
}

// parents does what Parents asks for, or says why not.
func (m model) parents(p string, make bool) error {
	d := m.dir(p)
	if d == "" {
		return nil
	}
	it, ok := m[d]
	switch {
	case ok && it.kind != KindDir:
		return ErrNotDirectory
	case ok:
		return nil
	}
	if err := m.parents(d, make); err != nil {
		return err
	}
	if !make {
		return ErrNotFound
	}
	m[d] = item{KindDir, 0o755, ""}
	return nil
}

func (m model) below(p string) (all []string) {
	for q := range m {
		if strings.HasPrefix(q, p+"/") {
			all = append(all, q)
		}
	}
	return all
}

func (m model) clear(p string) {
	for _, q := range m.below(p) {
		delete(m, q)
	}
}

// apply is the specification of Change, in a few lines.
func (m model) apply(s step) error {
	p := s.Path.Rel()
	if s.Op != OpRemove && s.Op != OpMeta {
		if err := m.parents(p, s.Parents); err != nil {
			return err
		}
	}
	old, there := m[p]
	mode := func(kind Kind, fresh uint32) uint32 {
		switch {
		case s.Mode != 0:
			return s.Mode & 0o777
		case there && old.kind == kind:
			return old.mode
		}
		return fresh
	}
	switch s.Op {
	case OpPut:
		if there && old.kind == KindDir && !s.Replace {
			return ErrIsDirectory
		}
		m.clear(p)
		m[p] = item{KindFile, mode(KindFile, 0o644), s.text}
	case OpMkdir:
		if there && old.kind != KindDir && !s.Replace {
			return ErrNotDirectory
		}
		if s.Opaque {
			m.clear(p)
		}
		m[p] = item{KindDir, mode(KindDir, 0o755), ""}
	case OpSymlink:
		if there && !s.Replace && (old.kind != KindSymlink || old.body != s.Target) {
			return ErrExists
		}
		m.clear(p)
		m[p] = item{KindSymlink, 0o777, s.Target}
	case OpMeta, OpRemove:
		if !there {
			for d := m.dir(p); d != ""; d = m.dir(d) {
				if it, ok := m[d]; ok && it.kind != KindDir {
					return ErrNotDirectory
				} else if ok {
					break
				}
			}
			return ErrNotFound
		}
		if s.Op == OpMeta {
			if old.kind != KindSymlink {
				m[p] = item{old.kind, mode(old.kind, 0), old.body}
			}
			return nil
		}
		if !s.Recursive && len(m.below(p)) > 0 {
			return ErrNotEmpty
		}
		m.clear(p)
		delete(m, p)
	}
	return nil
}

func (m model) totals() (bytes, entries int64) {
	for _, it := range m {
		bytes += int64(len(it.body))
	}
	return bytes, int64(len(m))
}

// drawStep makes a change in a small name space, so that changes meet.
func drawStep(t *rapid.T) step {
	name := rapid.SampledFrom([]string{"a", "b", "a.b", "a\x01", "\xff", "c"})
	parts := rapid.SliceOfN(name, 1, 3).Draw(t, "path")
	path := must(FromBytes([]byte(strings.Join(parts, "/"))))
	flag := func(name string) bool { return rapid.Bool().Draw(t, name) }
	s := step{Change: Change{
		Op:   rapid.SampledFrom([]Op{OpPut, OpPut, OpMkdir, OpSymlink, OpRemove, OpMeta}).Draw(t, "op"),
		Path: path, Replace: flag("replace"), Parents: flag("parents"), Recursive: flag("recursive"),
		Mode: rapid.SampledFrom([]uint32{0, 0o600, 0o755, ModeSet}).Draw(t, "mode"),
	}}
	switch s.Op {
	case OpPut:
		n := rapid.SampledFrom([]int{0, 5, 129, 5000, 140_000}).Draw(t, "size")
		s.text = strings.Repeat(rapid.SampledFrom([]string{"x", "y\n"}).Draw(t, "text"), n)
	case OpSymlink:
		s.Target = rapid.SampledFrom([]string{"a", "../b"}).Draw(t, "target")
	case OpMkdir:
		s.Opaque = flag("opaque")
	}
	return s
}

// TestModel commits random lists of changes to an image and to the model,
// which must agree on every result, every error and all totals, across reopens.
func TestModel(t *testing.T) {
	dir := t.TempDir()
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		path := filepath.Join(dir, fmt.Sprintf("%d.vdisk", runs))
		defer os.Remove(path)
		const quotaBytes, quotaEntries = 1_200_000, 12
		im, err := Create(path, CreateOptions{QuotaBytes: quotaBytes, QuotaEntries: quotaEntries})
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { im.Close() }()
		now := model{}
		for range rapid.IntRange(5, 25).Draw(rt, "commits") {
			steps := rapid.SliceOfN(rapid.Custom(drawStep), 1, 4).Draw(rt, "steps")
			dry := rapid.IntRange(0, 9).Draw(rt, "dry") == 0
			next, want := maps.Clone(now), error(nil)
			for _, s := range steps {
				if want = next.apply(s); want != nil {
					break
				}
			}
			if want == nil {
				want = overQuota(now, next, quotaBytes, quotaEntries)
			}
			_, err := do(t, im, Txn{DryRun: dry}, steps...)
			if !errors.Is(err, want) || (err == nil) != (want == nil) {
				rt.Fatalf("got %v, want %v", err, want)
			}
			if err == nil && !dry {
				now = next
			}
			if rapid.IntRange(0, 9).Draw(rt, "reopen") == 0 {
				im.Close()
				if r, err := Check(t.Context(), path, CheckOptions{}); err != nil || len(r.Findings) > 0 {
					rt.Fatalf("fsck: %v, %v", r, err)
				}
				if im, err = Open(path, OpenOptions{Wait: time.Second}); err != nil {
					rt.Fatal(err)
				}
			}
			compare(rt, t, im, now)
		}
		verify(t, im)
	})
}

func overQuota(old, next model, bytes, entries int64) error {
	b0, n0 := old.totals()
	b1, n1 := next.totals()
	if b1 > b0 && b1 > bytes || n1 > n0 && n1 > entries {
		return ErrQuota
	}
	return nil
}

func compare(rt *rapid.T, t *testing.T, im *Image, want model) {
	got := model{}
	if err := im.Walk(t.Context(), Path{}, func(e Entry) error {
		it := item{e.Node.Kind, e.Node.Mode, e.Node.Target}
		if it.kind == KindFile {
			it.body = nodeText(t, im, e.Path, e.Node)
		}
		got[e.Path.Rel()] = it
		return nil
	}); err != nil {
		rt.Fatal(err)
	}
	if !maps.Equal(got, want) {
		rt.Fatalf("the image has %q, the model %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
	info, err := im.Info()
	bytes, entries := want.totals()
	if err != nil || info.Bytes != bytes || info.Entries != entries {
		rt.Fatalf("totals %d, %d, want %d, %d (%v)", info.Bytes, info.Entries, bytes, entries, err)
	}
}
