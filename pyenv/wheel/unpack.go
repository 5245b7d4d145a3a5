package wheel

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Unpack writes the wheel into a layer that is being built, beside the files of
// other wheels. dir must be a directory that nobody else writes to, and nobody
// reads before this has returned.
//
// When it fails, or ctx ends, every file and directory that it made is gone. When
// it has returned, all is on disk, unless Options.NoSync. After a crash there may
// be files.
//
// Errors: ErrImportCollision when another wheel has the same file; ErrRecord* and
// ErrZip* for contents; those of the file system (hostos.IsNoSpace tells a full
// one), of the wheel's reader, and the cause of ctx's end.
func (w *Wheel) Unpack(ctx context.Context, dir *os.Root) (_ *Manifest, err error) {
	u := &unpacker{reader: newReader(ctx, w.r), root: dir, interpreter: w.options.Interpreter}
	defer func() {
		u.leave()
		if err != nil {
			u.undo()
		}
	}()
	m := &Manifest{Name: w.File.Name, Version: w.File.Version.String(), File: w.File.FileName}
	if err := w.checkRest(u.reader); err != nil {
		return nil, err
	}
	for _, it := range w.layout.items {
		f, err := u.write(it)
		if err != nil {
			return nil, err
		}
		m.Files = append(m.Files, f)
	}
	if err := w.writeDist(u, m); err != nil {
		return nil, err
	}
	slices.SortFunc(m.Files, func(a, b Installed) int { return strings.Compare(a.Path, b.Path) })
	if !w.options.NoSync {
		if err := hostos.SyncTree(dir); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Verify reads all contents and checks them as Unpack does, without writing
// anything. Errors: as for Unpack.
func (w *Wheel) Verify(ctx context.Context) error {
	c := newReader(ctx, w.r)
	for _, e := range w.entries {
		if err := c.verify(e); err != nil {
			return err
		}
	}
	return nil
}

// checkRest reads what is not written, for a wheel is good as a whole or not at
// all.
func (w *Wheel) checkRest(c *reader) error {
	written := make(map[*entry]bool, len(w.layout.items))
	for _, it := range w.layout.items {
		written[it.from] = true
	}
	for _, e := range w.entries {
		if !written[e] {
			if err := c.verify(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// verify reads one content.
func (c *reader) verify(e *entry) error {
	h := newHash(e.hash.algorithm)
	if h == nil { // a directory, RECORD or its signature
		return c.copy(io.Discard, e)
	}
	if err := c.copy(h, e); err != nil {
		return err
	}
	return e.checkHash(h)
}

func (e *entry) checkHash(h hash.Hash) error {
	if h == nil || bytes.Equal(h.Sum(nil), e.hash.sum) {
		return nil
	}
	return refuse(ErrRecordMismatch, e.name, "its content has another hash than RECORD says")
}

// writeDist writes what we say about the installation.
func (w *Wheel) writeDist(u *unpacker, m *Manifest) error {
	made := func(name string, content []byte) item {
		return item{root: SitePackages, rel: w.layout.dist + name, content: content}
	}
	own := []item{made("INSTALLER", []byte("mcp-vdisk\n"))}
	if w.options.DirectURL != nil {
		own = append(own, made("direct_url.json", w.options.DirectURL))
	}
	for _, it := range own {
		f, err := u.write(it)
		if err != nil {
			return err
		}
		m.Files = append(m.Files, f)
	}
	text, err := m.record(made("RECORD", nil).target())
	if err != nil {
		return err
	}
	f, err := u.write(made("RECORD", text))
	m.Files = append(m.Files, f)
	return err
}

// unpacker writes files, directory by directory, and knows what it made.
type unpacker struct {
	*reader
	root        *os.Root
	interpreter string

	at   string // the directory that is open
	here *os.Root

	dirs, files []string // made, in this order
}

// write makes one file.
func (u *unpacker) write(it item) (Installed, error) {
	target := it.target()
	if err := u.enter(path.Dir(target)); err != nil {
		return Installed{}, err
	}
	f, err := u.here.OpenFile(path.Base(target), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return Installed{}, refuse(ErrImportCollision, target, "another wheel has brought this file already")
	}
	if err != nil {
		return Installed{}, fmt.Errorf("unpack: %w", err)
	}
	u.files = append(u.files, target)
	out := Installed{Path: target, Exec: it.exec}
	if err := u.fill(f, it, &out); err != nil {
		f.Close()
		return Installed{}, err
	}
	return out, f.Close()
}

// fill writes the content and sets the mode. One hash does for RECORD and for the
// manifest where they are over the same bytes.
func (u *unpacker) fill(f *os.File, it item, out *Installed) error {
	sum := sha256.New()
	dst := &counter{w: io.MultiWriter(f, sum)}
	if err := u.content(dst, sum, it); err != nil {
		return err
	}
	out.Size, out.SHA256 = dst.n, hex.EncodeToString(sum.Sum(nil))
	mode := fs.FileMode(0o444)
	if it.exec {
		mode = 0o555
	}
	return f.Chmod(mode)
}

func (u *unpacker) content(dst io.Writer, sum hash.Hash, it item) error {
	if it.from == nil {
		_, err := dst.Write(it.content)
		return err
	}
	if !it.script && it.from.hash.algorithm == "sha256" {
		if err := u.copy(dst, it.from); err != nil {
			return err
		}
		return it.from.checkHash(sum)
	}
	h := newHash(it.from.hash.algorithm)
	script := &shebang{dst: dst, interpreter: u.interpreter, done: !it.script}
	if err := u.copy(io.MultiWriter(h, script), it.from); err != nil {
		return err
	}
	if err := it.from.checkHash(h); err != nil {
		return err
	}
	return script.close()
}

// enter opens a directory of the layer, and makes it if it is not there.
func (u *unpacker) enter(dir string) error {
	if u.here != nil && u.at == dir {
		return nil
	}
	u.leave()
	if err := u.mkdirs(dir); err != nil {
		return err
	}
	here, err := u.root.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	u.at, u.here = dir, here
	return nil
}

func (u *unpacker) leave() {
	if u.here != nil {
		u.here.Close()
		u.here = nil
	}
}

func (u *unpacker) mkdirs(dir string) error {
	err := u.root.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) && dir != "." {
		if err := u.mkdirs(path.Dir(dir)); err != nil {
			return err
		}
		err = u.root.Mkdir(dir, 0o700)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		if st, err := u.root.Lstat(dir); err != nil || !st.IsDir() {
			return refuse(ErrImportCollision, dir, "another wheel has a file where this one needs a directory")
		}
		return nil
	case err != nil:
		return fmt.Errorf("unpack: %w", err)
	}
	u.dirs = append(u.dirs, dir)
	if err := u.root.Chmod(dir, 0o755); err != nil { // whatever the umask is
		return fmt.Errorf("unpack: %w", err)
	}
	return nil
}

// undo removes what was made. What cannot be removed is left to whoever sweeps
// unfinished layers.
func (u *unpacker) undo() {
	for _, list := range [][]string{u.files, u.dirs} {
		for _, p := range slices.Backward(list) {
			_ = u.root.Remove(p)
		}
	}
}

// counter counts bytes.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}
