package workspace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"time"
)

// Kind tells files, directories and symbolic links apart.
type Kind byte

const (
	KindFile    Kind = 'f'
	KindDir     Kind = 'd'
	KindSymlink Kind = 'l'
)

// Limits of what a node holds in itself.
const (
	maxInline = 128  // bytes of content kept in the node instead of a chunk
	maxRefs   = 1024 // references kept in the node; more go into a chunk of their own
	maxTarget = 4095 // bytes of a symlink's target (PATH_MAX without its NUL)
)

// Node is what the image knows about one path.
type Node struct {
	Kind    Kind
	Mode    uint32    // permission bits, at most 0777; a symlink always has 0777
	ModTime time.Time // to the nanosecond, UTC
	Size    int64     // bytes of a file, or of a symlink's target; 0 for a directory
	Lines   int64     // newlines in a file
	SHA256  [32]byte  // of a file's content; zero for the others
	Target  string    // of a symlink, raw bytes
	Version uint64    // sequence number of the commit that last changed the path; 0 for the root

	body body
}

// body is where the content of a file lies. Exactly one of inline (up to
// maxInline bytes), refs and list is used.
type body struct {
	inline []byte
	refs   []ref
	list   *ref // a chunk that holds the encoded refs, when there are more than maxRefs
	open   bool // the last line does not end in a newline
}

// ref is one chunk of a file. Chunks of a file follow each other without gaps.
type ref struct {
	id    uint64 // key in the bucket of chunks
	size  int64  // plain bytes
	lines int64  // newlines in them
}

// TotalLines counts the last line too when no newline ends it.
func (n Node) TotalLines() int64 {
	if n.body.open {
		return n.Lines + 1
	}
	return n.Lines
}

// same says whether two nodes are equal in everything but Version. Contents
// compare by their hash: where the bytes lie does not matter.
func (n *Node) same(o *Node) bool {
	return n.sameContent(o) && n.Mode == o.Mode && n.ModTime.Equal(o.ModTime)
}

// sameContent compares without mode, time and version.
func (n *Node) sameContent(o *Node) bool {
	return n.Kind == o.Kind && n.Size == o.Size && n.SHA256 == o.SHA256 && n.Target == o.Target
}

// The encoding of a node, version 1:
//
//	version 1 · kind · mode · mtime ns (zig-zag) · commit seq
//	file:    size · lines · sha256 (32 raw bytes) · storage · …
//	         storage bits 0-1: 0 inline bytes, 1 refs, 2 list; bit 2: last line not ended
//	         refs: count · (id · size · lines)*    list: id · size · lines of the list's chunk
//	symlink: target
//
// All numbers are minimal varints; a value has exactly one encoding.
const nodeVersion = 1

const (
	storeInline = 0
	storeRefs   = 1
	storeList   = 2
	storeOpen   = 4
)

func appendNode(b []byte, n *Node) []byte {
	b = append(b, nodeVersion, byte(n.Kind))
	b = binary.AppendUvarint(b, uint64(n.Mode))
	b = appendInt(b, n.ModTime.UnixNano())
	b = binary.AppendUvarint(b, n.Version)
	switch n.Kind {
	case KindFile:
		b = binary.AppendUvarint(b, uint64(n.Size))
		b = binary.AppendUvarint(b, uint64(n.Lines))
		b = append(b, n.SHA256[:]...)
		b = appendBody(b, &n.body)
	case KindSymlink:
		b = appendText(b, n.Target)
	}
	return b
}

func appendBody(b []byte, c *body) []byte {
	var open byte
	if c.open {
		open = storeOpen
	}
	switch {
	case c.list != nil:
		b = append(b, storeList|open)
		return appendRef(b, *c.list)
	case len(c.refs) > 0:
		b = append(b, storeRefs|open)
		return appendRefs(b, c.refs)
	}
	return append(append(b, storeInline|open), c.inline...)
}

func appendRefs(b []byte, refs []ref) []byte {
	b = binary.AppendUvarint(b, uint64(len(refs)))
	for _, r := range refs {
		b = appendRef(b, r)
	}
	return b
}

func appendRef(b []byte, r ref) []byte {
	b = binary.AppendUvarint(b, r.id)
	b = binary.AppendUvarint(b, uint64(r.size))
	return binary.AppendUvarint(b, uint64(r.lines))
}

// decodeNode is the inverse of appendNode. It accepts nothing that appendNode
// would write otherwise, and keeps no pointer into its input.
func decodeNode(in []byte) (*Node, error) {
	d := &decoder{in: in}
	if v := d.byte(); d.err == nil && v != nodeVersion {
		return nil, errors.New("unknown version of a node")
	}
	n := &Node{Kind: Kind(d.byte())}
	mode := d.uint()
	if mode > 0o777 {
		d.fail("mode out of range")
	}
	n.Mode = uint32(mode)
	n.ModTime = time.Unix(0, d.int()).UTC()
	n.Version = d.uint()
	switch n.Kind {
	case KindFile:
		n.Size, n.Lines, n.SHA256 = d.int63(), d.int63(), d.id()
		if n.Lines > n.Size {
			d.fail("more lines than bytes")
		}
		d.body(n)
	case KindDir:
	case KindSymlink:
		n.Target = d.text(maxTarget)
		n.Size = int64(len(n.Target))
		if n.Target == "" || strings.IndexByte(n.Target, 0) >= 0 {
			d.fail("a target that no symlink has")
		}
	default:
		d.fail("unknown kind of node")
	}
	return n, d.end()
}

func (d *decoder) body(n *Node) {
	storage := d.byte()
	n.body.open = storage&storeOpen != 0
	switch storage &^ storeOpen {
	case storeInline:
		if n.Size > maxInline {
			d.fail("inline content is too long")
			return
		}
		n.body.inline = bytes.Clone(d.raw(uint64(n.Size)))
		if int64(bytes.Count(n.body.inline, newline)) != n.Lines {
			d.fail("line count is wrong")
		}
		if n.body.open != unended(n.body.inline) {
			d.fail("end of the last line is wrong")
		}
	case storeRefs:
		n.body.refs = d.refs(n.Size, n.Lines, maxRefs)
	case storeList:
		r := d.ref()
		if r.lines != 0 {
			d.fail("a list of chunks has no lines")
		}
		n.body.list = &r
	default:
		d.fail("unknown storage of content")
	}
	if storage&^storeOpen != storeInline && n.Size <= maxInline {
		d.fail("short content is not inline")
	}
}

// refs reads references that must add up to a file of the given size.
func (d *decoder) refs(size, lines int64, most uint64) []ref {
	count := d.uint()
	if count == 0 || count > most || count > uint64(len(d.in)) {
		d.fail("bad number of chunks")
		return nil
	}
	refs := make([]ref, 0, count)
	for range count {
		r := d.ref()
		size, lines = size-r.size, lines-r.lines
		if d.err != nil || size < 0 || lines < 0 {
			d.fail("chunks are larger than the file")
			return nil
		}
		refs = append(refs, r)
	}
	if size != 0 || lines != 0 {
		d.fail("chunks are smaller than the file")
	}
	return refs
}

func (d *decoder) ref() ref {
	r := ref{id: d.uint(), size: d.int63(), lines: d.int63()}
	if r.id == 0 || r.size == 0 || r.lines > r.size {
		d.fail("bad reference to a chunk")
	}
	return r
}

var newline = []byte{'\n'}

// unended says whether the last line of b lacks its newline.
func unended(b []byte) bool { return len(b) > 0 && b[len(b)-1] != '\n' }
