package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/archive"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// importVdisk takes over the file of a disk that was made elsewhere. It is spooled first,
// then checked as a whole by a process of its own, and only then opened.
func (b *back) importVdisk(ctx context.Context, q importDiskArgs, rec audit.Record, r io.Reader, tmp *os.File) (f importedFacts, err error) {
	err = b.spool(ctx, tmp, r, q.Bytes)
	if err == nil {
		err = checkForeign(ctx, tmp)
	}
	tmp.Close()
	if err != nil {
		return f, err
	}
	b.hub.placing.Lock() // no other disk gets its uuid meanwhile
	defer b.hub.placing.Unlock()
	path, was, err := b.settled(ctx, q, tmp.Name())
	if err != nil {
		return f, err
	}
	defer os.Remove(path)
	if f, err = b.describe(ctx, path); err != nil {
		return f, err
	}
	rec.Hb, rec.Ha, rec.Out = f.Commit, f.Commit, &audit.Out{OK: true}
	if was != f.UUID {
		f.Was = was
		rec.Args["was"] = was
		f.warn("a disk of this state directory has the uuid %s: this one got another, and nothing says any more that they were the same", was)
	}
	if err := b.place(ctx, path, f.UUID, audit.Entry{Record: rec}); err != nil {
		return f, err
	}
	b.warnOld(ctx, &f)
	return f, nil
}

// spoolStep is how often spool looks at what is free.
const spoolStep = 8 << 20

// historyRoom is how much more than its contents a disk's file may take: as much again for
// its history, and pages.
const historyRoom = 256 << 20

// spool copies a stream into a file, up to what the file of a disk of so many bytes can be.
func (b *back) spool(ctx context.Context, to *os.File, r io.Reader, quota int64) error {
	most := int64(historyRoom)
	if quota < (1<<62)/2 {
		most += 2 * quota
	}
	for n := int64(0); ; {
		if free, _, err := hostos.Free(b.st.dir); err == nil && free < uint64(b.set.minFree)+spoolStep {
			return exit.Fail(exit.Failed, "make room on the disk that holds the state directory", "there is no room for the file: %s have come and %s are free, of which %s are kept for the log", showBytes(n), showBytes(int64(free)), showBytes(b.set.minFree))
		}
		got, err := io.CopyN(to, untilDone{ctx, r}, spoolStep)
		switch n += got; {
		case n > most:
			return exit.Fail(exit.Refused, "--quota SIZE lets in more", "the file is too large: a disk of %s has a file of at most %s", showBytes(quota), showBytes(most))
		case err == io.EOF:
			return nil
		case hostos.IsNoSpace(err):
			return exit.Fail(exit.Failed, "make room on the disk that holds the state directory", "there is no room for the file")
		case err != nil:
			return brokeOff(ctx, err)
		}
	}
}

// settled sees to it that a checked file is a disk that this state directory can have, and
// returns the file of that: the same, or a copy with another uuid or label. was is the
// uuid that it came with.
func (b *back) settled(ctx context.Context, q importDiskArgs, path string) (settled, was string, err error) {
	im, err := workspace.Open(path, workspace.OpenOptions{ReadOnly: true})
	if err != nil {
		return "", "", err
	}
	defer im.Close()
	info, err := im.Info()
	if err != nil {
		return "", "", err
	}
	if max(info.QuotaBytes, info.Bytes) > q.Bytes || max(info.QuotaEntries, info.Entries) > q.Entries {
		return "", "", exit.Fail(exit.Refused, "--quota SIZE and --entries N let it in", "the disk may hold %d bytes and %d entries, and here a new disk may hold %d and %d",
			max(info.QuotaBytes, info.Bytes), max(info.QuotaEntries, info.Entries), q.Bytes, q.Entries)
	}
	names, err := b.hub.diskNames()
	if err != nil {
		return "", "", err
	}
	o := workspace.CopyOptions{Fresh: names[info.UUID] != ""}
	if q.HasLabel {
		o.Label = &q.Label
	}
	if !o.Fresh && o.Label == nil {
		return path, info.UUID, nil
	}
	copied, err := b.copyDisk(ctx, im, o, q.Columns)
	return copied, info.UUID, err
}

// copyDisk makes a copy of a disk beside the others, without a name that one has.
func (b *back) copyDisk(ctx context.Context, im *workspace.Image, o workspace.CopyOptions, columns int) (path string, err error) {
	if o.File, err = workspace.Temp(b.st.path("images")); err != nil {
		return "", err
	}
	path = o.File.Name()
	bar := &meter{w: b.stderr, columns: columns, verb: "copy"}
	defer bar.end()
	o.Progress = bar.reach
	if _, err = im.CopyTo(ctx, path, o); err != nil {
		return "", errors.Join(err, os.Remove(path))
	}
	return path, nil
}

// describe tells what a disk that has no name yet holds.
func (b *back) describe(ctx context.Context, path string) (importedFacts, error) {
	im, err := workspace.Open(path, workspace.OpenOptions{ReadOnly: true})
	if err != nil {
		return importedFacts{}, err
	}
	defer im.Close()
	return b.madeFacts(ctx, im, archive.Vdisk)
}

// warnOld says that the disk cannot be changed before somebody decides that it counts:
// the log tells of changes of it that the file does not have.
func (b *back) warnOld(ctx context.Context, f *importedFacts) {
	d, err := b.open(ctx, want{readOnly: true})
	if err != nil {
		return
	}
	defer d.release()
	p, err := b.hub.provider()
	if err != nil {
		return
	}
	d.right.mu.Lock()
	defer d.right.mu.Unlock()
	var old *tools.Error
	if err := d.right.look(ctx, p); errors.As(err, &old) {
		f.warn("%s", fmt.Sprintf("it can be read, and not changed: %s; mcp-vdisk lease adopt %s --why REASON goes on with it", old, tools.ShellQuote(d.name)))
	}
}
