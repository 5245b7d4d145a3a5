package bundle

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// Reader reads a backup. The order of calls is NewReader, and then Next until io.EOF;
// each entry is read to its end before the next.
type Reader struct {
	facts  Facts
	from   *source
	zip    *zstd.Decoder
	tar    *tar.Reader
	done   []Entry
	sum    hash.Hash
	left   int64 // of the entry
	digest string
}

// source keeps the error by which the backup itself could not be read, so that it is
// not taken for damage.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		s.err = err
	}
	return n, err
}

// NewReader reads the facts, and refuses those that no backup has.
//
// Errors: ErrNotBackup, ErrVersion, ErrDamaged, those of r.
func NewReader(r io.Reader) (*Reader, error) {
	b := &Reader{from: &source{r: r}}
	var err error
	b.zip, err = zstd.NewReader(b.from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		return nil, b.broken(err)
	}
	b.tar = tar.NewReader(b.zip)
	if err := b.readFacts(); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Facts are what the backup says of itself.
func (b *Reader) Facts() Facts { return b.facts }

// Digest is the SHA-256 of the manifest, once Next has returned io.EOF.
func (b *Reader) Digest() string { return b.digest }

// Close gives up what a reader holds.
func (b *Reader) Close() { b.zip.Close() }

func (b *Reader) readFacts() error {
	text, err := b.whole(factsName, MaxFacts)
	switch {
	case b.from.err != nil:
		return b.from.err
	case errors.Is(err, zstd.ErrMagicMismatch), errors.Is(err, tar.ErrHeader), errors.Is(err, errOther), errors.Is(err, io.EOF):
		return ErrNotBackup
	case err != nil:
		return b.broken(err)
	}
	var head struct {
		Format int `json:"format"`
	}
	if json.Unmarshal(text, &head) != nil || head.Format < 1 {
		return ErrNotBackup
	}
	if head.Format != Format {
		return fmt.Errorf("%w: its form is %d, and this program reads %d", ErrVersion, head.Format, Format)
	}
	if err := json.Unmarshal(text, &b.facts); err != nil {
		return fmt.Errorf("%w: %s", ErrDamaged, "what it says of itself cannot be read")
	}
	return b.facts.check()
}

// check holds the list of entries to the table: each name once, and what has to be
// there is there.
func (f Facts) check() error {
	seen := map[string]bool{}
	total := int64(0)
	for _, e := range f.Entries {
		if !Known(e.Name, e.Size) || seen[e.Name] {
			return fmt.Errorf("%w: it holds %.100q, with %d bytes, which a backup does not", ErrDamaged, e.Name, e.Size)
		}
		seen[e.Name] = true
		if total += e.Size; total < 0 || total > 1<<62 {
			return fmt.Errorf("%w: its sizes make no sense", ErrDamaged)
		}
	}
	if !seen[Version] || !seen[Log] {
		return fmt.Errorf("%w: it has no log", ErrDamaged)
	}
	for _, d := range f.Disks {
		name := "images/" + d.Name + ".vdisk"
		if !seen[name] {
			return fmt.Errorf("%w: it tells of the disk %.100q and does not hold it", ErrDamaged, d.Name)
		}
		delete(seen, name)
	}
	for name := range seen {
		if len(name) > 7 && name[:7] == "images/" {
			return fmt.Errorf("%w: it holds %.100q and does not tell of it", ErrDamaged, name)
		}
	}
	return nil
}

// errOther: another entry than the one that has to come.
var errOther = errors.New("another entry")

// whole reads an entry that has to come next.
func (b *Reader) whole(name string, most int64) ([]byte, error) {
	h, err := b.tar.Next()
	if err != nil {
		return nil, err
	}
	if h.Name != name || !plain(h) || h.Size > most {
		return nil, errOther
	}
	text, err := io.ReadAll(io.LimitReader(b.tar, most))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	b.done = append(b.done, Entry{Name: name, Size: int64(len(text)), SHA256: hex.EncodeToString(sum[:])})
	return text, nil
}

// plain: a file, and nothing more to it.
func plain(h *tar.Header) bool {
	return h.Typeflag == tar.TypeReg && h.Linkname == "" && !slices.ContainsFunc(keysOf(h.PAXRecords), func(k string) bool { return k != "size" })
}

func keysOf(m map[string]string) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}

// Next gives the next entry and its bytes, exactly as many as it says. io.EOF says that
// the backup was read to its end and is whole.
//
// Errors: ErrDamaged, those of r.
func (b *Reader) Next() (Entry, io.Reader, error) {
	if err := b.finish(); err != nil {
		return Entry{}, nil, err
	}
	next := len(b.done) - 1 // the facts come first
	if next == len(b.facts.Entries) {
		return Entry{}, nil, b.end()
	}
	e := b.facts.Entries[next]
	h, err := b.tar.Next()
	if err != nil {
		return Entry{}, nil, b.broken(err)
	}
	if h.Name != e.Name || h.Size != e.Size || !plain(h) {
		return Entry{}, nil, fmt.Errorf("%w: where %s has to be is %.100q", ErrDamaged, e.Name, h.Name)
	}
	b.sum, b.left = sha256.New(), e.Size
	return e, body{b}, nil
}

// body is what an entry holds.
type body struct{ b *Reader }

func (r body) Read(p []byte) (int, error) {
	n, err := r.b.tar.Read(p)
	r.b.sum.Write(p[:n])
	r.b.left -= int64(n)
	if err != nil && err != io.EOF {
		err = r.b.broken(err)
	}
	if err == io.EOF && r.b.left > 0 {
		err = fmt.Errorf("%w: an entry is too short", ErrDamaged)
	}
	return n, err
}

// finish ends the entry before.
func (b *Reader) finish() error {
	if b.sum == nil {
		return nil
	}
	if b.left != 0 {
		return errors.New("an entry was not read to its end")
	}
	e := b.facts.Entries[len(b.done)-1]
	e.SHA256 = hex.EncodeToString(b.sum.Sum(nil))
	b.done, b.sum = append(b.done, e), nil
	return nil
}

// end reads the manifest, and holds everything to it.
func (b *Reader) end() error {
	entries := slices.Clone(b.done)
	text, err := b.whole(manifestName, MaxFacts*2)
	if err != nil {
		return b.broken(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var m manifest
	if err := d.Decode(&m); err != nil || m.Format != Format {
		return fmt.Errorf("%w: its manifest cannot be read", ErrDamaged)
	}
	if !slices.Equal(m.Entries, entries) {
		return fmt.Errorf("%w: %s is not what its manifest says", ErrDamaged, firstOther(m.Entries, entries))
	}
	if _, err := b.tar.Next(); err != io.EOF {
		return fmt.Errorf("%w: something follows its manifest", ErrDamaged)
	}
	rest, err := io.Copy(io.Discard, io.LimitReader(b.zip, 1))
	if err != nil {
		return b.broken(err)
	}
	if rest > 0 {
		return fmt.Errorf("%w: something follows its end", ErrDamaged)
	}
	b.digest = b.done[len(b.done)-1].SHA256
	return io.EOF
}

func firstOther(want, have []Entry) string {
	for i, e := range have {
		if i >= len(want) || want[i] != e {
			return e.Name
		}
	}
	return "its list of entries"
}

// broken is why the backup could not be read on: its reader's own failure, or damage.
func (b *Reader) broken(err error) error {
	if b.from.err != nil {
		return b.from.err
	}
	return fmt.Errorf("%w (%w)", ErrDamaged, err)
}
