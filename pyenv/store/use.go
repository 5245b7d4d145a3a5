package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// useTime is how long Use waits for a collector that is looking at the layer.
const useTime = 5 * time.Second

// Use keeps layers from being removed until release is called or this process
// ends, and notes that they were used now. It is for as long as a script runs, and
// for the time between choosing a layer and writing down that it is bound. release may
// be called more than once, by any goroutine.
//
// Errors: ErrNotFound when a layer is not there any more; none is held then.
func (r *Root) Use(ids ...string) (release func(), err error) {
	var held []*os.File
	release = sync.OnceFunc(func() {
		for _, f := range held {
			f.Close() // which drops the lock
		}
	})
	ids = slices.Clone(ids)
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		f, err := r.hold(id)
		if err != nil {
			release()
			return nil, err
		}
		held = append(held, f)
	}
	return release, nil
}

// hold takes a shared lock of a layer. It is that of the directory itself, so that
// it goes where the directory goes, and there is no file to keep beside it.
func (r *Root) hold(id string) (*os.File, error) {
	f, err := r.openLayer(id)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), useTime)
	defer cancel()
	err = hostos.Lock(ctx, f, false)
	if !r.same(f, layersDir+"/"+id) { // also when who removes it keeps the lock for longer
		err = refuse(ErrNotFound, "", "layer %s was removed", id)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	r.touch(layersDir + "/" + id)
	return f, nil
}

func (r *Root) openLayer(id string) (*os.File, error) {
	if !lock.ValidLayerID(id) {
		return nil, refuse(ErrNotFound, "", "there is no such layer")
	}
	f, err := r.root.OpenFile(layersDir+"/"+id, os.O_RDONLY|hostos.NonBlock, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse(ErrNotFound, "", "there is no layer %s", id)
	}
	if err != nil {
		return nil, fmt.Errorf("open a layer: %w", err)
	}
	return f, nil
}

// Drop removes a layer, whole or damaged: it is renamed first, so that a crash
// leaves no half of one. Errors: ErrInUse while somebody has it by Use, ErrNotFound;
// those of the file system.
func (r *Root) Drop(id string) error {
	f, err := r.openLayer(id)
	if err != nil {
		return err
	}
	defer f.Close()
	name := layersDir + "/" + id
	ok, err := hostos.TryLock(f, true)
	switch {
	case err != nil:
		return err
	case !ok:
		return refuse(ErrInUse, "", "a script that runs uses layer %s", id).suggest("try again when it has ended")
	case !r.same(f, name):
		return refuse(ErrNotFound, "", "there is no layer %s", id)
	}
	return r.trash(name, id)
}
