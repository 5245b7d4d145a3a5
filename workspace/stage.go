package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	chunkers "github.com/PlakarKorp/go-cdc-chunkers"
	_ "github.com/PlakarKorp/go-cdc-chunkers/chunkers/fastcdc" // registers the algorithm

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Stage takes contents ahead of the commit that will refer to them, so that a
// commit is short and memory stays bounded whatever the size: at most
// stageBytes of packed chunks wait in memory, what is more goes to the image in
// updates of that size. Chunks written so are marked as pending until a commit
// uses them; those of a process that died are swept at the next Open.
//
// A Stage belongs to one goroutine.
type Stage struct {
	im  *Image
	ctx context.Context
	id  uint64

	waiting []stored            // packed, not written yet
	bytes   int                 // in waiting
	inWait  map[[32]byte]uint64 // ids of those
	written bool                // some chunks lie in the image as pending
	total   int64               // plain bytes added
	shares  idSet               // chunks of the image that it refers to; see sharing
	base    uint64              // see Hold
	shared  bool                // sharing knows it
	over    bool                // discarded, or used by a commit
}

// stored is a packed chunk on its way into the image.
type stored struct {
	id    uint64
	sum   [32]byte
	value []byte
}

const stageBytes = 8 << 20

// Content is what Add made of a stream, good for changes of one commit that
// names the same Stage; or what Node.Content made of a node, good for any
// commit. The zero value is an empty file.
type Content struct {
	Size   int64
	Lines  int64 // newlines
	SHA256 [32]byte

	body  body
	refs  []ref // all of its chunks, also when body has them in a list
	stage *Stage
	fresh bool // some of it is stored with the stage
	kept  bool // it is the one of a node: all of it is in the image already
}

// Stage begins to take contents. The context covers the whole stage.
func (im *Image) Stage(ctx context.Context) *Stage {
	return &Stage{im: im, ctx: ctx, id: im.lastStage.Add(1), inWait: map[[32]byte]uint64{}}
}

// Add reads r to its end. Contents that the image has already are recognised
// by their hash and not stored again.
//
// Errors: whatever r returns, wrapped; the cause of the context; ErrQuota when
// the contents of this stage alone are over the quota, before r was read much
// further (at most 1 MiB); ErrReadOnly; ErrNoSpace; ErrCorrupt.
func (s *Stage) Add(r io.Reader) (Content, error) {
	if s.over {
		return Content{}, errors.New("stage: already discarded or committed")
	}
	if err := s.im.writable("stage"); err != nil {
		return Content{}, err
	}
	buf := s.im.scratch.get()
	defer s.im.scratch.put(buf)
	n, err := io.ReadFull(r, buf.head[:])
	switch {
	case err == nil:
		return s.addLarge(r, buf)
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return s.addSmall(buf.head[:n])
	}
	return Content{}, fmt.Errorf("stage: %w", err)
}

// addSmall takes a content that is inline or one chunk.
func (s *Stage) addSmall(plain []byte) (Content, error) {
	c := Content{Size: int64(len(plain)), Lines: countLines(plain), SHA256: sha256.Sum256(plain), stage: s}
	c.body.open = unended(plain)
	if err := s.account(len(plain)); err != nil {
		return Content{}, err
	}
	if len(plain) <= maxInline {
		c.body.inline = bytes.Clone(plain)
		return c, nil
	}
	id, fresh, err := s.store(c.SHA256, plain)
	if err != nil {
		return Content{}, err
	}
	c.fresh = fresh
	c.refs = []ref{{id: id, size: c.Size, lines: c.Lines}}
	c.body.refs = c.refs
	return c, nil
}

// addLarge takes a content whose first maxSingle+1 bytes are in buf.head, cut
// into chunks where the bytes themselves say so: an edit moves the borders
// near it only, so that versions of a file share the rest.
func (s *Stage) addLarge(r io.Reader, buf *scratch) (Content, error) {
	cut, err := chunkers.NewChunkerBuffer("fastcdc-v1.0.0", io.MultiReader(bytes.NewReader(buf.head[:]), r),
		&chunkers.ChunkerOpts{MinSize: minChunk, NormalSize: avgChunk, MaxSize: maxChunk}, buf.window())
	if err != nil {
		return Content{}, fmt.Errorf("stage: %w", err)
	}
	c := Content{stage: s}
	whole := sha256.New()
	for {
		plain, end := cut.Next()
		if end != nil && end != io.EOF {
			return Content{}, fmt.Errorf("stage: %w", end)
		}
		if len(plain) > 0 {
			whole.Write(plain)
			if err := s.addChunk(&c, plain); err != nil {
				return Content{}, err
			}
		}
		if end == io.EOF {
			break
		}
	}
	whole.Sum(c.SHA256[:0])
	return c, s.fold(&c)
}

func (s *Stage) addChunk(c *Content, plain []byte) error {
	if err := s.account(len(plain)); err != nil {
		return err
	}
	id, fresh, err := s.store(sha256.Sum256(plain), plain)
	if err != nil {
		return err
	}
	c.fresh = c.fresh || fresh
	r := ref{id: id, size: int64(len(plain)), lines: countLines(plain)}
	c.refs = append(c.refs, r)
	c.body.open = unended(plain)
	c.Size, c.Lines = c.Size+r.size, c.Lines+r.lines
	return nil
}

// fold puts the references into the body, or into a chunk when they are too
// many for a node.
func (s *Stage) fold(c *Content) error {
	if len(c.refs) <= maxRefs {
		c.body.refs = c.refs
		return nil
	}
	list := appendRefs(nil, c.refs)
	if len(list) > maxList {
		return imageError("stage", ErrTooLarge, "a file of this size has too many chunks")
	}
	id, fresh, err := s.store(sha256.Sum256(list), list)
	if err != nil {
		return err
	}
	c.fresh = c.fresh || fresh
	c.body.list = &ref{id: id, size: int64(len(list))}
	return nil
}

// account refuses early what no commit could accept: contents that alone are
// more than the quota, and more than the disk holds already, for a disk over its
// quota may still shrink.
func (s *Stage) account(n int) error {
	if err := context.Cause(s.ctx); err != nil {
		return fmt.Errorf("stage: %w", err)
	}
	quota := s.im.identity.quotaBytes
	if s.total += int64(n); s.total <= quota {
		return nil
	}
	info, err := s.im.Info()
	if err != nil {
		return err
	}
	if s.total > info.Bytes {
		return imageError("stage", ErrQuota, fmt.Sprintf("the new contents alone are over its %d bytes", quota))
	}
	return nil
}

// Discard gives back what the stage stored. It may be called any number of
// times, and does nothing once a commit used the stage. On a disk so full that
// this fails, a later commit of the same Image does it, or the next Open.
func (s *Stage) Discard() error {
	if s.over {
		return nil
	}
	s.over = true
	s.forget()
	s.im.sharing.leave(s)
	if !s.written {
		return nil
	}
	hostos.Failpoint("discard.begin")
	err := s.im.sweepPending(s.pendingPrefix())
	if errors.Is(err, ErrNoSpace) {
		s.im.abandoned.add(s.id)
		return nil
	}
	hostos.Failpoint("discard.end")
	return err
}

// finish ends a stage whose chunks a commit has settled.
func (s *Stage) finish() {
	s.over = true
	s.forget()
	s.im.sharing.leave(s)
}

// use adds the ids of all chunks that a content needs.
func (c *Content) use(ids map[uint64]bool) {
	if c.body.list != nil {
		ids[c.body.list.id] = true
	}
	for _, r := range c.refs {
		ids[r.id] = true
	}
}
