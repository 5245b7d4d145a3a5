package sandboxrun

import (
	"encoding/binary"
	"fmt"
	"time"
)

// spec is what the parent tells the stage.
type spec struct {
	Lower   string   // "" = an empty directory
	Disk    string   // directory for upper and work; "" = the tmpfs
	Bytes   uint64   // size of the tmpfs, or the watched limit on disk
	Inodes  uint64   // inodes of the tmpfs, or the watched limit on disk
	Rooms   []room   // the places of a script besides the workspace
	Binds   []string // sources, offered to bwrap as bindDir/0, bindDir/1, …
	Bwrap   string   // "" = only set the stage up and test the overlay
	Command []string // argument list of bwrap; its options are in a memfd
	Data    int      // number of data descriptors
	Tasks   int      // number of tasks files of cgroups v1, whose descriptors follow those of the data
	Group   bool     // one descriptor more is the directory of a cgroup v2
	Rlimits []rlimit
	Diff    bool // stream the upper
	Trace   bool // say when the steps are done
}

// room is a tmpfs that the stage makes at roomDir/0, roomDir/1, … for bwrap to bind.
type room struct{ perms, bytes, inodes uint64 }

type rlimit struct {
	resource int
	value    uint64
}

func (s spec) marshal() []byte {
	b := appendString(nil, s.Lower)
	b = appendString(b, s.Disk)
	b = binary.AppendUvarint(b, s.Bytes)
	b = binary.AppendUvarint(b, s.Inodes)
	b = binary.AppendUvarint(b, uint64(len(s.Rooms)))
	for _, r := range s.Rooms {
		for _, n := range []uint64{r.perms, r.bytes, r.inodes} {
			b = binary.AppendUvarint(b, n)
		}
	}
	b = appendStrings(b, s.Binds)
	b = appendString(b, s.Bwrap)
	b = appendStrings(b, s.Command)
	b = binary.AppendUvarint(b, uint64(s.Data))
	b = binary.AppendUvarint(b, uint64(s.Tasks))
	b = appendBool(b, s.Group)
	b = binary.AppendUvarint(b, uint64(len(s.Rlimits)))
	for _, l := range s.Rlimits {
		b = binary.AppendUvarint(b, uint64(l.resource))
		b = binary.AppendUvarint(b, l.value)
	}
	return appendBool(appendBool(b, s.Diff), s.Trace)
}

func parseSpec(b []byte) (spec, error) {
	p := payloadReader{rest: b}
	s := spec{Lower: p.string(), Disk: p.string(), Bytes: p.uint(), Inodes: p.uint()}
	s.Rooms = make([]room, p.count())
	for i := range s.Rooms {
		s.Rooms[i] = room{p.uint(), p.uint(), p.uint()}
	}
	s.Binds, s.Bwrap, s.Command = p.strings(), p.string(), p.strings()
	s.Data, s.Tasks, s.Group = int(p.uint()), int(p.uint()), p.bool()
	s.Rlimits = make([]rlimit, p.count())
	for i := range s.Rlimits {
		s.Rlimits[i] = rlimit{int(p.uint()), p.uint()}
	}
	s.Diff, s.Trace = p.bool(), p.bool()
	if !p.done() {
		return spec{}, fmt.Errorf("%w: stage orders", ErrStream)
	}
	return s, nil
}

// failure is the payload of frameFailed.
type failure struct {
	Step   string // one of the step constants
	Errno  uint64 // 0 = none
	Detail string
}

func (f failure) Error() string { return f.Step + ": " + f.Detail }

func (f failure) marshal() []byte {
	b := appendString(nil, f.Step)
	b = binary.AppendUvarint(b, f.Errno)
	return appendString(b, f.Detail)
}

func parseFailure(b []byte) (failure, error) {
	p := payloadReader{rest: b}
	f := failure{p.string(), p.uint(), p.string()}
	if !p.done() {
		return failure{}, fmt.Errorf("%w: failure report", ErrStream)
	}
	return f, nil
}

// gone is the payload of frameGone.
type gone struct {
	Execed   bool          // the command was started
	Code     uint64        // its exit code as bwrap reports it: 128 + signal if one ended it
	Killed   bool          // the stage had killed the sandbox before
	DiskFull bool          // the kill was because of the watched limit on disk
	Crashed  bool          // bwrap itself died of a signal that the stage did not send
	Took     time.Duration // from release to death
}

func (g gone) marshal() []byte {
	b := appendBool(nil, g.Execed)
	b = binary.AppendUvarint(b, g.Code)
	b = appendBool(b, g.Killed)
	b = appendBool(b, g.DiskFull)
	b = appendBool(b, g.Crashed)
	return binary.AppendVarint(b, int64(g.Took))
}

func parseGone(b []byte) (gone, error) {
	p := payloadReader{rest: b}
	g := gone{Execed: p.bool(), Code: p.uint(), Killed: p.bool(), DiskFull: p.bool(), Crashed: p.bool(), Took: time.Duration(p.int())}
	if !p.done() || g.Code > 255 {
		return gone{}, fmt.Errorf("%w: end of the sandbox", ErrStream)
	}
	return g, nil
}

// end is the payload of frameEnd.
type end struct {
	Full                  bool // the upper has no byte or no inode left
	TooDeep               bool // a directory was not looked into
	FIFO, Socket, Devices uint64
}

func (e end) marshal() []byte {
	b := appendBool(nil, e.Full)
	b = appendBool(b, e.TooDeep)
	b = binary.AppendUvarint(b, e.FIFO)
	b = binary.AppendUvarint(b, e.Socket)
	return binary.AppendUvarint(b, e.Devices)
}

func parseEnd(b []byte) (end, error) {
	p := payloadReader{rest: b}
	e := end{p.bool(), p.bool(), p.uint(), p.uint(), p.uint()}
	if !p.done() {
		return end{}, fmt.Errorf("%w: end of the changes", ErrStream)
	}
	return e, nil
}

// entry is the payload of frameEntry: a Change without its body.
func marshalEntry(b []byte, c Change) []byte {
	b = append(b, byte(c.Kind))
	b = binary.AppendUvarint(b, uint64(c.Mode))
	b = binary.AppendVarint(b, c.ModTime.Unix())
	b = binary.AppendUvarint(b, uint64(c.ModTime.Nanosecond()))
	b = binary.AppendUvarint(b, uint64(c.Size))
	b = appendString(b, c.Path)
	return appendString(b, c.Target)
}

// parseEntry decodes an entry and refuses what marshalEntry never writes. The
// Change shares no memory with b.
func parseEntry(b []byte) (Change, error) {
	bad := func(what string) (Change, error) { return Change{}, fmt.Errorf("%w: %s", ErrStream, what) }
	p := payloadReader{rest: b}
	kind, mode, sec, nsec, size := p.uint(), p.uint(), p.int(), p.uint(), p.uint()
	path, target := p.bytes(), p.bytes()
	switch {
	case !p.done():
		return bad("entry")
	case kind < uint64(Removed) || kind > uint64(Symlink):
		return bad("kind of entry")
	case mode > 0o777 || nsec >= 1e9 || size > 1<<62:
		return bad("numbers of an entry")
	case !validPath(path):
		return bad("path of an entry")
	}
	c := Change{Path: clone(path), Kind: ChangeKind(kind), Mode: uint32(mode), ModTime: time.Unix(sec, int64(nsec)), Size: int64(size)}
	if c.Kind != File && size != 0 {
		return bad("size of an entry that is no file")
	}
	if (c.Kind == Symlink) != (len(target) > 0) || len(target) > maxTargetLen || hasNUL(target) {
		return bad("target of an entry")
	}
	if c.Kind == Symlink {
		c.Target = clone(target)
	}
	return c, nil
}

// appendHole is the payload of frameHole.
func appendHole(n int64) []byte { return binary.AppendUvarint(nil, uint64(n)) }
