package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// kept are the changes of a run on their way into the disk: at its end, or later,
// when they were not saved then. Their contents lie in the image, as pending, and
// are gone after a crash.
type kept struct {
	stage   *workspace.Stage
	changes []workspace.Change
	paths   int    // that differ because of them
	base    uint64 // commits behind this one may conflict
	source  []byte
	message string
	ending  string // of the run, in words
	digest  string // of its source

	// told are the sessions that were told of a conflict, with the commit up to
	// which they were; nil is all, told by the result of the run.
	told map[*Tools]uint64
}

// change is what a commit did, or would do.
type change struct {
	effects []workspace.Effect
	seq     uint64
}

// commit saves the changes for a call; dry only tells what they would do. Paths
// that others changed as well are a *conflict. After that was told to a session,
// the same commit saves over what they did, but not over what they do since.
func (k *kept) commit(ctx context.Context, t *Tools, c *call, dry bool) (change, error) {
	told := max(k.told[t], k.told[nil])
	changes, err := k.steps(t, told > 0)
	if err != nil {
		return change{}, err
	}
	do := t.look
	if !dry {
		do = func(ctx context.Context, txn workspace.Txn) (workspace.Commit, error) { return t.commit(ctx, c, txn) }
	}
	base := cmp.Or(told, k.base)
	done, err := do(ctx, workspace.Txn{Message: k.message, Source: k.source, Base: base, Stage: k.stage, Changes: changes})
	if !errors.Is(err, workspace.ErrVersionConflict) {
		return change{done.Effects, done.Seq}, err
	}
	clash, cerr := k.conflict(ctx, t, base, err)
	switch {
	case cerr != nil:
		return change{}, cerr
	case dry:
		return change{}, clash
	case k.told == nil:
		k.told = map[*Tools]uint64{}
	}
	if c.script != nil { // what a run meets at its end stands in its result
		t = nil
	}
	k.told[t] = clash.head
	return change{}, clash
}

// look tells what a change would do, whoever has the right to make it.
func (t *Tools) look(ctx context.Context, txn workspace.Txn) (workspace.Commit, error) {
	txn.DryRun = true // which needs no lease
	return t.cfg.Image.Commit(ctx, txn)
}

// steps are the changes; over what others did they need parents, and what is
// gone need not be removed.
func (k *kept) steps(t *Tools, over bool) ([]workspace.Change, error) {
	if !over {
		return k.changes, nil
	}
	steps := make([]workspace.Change, 0, len(k.changes))
	for _, c := range k.changes {
		c.Parents = true
		if c.Op == workspace.OpRemove {
			_, err := t.cfg.Image.Lstat(c.Path)
			if errors.Is(err, workspace.ErrNotFound) || errors.Is(err, workspace.ErrNotDirectory) {
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		steps = append(steps, c)
	}
	return steps, nil
}

// conflict is the error of changes to paths that others changed since.
type conflict struct {
	cause   error
	head    uint64             // commits up to this one were looked at
	paths   []clash            // in their order
	effects []workspace.Effect // of saving over them
}

// clash is what others did to a path.
type clash struct {
	path workspace.Path
	seq  uint64
	gone bool
}

func (e *conflict) Error() string { return e.cause.Error() }
func (e *conflict) Unwrap() error { return e.cause }

// conflict finds which paths are meant by the commits behind base. It looks at
// those up to one that it notes: whatever comes behind that is news, and a conflict
// of its own.
func (k *kept) conflict(ctx context.Context, t *Tools, base uint64, cause error) (*conflict, error) {
	info, err := t.cfg.Image.Info()
	if err != nil {
		return nil, err
	}
	e := &conflict{cause: cause, head: info.Seq}
	ours, above, err := k.touched(ctx, t, e)
	if err != nil {
		return nil, err
	}
	found := map[workspace.Path]clash{}
	for at := base; at < e.head; {
		log, err := t.cfg.Image.Log(at, 1)
		if err != nil {
			return nil, err
		}
		if len(log) == 0 || log[0].Seq > e.head {
			break
		}
		at = log[0].Seq
		for _, f := range log[0].Effects {
			gone := f.After == nil || f.After.Kind != workspace.KindDir
			if ours[f.Path] || above[f.Path] && gone {
				found[f.Path] = clash{f.Path, at, f.After == nil}
			}
		}
	}
	for _, c := range found {
		e.paths = append(e.paths, c)
	}
	slices.SortFunc(e.paths, func(a, b clash) int { return cmp.Compare(a.path.Rel(), b.path.Rel()) })
	return e, nil
}

// touched are the paths that saving over everything would change, and all
// directories above them.
func (k *kept) touched(ctx context.Context, t *Tools, e *conflict) (ours, above map[workspace.Path]bool, err error) {
	steps, err := k.steps(t, true)
	if err != nil {
		return nil, nil, err
	}
	ours, above = map[workspace.Path]bool{}, map[workspace.Path]bool{}
	would, err := t.look(ctx, workspace.Txn{Stage: k.stage, Changes: steps})
	e.effects = would.Effects
	for _, f := range would.Effects {
		ours[f.Path] = true
	}
	if err != nil { // over the quota, say; the conflict comes first
		for _, c := range k.changes {
			ours[c.Path] = ours[c.Path] || c.Op != workspace.OpMkdir
		}
	}
	for _, c := range k.changes {
		for d := c.Path; !d.IsRoot(); d = d.Dir() {
			above[d.Dir()] = true
		}
	}
	return ours, above, context.Cause(ctx)
}

// words are the sentence about a conflict and the list of its paths.
func (e *conflict) words() (string, []string) {
	n := int64(len(e.paths))
	if n == 0 {
		return e.cause.Error(), nil
	}
	lines, room := []string{"changed by others meanwhile:"}, maxChangeText
	for i, c := range e.paths {
		line := fmt.Sprintf("  %s  now %s", c.path, version(c.seq))
		if c.gone {
			line = fmt.Sprintf("  %s  deleted in %s", c.path, version(c.seq))
		}
		if i == maxChanges || len(line) > room {
			lines = append(lines, fmt.Sprintf("… and %s more", thousands(n-int64(i))))
			break
		}
		lines, room = append(lines, line), room-len(line)
	}
	verb := "were"
	if n == 1 {
		verb = "was"
	}
	return fmt.Sprintf("%s that the script changes too %s changed by others since it began", plural(n, "path"), verb), lines
}

// discard gives up the changes that are kept, if there are any.
func (j *job) discard() {
	j.saving.Lock()
	defer j.saving.Unlock()
	if j.kept == nil {
		return
	}
	if err := j.kept.stage.Discard(); err != nil {
		j.logger().Warn("kept changes could not be discarded; the next opening does it", "job", j.id, "error", err)
	}
	j.kept = nil
	j.note(func(i *JobInfo) { i.Kept = 0 })
}

// hold keeps changes.
func (j *job) hold(k *kept) {
	j.saving.Lock()
	defer j.saving.Unlock()
	j.kept = k
	j.note(func(i *JobInfo) { i.Kept = k.paths })
}

// savedAs notes that what the run changed is on the disk.
func (j *job) savedAs(c change) {
	j.saving.Lock()
	defer j.saving.Unlock()
	j.saved, j.kept = c.seq, nil
	j.note(func(i *JobInfo) { i.Saved = true })
}

// changes says what became of changes that were kept.
func (j *job) changes() []string {
	if len(j.told.remedy) == 0 {
		return nil
	}
	j.saving.Lock()
	defer j.saving.Unlock()
	switch {
	case j.kept != nil:
		return j.told.remedy
	case j.saved > 0:
		return []string{"its changes were saved later, as " + version(j.saved)}
	}
	return []string{"its changes are no longer kept: run the script again if they are wanted"}
}
