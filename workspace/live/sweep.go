package live

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Sweep removes the views below dir that nobody has open and that were last used
// before a time, and says how many. They are made again when they are needed. Use
// is told by the host's clock: a view from the future stays. A killed Sweep leaves
// a view that is compared, or a part that the next one removes.
//
// It goes on after an error and returns all of them joined. A missing dir is none.
func Sweep(dir string, before time.Time) (removed int, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("sweep live views: %w", err)
	}
	var failed []error
	for _, e := range entries {
		if !e.IsDir() || !uuidForm.MatchString(e.Name()) {
			continue
		}
		done, err := sweepOne(filepath.Join(dir, e.Name()), before)
		if err != nil {
			failed = append(failed, fmt.Errorf("sweep live views: %w", err))
		} else if done {
			removed++
		}
	}
	return removed, errors.Join(failed...)
}

// uuidForm is how workspace writes the uuid of an image (RFC 9562).
var uuidForm = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func sweepOne(base string, before time.Time) (bool, error) {
	if old, err := idle(base, before); err != nil || !old {
		return false, err
	}
	now, cancel := context.WithCancel(context.Background())
	cancel() // one attempt: what is in use is not waited for
	lock, err := takeLock(now, base)
	if errors.Is(err, workspace.ErrLocked) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	defer lock.Close()
	// Somebody may have used it, and closed it, since the first look.
	if old, err := idle(base, before); err != nil || !old {
		return false, err
	}
	root, err := os.OpenRoot(base)
	if err != nil {
		return false, err
	}
	defer root.Close()
	return true, erase(root, base)
}

// idle says whether a view was last used before a time: the one of its lock file
// (see View.stamp), or of the directory when a killed process has left no lock.
func idle(base string, before time.Time) (bool, error) {
	st, err := os.Lstat(filepath.Join(base, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		st, err = os.Lstat(base)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil // somebody else was faster
	case err != nil:
		return false, err
	}
	return st.ModTime().Before(before), nil
}

// erase removes a view whose lock the caller has. The lock goes after what it
// guards; whoever waits for it finds out (see takeLock).
func erase(root *os.Root, base string) error {
	names, err := list(root)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == lockName {
			continue
		}
		if t, ok := openTree(root, name); ok {
			err = t.remove(root)
		} else {
			err = removeTree(root, name)
		}
		if err != nil {
			return err
		}
	}
	hostos.Failpoint("live.erased")
	if err := root.Remove(lockName); err != nil {
		return err
	}
	hostos.Failpoint("live.unlocked")
	if err := os.Remove(base); err != nil && !errors.Is(err, fs.ErrExist) {
		return err // fs.ErrExist is a directory that is not empty: another view is in it already
	}
	return nil
}
