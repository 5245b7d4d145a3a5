package archive

import (
	"archive/tar"
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// source is the tar stream of an archive, with what keeps it in bounds.
type source struct {
	ctx    context.Context
	raw    counted // as it came
	format Format
	r      io.Reader // the tar stream
	close  func()
	limits Limits

	plain   int64 // bytes of the tar stream that were read
	content int64 // bytes of files, holes included
	entries int64 // headers
	stated  bool  // the archive has said how much it holds
	ended   bool  // the stream came to its end
	refused error // why it is not read any further
	broken  error // how reading the content of a file failed
}

// counted counts what is read and remembers how that failed.
type counted struct {
	r   io.Reader
	n   int64
	err error
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}

func newSource(ctx context.Context, r io.Reader, l Limits) (*source, error) {
	s := &source{ctx: ctx, raw: counted{r: &cancellable{ctx, r}}, limits: l}
	var err error
	if s.format, s.r, s.close, err = plain(&s.raw); err != nil {
		return nil, s.explain(err)
	}
	return s, nil
}

// Bounds of what is not content: headers, padding, and what follows the end.
const (
	headerBytes  = 64 << 10 // for each entry, on average
	freeHeaders  = 16       // that many more
	ratioFrom    = 64 << 20 // below it no ratio is looked at
	trailerBytes = 1 << 20
)

// Read is for the reader of tar: it never gives bytes and the end at once.
func (s *source) Read(p []byte) (int, error) {
	if s.refused != nil {
		return 0, s.refused
	}
	n, err := s.r.Read(p)
	s.plain += int64(n)
	if s.refused = s.proportion(); s.refused != nil {
		return 0, s.refused
	}
	if n > 0 {
		return n, nil
	}
	s.ended = s.ended || err == io.EOF
	return n, err
}

// proportion refuses what grows out of all proportion.
func (s *source) proportion() error {
	switch {
	case s.plain-s.content > headerBytes*(s.entries+freeHeaders):
		return &Error{Kind: ErrTooLarge, Detail: fmt.Sprintf("its headers take more than %d KiB for each entry", headerBytes>>10)}
	case s.stated:
		return nil
	case max(s.plain, s.content) > ratioFrom && max(s.plain, s.content)/s.limits.Ratio > s.raw.n:
		return &Error{Kind: ErrTooLarge, Detail: fmt.Sprintf("it unpacks to more than %d times its size", s.limits.Ratio)}
	}
	return nil
}

// finish reads what is behind the last entry: zeros, to the very end, where a compressed
// form has its checksum. tar calls a stream that ends between two entries complete, which
// is not enough here.
func (s *source) finish() error {
	if s.ended {
		return s.explain(io.ErrUnexpectedEOF)
	}
	buf := make([]byte, 4<<10)
	for rest := 0; ; {
		n, err := s.r.Read(buf)
		for _, b := range buf[:n] {
			if b != 0 {
				return &Error{Kind: ErrDamaged, Detail: "something follows its end"}
			}
		}
		if rest += n; rest > trailerBytes {
			return &Error{Kind: ErrTooLarge, Detail: fmt.Sprintf("more than %d MiB follow its end", trailerBytes>>20)}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return s.explain(err)
		}
	}
}

// explain says what an error of reading is about: the stream that the archive comes by,
// or the archive.
func (s *source) explain(err error) error {
	var ours *Error
	switch {
	case errors.As(err, &ours):
		return ours
	case s.raw.err != nil:
		return s.raw.err
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	}
	return unpackError(err)
}

// unpackError gives the errors of the libraries their kind.
func unpackError(err error) error {
	var flateErr flate.CorruptInputError
	switch {
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return &Error{Kind: ErrTooLarge, Detail: fmt.Sprintf("its compressed form needs a window of more than %d MiB", maxWindow>>20)}
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return &Error{Kind: ErrDamaged, Detail: "it is cut off"}
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader), errors.As(err, &flateErr):
		return &Error{Kind: ErrDamaged, Detail: "its compressed form is damaged"}
	case errors.Is(err, tar.ErrHeader):
		return &Error{Kind: ErrFormat, Detail: "what should be a header of tar is none"}
	case errors.Is(err, tar.ErrFieldTooLong):
		return &Error{Kind: ErrTooLarge, Detail: "a header of tar is longer than 1 MiB"}
	}
	return &Error{Kind: ErrDamaged, Detail: "its compressed form is damaged"}
}
