package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// builder makes one tree what the image is. It never changes a file where it
// stands, not even its mode or time: other trees may have it too. Directories
// belong to one tree.
type builder struct {
	ctx  context.Context
	im   *workspace.Image
	root *os.Root // of the generation, with tree/ in it
	room *room
	link func(from, to *os.File, name string) error
}

func (v *View) builder(ctx context.Context, t *tree) *builder {
	return &builder{ctx: ctx, im: v.im, root: t.root, room: &room{free: v.free, place: v.base, keep: v.keep}, link: v.link}
}

// catchUp is how many times follow looks for commits that were made while it
// applied others.
const catchUp = 2

// follow applies the commits behind from to a tree that is equal to that one, or
// in parts to later ones, and returns the commit that it is equal to then.
//
// Errors: errDrift when the tree or the history does not have what it takes.
func (b *builder) follow(from uint64) (workspace.Info, error) {
	head, err := b.im.Info()
	for n := 0; err == nil && n < catchUp && head.Seq != from; n++ {
		if err := b.advance(from, head.Seq); err != nil {
			return head, err
		}
		from = head.Seq
		if n+1 < catchUp {
			head, err = b.im.Info()
		}
	}
	return head, err
}

// rebuild compares everything with the image, contents too when deep, and
// returns the commit that the tree is equal to then. The walk sees the image at
// several commits; those made while it went on are applied on top, which settles
// every path that may have been seen too early or too late.
func (b *builder) rebuild(deep bool) (workspace.Info, error) {
	before, err := b.im.Info()
	if err != nil {
		return before, err
	}
	if err := b.scan(deep); err != nil {
		return before, err
	}
	return b.follow(before.Seq)
}

// place puts a file or a symlink at name, whatever stood there.
func (b *builder) place(d *os.Root, name string, p workspace.Path, n *workspace.Node) error {
	if err := b.room.take(n.Size); err != nil {
		return err
	}
	tmp := tempName()
	if err := b.write(d, tmp, p, n); err != nil {
		return errors.Join(err, removeTree(d, tmp))
	}
	hostos.Failpoint("live.written")
	// Nobody reads this tree now, so what stands there may go first: ext4 writes
	// a file out at once when it is renamed over another.
	if err := removeTree(d, name); err != nil {
		return err
	}
	if err := d.Rename(tmp, name); err != nil {
		return err
	}
	hostos.Failpoint("live.renamed")
	return nil
}

// write makes tmp a finished file or symlink.
func (b *builder) write(d *os.Root, tmp string, p workspace.Path, n *workspace.Node) error {
	if n.Kind == workspace.KindSymlink {
		return d.Symlink(n.Target, tmp)
	}
	f, err := d.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	src, err := b.im.OpenNode(p, *n)
	if err != nil {
		return err
	}
	if _, err := io.Copy(until{b.ctx, f}, src.Reader()); err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	if err := f.Chmod(fs.FileMode(n.Mode & 0o777)); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return d.Chtimes(tmp, n.ModTime, n.ModTime)
}

// until is a writer that fails when its context ends: a large file takes long.
type until struct {
	ctx context.Context
	w   io.Writer
}

func (u until) Write(p []byte) (int, error) {
	if err := context.Cause(u.ctx); err != nil {
		return 0, err
	}
	return u.w.Write(p)
}

// makeDir sees to it that name is a directory, whatever stood there.
func (b *builder) makeDir(d *os.Root, name string) error {
	dir, err := isDir(d, name)
	if err != nil || dir {
		return err
	}
	if err := b.room.take(blockSize); err != nil {
		return err
	}
	if err := removeTree(d, name); err != nil {
		return err
	}
	return d.Mkdir(name, 0o700)
}
