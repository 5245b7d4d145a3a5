package audit

import (
	"context"
	"os"
	"path/filepath"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// removeUnborn removes what a process left that was killed while it made a file
// of the database: Badger opens a new memtable and a new value log at each start,
// makes them and then gives them their size, and an existing one of size zero
// keeps it from opening (badger v4.9.6 memtable.go, logFile.open). Such a file
// holds nothing.
//
// A database that another process has open is left alone.
func removeUnborn(dir string) error {
	return alone(dir, func() error {
		files, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, f := range files {
			ext := filepath.Ext(f.Name())
			if !f.Type().IsRegular() || ext != ".mem" && ext != ".vlog" {
				continue
			}
			info, err := f.Info()
			if err == nil && info.Size() == 0 {
				err = os.Remove(filepath.Join(dir, f.Name()))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// alone calls do under Badger's own lock of the directory (dir_unix.go), or does nothing while
// another process has the database open, as Badger will say.
func alone(dir string, do func() error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close() // drops the lock
	now, cancel := context.WithCancel(context.Background())
	cancel()
	if hostos.Lock(now, d, true) != nil {
		return nil
	}
	// Not left to Close: a child that is being forked right now holds a copy of
	// the descriptor until its exec, and Badger would find the lock taken.
	defer hostos.Unlock(d)
	return do()
}
