package workspace

import (
	"fmt"
	"strconv"
	"strings"

	bolt "go.etcd.io/bbolt"
)

// Revision returns the sequence number of the commit that a person means:
// "head", the name of a checkpoint, "v12" or "12".
//
// Errors: ErrNotFound, with what there is to choose from; ErrCorrupt.
func (im *Image) Revision(text string) (uint64, error) {
	const op = "look up version"
	var seq uint64
	err := im.view(op, func(tx *bolt.Tx) error {
		h, err := readHead(tx)
		if err != nil {
			return err
		}
		text = strings.TrimSpace(text)
		switch digits, ok := versionDigits(text); {
		case strings.EqualFold(text, "head"):
			seq = h.seq
		case ok:
			if seq, err = strconv.ParseUint(digits, 10, 64); err != nil || seq == 0 || seq > h.seq {
				return subjectError(op, "version "+short(digits)+" of the disk image", ErrNotFound, versionsAre(h.seq))
			}
		default:
			c, err := readCheckpoint(tx, text)
			if err != nil {
				return err
			}
			if c == nil {
				return subjectError(op, "the version "+strconv.Quote(short(text)), ErrNotFound,
					fmt.Sprintf(`a version is "head", the name of a checkpoint, or a number from v1 to v%d`, h.seq))
			}
			seq = c.Seq
		}
		if r, err := recordHead(tx, seq); err != nil || r != nil {
			return err
		}
		return notReached(op, seq)
	})
	if err != nil {
		return 0, err
	}
	return seq, nil
}

// versionDigits takes "v12" or "12" apart.
func versionDigits(text string) (digits string, ok bool) {
	digits = text
	if strings.HasPrefix(text, "v") || strings.HasPrefix(text, "V") {
		digits = text[1:]
	}
	return digits, digits != "" && strings.Trim(digits, "0123456789") == ""
}

// short cuts text from outside for a message.
func short(text string) string {
	const most = 80
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// checkVersion says whether the image has, or had, a commit seq, and returns
// the head.
func checkVersion(tx *bolt.Tx, op string, seq uint64) (*head, error) {
	h, err := readHead(tx)
	if err == nil && (seq == 0 || seq > h.seq) {
		err = subjectError(op, versionOf(seq), ErrNotFound, versionsAre(h.seq))
	}
	return h, err
}

// notReached is the error about a version for which a record is missing.
func notReached(op string, seq uint64) error {
	return subjectError(op, versionOf(seq), ErrNotFound, fmt.Sprintf("its history no longer reaches back to v%d", seq))
}

func versionOf(seq uint64) string { return fmt.Sprintf("version %d of the disk image", seq) }

func versionsAre(head uint64) string { return fmt.Sprintf("the newest is v%d", head) }
