package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Report is what a collection did, or would do.
type Report struct {
	Removed []Item
	Kept    []Item
	Bytes   int64 // of what was removed, as far as it is known
}

// Item is one thing that was looked at.
type Item struct {
	Kind  string // "layer", "lock", "wheel", "job", "rest"
	ID    string
	Why   string // it was kept: "bound", "current", "young", "in use", "of a kept layer", "of a kept lock"
	Bytes int64
}

// minJob is the least age of a job's directory that is removed: no resolver works
// for so long.
const minJob = time.Hour

// GC removes what nobody needs: layers that are not in keep, not current, not in
// use and not used for minAge; locks of no kept layer that are neither in keep nor
// young; wheels of no kept lock that are not young; what resolvers and killed
// processes left. keep holds ids of layers and of locks, and hashes of wheels. A
// dry run only tells.
//
// Age is that of a directory's mtime, which a build and every Use set. It is not
// that in the manifest, because a clock that was wrong can be mended there: a time
// in the future, after the clock was set back, counts as now and is set to now, so
// that the layer is young for minAge from then on, and not until the clock has
// caught up. A clock that jumps ahead makes a layer old too early, which costs a
// build from the wheelhouse and no data.
//
// Who binds a layer holds it by Use until the binding is written. keep may then be
// older than the binding: the layer is in use or young. With a minAge of zero keep
// must not change meanwhile.
//
// It goes on when one thing cannot be removed, and returns these errors joined; or
// the cause of ctx's end. now is time.Now if nil.
func (r *Root) GC(ctx context.Context, keep map[string]bool, minAge time.Duration, now func() time.Time, dryRun bool) (Report, error) {
	if now == nil {
		now = time.Now
	}
	c := &collection{root: r, ctx: ctx, keep: keep, minAge: minAge, now: now(), dry: dryRun, layers: map[string]bool{}, wheels: map[string]bool{}}
	var err error
	if c.current, err = r.Current(); errors.Is(err, ErrNotFound) || errors.Is(err, ErrTampered) {
		err = nil // nothing is current then
	}
	if err != nil {
		return c.Report, err
	}
	for _, step := range []func() error{c.collectLayers, c.collectLocks, c.collectWheels, c.collectJobs, c.collectRest} {
		if ctx.Err() != nil {
			return c.Report, errors.Join(err, context.Cause(ctx))
		}
		err = errors.Join(err, step())
	}
	return c.Report, err
}

// collection is one run of GC.
type collection struct {
	Report
	root    *Root
	ctx     context.Context
	keep    map[string]bool
	current Current
	minAge  time.Duration
	now     time.Time
	dry     bool

	layers  map[string]bool // that stay
	wheels  map[string]bool // of locks that stay, by hash
	unknown bool            // a lock that stays cannot be read, so its wheels are not known
}

// look goes through a directory. why says why to keep something, "" to remove it.
func (c *collection) look(kind, dir string, id func(fs.DirEntry) string, why func(id string, st fs.FileInfo) string, remove func(id, name string) error) error {
	list, err := c.root.names(dir)
	for _, d := range list {
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		item := Item{Kind: kind, ID: id(d)}
		st, e := d.Info()
		if item.ID == "" || e != nil {
			continue // not ours, or gone meanwhile
		}
		if item.Why = why(item.ID, st); item.Why != "" {
			c.Kept = append(c.Kept, item)
			continue
		}
		name := dir + "/" + d.Name()
		item.Bytes = c.size(kind, item.ID, st)
		if !c.dry {
			e = remove(item.ID, name)
		}
		switch {
		case errors.Is(e, ErrInUse):
			item.Why = "in use"
			c.Kept = append(c.Kept, item)
		case e != nil && !errors.Is(e, ErrNotFound) && !errors.Is(e, fs.ErrNotExist):
			err = errors.Join(err, e)
		default:
			c.Removed = append(c.Removed, item)
			c.Bytes += item.Bytes
		}
	}
	return err
}

func (c *collection) size(kind, id string, st fs.FileInfo) int64 {
	if kind != "layer" {
		return st.Size()
	}
	l, err := c.root.Layer(id)
	if err != nil {
		return 0
	}
	return l.Manifest.Size
}

// young says whether something was used within minAge.
func (c *collection) young(name string, st fs.FileInfo, minAge time.Duration) bool {
	age := c.now.Sub(st.ModTime())
	if age < 0 {
		age = 0
		if !c.dry {
			_ = c.root.root.Chtimes(name, c.now, c.now)
		}
	}
	return age < minAge
}

func (c *collection) collectLayers() error {
	id := func(d fs.DirEntry) string {
		if !d.IsDir() || !lock.ValidLayerID(d.Name()) {
			return ""
		}
		return d.Name()
	}
	why := func(id string, st fs.FileInfo) string {
		switch {
		case c.keep[id]:
			return "bound"
		case id == c.current.Layer:
			return "current"
		case c.young(layersDir+"/"+id, st, c.minAge):
			return "young"
		case c.inUse(id):
			return "in use"
		}
		return ""
	}
	err := c.look("layer", layersDir, id, why, func(id, _ string) error { return c.root.Drop(id) })
	for _, item := range c.Kept {
		c.layers[item.ID] = true
	}
	return err
}

// inUse looks whether somebody has a layer by Use.
func (c *collection) inUse(id string) bool {
	f, err := c.root.openLayer(id)
	if err != nil {
		return false
	}
	defer f.Close()
	ok, err := hostos.TryLock(f, true)
	return err == nil && !ok
}

func (c *collection) collectLocks() error {
	id := func(d fs.DirEntry) string {
		id, _ := strings.CutSuffix(d.Name(), ".json")
		if !d.Type().IsRegular() || !lock.ValidID(id) || id == d.Name() {
			return ""
		}
		return id
	}
	why := func(id string, st fs.FileInfo) (why string) {
		l, err := c.root.Lock(id)
		layer, _ := l.LayerID()
		switch {
		case c.keep[id]:
			why = "bound"
		case id == c.current.Lock:
			why = "current"
		case c.layers[layer]:
			why = "of a kept layer"
		case c.young(lockName(id), st, c.minAge):
			why = "young"
		default:
			return ""
		}
		c.unknown = c.unknown || err != nil
		for _, p := range l.Packages {
			c.wheels[p.SHA256] = true
		}
		return why
	}
	return c.look("lock", locksDir, id, why, func(_, name string) error { return c.root.root.Remove(name) })
}

func (c *collection) collectWheels() error {
	id := func(d fs.DirEntry) string {
		sum, _ := strings.CutSuffix(d.Name(), ".whl")
		if !d.Type().IsRegular() || !lock.ValidSHA256(sum) || sum == d.Name() {
			return ""
		}
		return sum
	}
	why := func(sum string, st fs.FileInfo) string {
		switch {
		case c.keep[sum]:
			return "bound"
		case c.wheels[sum]:
			return "of a kept lock"
		case c.unknown:
			return "perhaps of a lock that cannot be read"
		case c.young(wheelName(sum), st, c.minAge):
			return "young"
		}
		return ""
	}
	return c.look("wheel", wheelsDir, id, why, func(_, name string) error { return c.root.root.Remove(name) })
}

func (c *collection) collectJobs() error {
	id := func(d fs.DirEntry) string { return d.Name() }
	why := func(id string, st fs.FileInfo) string {
		if c.young(jobsDir+"/"+id, st, max(c.minAge, minJob)) {
			return "young"
		}
		return ""
	}
	return c.look("job", jobsDir, id, why, func(_, name string) error { return c.root.root.RemoveAll(name) })
}

// collectRest removes what is in nobody's way, whatever its age.
func (c *collection) collectRest() error {
	gone, err := c.root.sweep(c.dry)
	for _, name := range gone {
		c.Removed = append(c.Removed, Item{Kind: "rest", ID: name})
	}
	return err
}

// trash takes a layer away in one step and then removes it.
func (r *Root) trash(name, id string) error {
	gone := layersDir + "/" + trashPrefix + id + "-" + rand.Text()
	if err := r.root.Rename(name, gone); err != nil {
		return fmt.Errorf("remove layer %s: %w", id, err)
	}
	r.forget(id)
	if err := hostos.SyncDir(r.path(path.Dir(name))); err != nil {
		return err
	}
	return r.root.RemoveAll(gone)
}
