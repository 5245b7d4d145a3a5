package store

import (
	"errors"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// sweep removes what nobody works on any more: builds and files whose process is
// dead, and what was thrown away and not yet removed. It returns the names, also of
// what it would remove if dry. It goes on after an error and returns the first.
func (r *Root) sweep(dry bool) (gone []string, err error) {
	remove := func(name string) {
		if !dry {
			if e := r.root.RemoveAll(name); e != nil {
				err = errors.Join(err, e)
				return
			}
		}
		gone = append(gone, name)
	}
	layers, err := r.names(layersDir)
	var ids []string
	for _, d := range layers {
		if strings.HasPrefix(d.Name(), trashPrefix) {
			remove(layersDir + "/" + d.Name())
		} else if m := buildForm.FindStringSubmatch(d.Name()); m != nil {
			ids = append(ids, m[1])
		}
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		dead, release, e := r.tryClaim(id)
		if e != nil || !dead {
			err = errors.Join(err, e)
			continue
		}
		for _, name := range r.builds(id) {
			remove(name)
		}
		release()
	}
	for _, dir := range []string{wheelsDir, locksDir} {
		list, e := r.names(dir)
		err = errors.Join(err, e)
		for _, d := range list {
			if name := dir + "/" + d.Name(); strings.HasPrefix(d.Name(), tmpPrefix) && r.abandoned(name, d) {
				remove(name)
			}
		}
	}
	return gone, err
}

// buildForm is the name of a build's directory or lock.
var buildForm = regexp.MustCompile(`^\.tmp-((?:base|x|iso)-[0-9a-f]{16})(?:-[A-Z0-9]+|\.lock)$`)

// builds are the directories of builds of a layer.
func (r *Root) builds(id string) (names []string) {
	list, _ := r.names(layersDir)
	for _, d := range list {
		if strings.HasPrefix(d.Name(), tmpPrefix+id+"-") {
			names = append(names, layersDir+"/"+d.Name())
		}
	}
	return names
}

// abandoned says whether the writer of a temporary file is dead. Who would take its
// lock right now finds that the name is gone, see temp.
func (r *Root) abandoned(name string, d fs.DirEntry) bool {
	if !d.Type().IsRegular() {
		return false
	}
	f, err := r.root.OpenFile(name, os.O_RDONLY|hostos.NonBlock, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	ok, err := hostos.TryLock(f, true)
	return err == nil && ok && r.same(f, name)
}
