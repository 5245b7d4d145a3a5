package archive

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// Limits bound what an archive may hold. The zero value is what a new disk may.
type Limits struct {
	Bytes   int64 // sizes of all files and link targets; 0 is workspace.DefaultQuotaBytes
	Entries int64 // files, folders and links; 0 is workspace.DefaultQuotaEntries
	Ratio   int64 // of what is unpacked to what was read, from 64 MiB on; 0 is 1,000
}

const defaultRatio = 1000

// Report tells what Import found.
type Report struct {
	Format  Format
	Stated  *Stated // of an archive that Export wrote
	Entries int64   // folders that have no entry of their own included
	Bytes   int64
	Special int64 // entries that lost a setuid, setgid or sticky bit
	Copied  int64 // hard links that became copies

	// Names that another file system would not hold as they are, the first 100 of each,
	// and how many there are: pairs that differ only in case or Unicode form, and names
	// that are not in form NFC.
	Clashes    [][2]workspace.Path
	ClashCount int64
	NotNFC     []workspace.Path
	NFCCount   int64
}

// Reader is an archive that is being read. It is for one goroutine.
type Reader struct {
	Stated *Stated // of an archive that Export wrote, else nil
	Format Format

	src    *source
	tar    *tar.Reader
	first  *tar.Header // read and not taken in yet
	end    error       // instead of a first header
	limits Limits
}

// Open reads the beginning of an archive, and refuses one that states more than the
// limits allow. The caller closes it.
//
// Errors: *Error; those of r; the cause of ctx, which covers the whole reading.
func Open(ctx context.Context, r io.Reader, l Limits) (*Reader, error) {
	if l.Bytes <= 0 {
		l.Bytes = workspace.DefaultQuotaBytes
	}
	if l.Entries <= 0 {
		l.Entries = workspace.DefaultQuotaEntries
	}
	if l.Ratio <= 0 {
		l.Ratio = defaultRatio
	}
	src, err := newSource(ctx, r, l)
	if err != nil {
		return nil, err
	}
	a := &Reader{Format: src.format, src: src, tar: tar.NewReader(src), limits: l}
	if a.first, a.end = a.tar.Next(); a.end == nil {
		err = a.begin()
	} else if a.end != io.EOF {
		err = src.explain(a.end)
	}
	if err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// begin reads what the archive states, if it does.
func (a *Reader) begin() (err error) {
	if a.first.Typeflag != tar.TypeXGlobalHeader || a.first.PAXRecords[keyArchive] == "" {
		return nil
	}
	if a.Stated, err = readStated(a.first.PAXRecords, a.limits); err != nil {
		return err
	}
	a.limits.Bytes, a.limits.Entries, a.src.stated = a.Stated.Bytes, a.Stated.Entries, true
	a.first = nil
	return nil
}

// Close ends the reading.
func (a *Reader) Close() { a.src.close() }

// Import is Open, and Reader.Import.
func Import(ctx context.Context, r io.Reader, stage *workspace.Stage, l Limits) ([]workspace.Change, Report, error) {
	a, err := Open(ctx, r, l)
	if err != nil {
		return nil, Report{}, err
	}
	defer a.Close()
	return a.Import(stage)
}

// Import reads the archive to its end, stages the contents and returns the changes that
// make its tree on an empty disk, in the order of the tree. The caller commits them with
// the stage, or discards it. It is called once.
//
// Errors: *Error, with ErrFormat, ErrDamaged, ErrEntry or ErrTooLarge; those of the stage;
// those of the reader that was opened; the cause of its context.
func (a *Reader) Import(stage *workspace.Stage) ([]workspace.Change, Report, error) {
	in := &importer{
		src: a.src, tar: a.tar, stage: stage, limits: a.limits, names: names{}, files: map[string]int{},
		report: Report{Format: a.Format, Stated: a.Stated},
	}
	if a.Stated != nil {
		in.sum = workspace.NewContentSum()
	}
	if err := in.run(a.first, a.end); err != nil {
		return nil, in.report, err
	}
	return in.changes, in.report, nil
}

type importer struct {
	src    *source
	tar    *tar.Reader
	stage  *workspace.Stage
	limits Limits

	names   names          // of what is there up to now
	files   map[string]int // paths of files to their changes, for hard links
	changes []workspace.Change
	sum     *workspace.ContentSum // of an archive that states it
	report  Report
}

// run reads the archive, of which one header may have been read.
func (in *importer) run(h *tar.Header, err error) error {
	for ; err == nil; h, err = in.tar.Next() {
		if h == nil { // it has been taken in
			continue
		}
		if in.src.entries++; in.src.entries > in.limits.Entries+freeHeaders {
			return in.tooMany(h.Name)
		}
		if err := in.entry(h); err != nil {
			return err
		}
	}
	if err != io.EOF {
		return in.src.explain(err)
	}
	if err := in.src.finish(); err != nil {
		return err
	}
	in.report.Entries = int64(len(in.names))
	if err := in.keepsPromise(); err != nil {
		return err
	}
	slices.SortFunc(in.changes, func(a, b workspace.Change) int { return a.Path.Compare(b.Path) })
	in.report.compare(in.names)
	return nil
}

func (in *importer) tooMany(name string) error {
	if in.report.Stated != nil {
		return &Error{Entry: name, Kind: ErrDamaged, Detail: fmt.Sprintf("it states %d entries and holds more", in.limits.Entries)}
	}
	return &Error{Entry: name, Kind: ErrTooLarge, Detail: fmt.Sprintf("the disk may hold %d entries, and there are more", in.limits.Entries), OfDisk: true}
}

// entry takes in one entry.
func (in *importer) entry(h *tar.Header) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return in.global(h)
	}
	p, err := path(h.Name)
	if err != nil {
		return err
	}
	if h.Mode&0o7000 != 0 {
		in.report.Special++
	}
	c := workspace.Change{Path: p, Mode: uint32(h.Mode)&0o777 | workspace.ModeSet, ModTime: h.ModTime, Parents: true}
	switch h.Typeflag {
	case tar.TypeDir:
		return in.dir(h, c)
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		return in.file(h, c)
	case tar.TypeSymlink:
		return in.symlink(h, c)
	case tar.TypeLink:
		return in.hardLink(h, c)
	case tar.TypeChar, tar.TypeBlock:
		return &Error{Entry: h.Name, Kind: ErrEntry, Detail: "it is a device"}
	case tar.TypeFifo:
		return &Error{Entry: h.Name, Kind: ErrEntry, Detail: "it is a FIFO"}
	}
	return &Error{Entry: h.Name, Kind: ErrEntry, Detail: fmt.Sprintf("entries of type %q are not known here", h.Typeflag)}
}

func (in *importer) dir(h *tar.Header, c workspace.Change) error {
	if c.Path.IsRoot() { // nothing about that of a disk changes
		return nil
	}
	c.Op = workspace.OpMkdir
	return in.add(h, c, isDir, workspace.Node{Kind: workspace.KindDir})
}

func (in *importer) file(h *tar.Header, c workspace.Change) (err error) {
	if err := in.notFolder(h, c); err != nil {
		return err
	}
	if err := in.room(h.Name, h.Size); err != nil {
		return err
	}
	c.Op = workspace.OpPut
	if c.Content, err = in.stage.Add(&contentOf{in.src, in.tar}); err != nil {
		if why := cmp.Or(in.src.refused, in.src.broken); why != nil {
			return in.src.explain(why)
		}
		return err
	}
	if want, ok := h.PAXRecords[keySHA256]; ok && want != hex.EncodeToString(c.Content.SHA256[:]) {
		return &Error{Entry: h.Name, Kind: ErrDamaged, Detail: "its content has another SHA-256 than the archive says"}
	}
	in.files[c.Path.Rel()] = len(in.changes)
	in.report.Bytes += c.Content.Size
	return in.add(h, c, isFile, workspace.Node{Kind: workspace.KindFile, Size: c.Content.Size, Lines: c.Content.Lines, SHA256: c.Content.SHA256})
}

func (in *importer) symlink(h *tar.Header, c workspace.Change) error {
	if err := in.notFolder(h, c); err != nil {
		return err
	}
	const most = 4095 // PATH_MAX without its NUL
	if n := len(h.Linkname); n == 0 || n > most {
		return &Error{Entry: h.Name, Kind: ErrEntry, Detail: fmt.Sprintf("the target of a link has 1 to %d bytes, and this one %d", most, n)}
	}
	if strings.IndexByte(h.Linkname, 0) >= 0 {
		return &Error{Entry: h.Name, Kind: ErrEntry, Detail: "the target of the link contains a NUL byte"}
	}
	size := int64(len(h.Linkname))
	if err := in.room(h.Name, size); err != nil {
		return err
	}
	in.report.Bytes += size
	c.Op, c.Target = workspace.OpSymlink, h.Linkname
	return in.add(h, c, isLink, workspace.Node{Kind: workspace.KindSymlink, Size: size, Target: h.Linkname})
}

// hardLink makes a copy of a file that came before. Links of one file share its mode and
// time.
func (in *importer) hardLink(h *tar.Header, c workspace.Change) error {
	if err := in.notFolder(h, c); err != nil {
		return err
	}
	to, err := path(h.Linkname)
	if err != nil {
		return &Error{Entry: h.Name, Kind: ErrEntry, Detail: fmt.Sprintf("it is a hard link to %s, which no entry can have as its name", quoted(h.Linkname))}
	}
	at, ok := in.files[to.Rel()]
	if !ok {
		return &Error{Entry: h.Name, Kind: ErrEntry, Detail: fmt.Sprintf("it is a hard link to %s, which is no file that came before", quoted(h.Linkname))}
	}
	first := in.changes[at]
	if err := in.room(h.Name, first.Content.Size); err != nil {
		return err
	}
	in.report.Bytes += first.Content.Size
	in.report.Copied++
	c.Op, c.Content, c.Mode, c.ModTime = workspace.OpPut, first.Content, first.Mode, first.ModTime
	in.files[c.Path.Rel()] = len(in.changes)
	return in.add(h, c, isFile, workspace.Node{Kind: workspace.KindFile, Size: c.Content.Size, Lines: c.Content.Lines, SHA256: c.Content.SHA256})
}

// notFolder refuses a file or link under a name that only a folder can have.
func (in *importer) notFolder(h *tar.Header, c workspace.Change) error {
	if c.Path.IsRoot() || strings.HasSuffix(h.Name, "/") {
		return &Error{Entry: h.Name, Kind: ErrEntry, Detail: "it has the name of a folder and is none"}
	}
	return nil
}

// room refuses an entry of so many bytes when they are too many, before they are read.
func (in *importer) room(name string, n int64) error {
	switch most := in.limits.Bytes - in.report.Bytes; {
	case n > most && in.report.Stated != nil:
		return &Error{Entry: name, Kind: ErrDamaged, Detail: fmt.Sprintf("it states %d bytes and holds more", in.limits.Bytes)}
	case n > most:
		return &Error{Entry: name, Kind: ErrTooLarge, Detail: fmt.Sprintf("the disk may hold %d bytes, and with this entry of %d it would hold more", in.limits.Bytes, n), OfDisk: true}
	}
	return nil
}

// add takes in a change. n is what it makes, as far as c does not say it.
func (in *importer) add(h *tar.Header, c workspace.Change, k kind, n workspace.Node) error {
	if err := in.names.add(c.Path, h.Name, k); err != nil {
		return err
	}
	if int64(len(in.names)) > in.limits.Entries {
		return in.tooMany(h.Name)
	}
	in.changes = append(in.changes, c)
	if in.sum == nil {
		return nil
	}
	n.Mode, n.ModTime = c.Mode&0o777, c.ModTime
	if n.Kind == workspace.KindSymlink {
		n.Mode = 0o777
	}
	if !in.sum.Add(c.Path, n) {
		return &Error{Entry: h.Name, Kind: ErrDamaged, Detail: "it is not in the order of an archive of a disk"}
	}
	return nil
}

// changing are the records of pax that, in a global header, mean something about the
// entries behind it which is not carried out here.
var changing = []string{"path", "linkpath", "size", "mtime", "hdrcharset"}

// global reads a header about the whole archive.
func (in *importer) global(h *tar.Header) error {
	if _, ours := h.PAXRecords[keyArchive]; ours {
		return &Error{Kind: ErrFormat, Detail: "it states what it holds somewhere else than at its beginning"}
	}
	for key := range h.PAXRecords {
		if slices.Contains(changing, key) || strings.HasPrefix(key, "GNU.sparse.") {
			return &Error{Kind: ErrEntry, Detail: fmt.Sprintf("a header sets %s for all entries that follow", quoted(key))}
		}
	}
	return nil
}

// readStated reads what an archive states about itself.
func readStated(records map[string]string, l Limits) (*Stated, error) {
	if v := records[keyArchive]; v != formatVersion {
		return nil, &Error{Kind: ErrFormat, Detail: fmt.Sprintf("it is version %s, and this program reads version %s", quoted(v), formatVersion)}
	}
	s := &Stated{Label: records[keyLabel]}
	var errs [4]error
	s.Version, errs[0] = strconv.ParseUint(records[keyVersion], 10, 64)
	s.Entries, errs[1] = strconv.ParseInt(records[keyEntries], 10, 64)
	s.Bytes, errs[2] = strconv.ParseInt(records[keyBytes], 10, 64)
	digest, err := hex.DecodeString(records[keyContent])
	errs[3] = err
	copy(s.Content[:], digest)
	switch {
	case len(digest) != len(s.Content), errors.Join(errs[:]...) != nil, s.Entries < 0, s.Bytes < 0:
		return nil, &Error{Kind: ErrDamaged, Detail: "what it states about itself cannot be read"}
	case s.Bytes > l.Bytes:
		return nil, &Error{Kind: ErrTooLarge, Detail: fmt.Sprintf("it states %d bytes, and the disk may hold %d", s.Bytes, l.Bytes), OfDisk: true}
	case s.Entries > l.Entries:
		return nil, &Error{Kind: ErrTooLarge, Detail: fmt.Sprintf("it states %d entries, and the disk may hold %d", s.Entries, l.Entries), OfDisk: true}
	}
	return s, nil
}

// keepsPromise compares what an archive holds with what it states.
func (in *importer) keepsPromise() error {
	s := in.report.Stated
	switch {
	case s == nil:
		return nil
	case s.Entries != in.report.Entries:
		return &Error{Kind: ErrDamaged, Detail: fmt.Sprintf("it states %d entries and holds %d", s.Entries, in.report.Entries)}
	case s.Bytes != in.report.Bytes:
		return &Error{Kind: ErrDamaged, Detail: fmt.Sprintf("it states %d bytes and holds %d", s.Bytes, in.report.Bytes)}
	case s.Content != in.sum.Sum():
		return &Error{Kind: ErrDamaged, Detail: "its content digest is another one than it states"}
	}
	return nil
}

// contentOf counts the content of a file, holes included.
type contentOf struct {
	src *source
	r   io.Reader
}

func (c *contentOf) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.src.content += int64(n)
	if c.src.refused == nil {
		c.src.refused = c.src.proportion()
	}
	if c.src.refused != nil {
		return 0, c.src.refused
	}
	if err != nil && err != io.EOF {
		c.src.broken = err
	}
	return n, err
}
