package audit

import (
	"fmt"

	"github.com/dgraph-io/badger/v4"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// MinOpenFree is the room on its disk, in bytes, without which the database is
// neither opened nor closed. Badger maps new files that have no blocks yet and
// writes into them: a full disk ends the process with SIGBUS. At a start it may
// flush the three memtables of a killed process (4 MiB each) and merge the four
// tables of level zero (4 MiB each); the rest is for what is small.
const MinOpenFree = 32 << 20

// free gives the free bytes of the disk that holds a path.
func free(path string) (uint64, error) {
	n, _, err := hostos.Free(path)
	return n, err
}

// checkRoom gives an error that wraps [ErrUnavailable] when less than
// [MinOpenFree] is free, or when that is not known.
func checkRoom(free uint64, err error) error {
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if free < MinOpenFree {
		return fmt.Errorf("%w: too little free space", ErrUnavailable)
	}
	return nil
}

// CloseDB closes a database that [OpenDB] opened in dir, after its log. With less
// than [MinOpenFree] on the disk it leaves it open, which is no error: closing
// writes, and would end the process with SIGBUS. Nothing is lost: what was
// acknowledged is in the files already, and the next opening goes on from them,
// as after a kill. The process still holds the lock of the directory then, until
// it ends; db.IsClosed tells.
func CloseDB(db *badger.DB, dir string) error {
	if checkRoom(free(dir)) != nil {
		return nil
	}
	return db.Close()
}
