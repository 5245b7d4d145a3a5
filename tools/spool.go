package tools

import (
	"io"
	"os"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// spool is bytes that are appended and read back. The first 64 KiB lie in
// memory; once there are more, all of them lie in a file that has no name, so
// that nothing of it outlives the process. It is not safe for concurrent use.
type spool struct {
	dir  string // for the file
	mem  []byte
	file *os.File
	size int64
}

const maxInMemory = 64 << 10

// append adds p, all of it or nothing.
func (s *spool) append(p []byte) error {
	if s.file == nil && len(s.mem)+len(p) > maxInMemory {
		if err := s.spill(); err != nil {
			return err
		}
	}
	if s.file == nil {
		s.mem = append(s.mem, p...)
	} else if _, err := s.file.WriteAt(p, s.size); err != nil {
		return err
	}
	s.size += int64(len(p))
	return nil
}

func (s *spool) spill() error {
	f, err := hostos.Unnamed(s.dir)
	if err != nil {
		return err
	}
	if _, err := f.Write(s.mem); err != nil {
		f.Close()
		return err
	}
	s.file, s.mem = f, nil
	return nil
}

// ReadAt implements io.ReaderAt.
func (s *spool) ReadAt(p []byte, off int64) (int, error) {
	if s.file != nil {
		// What a failed append left behind the end is none of ours.
		return io.NewSectionReader(s.file, 0, s.size).ReadAt(p, off)
	}
	if off >= int64(len(s.mem)) {
		return 0, io.EOF
	}
	n := copy(p, s.mem[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// close gives back what the spool holds.
func (s *spool) close() {
	if s.file != nil {
		s.file.Close()
	}
	*s = spool{}
}
