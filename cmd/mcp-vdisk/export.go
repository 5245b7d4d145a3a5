package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/hostcopy"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/archive"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

type exportArgs struct {
	At      string // a version; "" is the newest
	Format  archive.Format
	To      string // for the log
	Columns int    // of the terminal that progress is shown on, 0 for none
}

func (a *app) imageExportCmd() *cobra.Command {
	var q exportArgs
	var format string
	var force bool
	cmd := &cobra.Command{
		Use:   "export FILE|-",
		Short: "Write a disk into one file: with its history, or as an archive for other programs",
		Long: `export writes the disk into FILE, whole or not at all; - is standard output. The end of
the name says in which format, or --format:

  .vdisk    a disk, with its checkpoints and its history up to --at, compacted
  .tar.zst  the files as they were at --at, for tar --zstd -x and other programs

What is changed meanwhile is not in it. tar tells of the records MCPVDISK.* that it does
not know; --warning=no-unknown-keyword makes it silent.`,
		Example: "  mcp-vdisk image export project.vdisk --image project\n  mcp-vdisk image export - --format tar.zst --at release | ssh host 'cat > project.tar.zst'",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if q.Format, err = exportFormat(args[0], format); err != nil {
				return err
			}
			if q.At != "" {
				if err := pathArg(q.At); err != nil {
					return err
				}
			}
			q.To, q.Columns = strings.ToValidUTF8(args[0], "\uFFFD"), columnsOf(a.Stderr)
			return a.export(cmd.Context(), q, args[0], force)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().StringVar(&q.At, "at", "", "`REF` to export: a checkpoint or a version such as v12 (default: the newest)")
	cmd.Flags().StringVar(&format, "format", "", "vdisk or tar.zst, where the name does not say it")
	cmd.Flags().BoolVar(&force, "force", false, "overwrite FILE if it is there, and go through it if it is a link")
	return cmd
}

// exportFormat is the format that a name or the flag says; both must agree.
func exportFormat(file, flag string) (archive.Format, error) {
	var named archive.Format
	switch {
	case strings.HasSuffix(file, ".vdisk"):
		named = archive.Vdisk
	case strings.HasSuffix(file, ".tar.zst"), strings.HasSuffix(file, ".tzst"):
		named = archive.TarZstd
	}
	f := archive.Format(flag)
	switch {
	case flag != "" && f != archive.Vdisk && f != archive.TarZstd:
		return "", exit.Fail(exit.Usage, "", "--format: must be vdisk or tar.zst, is %q", flag)
	case flag == "" && named == "":
		return "", exit.Fail(exit.Usage, "pass --format vdisk or --format tar.zst", "%q does not say in which format: it ends neither in .vdisk nor in .tar.zst", file)
	case named != "" && flag != "" && named != f:
		return "", exit.Fail(exit.Usage, "leave --format out, or choose another name", "%s has the name of the format %s", file, named)
	}
	return cmp.Or(f, named), nil
}

func (a *app) export(ctx context.Context, q exportArgs, file string, force bool) error {
	r, err := a.NewRequest("image.export", q)
	if err != nil {
		return err
	}
	r.Long = true
	out, keep, drop := a.Stdout, func() error { return nil }, func() {}
	if file == "-" {
		if f, ok := a.Stdout.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			return exit.Fail(exit.Usage, "name a file, or send it on by > or |", "standard output is a terminal")
		}
	} else {
		w, err := hostcopy.CreateWhole(file, force)
		if err != nil {
			return err
		}
		out, keep, drop = w, w.Keep, w.Drop
	}
	bar := newMeter(a.Stderr, "export", 0)
	in := &parcel{to: io.MultiWriter(out, bar)}
	err = a.Ask(ctx, r, front.OpenRead, nil, in)
	bar.end()
	if err == nil {
		err = in.whole()
	}
	if err != nil {
		drop()
		return err
	}
	if err := keep(); err != nil {
		return err
	}
	return a.tellExport(in.facts, file)
}

// exportFacts is what `image export --json` prints.
type exportFacts struct {
	File    string         `json:"file"`
	Format  archive.Format `json:"format"`
	UUID    string         `json:"uuid"`
	Label   string         `json:"label,omitempty"`
	Version string         `json:"version"`
	Entries int64          `json:"entries"`
	Bytes   int64          `json:"bytes"`      // sizes of all files
	Size    int64          `json:"file_bytes"` // of what was written
	Content string         `json:"content"`    // digest
}

// tellExport prints the facts: JSON on standard output, unless the export went there.
func (a *app) tellExport(f exportFacts, file string) error {
	if f.File = strings.ToValidUTF8(file, "\uFFFD"); a.json {
		w := a.Stdout
		if file == "-" {
			w = a.Stderr
		}
		return printJSON(w, f)
	}
	shown := safe(f.File)
	if file == "-" {
		shown = "standard output"
	}
	fmt.Fprintf(a.Stderr, "wrote %s: version %s, %s, %s; file %s\ncontent digest %s\n",
		shown, f.Version, entries(int(f.Entries)), showBytes(f.Bytes), showBytes(f.Size), f.Content)
	return nil
}

func backExport(ctx context.Context, b *back) error {
	var q exportArgs
	d, err := b.begin(ctx, &q, true)
	if err != nil {
		return err
	}
	defer d.release()
	im := d.image
	seq, err := versionAt(im, q.At)
	if err != nil {
		return err
	}
	at, err := lastCommit(im, seq)
	if err != nil {
		return err
	}
	about := b.operator(audit.Facts{"image": b.req.Image.String(), "to": q.To, "format": string(q.Format), "version": versionText(seq)})
	if err := b.st.record(ctx, d.info.UUID, audit.Record{Ev: audit.EvImageExport, Img: d.info.UUID, Args: about, Hb: at.ID, Ha: at.ID}); err != nil {
		return err
	}
	out := &parcels{to: b.stdout}
	var s archive.Stated
	if q.Format == archive.Vdisk {
		s, err = b.exportDisk(ctx, im, seq, out, q.Columns)
	} else {
		s, err = archive.Export(ctx, im, out, archive.ExportOptions{Seq: seq})
	}
	if err != nil {
		return err
	}
	return out.end(exportFacts{
		Format: q.Format, UUID: d.info.UUID, Label: s.Label, Version: versionText(s.Version),
		Entries: s.Entries, Bytes: s.Bytes, Size: out.n, Content: hex.EncodeToString(s.Content[:]),
	})
}

// exportDisk makes a copy of the disk in a file without a name, which ends with this
// process whatever happens, and sends that: a disk is written in no order that could be
// sent at once.
func (b *back) exportDisk(ctx context.Context, im *workspace.Image, seq uint64, w io.Writer, columns int) (archive.Stated, error) {
	s, err := archive.Describe(ctx, im, seq)
	if err != nil {
		return s, err
	}
	f, err := hostos.Unnamed(b.st.path("scratch"))
	if err != nil {
		return s, fmt.Errorf("copy the disk: %w", err)
	}
	mine, err := dupFile(f)
	if err != nil {
		f.Close()
		return s, err
	}
	defer mine.Close()
	bar := &meter{w: b.stderr, columns: columns, verb: "copy"}
	_, err = im.CopyTo(ctx, "", workspace.CopyOptions{Seq: seq, File: f, Progress: bar.reach})
	bar.end()
	if err != nil {
		return s, err
	}
	st, err := mine.Stat()
	if err != nil {
		return s, fmt.Errorf("copy the disk: %w", err)
	}
	_, err = io.Copy(w, untilDone{ctx, io.NewSectionReader(mine, 0, st.Size())})
	return s, err
}

// reach sets how far a copy is.
func (m *meter) reach(done, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done, m.total = done, total
	m.draw()
}

// An export comes from the back as parcels, each after its length, and then, after a
// length of 0, as JSON what to tell of it: the front prints that once the file has its
// name, and an export that was cut off has none.

// parcels is the sender.
type parcels struct {
	to io.Writer
	n  int64
}

func (w *parcels) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := w.send(len(p), p); err != nil {
		return 0, err
	}
	w.n += int64(len(p))
	return len(p), nil
}

func (w *parcels) send(n int, p []byte) error {
	_, err := w.to.Write(append(binary.BigEndian.AppendUint32(nil, uint32(n)), p...))
	return err
}

func (w *parcels) end(f exportFacts) error {
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return w.send(0, text)
}

// parcel is the receiver, for what comes in pieces of any length.
type parcel struct {
	to    io.Writer
	head  []byte
	left  uint32
	ended bool
	text  bytes.Buffer // the facts
	facts exportFacts
}

func (p *parcel) Write(b []byte) (int, error) {
	for in := b; len(in) > 0; {
		switch {
		case p.ended:
			p.text.Write(in)
			return len(b), nil
		case p.left > 0:
			n := min(int(p.left), len(in))
			if _, err := p.to.Write(in[:n]); err != nil {
				return 0, err
			}
			p.left -= uint32(n)
			in = in[n:]
		default:
			n := min(4-len(p.head), len(in))
			p.head, in = append(p.head, in[:n]...), in[n:]
			if len(p.head) == 4 {
				p.left = binary.BigEndian.Uint32(p.head)
				p.head, p.ended = p.head[:0], p.left == 0
			}
		}
	}
	return len(b), nil
}

// whole says whether all came.
func (p *parcel) whole() error {
	if !p.ended || json.Unmarshal(p.text.Bytes(), &p.facts) != nil {
		return errors.New("the server ended before all of the disk had come")
	}
	return nil
}
