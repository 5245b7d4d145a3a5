package workspace

import (
	"context"
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

// A moment is every path at one commit, with all that has to come back.
type moment map[string]fact

type fact struct {
	kind    Kind
	mode    uint32
	time    time.Time
	body    string // content or target
	version uint64
}

// same compares all but the version.
func (f fact) same(g fact) bool { f.version = g.version; return f == g }

func factOf(t testing.TB, im *Image, p Path, n Node) fact {
	f := fact{n.Kind, n.Mode, n.ModTime, n.Target, n.Version}
	if n.Kind == KindFile {
		f.body = nodeText(t, im, p, n)
	}
	return f
}

func momentOf(t testing.TB, im *Image) moment {
	t.Helper()
	m := moment{}
	if err := im.Walk(context.Background(), Path{}, func(e Entry) error {
		m[e.Path.Rel()] = factOf(t, im, e.Path, e.Node)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return m
}

// differ are the paths that two moments have not in common.
func differ(a, b moment) map[string]bool {
	d := map[string]bool{}
	for p, f := range a {
		if g, ok := b[p]; !ok || !f.same(g) {
			d[p] = true
		}
	}
	for p := range b {
		if _, ok := a[p]; !ok {
			d[p] = true
		}
	}
	return d
}

func wantMoment(t testing.TB, got, want moment) {
	t.Helper()
	for p := range differ(got, want) {
		t.Errorf("%q is %+v, want %+v", p, got[p], want[p])
	}
}

func inside(p string, tops []string) bool {
	for _, top := range tops {
		if top == "" || p == top || strings.HasPrefix(p, top+"/") {
			return true
		}
	}
	return len(tops) == 0
}

func above(p string) (dirs []string) {
	for i := range p {
		if p[i] == '/' {
			dirs = append(dirs, p[:i])
		}
	}
	return dirs
}

// A timeline is an image with all the moments that it has been through. The
// specification of everything that looks at the past is a few loops over them.
type timeline struct {
	rt      *rapid.T
	t       *testing.T
	im      *Image
	path    string
	moments []moment            // by sequence number
	opened  []map[string]string // by sequence number: what Open made of some paths
	names   map[string]Checkpoint
}

func (l *timeline) head() uint64 { return uint64(len(l.moments) - 1) }

var drawName = rapid.SampledFrom([]string{"a", "b", "a.b", "a\nb", "\xff", "c"})

func (l *timeline) drawPath(label string) Path {
	parts := rapid.SliceOfN(drawName, 1, 3).Draw(l.rt, label)
	return must(FromBytes([]byte(strings.Join(parts, "/"))))
}

func (l *timeline) drawSeq(label string) uint64 {
	return rapid.Uint64Range(1, l.head()).Draw(l.rt, label)
}

// took remembers the state behind a commit.
func (l *timeline) took(c Commit) {
	if c.Seq == l.head() {
		return // nothing changed
	}
	if c.Seq != l.head()+1 {
		l.rt.Fatalf("commit %d behind %d", c.Seq, l.head())
	}
	l.moments = append(l.moments, momentOf(l.t, l.im))
	l.opened = append(l.opened, map[string]string{})
	for range 3 {
		p := l.drawPath("opened")
		l.opened[c.Seq][p.Rel()] = contentOf(l.im.Open(p))
	}
}

// contentOf is what an Open led to: the place and the bytes, or the kind of error.
func contentOf(f *File, err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind.Error()
	}
	page, err := f.Bytes(0, 1<<20)
	return fmt.Sprintf("%v %q %v", f.Path(), page.Data, err)
}

func (l *timeline) commit() {
	steps := rapid.SliceOfN(rapid.Custom(drawStep), 1, 4).Draw(l.rt, "steps")
	for i := range steps {
		steps[i].Path = l.drawPath("at")
		steps[i].Parents = true
	}
	c, err := do(l.t, l.im, Txn{}, steps...)
	if err == nil {
		l.took(c)
	}
}

func (l *timeline) nodeAt() {
	seq, p := l.drawSeq("seq"), l.drawPath("path")
	n, err := l.im.NodeAt(p, seq)
	want, there := l.moments[seq][p.Rel()]
	if !there {
		kind := ErrNotFound
		for _, dir := range above(p.Rel()) {
			if f, ok := l.moments[seq][dir]; ok && f.kind != KindDir {
				kind = ErrNotDirectory
			}
		}
		if !errors.Is(err, kind) {
			l.rt.Fatalf("%v at %d: %v, want one that %v", p, seq, err, kind)
		}
		return
	}
	if err != nil {
		l.rt.Fatalf("%v at %d: %v", p, seq, err)
	}
	if got := factOf(l.t, l.im, p, n); got != want {
		l.rt.Fatalf("%v at %d is %+v, want %+v", p, seq, got, want)
	}
}

func (l *timeline) openAt() {
	seq := l.drawSeq("seq")
	for rel, want := range l.opened[seq] {
		p := must(FromBytes([]byte(rel)))
		if got := contentOf(l.im.OpenAt(p, seq)); got != want {
			l.rt.Fatalf("open %v at %d: %s, was %s", p, seq, got, want)
		}
	}
}

func (l *timeline) drawScope() (paths []Path, rels []string) {
	if rapid.Bool().Draw(l.rt, "everything") {
		return nil, nil
	}
	for range rapid.IntRange(1, 3).Draw(l.rt, "tops") {
		p := l.drawPath("top")
		paths, rels = append(paths, p), append(rels, p.Rel())
	}
	return paths, rels
}

func (l *timeline) between() {
	from, to := l.drawSeq("from"), l.drawSeq("to")
	under, rels := l.drawScope()
	effects, err := l.im.Between(l.t.Context(), from, to, under)
	if err != nil {
		l.rt.Fatal(err)
	}
	want := differ(l.moments[from], l.moments[to])
	maps.DeleteFunc(want, func(p string, _ bool) bool { return !inside(p, rels) })
	for i, e := range effects {
		if i > 0 && string(treeKey(effects[i-1].Path)) >= string(treeKey(e.Path)) {
			l.rt.Fatalf("%v comes behind %v", e.Path, effects[i-1].Path)
		}
		if !want[e.Path.Rel()] {
			l.rt.Fatalf("%v is the same at %d and %d, or out of scope", e.Path, from, to)
		}
		delete(want, e.Path.Rel())
		l.wantFact(e.Path, e.Before, l.moments[from])
		l.wantFact(e.Path, e.After, l.moments[to])
	}
	if len(want) > 0 {
		l.rt.Fatalf("%d to %d: not told about %q", from, to, slices.Sorted(maps.Keys(want)))
	}
}

func (l *timeline) wantFact(p Path, n *Node, m moment) {
	want, there := m[p.Rel()]
	if there != (n != nil) || there && factOf(l.t, l.im, p, *n) != want {
		l.rt.Fatalf("%v is %+v, want %+v", p, n, want)
	}
}

// history compares with a look at every pair of neighbours.
func (l *timeline) history() {
	under, rels := l.drawScope()
	before := rapid.Uint64Range(0, l.head()+1).Draw(l.rt, "before")
	limit := rapid.IntRange(1, 4).Draw(l.rt, "limit")
	log, err := l.im.History(l.t.Context(), LogQuery{Under: under, Before: before, Limit: limit})
	if err != nil {
		l.rt.Fatal(err)
	}
	for seq := l.head(); seq >= 1 && limit > 0; seq-- {
		changed := map[string]bool{}
		if seq > 1 {
			changed = differ(l.moments[seq-1], l.moments[seq])
		}
		maps.DeleteFunc(changed, func(p string, _ bool) bool { return !inside(p, rels) })
		if before > 0 && seq >= before || len(rels) > 0 && len(changed) == 0 {
			continue
		}
		limit--
		if len(log) == 0 || log[0].Seq != seq || len(log[0].Effects) != len(changed) {
			l.rt.Fatalf("the log has not commit %d with %d effects but %+v", seq, len(changed), log)
		}
		for _, e := range log[0].Effects {
			if !changed[e.Path.Rel()] {
				l.rt.Fatalf("commit %d did not change %v", seq, e.Path)
			}
		}
		log = log[1:]
	}
	if len(log) > 0 {
		l.rt.Fatalf("%d commits too many", len(log))
	}
}

func (l *timeline) restore() {
	seq := l.drawSeq("seq")
	paths, rels := l.drawScope()
	now, then := l.moments[l.head()], l.moments[seq]
	want, wantErr := moment{}, error(nil)
	for p, f := range now {
		if !inside(p, rels) {
			want[p] = f
		}
	}
	for p, f := range then {
		if inside(p, rels) {
			want[p] = f
		}
	}
	for _, top := range rels {
		_, a := now[top]
		_, b := then[top]
		if !a && !b {
			wantErr = ErrNotFound
		}
		for _, dir := range above(top) {
			f, there := want[dir]
			switch {
			case !b || inside(dir, rels):
			case !there:
				want[dir] = then[dir]
			case f.kind != KindDir && wantErr == nil:
				wantErr = ErrNotDirectory
			}
		}
	}
	txn, err := l.im.Restoring(l.t.Context(), seq, paths)
	if !errors.Is(err, wantErr) || (err == nil) != (wantErr == nil) {
		l.rt.Fatalf("restore %q of %d: %v, want %v", rels, seq, err, wantErr)
	}
	if err == nil {
		l.apply(txn, want)
	}
}

func (l *timeline) undo() {
	seq := l.drawSeq("seq")
	txn, err := l.im.Undoing(l.t.Context(), seq)
	if seq == 1 {
		if !errors.Is(err, ErrInvalid) {
			l.rt.Fatal(err)
		}
		return
	}
	now, was := l.moments[l.head()], l.moments[seq-1]
	changed := differ(was, l.moments[seq])
	want, free := maps.Clone(now), true
	for p := range changed {
		for k := seq + 1; k <= l.head(); k++ {
			free = free && !differ(l.moments[k-1], l.moments[k])[p]
		}
		delete(want, p)
		if f, ok := was[p]; ok {
			want[p] = f
		}
	}
	for p := range want { // whatever would have lost its directory
		for _, dir := range above(p) {
			free = free && want[dir].kind == KindDir
		}
	}
	if free != (err == nil) || !free && !errors.Is(err, ErrVersionConflict) {
		l.rt.Fatalf("undo %d: %v, allowed: %v", seq, err, free)
	}
	if free {
		l.apply(txn, want)
	}
}

// apply commits a plan, which must lead to exactly this.
func (l *timeline) apply(txn Txn, want moment) {
	chunks := count(l.t, l.im, bucketChunks)
	c, err := l.im.Commit(l.t.Context(), txn)
	if err != nil {
		l.rt.Fatalf("%s: %v", txn.Message, err)
	}
	l.took(c)
	got := momentOf(l.t, l.im)
	for p := range differ(got, want) {
		l.rt.Fatalf("%s: %q is %+v, want %+v", txn.Message, p, got[p], want[p])
	}
	if n := count(l.t, l.im, bucketChunks); n != chunks {
		l.rt.Fatalf("%s stored %d chunks", txn.Message, n-chunks)
	}
}

func (l *timeline) checkpoint() {
	name := fmt.Sprintf("c%d.%d", l.head(), len(l.names))
	c, err := l.im.Checkpoint(l.t.Context(), name, "text \xff")
	if err != nil || c.Seq != l.head() {
		l.rt.Fatalf("%+v, %v", c, err)
	}
	l.names[name] = c
}

func (l *timeline) reopen() {
	before, _, err := l.im.TreeDigest(l.t.Context())
	if err != nil {
		l.rt.Fatal(err)
	}
	l.im.Close()
	if r, err := Check(l.t.Context(), l.path, CheckOptions{}); err != nil || len(r.Findings) > 0 {
		l.rt.Fatalf("fsck: %v, %v", r, err)
	}
	if l.im, err = Open(l.path, OpenOptions{Clock: ticking(time.Unix(int64(2e9+l.head()), 5))}); err != nil {
		l.rt.Fatal(err)
	}
	if after, seq, err := l.im.TreeDigest(l.t.Context()); err != nil || after != before || seq != l.head() {
		l.rt.Fatalf("digest of %d changed from %x to %x (%v)", seq, before, after, err)
	}
	all, err := l.im.Checkpoints()
	if err != nil || len(all) != len(l.names) {
		l.rt.Fatalf("%d checkpoints, %v", len(all), err)
	}
	for _, c := range all {
		if c != l.names[c.Name] || must(l.im.Revision(c.Name)) != c.Seq {
			l.rt.Fatalf("%+v was %+v", c, l.names[c.Name])
		}
	}
}

// ticking is a clock that shows another time whenever it is asked.
func ticking(start time.Time) func() time.Time {
	return func() time.Time {
		start = start.Add(time.Second + 7)
		return start
	}
}

// TestTimeline makes random histories, with restores and undos in them, and
// compares every look at the past with what was there.
func TestTimeline(t *testing.T) {
	dir := t.TempDir()
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		path := filepath.Join(dir, fmt.Sprintf("%d.vdisk", runs))
		defer os.Remove(path)
		im, err := Create(path, CreateOptions{Clock: ticking(time.Unix(1e9, 3))})
		if err != nil {
			rt.Fatal(err)
		}
		l := &timeline{
			rt: rt, t: t, im: im, path: path, names: map[string]Checkpoint{},
			moments: []moment{nil, {}}, opened: []map[string]string{nil, nil},
		}
		defer func() { l.im.Close() }()
		steps := []func(){
			l.commit, l.commit, l.commit, l.nodeAt, l.nodeAt, l.openAt, l.between, l.history,
			l.restore, l.undo, l.checkpoint, l.reopen,
		}
		for range rapid.IntRange(1, 5).Draw(rt, "commits") {
			l.commit()
		}
		for range rapid.IntRange(5, 30).Draw(rt, "looks") {
			steps[rapid.IntRange(0, len(steps)-1).Draw(rt, "step")]()
		}
		verify(t, l.im)
	})
}
