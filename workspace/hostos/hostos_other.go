//go:build !linux || portable

package hostos

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"sync"
	"syscall"
)

// Implementations names the implementation in force of each primitive, for
// `doctor`.
func Implementations() map[string]string {
	return map[string]string{"lock": "in process only", "directory fsync": "none", "free space": "unknown", "lock holder": "none", "unnamed file": "unlinked"}
}

// held are the files locked in this process. Without flock(2) there is no lock
// that other processes see and that dies with its holder; bbolt and Badger
// bring their own for the files that matter.
var held struct {
	sync.Mutex
	files []*lockState
}

type lockState struct {
	info    os.FileInfo
	holders map[*os.File]bool // value: exclusive
}

// errQuota is no error of these systems.
var errQuota = errors.New("over quota")

func tryLock(f *os.File, exclusive bool) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	held.Lock()
	defer held.Unlock()
	s := find(info)
	for g, ex := range s.holders {
		if _, err := g.Stat(); err != nil {
			delete(s.holders, g) // closed: closing drops the lock
			continue
		}
		if g != f && (ex || exclusive) {
			return syscall.EWOULDBLOCK
		}
	}
	s.holders[f] = exclusive
	return nil
}

func find(info os.FileInfo) *lockState {
	for _, s := range held.files {
		if os.SameFile(s.info, info) {
			return s
		}
	}
	s := &lockState{info: info, holders: map[*os.File]bool{}}
	held.files = append(held.files, s)
	return s
}

func unlock(f *os.File) error {
	if _, err := f.Stat(); err != nil {
		return err
	}
	held.Lock()
	defer held.Unlock()
	for _, s := range held.files {
		delete(s.holders, f)
	}
	return nil
}

// SyncDir does nothing here: a directory cannot be opened for fsync on every
// such system. What was just created may be gone after a power cut.
func SyncDir(string) error { return nil }

// Free reports no limit: the system is not asked here.
func Free(string) (bytes, inodes uint64, err error) { return math.MaxInt64, math.MaxInt64, nil }

// Removed is not known here: it is false.
func Removed(os.FileInfo) bool { return false }

// ReleaseMap does nothing here: the system takes the pages when it needs them.
func ReleaseMap(addr, size uintptr) {}

// LockHolder knows no holder here.
func LockHolder(*os.File) (pid int, command string, ok bool) { return 0, "", false }

// SyncTree makes everything that was written below a directory durable, file by
// file. Where a system lets only writers do that, it is left to the system.
func SyncTree(dir *os.Root) error {
	return fs.WalkDir(dir.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := dir.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Sync(); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
		return nil
	})
}
