package live

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// lockWait is how long Open waits for the lock of a view.
const lockWait = 2 * time.Second

// takeLock makes the directory of a view and takes its lock, which goes when
// the file is closed. A view may be removed, lock and all, by whoever has its
// lock, so one that was waited for may be that of a file which is no longer there.
func takeLock(ctx context.Context, base string) (*os.File, error) {
	for {
		f, err := tryLock(ctx, base)
		switch {
		case err == nil && f != nil:
			return f, nil
		case errors.Is(err, hostos.ErrLocked) || err == nil && ctx.Err() != nil:
			return nil, &workspace.Error{Op: "open live view", Kind: workspace.ErrLocked, Detail: "its directory for scripts is open elsewhere"}
		case err != nil:
			return nil, fmt.Errorf("open live view: %w", explain(err))
		}
	}
}

// tryLock returns neither file nor error when the directory went away meanwhile.
func tryLock(ctx context.Context, base string) (*os.File, error) {
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(base, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if err := hostos.Lock(ctx, f, true); err != nil {
		f.Close()
		return nil, err
	}
	mine, err := f.Stat()
	if err == nil {
		var there fs.FileInfo
		if there, err = os.Lstat(path); err == nil && os.SameFile(mine, there) {
			return f, nil
		}
	}
	f.Close()
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return nil, err
}
