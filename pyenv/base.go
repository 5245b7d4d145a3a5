package pyenv

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/tags"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Portable is a lock as it is kept with the source of this program: without the
// hosts of one person's index. What is fetched by it is known by
// name, version and hash, from whatever index whoever fetches has.
func Portable(l lock.Lock) lock.Lock {
	l.Packages = slices.Clone(l.Packages)
	for i := range l.Packages {
		l.Packages[i].Index = ""
	}
	return l
}

//go:embed base.txt
var baseText string

// lockFiles are locks of the base list, one for a minor version and an architecture,
// as `mcp-vdisk env lock -o FILE` writes them.
//
//go:embed locks
var lockFiles embed.FS

// item is a line of base.txt.
type item struct {
	spec   spec.Requirement
	module string // that the probe imports
}

func parseBase(text string) ([]item, error) {
	var list []item
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0][0] == '#' {
			continue
		}
		if len(fields) != 2 {
			return nil, fmt.Errorf("base.txt: %q is not a requirement and a module", line)
		}
		q, err := spec.ParseRequest(fields[0])
		if err != nil {
			return nil, fmt.Errorf("base.txt: %w", err)
		}
		list = append(list, item{q, fields[1]})
	}
	return list, nil
}

// requested is what a lock of the base list, with extras, was asked for: sorted.
func (e *Env) requested(extras []lock.Package) []string {
	var list []string
	for _, it := range e.base {
		list = append(list, it.spec.String())
	}
	for _, x := range extras {
		list = append(list, x.Name+"=="+x.Version)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// embedded is the lock that came with this program for an interpreter, as one for
// exactly that interpreter. ok is false if there is none whose wheels fit.
func (e *Env) embedded(it *python.Interpreter) (l lock.Lock, ok bool, err error) {
	names, err := fs.Glob(e.locks, "locks/base-*.json")
	if err != nil {
		return l, false, err
	}
	for _, name := range names {
		b, err := fs.ReadFile(e.locks, name)
		if err != nil {
			return l, false, err
		}
		if l, err = lock.Parse(b); err != nil {
			return l, false, fmt.Errorf("%s: %w", name, err)
		}
		if retarget(&l, it) {
			return l, true, nil
		}
	}
	return lock.Lock{}, false, nil
}

// pythonOf is how a lock names an interpreter.
func pythonOf(it *python.Interpreter) lock.Python {
	parts := strings.SplitN(it.Facts.Target.String(), "-", 3)
	return lock.Python{Tag: parts[0], Full: it.Facts.Full, Platform: parts[2]}
}

// retarget makes a lock one for an interpreter, if that can use all of its wheels: a
// lock is for one release of Python and one C library, its wheels mostly are not.
func retarget(l *lock.Lock, it *python.Interpreter) bool {
	want := pythonOf(it)
	if l.Kind != lock.Base || l.Python.Tag != want.Tag {
		return false
	}
	for _, p := range l.Packages {
		f, err := tags.ParseFile(p.File)
		if err != nil {
			return false
		}
		if _, fits := it.Facts.Target.Fits(f); !fits {
			return false
		}
	}
	l.Python = want
	return true
}

// Files of the root that are this package's.
const (
	extrasFile = "extras.json" // wheels that were imported for the base
	wantedFile = "wanted"      // id of the lock that the next base is built from
	ensureFile = "ensure.lock" // held while a base is made
	topTmp     = ".tmp-"
)

// extras are the wheels that were imported for the base, sorted by name.
func (e *Env) extras() ([]lock.Package, error) {
	b, err := os.ReadFile(filepath.Join(e.o.Root, extrasFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []lock.Package
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, &Error{Code: ErrBadLock, Sentence: "the list of packages that were imported for the base cannot be read", Hint: "import them again", Detail: extrasFile + ": " + err.Error()}
	}
	return list, nil
}

// addExtra puts a wheel on that list, in the place of another version of it. The
// caller has the ensure lock.
func (e *Env) addExtra(p lock.Package) error {
	list, err := e.extras()
	var damaged *Error
	if err != nil && !errors.As(err, &damaged) {
		return err
	}
	list = slices.DeleteFunc(list, func(o lock.Package) bool { return o.Name == p.Name })
	list = append(list, p)
	return e.setExtras(list)
}

func (e *Env) setExtras(list []lock.Package) error {
	slices.SortFunc(list, func(a, b lock.Package) int { return strings.Compare(a.Name, b.Name) })
	b, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(e.o.Root, extrasFile, append(b, '\n'))
}

// wanted is the id of the lock that somebody made for the next base, "" for none.
func (e *Env) wanted() string {
	b, err := os.ReadFile(filepath.Join(e.o.Root, wantedFile))
	id := strings.TrimSpace(string(b))
	if err != nil || !lock.ValidID(id) {
		return ""
	}
	return id
}

// writeFile replaces a file at the top of the root, durably and in one step.
func writeFile(dir, name string, b []byte) (err error) {
	f, err := os.CreateTemp(dir, topTmp)
	if err != nil {
		return err
	}
	defer func() {
		f.Close()
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if _, err := f.Write(b); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, name)); err != nil {
		return err
	}
	return hostos.SyncDir(dir)
}

// sweepTop removes what killed processes left at the top of the root and in tools/.
// The caller has the ensure lock, under which alone such files are made.
func sweepTop(dir string) error {
	var errs []error
	for _, dir := range []string{dir, filepath.Join(dir, "tools")} {
		list, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, d := range list {
			if strings.HasPrefix(d.Name(), topTmp) {
				errs = append(errs, os.RemoveAll(filepath.Join(dir, d.Name())))
			}
		}
	}
	return errors.Join(errs...)
}
