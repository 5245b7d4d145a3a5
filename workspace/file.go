package workspace

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"sort"
	"sync"

	bolt "go.etcd.io/bbolt"
)

// File is the content of a file at one version: later commits do not change
// what it reads. It holds no transaction and need not be closed. Its methods
// may be used concurrently. Every chunk is checked against its hash before a
// byte of it is served; one that fails is ErrCorrupt. A version that is not the
// newest may be dropped by a GC meanwhile: what was not read then is ErrNotFound.
type File struct {
	im   *Image
	path Path
	node Node

	mu   sync.Mutex
	refs []ref   // nil until needed
	ends []int64 // offset behind each of refs
	last int     // index of the chunk in buf, -1 for none
	buf  []byte
}

// Open resolves symlinks and opens a file for reading.
//
// Errors: as for Resolve; ErrIsDirectory.
func (im *Image) Open(p Path) (*File, error) {
	p, n, err := im.Resolve(p)
	if err != nil {
		return nil, err
	}
	return im.OpenNode(p, n)
}

// OpenNode opens the content of a node that Lstat, List, Walk or an Effect
// returned; p is for errors only. This is how an older version is read.
//
// Errors: ErrIsDirectory; ErrInvalidPath for a symlink.
func (im *Image) OpenNode(p Path, n Node) (*File, error) {
	switch n.Kind {
	case KindDir:
		return nil, pathError("open", p, ErrIsDirectory, "")
	case KindSymlink:
		return nil, pathError("open", p, ErrInvalidPath, "it is a symlink")
	}
	return &File{im: im, path: p, node: n, last: -1}, nil
}

// Node returns the version that f reads.
func (f *File) Node() Node { return f.node }

// Path returns where the file was found, symlinks resolved.
func (f *File) Path() Path { return f.path }

// ReadAt implements io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, errors.New("read: negative offset")
	}
	err = f.scan(off, func(part []byte) bool {
		n += copy(p[n:], part)
		return n < len(p)
	})
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

// scan visits the content from off on, chunk by chunk, until visit says no.
// Each chunk is read in a transaction of its own; visit runs outside of it and
// must not keep the bytes.
func (f *File) scan(off int64, visit func([]byte) bool) error {
	if off >= f.node.Size {
		return nil
	}
	if f.node.Size <= maxInline {
		visit(f.node.body.inline[off:])
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.index(); err != nil {
		return err
	}
	for i := f.at(off); i < len(f.refs); i++ {
		plain, err := f.load(i)
		if err != nil {
			return err
		}
		start := f.ends[i] - f.refs[i].size
		if !visit(plain[off-start:]) {
			return nil
		}
		off = f.ends[i]
	}
	return nil
}

// index makes refs and ends ready.
func (f *File) index() error {
	if f.refs != nil {
		return nil
	}
	refs := f.node.body.refs
	if f.node.body.list != nil {
		err := f.im.view("read", func(tx *bolt.Tx) (err error) {
			refs, err = f.im.listedRefs(tx, &f.node)
			return err
		})
		if err != nil {
			return f.damaged(err)
		}
	}
	f.ends = make([]int64, len(refs))
	end := int64(0)
	for i, r := range refs {
		end += r.size
		f.ends[i] = end
	}
	f.refs = refs
	return nil
}

// at is the index of the chunk that holds offset off.
func (f *File) at(off int64) int {
	return sort.Search(len(f.ends), func(i int) bool { return f.ends[i] > off })
}

// load returns chunk i; it is good until the next load.
func (f *File) load(i int) ([]byte, error) {
	if f.last == i {
		return f.buf, nil
	}
	f.last = -1
	var sum [32]byte
	err := f.im.view("read", func(tx *bolt.Tx) (err error) {
		f.buf, sum, err = f.im.chunk(tx, f.refs[i], f.buf)
		return err
	})
	if err != nil {
		return nil, f.damaged(err)
	}
	// A file of one chunk has the chunk's hash: here a page, too, is checked
	// against what the node promises.
	if len(f.refs) == 1 && sum != f.node.SHA256 {
		return nil, pathError("read", f.path, ErrCorrupt, "its content is not the one that was written")
	}
	f.last = i
	return f.buf, nil
}

// damaged names the file in an error about one of its chunks.
func (f *File) damaged(err error) error {
	var e *Error
	if errors.As(err, &e) && e.missing && f.dropped() {
		return pathError("read", f.path, ErrNotFound, fmt.Sprintf("v%d of it is no longer kept", f.node.Version))
	}
	if errors.As(err, &e) && errors.Is(err, ErrCorrupt) {
		return pathError("read", f.path, ErrCorrupt, e.Detail)
	}
	return err
}

// dropped says whether the version may have been dropped with its history: older ones
// were, and it is not what the head has. What a damaged file lacks was not dropped.
func (f *File) dropped() (yes bool) {
	if f.im.damage != "" {
		return false
	}
	err := f.im.view("read", func(tx *bolt.Tx) error {
		n, err := f.im.tree(tx).get(f.path)
		oldest, _ := tx.Bucket(bucketCommits).Cursor().First()
		yes = (n == nil || n.Version != f.node.Version) && len(oldest) >= 8 && keyUint(oldest) > f.node.Version
		return err
	})
	return err == nil && yes
}

// Reader reads the whole content once. At its end the hash of the whole is
// checked too: ErrCorrupt then takes the place of io.EOF.
func (f *File) Reader() io.Reader { return &reader{f: f, sum: sha256.New()} }

type reader struct {
	f   *File
	off int64
	sum hash.Hash
}

func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n := 0
	err := r.f.scan(r.off, func(part []byte) bool {
		n = copy(p, part)
		return false
	})
	r.sum.Write(p[:n])
	r.off += int64(n)
	if err == nil && n == 0 {
		err = r.end()
	}
	return n, err
}

// WriteTo implements io.WriterTo: chunk by chunk, without a copy.
func (r *reader) WriteTo(w io.Writer) (int64, error) {
	start := r.off
	var failed error
	err := r.f.scan(r.off, func(part []byte) bool {
		r.sum.Write(part)
		n, err := w.Write(part)
		r.off += int64(n)
		failed = err
		return err == nil
	})
	if err == nil && failed != nil {
		err = fmt.Errorf("read: %w", failed)
	}
	if err == nil {
		if err = r.end(); err == io.EOF {
			err = nil
		}
	}
	return r.off - start, err
}

// end checks the whole once everything was read.
func (r *reader) end() error {
	if !bytes.Equal(r.sum.Sum(nil), r.f.node.SHA256[:]) {
		return pathError("read", r.f.path, ErrCorrupt, "its content is not the one that was written")
	}
	return io.EOF
}
