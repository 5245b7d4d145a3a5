package python

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// archive is a source that is a tar file of python-build-standalone: install_only
// with all below "python/", or a full one with "python/install/".
//
// Nothing in it is taken on trust. Its hash is compared before the first header is
// read. A name that is not plain, a name that is there twice, something below what
// is no directory, a link that leads out, a device, a setuid bit, and more bytes or
// files than such a thing can have are ErrRefused, wherever they are in it, also in
// what is not copied.
type archive struct {
	file   *os.File
	sha256 string
}

// openArchive finds the file and compares its hash.
func openArchive(file, sum string) (source, error) {
	sum = strings.ToLower(sum)
	if b, err := hex.DecodeString(sum); err != nil || len(b) != sha256.Size {
		return nil, refuse("an archive needs its SHA-256 in hexadecimal, and %q is none", sum)
	}
	if !filepath.IsAbs(file) {
		return nil, refuse("the archive %q is not an absolute path", file)
	}
	f, err := os.OpenFile(file, os.O_RDONLY|hostos.NonBlock, 0)
	if err != nil {
		return nil, refuse("the archive cannot be opened: %w", err)
	}
	a := &archive{file: f, sha256: sum}
	if err := a.check(); err != nil {
		f.Close()
		return nil, err
	}
	return a, nil
}

func (a *archive) check() error {
	info, err := a.file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return refuse("the archive %s is no file", a.file.Name())
	}
	got, err := hash(a.file)
	if err != nil {
		return err
	}
	if got != a.sha256 {
		return refuse("the archive %s (%d bytes) has the SHA-256 %s, not %s: it is another one, or only a part", a.file.Name(), info.Size(), got, a.sha256)
	}
	return nil
}

func (a *archive) close() { a.file.Close() }

func (a *archive) tell() Source {
	return Source{Kind: KindStandalone, From: a.file.Name(), SHA256: a.sha256}
}

func (a *archive) id(context.Context) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%d %s\n%s\n", layoutRev, KindStandalone, a.sha256)
	return newID(KindStandalone, h.Sum(nil)), nil
}

// copy reads the archive once more, from its beginning to its last byte.
func (a *archive) copy(ctx context.Context, w *writer) error {
	if _, err := a.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	info, err := a.file.Stat()
	if err != nil {
		return err
	}
	h := sha256.New()
	in := bufio.NewReader(io.TeeReader(a.file, h))
	plain, stop, err := inflate(in)
	if err != nil {
		return err
	}
	defer stop()
	u := untar{w: w, seen: map[string]byte{}}
	if err := u.run(ctx, &capped{r: plain, left: inflated(info.Size())}); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != a.sha256 {
		return refuse("the archive %s changed while it was read", a.file.Name())
	}
	return nil
}

// inflate finds out how the archive is compressed, by its first bytes.
func inflate(r *bufio.Reader) (plain io.Reader, stop func(), err error) {
	magic, err := r.Peek(4)
	if err != nil {
		return nil, nil, refuse("the archive is too short")
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, nil, refuse("the archive cannot be read: %w", err)
		}
		return z, func() { z.Close() }, nil
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(2*maxWindow))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return nil, nil, refuse("the archive is neither .tar.gz nor .tar.zst")
}

const (
	// maxWindow is the memory that a zstd stream may ask for; those of
	// python-build-standalone are made with level 22, which takes 128 MiB.
	maxWindow = 128 << 20
	// maxRatio is how much larger than the archive its content may be; for
	// python-build-standalone it is 4 to 8.
	maxRatio = 100
)

func inflated(size int64) int64 { return min(maxBytes, size*maxRatio+(1<<20)) }

// capped refuses to give more bytes than it may.
type capped struct {
	r    io.Reader
	left int64
}

func (c *capped) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if c.left -= int64(n); c.left < 0 {
		return 0, refuse("the archive has more in it than an interpreter has")
	}
	return n, err
}

// untar writes what is wanted of an archive, and looks at all of it.
type untar struct {
	w    *writer
	seen map[string]byte // type of what is at a path of the archive
	done map[string]bool // files that were written, by their path there
}

func (u *untar) run(ctx context.Context, plain io.Reader) error {
	u.done = map[string]bool{}
	t := tar.NewReader(plain)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return padding(plain)
		}
		if err != nil {
			return unreadable(err)
		}
		if len(u.seen) > maxFiles {
			return refuse("the archive has more than %d entries", maxFiles)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := u.check(h); err != nil {
			return err
		}
		if err := u.write(ctx, h, t); err != nil {
			return err
		}
	}
}

// unreadable is what the tar reader or the decompressor says.
func unreadable(err error) error {
	var disk *fs.PathError
	if errors.Is(err, ErrRefused) || errors.As(err, &disk) {
		return err
	}
	return refuse("the archive is damaged: %w", err)
}

// padding reads what comes after the end of the archive: zeros, up to the size of a
// record. Reading to the end also compares the checksum of the compression.
func padding(r io.Reader) error {
	b, err := io.ReadAll(io.LimitReader(r, 1<<20))
	switch {
	case err != nil:
		return unreadable(err)
	case len(b) == 1<<20, len(bytes.Trim(b, "\x00")) > 0:
		return refuse("the archive goes on after its end")
	}
	return nil
}

// check refuses an entry whether or not it is wanted.
func (u *untar) check(h *tar.Header) error {
	name := strings.TrimSuffix(h.Name, "/")
	if !plain(name) {
		return refuse("the archive has the name %q", h.Name)
	}
	if name != "python" && !strings.HasPrefix(name, "python/") {
		return refuse("the archive has %q, outside of python/", name)
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return refuse("the archive has the sparse file %q, of which the holes cost nothing", name)
		}
	}
	if h.Mode&0o6000 != 0 {
		return refuse("the archive has %q with a setuid or setgid bit", name)
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if kind, ok := u.seen[dir]; ok && kind != tar.TypeDir {
			return refuse("the archive has %q below what is no directory", name)
		}
		u.seen[dir] = tar.TypeDir
	}
	if kind, double := u.seen[name]; double && (kind != tar.TypeDir || h.Typeflag != tar.TypeDir) {
		return refuse("the archive has %q twice", name)
	}
	u.seen[name] = h.Typeflag
	switch h.Typeflag {
	case tar.TypeDir, tar.TypeReg:
		return nil
	case tar.TypeSymlink:
		// What is kept leads to a name beside it; for the others the text will do.
		if to := path.Join(path.Dir(name), h.Linkname); h.Linkname != "" && !path.IsAbs(h.Linkname) && strings.HasPrefix(to, "python/") {
			return nil
		}
		return refuse("the archive has the link %q, which leads out of it", name)
	case tar.TypeLink:
		if u.seen[h.Linkname] == tar.TypeReg {
			return nil
		}
		return refuse("the archive has the hard link %q to no file of it", name)
	}
	return refuse("the archive has %q, which is neither a file, a directory nor a link", name)
}

// plain says whether a name has one meaning on every system.
func plain(name string) bool {
	return fs.ValidPath(name) && name != "." && utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool {
		return r < 0x20 || r == 0x7f || r == '\\'
	})
}

// write copies an entry if it is wanted.
func (u *untar) write(ctx context.Context, h *tar.Header, r io.Reader) error {
	name := strings.TrimPrefix(strings.TrimSuffix(h.Name, "/"), "python/")
	to := strings.TrimPrefix(name, "install/")
	if h.Typeflag == tar.TypeDir || !wanted(to) {
		return nil
	}
	var err error
	switch h.Typeflag {
	case tar.TypeReg:
		err = u.w.file(ctx, to, h.Mode&0o111 != 0, r)
		u.done[h.Name] = true
	case tar.TypeSymlink:
		if strings.Contains(h.Linkname, "/") {
			return refuse("the archive has the link %q, which does not lead to a name beside it", h.Name)
		}
		err = u.w.link(to, h.Linkname)
	case tar.TypeLink:
		if !u.done[h.Linkname] {
			return refuse("the archive has the hard link %q to a file that is not copied", h.Name)
		}
		from := strings.TrimPrefix(strings.TrimPrefix(h.Linkname, "python/"), "install/")
		err = u.w.hardLink(to, from)
	}
	if errors.Is(err, fs.ErrExist) {
		return refuse("the archive has %q twice", to) // below python/ and python/install/
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return unreadable(err)
}
