package sandboxrun

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// Where the stage keeps its things, in its own mount namespace. /tmp exists
// everywhere, and bwrap needs it, too.
const (
	stageDir  = "/tmp"
	diskDir   = "/tmp/disk"
	bindDir   = "/tmp/b"
	roomDir   = "/tmp/r"
	nonePath  = "/tmp/none"
	emptyDir  = "/tmp/empty"
	mergedDir = "/tmp/merged"
)

// spareInodes are used by the stage and by overlayfs themselves.
const spareInodes = 16

// mount builds the workspace: a tmpfs (or a directory on disk) for what the
// script writes, over the lower directory.
func (s *stageRun) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fail(stepPrivate, err)
	}
	// The host's paths are opened before the tmpfs hides what is below /tmp.
	sources, err := s.openSources()
	if err != nil {
		return err
	}
	if err := s.mountTmpfs(); err != nil {
		return err
	}
	if err := s.mountRooms(); err != nil {
		return err
	}
	base, err := s.bindSources(sources)
	if err != nil {
		return err
	}
	return s.mountOverlay(base)
}

type sources struct {
	disk  int // -1 = none
	binds []int
}

func (s *stageRun) openSources() (sources, error) {
	src := sources{disk: -1}
	var err error
	s.lower = -1
	if s.spec.Lower != "" {
		s.lower, err = unix.Open(s.spec.Lower, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return src, fail(stepLower, err)
		}
	}
	if s.spec.Disk != "" {
		if src.disk, err = unix.Open(s.spec.Disk, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
			return src, fail(stepDisk, err)
		}
	}
	for i, path := range s.spec.Binds {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return src, fail(stepBind, fmt.Errorf("bind %d: %w", i, err))
		}
		src.binds = append(src.binds, fd)
	}
	return src, nil
}

func (s *stageRun) mountTmpfs() error {
	size, inodes := s.spec.Bytes, s.spec.Inodes+spareInodes+uint64(len(s.spec.Binds)+len(s.spec.Rooms))
	if s.spec.Disk != "" {
		size, inodes = smallTmpfs, 4096
	}
	data := fmt.Sprintf("size=%d,nr_inodes=%d,mode=0700", size, inodes)
	if err := unix.Mount("tmpfs", stageDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		return fail(stepTmpfs, err)
	}
	return nil
}

// mountRooms makes what bubblewrap shows as /tmp and the like, which its own tmpfs
// cannot be: it limits bytes and not files. And it makes the file that stands for
// those that a script may not read.
func (s *stageRun) mountRooms() error {
	if len(s.spec.Rooms) == 0 {
		return nil
	}
	if err := errors.Join(unix.Mknod(nonePath, unix.S_IFREG, 0), unix.Mkdir(roomDir, 0o700)); err != nil {
		return fail(stepTmpfs, err)
	}
	for i, r := range s.spec.Rooms {
		path := roomDir + "/" + strconv.Itoa(i)
		if err := unix.Mkdir(path, 0o700); err != nil {
			return fail(stepTmpfs, err)
		}
		// The directory itself takes one of the inodes.
		data := fmt.Sprintf("size=%d,nr_inodes=%d,mode=%04o", r.bytes, r.inodes+1, r.perms)
		if err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
			return fail(stepTmpfs, err)
		}
	}
	return nil
}

// bindSources gives the host's directories names below the tmpfs and returns
// the directory that is to hold upper and work.
func (s *stageRun) bindSources(src sources) (base string, err error) {
	base = stageDir
	if src.disk >= 0 {
		base = diskDir
		if err := unix.Mkdir(diskDir, 0o700); err != nil {
			return "", fail(stepDisk, err)
		}
		if err := bindFD(src.disk, diskDir); err != nil {
			return "", fail(stepDisk, err)
		}
	}
	if len(src.binds) > 0 {
		if err := unix.Mkdir(bindDir, 0o700); err != nil {
			return "", fail(stepBind, err)
		}
	}
	for i, fd := range src.binds {
		if err := bindNew(fd, bindDir+"/"+strconv.Itoa(i)); err != nil {
			return "", fail(stepBind, fmt.Errorf("bind %d: %w", i, err))
		}
	}
	return base, nil
}

// bindNew makes a mount point of the right kind and binds fd there.
func bindNew(fd int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	var err error
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = unix.Mkdir(path, 0o700)
	} else {
		err = unix.Mknod(path, unix.S_IFREG|0o600, 0)
	}
	if err != nil {
		return err
	}
	return bindFD(fd, path)
}

func bindFD(fd int, path string) error {
	return unix.Mount("/proc/self/fd/"+strconv.Itoa(fd), path, "", unix.MS_BIND|unix.MS_REC, "")
}

// mountOverlay mounts the workspace at mergedDir. The lower directory is given
// as "." so that the script, which can read the mount options, learns no path.
func (s *stageRun) mountOverlay(base string) error {
	up, work := base+"/up", base+"/work"
	for dir, mode := range map[string]uint32{up: 0o755, work: 0o700, mergedDir: 0o700} {
		if err := unix.Mkdir(dir, mode); err != nil {
			return fail(stepOverlay, err)
		}
	}
	if err := unix.Setxattr(up, "user.overlay.probe", []byte("y"), 0); err != nil {
		step := stepXattr
		if s.spec.Disk != "" {
			step = stepDisk
		}
		return fail(step, err)
	}
	if err := s.enterLower(); err != nil {
		return err
	}
	data := "lowerdir=.,upperdir=" + up + ",workdir=" + work + ",userxattr,volatile"
	if err := unix.Mount("overlay", mergedDir, "overlay", unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		return fail(stepOverlay, err)
	}
	var err error
	s.upper, err = unix.Open(up, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	return errors.Join(err, unix.Chdir("/"))
}

func (s *stageRun) enterLower() error {
	if s.lower < 0 {
		fd, err := s.emptyLower()
		if err != nil {
			return fail(stepLower, err)
		}
		s.lower = fd
	}
	if err := unix.Fchdir(s.lower); err != nil {
		return fail(stepLower, err)
	}
	return nil
}

func (s *stageRun) emptyLower() (int, error) {
	if err := unix.Mkdir(emptyDir, 0o755); err != nil {
		return -1, err
	}
	if s.spec.Bwrap == "" {
		if err := errors.Join(unix.Mkdir(emptyDir+"/d", 0o755), unix.Mknod(emptyDir+"/d/f", unix.S_IFREG|0o644, 0)); err != nil {
			return -1, err
		}
	}
	return unix.Open(emptyDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}
