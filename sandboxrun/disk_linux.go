package sandboxrun

import (
	"time"

	"golang.org/x/sys/unix"
)

// watchDisk looks every 100 ms how much the script has written when the upper
// is on disk, where nothing else limits it. The channel gets one value when it
// is too much. On a tmpfs the file system itself is the limit.
func (s *stageRun) watchDisk(stop <-chan struct{}) <-chan struct{} {
	if s.spec.Disk == "" {
		return nil
	}
	full := make(chan struct{}, 1)
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				u := usage{maxBytes: int64(s.spec.Bytes), maxFiles: int64(s.spec.Inodes)}
				if u.add(s.upper, 0); u.over() {
					full <- struct{}{}
					return
				}
			}
		}
	}()
	return full
}

// usage adds up a tree that may change meanwhile; what vanished is not counted.
type usage struct {
	bytes, files, maxBytes, maxFiles int64
}

func (u *usage) over() bool { return u.bytes > u.maxBytes || u.files > u.maxFiles }

func (u *usage) add(dir int, depth int) {
	names, err := readNames(dir)
	if err != nil {
		return
	}
	for _, name := range names {
		var st unix.Stat_t
		if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		u.files++
		u.bytes += st.Blocks * 512
		if u.over() {
			return
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		if depth > maxTreeDepth {
			u.files = u.maxFiles + 1 // nothing may hide where the scan does not look
			return
		}
		if fd, err := unix.Openat(dir, name, openFlags|unix.O_DIRECTORY, 0); err == nil {
			u.add(fd, depth+1)
			unix.Close(fd)
		}
	}
}
