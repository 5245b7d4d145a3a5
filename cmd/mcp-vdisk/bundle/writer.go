package bundle

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Writer writes a backup.
type Writer struct {
	facts Facts
	zip   *zstd.Encoder
	tar   *tar.Writer
	done  []Entry
}

// NewWriter begins a backup with its facts. The entries that these name have to follow
// in that order.
func NewWriter(w io.Writer, f Facts) (*Writer, error) {
	f.Format = Format
	for _, e := range f.Entries {
		if !Known(e.Name, e.Size) {
			return nil, fmt.Errorf("%s with %d bytes is nothing that a backup holds", e.Name, e.Size)
		}
	}
	text, err := json.Marshal(f)
	if err == nil && len(text) > MaxFacts {
		err = fmt.Errorf("what it holds takes %d bytes to list, and at most %d are allowed", len(text), MaxFacts)
	}
	if err != nil {
		return nil, err
	}
	// Most of it is packed already, in the images.
	zip, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	if err != nil {
		return nil, err
	}
	b := &Writer{facts: f, zip: zip, tar: tar.NewWriter(zip)}
	return b, b.add(Entry{Name: factsName, Size: int64(len(text))}, writeBytes(text))
}

func writeBytes(b []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}
}

// Add writes the next entry, all of which write gives.
func (b *Writer) Add(write func(io.Writer) error) error {
	next := len(b.done) - 1 // the facts come first
	if next >= len(b.facts.Entries) {
		return errors.New("the backup holds more than it told")
	}
	return b.add(b.facts.Entries[next], write)
}

func (b *Writer) add(e Entry, write func(io.Writer) error) error {
	h := &tar.Header{Name: e.Name, Size: e.Size, Typeflag: tar.TypeReg, Mode: 0o600, ModTime: b.facts.Time.Truncate(time.Second)}
	if err := b.tar.WriteHeader(h); err != nil {
		return err
	}
	sum := sha256.New()
	if err := write(io.MultiWriter(b.tar, sum)); err != nil {
		return err
	}
	if err := b.tar.Flush(); err != nil { // fewer bytes than were told
		return fmt.Errorf("%s: %w", e.Name, err)
	}
	e.SHA256 = hex.EncodeToString(sum.Sum(nil))
	b.done = append(b.done, e)
	return nil
}

// Close writes the manifest, without which nobody takes the backup. It returns the
// SHA-256 of the manifest, which stands for all of it.
func (b *Writer) Close() (digest string, err error) {
	if len(b.done) != len(b.facts.Entries)+1 {
		return "", errors.New("the backup holds less than it told")
	}
	text, err := json.Marshal(manifest{Format, b.done})
	if err != nil {
		return "", err
	}
	if err := b.add(Entry{Name: manifestName, Size: int64(len(text))}, writeBytes(text)); err != nil {
		return "", err
	}
	return b.done[len(b.done)-1].SHA256, errors.Join(b.tar.Close(), b.zip.Close())
}

// Abandon ends a backup that is not to be whole.
func (b *Writer) Abandon() { b.zip.Reset(nil) }
