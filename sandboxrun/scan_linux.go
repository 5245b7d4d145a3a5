package sandboxrun

import (
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// sendDiff reports the end of the run, with the entries of the upper if they
// are wanted. Every process that could change the upper is dead by now.
func (s *stageRun) sendDiff() error {
	c := scanner{report: s.report, piece: make([]byte, maxBytes)}
	e := end{Full: s.isFull()}
	if s.spec.Diff {
		if err := c.dir(s.upper, s.lower, nil, 1); err != nil {
			return err
		}
	}
	e.TooDeep, e.FIFO, e.Socket, e.Devices = c.tooDeep, c.fifo, c.socket, c.devices
	s.report.write(frameEnd, e.marshal())
	return nil
}

// isFull reports whether the upper has no room for one more page or file.
func (s *stageRun) isFull() bool {
	var st unix.Statfs_t
	if err := unix.Fstatfs(s.upper, &st); err != nil {
		return false
	}
	return st.Bavail == 0 || (st.Ffree == 0 && st.Files != 0)
}

// scanner walks the upper directory, the lower one in step with it.
type scanner struct {
	report                *frameWriter
	entry, piece          []byte
	tooDeep               bool
	fifo, socket, devices uint64
}

const openFlags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC

// dir reports what is in the directory upper. lower is the directory of the
// same path that is visible below it, or -1.
func (c *scanner) dir(upper, lower int, path []byte, depth int) error {
	names, err := readNames(upper)
	if err != nil {
		return fail("read a directory", err)
	}
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(upper, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fail("stat", err)
		}
		p := append(path[:len(path):len(path)], name...)
		if err := c.one(upper, lower, name, p, &st, depth); err != nil {
			return err
		}
	}
	return nil
}

func (c *scanner) one(upper, lower int, name string, path []byte, st *unix.Stat_t, depth int) error {
	ch := Change{Path: path, Mode: st.Mode & 0o777, ModTime: time.Unix(st.Mtim.Unix())}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return c.subdir(upper, lower, name, ch, depth)
	case unix.S_IFREG:
		return c.file(upper, name, ch)
	case unix.S_IFLNK:
		return c.symlink(upper, name, ch)
	case unix.S_IFIFO:
		c.fifo++
	case unix.S_IFSOCK:
		c.socket++
	default:
		if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
			c.devices++
		}
	}
	// A whiteout, or something that is not kept but hides what was there.
	there, err := exists(lower, name)
	if err != nil {
		return fail("stat", err)
	}
	if there {
		c.send(Change{Path: path, Kind: Removed})
	}
	return c.report.err
}

func (c *scanner) send(ch Change) {
	c.entry = marshalEntry(c.entry[:0], ch)
	c.report.write(frameEntry, c.entry)
}

// subdir reports a directory and what is in it.
func (c *scanner) subdir(upper, lower int, name string, ch Change, depth int) error {
	fd, err := unix.Openat(upper, name, openFlags|unix.O_DIRECTORY, 0)
	if err != nil {
		return fail("open a directory", err)
	}
	defer unix.Close(fd)
	below, kind, err := openBelow(fd, lower, name)
	if err != nil {
		return fail("open a directory", err)
	}
	if below >= 0 {
		defer unix.Close(below)
	}
	ch.Kind = kind
	c.send(ch)
	if depth > maxTreeDepth {
		c.tooDeep = true
		return c.report.err
	}
	return c.dir(fd, below, append(ch.Path, '/'), depth+1)
}

// openBelow opens the directory of the lower one that is visible through the
// directory fd of the upper, -1 if nothing is. It is careful about errors: one
// taken for "nothing there" would turn into the deletion of what is there.
func openBelow(fd, lower int, name string) (below int, kind ChangeKind, err error) {
	if lower < 0 {
		return -1, Dir, nil
	}
	below, err = unix.Openat(lower, name, openFlags|unix.O_DIRECTORY, 0)
	switch err {
	case nil:
	case unix.ENOENT:
		return -1, Dir, nil
	case unix.ENOTDIR, unix.ELOOP: // a file or a link was replaced
		return -1, OpaqueDir, nil
	default:
		return -1, 0, err
	}
	opaque, err := isOpaque(fd)
	if err == nil && !opaque {
		return below, Dir, nil
	}
	unix.Close(below)
	return -1, OpaqueDir, err
}

// isOpaque reports whether a directory of the upper hides the lower one.
func isOpaque(fd int) (bool, error) {
	var v [1]byte
	n, err := unix.Fgetxattr(fd, "user.overlay.opaque", v[:])
	switch err {
	case unix.ENODATA, unix.ERANGE: // ERANGE: a longer value, so no mark
		return false, nil
	}
	return n == 1 && v[0] == 'y', err
}

// exists reports whether the lower directory, if there is one, has the name.
func exists(lower int, name string) (bool, error) {
	if lower < 0 {
		return false, nil
	}
	var st unix.Stat_t
	err := unix.Fstatat(lower, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT {
		return false, nil
	}
	return err == nil, err
}

func (c *scanner) symlink(upper int, name string, ch Change) error {
	buf := c.piece[:maxTargetLen]
	n, err := unix.Readlinkat(upper, name, buf)
	if err != nil {
		return fail("read a link", err)
	}
	ch.Kind, ch.Mode, ch.Target = Symlink, 0, buf[:n]
	c.send(ch)
	return c.report.err
}

// file reports a regular file with its bytes.
func (c *scanner) file(upper int, name string, ch Change) error {
	fd, err := unix.Openat(upper, name, openFlags, 0)
	if err != nil {
		return fail("open a file", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail("stat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fail("open a file", unix.EINVAL)
	}
	ch.Kind, ch.Size = File, st.Size
	c.send(ch)
	if st.Blocks*512 >= st.Size {
		return c.bytes(fd, st.Size)
	}
	return c.sparse(fd, st.Size)
}

// bytes sends the next n bytes of a file.
func (c *scanner) bytes(fd int, n int64) error {
	for n > 0 {
		p := c.piece[:min(n, int64(len(c.piece)))]
		m, err := fdReader(fd).Read(p)
		if err != nil {
			return fail("read a file", err)
		}
		c.report.write(frameBytes, p[:m])
		if c.report.err != nil {
			return c.report.err
		}
		n -= int64(m)
	}
	return nil
}

// sparse sends a file without reading its holes.
func (c *scanner) sparse(fd int, size int64) error {
	for at := int64(0); at < size; {
		data, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			data, err = size, nil
		}
		if err != nil {
			return fail("find the holes of a file", err)
		}
		if data > at {
			c.report.write(frameHole, appendHole(data-at))
		}
		if at = data; at == size {
			break
		}
		hole, err := unix.Seek(fd, at, unix.SEEK_HOLE)
		if err != nil {
			return fail("find the holes of a file", err)
		}
		if _, err := unix.Seek(fd, at, io.SeekStart); err != nil {
			return fail("find the holes of a file", err)
		}
		if err := c.bytes(fd, hole-at); err != nil {
			return err
		}
		at = hole
	}
	return c.report.err
}

// readNames lists a directory in the order of the bytes of its names.
func readNames(dir int) ([]string, error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "dir")
	defer f.Close()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}
