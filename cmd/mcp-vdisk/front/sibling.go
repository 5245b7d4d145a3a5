package front

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Sibling is a directory next to a state directory in which its successor is made, out
// of sight until it is whole. It is the front that makes it and puts it in place: the
// user who fills it may not be one who can change what is above.
//
//	NAME.restoring-RANDOM      while it is made; it holds the file Restoring
//	NAME.before-restore-TIME   what was there before
//
// The front holds a lock on the directory until it ends, so that another restore tells
// what a killed one left from what is being made.
type Sibling struct {
	Dir string // absolute

	state string
	lock  *os.File
}

// Restoring is the file that tells a directory which is being made from a state
// directory that has just lost its place to one.
const Restoring = "RESTORING"

const (
	siblingInfix = ".restoring-"
	asideInfix   = ".before-restore-"
)

// MakeSibling makes such a directory for whoever a back becomes, and removes what killed
// processes left of others.
func (a *Caller) MakeSibling(state string) (*Sibling, error) {
	if info, err := os.Lstat(state); err == nil && !info.IsDir() {
		return nil, exit.Fail(exit.State, "give the directory itself", "%s is not a directory", state)
	}
	parent := filepath.Dir(state)
	if parent == state {
		return nil, exit.Fail(exit.Usage, "", "the root of the file system cannot be restored into")
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, exit.Fail(exit.State, "", "make %s: %s", parent, ErrText(err))
	}
	who, err := a.successor(state)
	if err != nil {
		return nil, err
	}
	if err := a.sweepSiblings(state); err != nil {
		return nil, err
	}
	b := &Sibling{Dir: state + siblingInfix + strings.ToLower(rand.Text()[:12]), state: state}
	if err := b.make(who); err != nil {
		b.Drop()
		return nil, exit.Fail(exit.State, "it is made beside the state directory, in the same folder, which has to be yours to write to", "make %s: %s", b.Dir, ErrText(err))
	}
	return b, nil
}

// successor is who the new directory belongs to: the owner of the one that is there, or
// whoever would own one that is made.
func (a *Caller) successor(state string) (who identity, err error) {
	if os.Geteuid() != 0 {
		return identity{os.Geteuid(), os.Getegid()}, nil
	}
	info, err := os.Lstat(state)
	owner := 0
	if err == nil {
		owner = OwnerOf(info)
	}
	if who, err = chooseUser(a.RunAs, owner, info); err != nil {
		return who, err
	}
	return who, searchable(filepath.Dir(state), who)
}

func (b *Sibling) make(who identity) error {
	if err := os.Mkdir(b.Dir, 0o700); err != nil {
		return err
	}
	var err error
	if b.lock, err = os.Open(b.Dir); err != nil {
		return err
	}
	alone, err := hostos.TryLock(b.lock, true)
	if err == nil && (!alone || !b.is(b.Dir)) {
		err = errors.New("another restore took it for a leftover; try again")
	}
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.Dir, Restoring), nil, 0o600); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		err = os.Lchown(b.Dir, who.uid, who.gid)
	}
	return err
}

// is says whether a path leads to the directory that was made.
func (b *Sibling) is(path string) bool {
	ours, err := b.lock.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(ours, there)
}

// Place gives the directory the name of the state directory, which is missing or empty,
// in one step.
func (b *Sibling) Place() error {
	err := syscall.Rename(b.Dir, b.state)
	switch {
	case errors.Is(err, syscall.EBUSY):
		return exit.Fail(exit.State, "restore into a directory below it, and give that to --state", "%s is where a file system is mounted, and cannot be replaced", b.state)
	case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EEXIST):
		return exit.Fail(exit.Refused, "", "%s is not empty any more; nothing was changed", b.state)
	case err != nil:
		return exit.Fail(exit.State, "", "put %s in its place: %s", b.state, ErrText(err))
	}
	return b.settle()
}

// Replace lets the directory change places with the state directory, which gets another
// name, and returns that. Where the file system can it is one step; else there is
// none at that place for a moment.
func (b *Sibling) Replace(now time.Time) (aside string, err error) {
	aside = b.state + asideInfix + now.UTC().Format("20060102T150405.000Z")
	err = hostos.Exchange(b.Dir, b.state)
	if errors.Is(err, errors.ErrUnsupported) {
		if err = os.Rename(b.state, aside); err == nil {
			if err = os.Rename(b.Dir, b.state); err != nil {
				err = errors.Join(err, os.Rename(aside, b.state))
			}
		}
	} else if err == nil {
		err = os.Rename(b.Dir, aside)
	}
	if err != nil {
		return "", exit.Fail(exit.State, "", "put %s in its place: %s", b.state, ErrText(err))
	}
	return aside, b.settle()
}

// settle makes the new names durable. Whoever opens the state directory next removes the
// mark as well.
func (b *Sibling) settle() error {
	err := hostos.SyncDir(filepath.Dir(b.state))
	if rerr := removeIn(b.state, Restoring); err == nil {
		err = rerr
	}
	b.lock.Close()
	b.lock = nil
	return err
}

// removeIn removes a file of a directory that may be another user's.
func removeIn(dir, name string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Drop removes what was made, unless it is in place.
func (b *Sibling) Drop() {
	if b.lock == nil {
		return
	}
	if b.is(b.Dir) {
		os.RemoveAll(b.Dir)
	}
	b.lock.Close()
	b.lock = nil
}

// sweepSiblings removes what killed restores left, and gives a state directory that one
// of them had just replaced the name that it should have got.
func (a *Caller) sweepSiblings(state string) error {
	list, err := os.ReadDir(filepath.Dir(state))
	if err != nil {
		return exit.Fail(exit.State, "", "look for leftovers beside %s: %s", state, ErrText(err))
	}
	for _, e := range list {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), filepath.Base(state)+siblingInfix) {
			continue
		}
		dir := filepath.Join(filepath.Dir(state), e.Name())
		if err := a.sweepOne(state, dir); err != nil {
			return exit.Fail(exit.State, "", "remove the leftover %s: %s", dir, ErrText(err))
		}
	}
	return nil
}

func (a *Caller) sweepOne(state, dir string) error {
	lock, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if alone, err := hostos.TryLock(lock, true); err != nil || !alone {
		return err // somebody is at work on it
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(dir, Restoring)); err == nil || len(entries) == 0 {
		return os.RemoveAll(dir)
	}
	aside := state + asideInfix + time.Now().UTC().Format("20060102T150405.000Z")
	if err := os.Rename(dir, aside); err != nil {
		return err
	}
	fmt.Fprintf(a.Stderr, "mcp-vdisk: an earlier restore was cut off after it had replaced the state directory; the one before is %s\n", aside)
	return nil
}

// Occupied says whether a directory has anything in it, and whether that is a state
// directory.
func Occupied(dir string) (any, state bool, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, false, nil
	}
	if err != nil {
		return false, false, exit.Fail(exit.State, "", "look into %s: %s", dir, ErrText(err))
	}
	for _, e := range entries {
		state = state || e.Name() == "VERSION"
	}
	return len(entries) > 0, state, nil
}
