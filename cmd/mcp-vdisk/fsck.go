package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/live"
)

type fsckArgs struct{ Live, Cross, Repair, JSON bool }

func (a *app) imageFsckCmd() *cobra.Command {
	var q fsckArgs
	cmd := &cobra.Command{
		Use:   "fsck [NAME|PATH]",
		Short: "Check a disk: every page, value, hash and record",
		Long: `fsck reads all of a disk and checks it: the structure of the file, the checksum of
every value, the hash of every content, the chain of commits, and that tree and
history prove each other. With --live it also compares the directory that scripts
see, with --cross the commits with the audit log.

--repair makes anew what can be made from the rest: indexes, totals, paths that the
history has. It never invents content; what is lost is named.

Exit codes: 0 clean, 1 damage was found and repaired, 10 damage is left.`,
		Example: "  mcp-vdisk image fsck --live --cross\n  mcp-vdisk image fsck project --repair",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.imageArg(args); err != nil {
				return err
			}
			q.JSON = a.json
			mode := front.OpenRead
			if q.Repair {
				mode = front.OpenWrite
			}
			return a.simple(cmd, "image.fsck", q, mode)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().BoolVar(&q.Live, "live", false, "compare the directory that scripts see")
	cmd.Flags().BoolVar(&q.Cross, "cross", false, "compare the commits with the audit log")
	cmd.Flags().BoolVar(&q.Repair, "repair", false, "make anew what can be made from the rest")
	return cmd
}

// fsckReport is what `image fsck --json` prints.
type fsckReport struct {
	*workspace.Report
	Live  []live.Drift   `json:"live,omitempty"`
	Cross []crossFinding `json:"cross,omitempty"`
	// TakenOn is how many commits are in no record because the disk was taken on
	// with them, which is a record.
	TakenOn int64 `json:"taken_on,omitempty"`
	// GivenUp is how many records tell of commits that the disk does not have because
	// an older copy of it was taken on.
	GivenUp int64 `json:"given_up,omitempty"`
	Clean   bool  `json:"clean"` // nothing was found
	Left    int64 `json:"left"`  // findings that are not repaired
}

func backFsck(ctx context.Context, b *back) error {
	var q fsckArgs
	if err := b.args(&q); err != nil {
		return err
	}
	rep, err := b.fsck(ctx, q)
	if err != nil {
		return err
	}
	if err := b.recordFsck(ctx, q, rep); err != nil {
		return err
	}
	if q.JSON {
		if err := b.printJSON(rep); err != nil {
			return err
		}
	} else {
		b.printReport(q, rep)
	}
	switch {
	case rep.Left > 0:
		return &exit.Failure{Code: exit.Verify}
	case !rep.Clean:
		return &exit.Failure{Code: exit.Failed}
	}
	return nil
}

// fsck checks the file, and then, when it can be opened, what goes with it.
func (b *back) fsck(ctx context.Context, q fsckArgs) (*fsckReport, error) {
	o := workspace.CheckOptions{Repair: q.Repair}
	checked, err := b.check(ctx, q, o)
	if errors.Is(err, workspace.ErrNotFound) {
		return nil, exit.Fail(exit.NotFound, "mcp-vdisk image list shows the disks", "there is no disk %s", b.req.Image)
	}
	if err != nil {
		return nil, err
	}
	rep := &fsckReport{Report: checked}
	if q.Live || q.Cross {
		if err := b.fsckBeside(ctx, q, rep); err != nil {
			return nil, err
		}
	}
	rep.Left = checked.Left() + int64(len(rep.Cross))
	if !q.Repair {
		rep.Left += int64(len(rep.Live))
	}
	rep.Clean = len(checked.Findings)+len(rep.Live)+len(rep.Cross) == 0
	return rep, nil
}

// check checks the file. One that is in use is checked as it is at one commit, by
// a copy.
func (b *back) check(ctx context.Context, q fsckArgs, o workspace.CheckOptions) (rep *workspace.Report, err error) {
	w := want{ref: b.req.Image, file: b.image}
	if !q.Repair {
		if d := b.hub.use(w); d != nil {
			defer d.release()
			return b.checkCopy(ctx, d, o)
		}
	}
	err = b.hub.aside(w, func() error {
		if !b.mayUsePath() { // a repair may put another file at the path
			if o.File, err = dupFile(b.image); err != nil {
				return err
			}
		}
		rep, err = workspace.Check(ctx, b.hub.pathOf(b.req.Image), o)
		return err
	})
	return rep, err
}

// checkCopy checks a disk that others use.
func (b *back) checkCopy(ctx context.Context, d *disk, o workspace.CheckOptions) (*workspace.Report, error) {
	f, err := hostos.Unnamed(b.st.path("scratch"))
	if err != nil {
		return nil, fmt.Errorf("copy the disk for its check: %w", err)
	}
	if _, err := d.image.Snapshot(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("copy the disk for its check: %w", err)
	}
	o.File = f
	return workspace.Check(ctx, b.hub.pathOf(b.req.Image), o)
}

// mayUsePath says whether the image can be opened by its path here too, and is
// the file that the front opened. Without a path pages cannot be repaired: that
// makes a new file beside the old one.
func (b *back) mayUsePath() bool {
	if b.image == nil {
		return true
	}
	f, err := os.OpenFile(b.hub.pathOf(b.req.Image), os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	here, err := f.Stat()
	if err != nil {
		return false
	}
	given, err := b.image.Stat()
	return err == nil && os.SameFile(here, given)
}

// dupFile gives a descriptor that another owns; nil for none.
func dupFile(f *os.File) (*os.File, error) {
	if f == nil {
		return nil, nil
	}
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("open image again: %w", err)
	}
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// fsckBeside compares the disk with its live directory and with the log.
func (b *back) fsckBeside(ctx context.Context, q fsckArgs, rep *fsckReport) error {
	d, err := b.open(ctx, want{readOnly: true})
	if err != nil {
		return err
	}
	defer d.release()
	im, info := d.image, d.info
	if q.Live {
		if err := d.prepare(b.set.limits); err != nil {
			return err
		}
		if rep.Live, err = d.view.Check(ctx, q.Repair); err != nil {
			return err
		}
	}
	if q.Cross {
		rep.Cross, rep.TakenOn, rep.GivenUp, err = crossCheck(ctx, im, b.st.log, info.UUID)
	}
	return err
}

// recordFsck notes in the log what was found. A disk that says not even its uuid
// has no stream: its check is in the system's.
func (b *back) recordFsck(ctx context.Context, q fsckArgs, rep *fsckReport) error {
	stream := rep.UUID
	if stream == "" {
		stream = audit.StreamSystem
	}
	return b.st.record(ctx, stream, audit.Record{
		Ev: audit.EvFsck, Img: rep.UUID, Ha: rep.Commit, Hb: rep.Commit,
		Args: audit.Facts{"image": b.req.Image.String(), "live": q.Live, "cross": q.Cross, "repair": q.Repair},
		Out:  &audit.Out{OK: rep.Left == 0},
	})
}

func (b *back) printReport(q fsckArgs, rep *fsckReport) {
	for _, f := range rep.Findings {
		mark := "DAMAGED "
		if f.Repaired {
			mark = "REPAIRED"
		}
		b.printf("%s  %s\n", mark, harmless(f.String()))
	}
	if rep.More > 0 {
		b.printf("… and %d more\n", rep.More)
	}
	for _, d := range rep.Live {
		mark := "DRIFTED "
		if q.Repair {
			mark = "REPAIRED"
		}
		b.printf("%s  live directory, %s: %s\n", mark, harmless(d.Path), harmless(d.Text))
	}
	for _, c := range rep.Cross {
		b.printf("CROSS     %s\n", harmless(c.Text))
	}
	b.printf("%s at v%d: %d files, %d directories, %d links, %s; %d chunks, %d commits, %d checkpoints\n",
		b.req.Image, rep.Seq, rep.Files, rep.Directories, rep.Symlinks, showBytes(rep.Bytes), rep.Chunks, rep.Commits, rep.Checkpoints)
	if rep.Unused > 0 {
		b.printf("note: %d chunks (%s) are used by nothing\n", rep.Unused, showBytes(rep.UnusedBytes))
	}
	if rep.TakenOn > 0 {
		b.printf("note: %s in no record of this log, because the disk was taken on with them: mcp-vdisk audit query ev=lease.adopt, ev=image.import or ev=image.fork tells when and why\n", plainCount(int(rep.TakenOn), "commit"))
	}
	if rep.GivenUp > 0 {
		b.printf("note: %s of this log not on the disk, because an older copy of it was taken on: mcp-vdisk audit query ev=lease.adopt or ev=image.import tells when and why\n", plainCount(int(rep.GivenUp), "commit"))
	}
	if rep.Kept != "" {
		b.printf("note: the damaged file is kept beside the new one, as %s\n", harmless(rep.Kept))
	}
	var also []string
	if q.Live {
		also = append(also, "live directory")
	}
	if q.Cross {
		also = append(also, "audit log")
	}
	scope := strings.Join(append([]string{"disk"}, also...), ", ")
	switch {
	case rep.Clean:
		b.printf("clean (%s)\n", scope)
	case rep.Left == 0:
		b.printf("repaired (%s)\n", scope)
	default:
		b.printf("%s left (%s)\n", plainCount(int(rep.Left), "finding"), scope)
		if !q.Repair && rep.Left > int64(len(rep.Cross)) {
			b.printf("hint: mcp-vdisk image fsck --repair mends what can be mended; keep a copy of the file first\n")
		}
	}
}

// crossFinding is a disagreement between the commits of a disk and its log.
type crossFinding struct {
	Version string `json:"version,omitempty"`
	Commit  string `json:"commit"`
	Call    string `json:"call,omitempty"`
	Record  uint64 `json:"record,omitempty"`
	Text    string `json:"text"`
}

// maxCross bounds how many disagreements are listed; a disk that was rolled back
// disagrees about everything behind that.
const maxCross = 1000

// crossCheck compares both ways: each commit has a record that names it, with the
// same call and the same commit before it, and each commit that a record names is
// in the disk. Commits up to one at which the disk was taken on, from elsewhere, as
// the copy of another or as newer than the log, need no record; taken counts those that
// have none. Nor need a commit be there whose record came before such a one: gone counts
// these. Nor those that a gc dropped from the beginning of the history.
func crossCheck(ctx context.Context, im *workspace.Image, log *audit.Log, stream string) (found []crossFinding, taken, gone int64, err error) {
	records, adopted, err := recordedCommits(ctx, log, stream)
	if err != nil {
		return nil, 0, 0, err
	}
	first, err := lastCommit(im, 1)
	if err != nil {
		return nil, 0, 0, err
	}
	last := adopted[first.ID]                   // record by which one of its commits was taken on
	var unknown []crossFinding                  // since the disk was last taken on, the first of them
	missing := int64(0)                         // all of them
	for after, more := uint64(1), true; more; { // commit 1 made the disk
		batch, err := im.Log(after, 256)
		if err != nil {
			return nil, 0, 0, err
		}
		more = len(batch) > 0
		for _, c := range batch {
			after = c.Seq
			r, ok := records[c.ID]
			delete(records, c.ID)
			switch f, bad := r.against(c); {
			case !ok:
				if missing++; len(unknown) < maxCross {
					unknown = append(unknown, f)
				}
			case bad:
				found = append(found, f)
			}
			if n, ok := adopted[c.ID]; ok {
				last = max(last, n)
				taken += missing
				unknown, missing = nil, 0
			}
		}
	}
	found = append(found, unknown...)
	last = max(last, dropOlder(records, adopted, first.Parent))
	for _, id := range slices.SortedFunc(maps.Keys(records), func(a, b string) int { return cmp.Compare(records[a].n, records[b].n) }) {
		r := records[id]
		if r.n < last {
			gone++
			continue
		}
		found = append(found, crossFinding{Commit: id, Call: r.call, Record: r.n,
			Text: fmt.Sprintf("record %d (call %s) tells of commit %.12s, which the disk does not have", r.n, r.call, id)})
	}
	return found[:min(len(found), maxCross)], taken, gone, nil
}

// dropOlder takes the records of commits away that were dropped from the beginning of
// the history: the one before the oldest that is left, the one before that, and so on.
// It returns the last record by which one of them was taken on, 0 for none.
func dropOlder(records map[string]recorded, adopted map[string]uint64, id string) (last uint64) {
	for {
		last = max(last, adopted[id])
		r, ok := records[id]
		if !ok {
			return last
		}
		delete(records, id)
		id = r.before
	}
}

// recorded is what the log tells of a commit; the zero value is nothing.
type recorded struct {
	n            uint64
	call, before string
}

// recordedCommits are the commits that records of a stream name, and those at
// which the disk was taken on, each with the number of the last such record.
func recordedCommits(ctx context.Context, log *audit.Log, stream string) (records map[string]recorded, adopted map[string]uint64, err error) {
	records, adopted = map[string]recorded{}, map[string]uint64{}
	err = log.Query(ctx, audit.Query{Stream: stream}, func(_ []byte, r audit.Record) error {
		switch {
		case r.Ev == audit.EvLeaseAdopt, r.Ha != "" && r.Ha == r.Hb && (r.Ev == audit.EvImageImport || r.Ev == audit.EvImageFork):
			adopted[r.Ha] = r.N
		case r.Ha != "" && r.Ha != r.Hb:
			records[r.Ha] = recorded{r.N, r.Call, r.Hb}
		}
		return nil
	})
	return records, adopted, err
}

// against compares a record with the commit that it names.
func (r recorded) against(c workspace.Commit) (f crossFinding, bad bool) {
	f = crossFinding{Version: versionText(c.Seq), Commit: c.ID, Call: c.Call, Record: r.n}
	switch {
	case r == recorded{}:
		f.Text = fmt.Sprintf("commit %s (%.12s, call %s) is in no record of the log", f.Version, c.ID, c.Call)
	case r.call != c.Call:
		f.Text = fmt.Sprintf("commit %s was made by call %s, and record %d says %s", f.Version, c.Call, r.n, r.call)
	case r.before != c.Parent:
		f.Text = fmt.Sprintf("commit %s comes after %.12s, and record %d says %.12s", f.Version, c.Parent, r.n, r.before)
	default:
		return f, false
	}
	return f, true
}

// lastCommit is the newest commit of a disk up to a version.
func lastCommit(im *workspace.Image, seq uint64) (c workspace.Commit, err error) {
	log, err := im.Log(seq-1, 1)
	if err == nil && len(log) == 1 {
		c = log[0]
	}
	return c, err
}
