package archive

import (
	"archive/tar"
	"context"
	"encoding/hex"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// ExportOptions say what is written. The zero value is the newest commit.
type ExportOptions struct {
	Seq   uint64                // the commit; 0 is the newest
	Entry func(workspace.Entry) // is told of each entry as it is written; nil for nobody
}

// Stated is what an archive says about itself.
type Stated struct {
	Label   string
	Version uint64 // sequence number of the commit
	Entries int64
	Bytes   int64 // sizes of all files and link targets
	Content [32]byte
}

// Export writes the tree of one commit to w, and returns what the archive states. The
// tree is read twice, its contents once; others may go on changing the disk.
//
// Errors: workspace.ErrNotFound when there is no such commit, or when it is an old one of
// which something is no longer kept; workspace.ErrCorrupt; the cause of ctx; those of w.
// What was written is cut off then, and no archive.
func Export(ctx context.Context, im *workspace.Image, w io.Writer, o ExportOptions) (Stated, error) {
	s, err := Describe(ctx, im, o.Seq)
	if err != nil {
		return s, err
	}
	// One goroutine: the bytes are to depend on the input only.
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(exportWindow), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return s, err
	}
	e := exporter{ctx: ctx, im: im, tar: tar.NewWriter(z)}
	if err := e.tar.WriteHeader(s.header()); err != nil {
		return s, err
	}
	err = im.WalkAt(ctx, workspace.Path{}, s.Version, func(n workspace.Entry) error {
		if o.Entry != nil {
			o.Entry(n)
		}
		return e.entry(n)
	})
	if err != nil {
		return s, err
	}
	if err := e.tar.Close(); err != nil {
		return s, err
	}
	return s, z.Close()
}

// exportWindow is as much as a decoder has to remember.
const exportWindow = 4 << 20

// Describe is what an archive of a commit, 0 for the newest, would state.
//
// Errors: as for Export.
func Describe(ctx context.Context, im *workspace.Image, seq uint64) (Stated, error) {
	info, err := im.Info()
	if err != nil {
		return Stated{}, err
	}
	s := Stated{Label: info.Label, Version: seq}
	if seq == 0 {
		s.Version = info.Seq
	}
	sum := workspace.NewContentSum()
	err = im.WalkAt(ctx, workspace.Path{}, s.Version, func(e workspace.Entry) error {
		sum.Add(e.Path, e.Node)
		s.Entries++
		s.Bytes += e.Node.Size
		return nil
	})
	s.Content = sum.Sum()
	return s, err
}

// The keys of the records that are ours.
const (
	keyArchive = "MCPVDISK.archive"
	keyLabel   = "MCPVDISK.label"
	keyVersion = "MCPVDISK.version"
	keyEntries = "MCPVDISK.entries"
	keyBytes   = "MCPVDISK.bytes"
	keyContent = "MCPVDISK.content"
	keySHA256  = "MCPVDISK.sha256"

	formatVersion = "1"
)

func (s Stated) header() *tar.Header {
	records := map[string]string{
		keyArchive: formatVersion,
		keyVersion: strconv.FormatUint(s.Version, 10),
		keyEntries: strconv.FormatInt(s.Entries, 10),
		keyBytes:   strconv.FormatInt(s.Bytes, 10),
		keyContent: hex.EncodeToString(s.Content[:]),
	}
	if s.Label != "" { // an empty value takes a record back, as pax has it
		records[keyLabel] = s.Label
	}
	return &tar.Header{Typeflag: tar.TypeXGlobalHeader, Format: tar.FormatPAX, PAXRecords: records}
}

type exporter struct {
	ctx context.Context
	im  *workspace.Image
	tar *tar.Writer
}

func (e *exporter) entry(n workspace.Entry) error {
	h := &tar.Header{
		Format: tar.FormatPAX, Name: n.Path.Rel(), Mode: int64(n.Node.Mode), ModTime: n.Node.ModTime,
		PAXRecords: map[string]string{},
	}
	switch n.Node.Kind {
	case workspace.KindDir:
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case workspace.KindSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, n.Node.Target
	default:
		h.Typeflag, h.Size = tar.TypeReg, n.Node.Size
		h.PAXRecords[keySHA256] = hex.EncodeToString(n.Node.SHA256[:])
	}
	if !utf8.ValidString(h.Name) || !utf8.ValidString(h.Linkname) {
		h.PAXRecords["hdrcharset"] = "BINARY"
	}
	if err := e.tar.WriteHeader(h); err != nil || n.Node.Kind != workspace.KindFile {
		return err
	}
	f, err := e.im.OpenNode(n.Path, n.Node)
	if err != nil {
		return err
	}
	_, err = io.Copy(e.tar, &cancellable{e.ctx, f.Reader()})
	return err
}

// cancellable is a reader that ends with a context.
type cancellable struct {
	ctx context.Context
	r   io.Reader
}

func (c *cancellable) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}
