package hostcopy

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
)

// Planned is an entry of a stream, told before any of them is sent, so that what
// cannot be written is found out while nothing is.
type Planned struct {
	Kind byte // PlannedDir, PlannedFile or PlannedLink
	Size int64
	Name string // as tar has it, without a "/" at the end
}

const (
	PlannedDir  = 'd'
	PlannedFile = 'f'
	PlannedLink = 'l'
	plannedEnd  = 0
)

// maxPlanned is how long a name may be, in bytes: more than a disk lets through.
const maxPlanned = 8 << 10

// WritePlanned writes an entry; the zero value ends the plan.
func WritePlanned(w io.Writer, p Planned) error {
	b := []byte{p.Kind}
	if p.Kind != plannedEnd {
		b = binary.AppendUvarint(b, uint64(p.Size))
		b = binary.AppendUvarint(b, uint64(len(p.Name)))
		b = append(b, p.Name...)
	}
	_, err := w.Write(b)
	return err
}

// readPlanned reads an entry; io.EOF is the end of the plan.
func readPlanned(r *bufio.Reader) (p Planned, err error) {
	if p.Kind, err = r.ReadByte(); err != nil {
		return p, unexpected(err)
	}
	switch p.Kind {
	case plannedEnd:
		return p, io.EOF
	case PlannedDir, PlannedFile, PlannedLink:
	default:
		return p, errors.New("a plan has entries of an unknown kind")
	}
	size, err := binary.ReadUvarint(r)
	if err != nil {
		return p, unexpected(err)
	}
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return p, unexpected(err)
	}
	if n == 0 || n > maxPlanned || int64(size) < 0 {
		return p, errors.New("a plan has an impossible entry")
	}
	name := make([]byte, n)
	if _, err = io.ReadFull(r, name); err != nil {
		return p, unexpected(err)
	}
	p.Size, p.Name = int64(size), string(name)
	return p, nil
}

// unexpected is an end where more has to follow.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
