package wheel

import (
	"bytes"
	"io"
)

// shebang passes a script on and puts the interpreter's path in place of
// "#!python" or "#!pythonw" at its start, which is what wheels write for it (PEP
// 427). Any other first line stays as it is.
type shebang struct {
	dst         io.Writer
	interpreter string
	head        []byte // of the script, as long as it is not decided
	done        bool
}

// placeholder is longest first.
var placeholder = [][]byte{[]byte("#!pythonw"), []byte("#!python")}

func (s *shebang) Write(b []byte) (int, error) {
	if s.done {
		return s.dst.Write(b)
	}
	s.head = append(s.head, b...)
	if len(s.head) > len(placeholder[0]) {
		if err := s.close(); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// close decides, at the latest when the script is at its end.
func (s *shebang) close() error {
	if s.done {
		return nil
	}
	s.done = true
	for _, p := range placeholder {
		rest, ok := bytes.CutPrefix(s.head, p)
		if ok && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0) {
			s.head = append([]byte("#!"+s.interpreter), rest...)
			break
		}
	}
	_, err := s.dst.Write(s.head)
	return err
}
