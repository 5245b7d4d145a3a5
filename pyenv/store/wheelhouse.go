package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// maxWheel bounds a wheel of unknown size, in bytes.
const maxWheel = 1 << 30

// HasWheel says whether a wheel is in the wheelhouse. What is there had the right
// hash when it was added; a build looks again.
func (r *Root) HasWheel(sha256 string) bool {
	if !lock.ValidSHA256(sha256) {
		return false
	}
	st, err := r.root.Lstat(wheelName(sha256))
	return err == nil && st.Mode().IsRegular()
}

// AddWheel copies a wheel into the wheelhouse under its SHA-256, in hexadecimal.
// size is what it must have, 0 when that is not known. One that is there already is
// not read. Until it is complete, has the right hash and is on disk, nobody sees
// it; a crash leaves at most a file that the next Open removes.
//
// Errors: hash_mismatch, ErrDiskFull; those of from; the cause of ctx's end.
func (r *Root) AddWheel(ctx context.Context, from io.Reader, sha256 string, size int64) error {
	if !lock.ValidSHA256(sha256) || size < 0 || size > maxWheel {
		return refuse(wheel.ErrHashMismatch, "", "no SHA-256 and size of a wheel were given")
	}
	name := wheelName(sha256)
	if r.HasWheel(sha256) {
		r.touch(name)
		return nil
	}
	err := r.put(name, 0o400, func(w io.Writer) error { return copyWheel(ctx, w, from, sha256, size) })
	if err != nil {
		return full(fmt.Errorf("add a wheel: %w", err))
	}
	return nil
}

// OpenWheel opens a wheel of the wheelhouse for reading. Errors: ErrMissingWheel.
func (r *Root) OpenWheel(sha256 string) (*os.File, error) {
	if !r.HasWheel(sha256) {
		return nil, refuse(ErrMissingWheel, "", "it is not in the wheelhouse")
	}
	f, err := r.root.OpenFile(wheelName(sha256), os.O_RDONLY|hostos.NonBlock, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse(ErrMissingWheel, "", "it is not in the wheelhouse")
	}
	return f, err
}

func wheelName(sha256 string) string { return wheelsDir + "/" + sha256 + ".whl" }

// copyWheel copies and checks.
func copyWheel(ctx context.Context, to io.Writer, from io.Reader, want string, size int64) error {
	most := size
	if size == 0 {
		most = maxWheel
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(to, h), io.LimitReader(reader{ctx, from}, most+1))
	switch have := hex.EncodeToString(h.Sum(nil)); {
	case err != nil:
		return err
	case n > most || size > 0 && n < size:
		return refuse(wheel.ErrHashMismatch, "", "the file does not have the %d bytes that were expected", most)
	case have != want:
		return refuse(wheel.ErrHashMismatch, "", "the file has SHA-256 %s, the lock says %s", have, want)
	}
	return nil
}

// reader ends when its context does.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(b []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(b)
}
