package sandboxrun

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// selfTest does what a script does, and looks at what it leaves in the upper.
// Replacing a directory of the lower one is where overlays without user xattrs
// break (EIO, or a directory whose old files come back).
func (s *stageRun) selfTest() error {
	const dir, moved = mergedDir + "/d", mergedDir + "/e"
	steps := []func() error{
		func() error { return os.WriteFile(dir+"/g", []byte("new"), 0o644) },
		func() error { return os.RemoveAll(dir) },
		func() error { return os.Mkdir(dir, 0o755) },
		func() error { return mustBeEmpty(dir) },
		s.mustBeOpaque,
		func() error { return os.WriteFile(dir+"/h", []byte("new"), 0o644) },
		func() error { return os.Rename(dir+"/h", mergedDir+"/i") },
		func() error { return os.Mkdir(moved, 0o755) },
		func() error { return os.Rename(moved, mergedDir+"/k") },
		func() error { return unix.Unmount(mergedDir, 0) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fail(stepTest, err)
		}
	}
	return nil
}

func mustBeEmpty(dir string) error {
	list, err := os.ReadDir(dir)
	if err == nil && len(list) > 0 {
		err = errors.New("a replaced directory still shows its old files")
	}
	return err
}

func (s *stageRun) mustBeOpaque() error {
	fd, err := unix.Openat(s.upper, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	opaque, err := isOpaque(fd)
	if err == nil && !opaque {
		err = errors.New("a replaced directory has no opaque mark")
	}
	return err
}
