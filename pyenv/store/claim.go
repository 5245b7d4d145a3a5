package store

import (
	"context"
	"fmt"
	"os"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// claim waits until no other process or goroutine builds a layer, and keeps them
// from it until release is called or this process ends. While the claim is held,
// every other directory of a build of this layer is that of a dead process.
func (r *Root) claim(ctx context.Context, id string, waiting func()) (release func(), err error) {
	for {
		f, name, err := r.openClaim(id)
		if err != nil {
			return nil, err
		}
		ok, err := hostos.TryLock(f, true)
		if err == nil && !ok {
			waiting()
			err = hostos.Lock(ctx, f, true)
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("wait for another build of %s: %w", id, err)
		}
		if r.same(f, name) {
			return r.dropClaim(f, name), nil
		}
		f.Close() // whoever had it removed the file when done
	}
}

// tryClaim is claim without waiting; free is false when somebody builds.
func (r *Root) tryClaim(id string) (free bool, release func(), err error) {
	f, name, err := r.openClaim(id)
	if err != nil {
		return false, nil, err
	}
	ok, err := hostos.TryLock(f, true)
	if err != nil || !ok || !r.same(f, name) {
		f.Close()
		return false, nil, err
	}
	return true, r.dropClaim(f, name), nil
}

func (r *Root) openClaim(id string) (*os.File, string, error) {
	name := layersDir + "/" + tmpPrefix + id + ".lock"
	f, err := r.root.OpenFile(name, os.O_RDWR|os.O_CREATE|hostos.NonBlock, 0o600)
	return f, name, err
}

// dropClaim removes the file before the lock, so that who waits for the lock sees
// that it is the one of a file that is gone.
func (r *Root) dropClaim(f *os.File, name string) func() {
	return func() {
		_ = r.root.Remove(name)
		f.Close()
	}
}
