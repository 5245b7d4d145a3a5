package hostcopy

import (
	"bytes"
	"os"
)

// sparse writes a new file from its beginning on and steps over zeros, which become
// holes where the file system has them. Whoever uses it sets the length at the end
// (finish).
type sparse struct {
	f   *os.File
	off int64
}

// holeSize is the least that is worth a hole: a block of most file systems.
const holeSize = 4096

var zeros [holeSize]byte

func (s *sparse) Write(p []byte) (int, error) {
	begin, from := s.off, 0 // p[from:at] has to be written
	flush := func(to int) error {
		if from == to {
			return nil
		}
		_, err := s.f.WriteAt(p[from:to], begin+int64(from))
		return err
	}
	for at := 0; at < len(p); {
		n := min(len(p)-at, holeSize-int((begin+int64(at))%holeSize))
		if bytes.Equal(p[at:at+n], zeros[:n]) {
			if err := flush(at); err != nil {
				return 0, err
			}
			from = at + n
		}
		at += n
	}
	if err := flush(len(p)); err != nil {
		return 0, err
	}
	s.off += int64(len(p))
	return len(p), nil
}

// finish gives the file its length, which ends in a hole perhaps.
func (s *sparse) finish() error { return s.f.Truncate(s.off) }
