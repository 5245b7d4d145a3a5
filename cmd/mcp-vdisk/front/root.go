package front

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// identity is who the back runs as.
type identity struct{ uid, gid int }

// nobodyOurs is the uid and gid that root becomes when nothing else is said. It
// lies outside the ranges that systems hand out (Debian policy §9.2.2).
const nobodyOurs = 60700

func (w identity) attr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(w.uid), Gid: uint32(w.gid), Groups: []uint32{}}}
}

// prepareState decides who root becomes and makes the state directory that
// user's. Besides handOverGroups it is the only thing done as root: nothing in the
// directory is read.
//
// The user is --run-as, else the owner of the directory, else the user
// mcp-vdisk, else 60700; never 0. A new, an empty, or a root-owned directory
// that holds our VERSION is given to the user, without following links; any
// other directory of another user is refused. Without create a directory that is
// missing stays so.
func prepareState(dir, runAs string, create bool) (identity, error) {
	info, err := os.Lstat(dir)
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !missing:
		return identity{}, exit.Fail(exit.State, "", "state directory %s: %s", dir, ErrText(err))
	case !missing && info.Mode()&fs.ModeSymlink != 0:
		return identity{}, exit.Fail(exit.State, "give the directory itself", "state directory %s is a symbolic link", dir)
	case !missing && !info.IsDir():
		return identity{}, exit.Fail(exit.State, "", "state directory %s is not a directory", dir)
	}
	owner := 0
	if !missing {
		owner = int(info.Sys().(*syscall.Stat_t).Uid)
	}
	who, err := chooseUser(runAs, owner, info)
	if err != nil {
		return identity{}, err
	}
	if missing && !create {
		return who, nil
	}
	if missing {
		if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
			return identity{}, exit.Fail(exit.State, "", "state directory %s: %s", dir, ErrText(err))
		}
		switch err := os.Mkdir(dir, 0o700); {
		case errors.Is(err, fs.ErrExist): // somebody else was first
			return prepareState(dir, runAs, create)
		case err != nil:
			return identity{}, exit.Fail(exit.State, "", "state directory %s: %s", dir, ErrText(err))
		}
	}
	if err := searchable(filepath.Dir(dir), who); err != nil {
		return identity{}, err
	}
	if owner == who.uid {
		return who, nil
	}
	return who, giveTo(dir, owner, who)
}

// handOverGroups gives the user what it limits scripts' memory and processes by,
// where this takes root: one directory for each user, so that servers leave no
// more than that behind. A host that cannot has weaker limits, and doctor says
// why.
func handOverGroups(who identity) {
	_ = sandboxrun.HandOver(fmt.Sprintf("mcp-vdisk-%d", who.uid), who.uid, who.gid)
}

func chooseUser(runAs string, owner int, info fs.FileInfo) (identity, error) {
	switch {
	case runAs != "":
		return lookupUser(runAs)
	case owner != 0:
		return identity{owner, int(info.Sys().(*syscall.Stat_t).Gid)}, nil
	}
	if who, err := lookupUser("mcp-vdisk"); err == nil {
		return who, nil
	}
	return identity{nobodyOurs, nobodyOurs}, nil
}

// lookupUser reads a name or a number, and refuses root under any name.
func lookupUser(name string) (identity, error) {
	who := identity{}
	if u, err := user.Lookup(name); err == nil {
		who.uid, _ = strconv.Atoi(u.Uid)
		who.gid, _ = strconv.Atoi(u.Gid)
	} else if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		who = identity{int(n), int(n)}
	} else {
		return who, exit.Fail(exit.Usage, "", "--run-as: there is no user %q", name)
	}
	if who.uid == 0 || who.gid == 0 {
		return who, exit.Fail(exit.Refused, "name an ordinary user; a sandbox made by root is not one", "--run-as: %s is root", name)
	}
	return who, nil
}

// searchable checks that the user can pass through every directory above the
// state, and names the first that is closed.
func searchable(dir string, who identity) error {
	var chain []string
	for d := dir; ; d = filepath.Dir(d) {
		chain = append([]string{d}, chain...)
		if d == filepath.Dir(d) {
			break
		}
	}
	for _, d := range chain {
		info, err := os.Stat(d)
		if err != nil {
			return exit.Fail(exit.State, "", "state directory: %s: %s", d, ErrText(err))
		}
		st := info.Sys().(*syscall.Stat_t)
		bit := fs.FileMode(0o001)
		switch {
		case int(st.Uid) == who.uid:
			bit = 0o100
		case int(st.Gid) == who.gid:
			bit = 0o010
		}
		if info.Mode()&bit == 0 {
			return exit.Fail(exit.State, "choose --state below a directory that all may pass, such as /var/lib",
				"the user that root becomes (uid %d) cannot pass through %s", who.uid, d)
		}
	}
	return nil
}

// giveTo makes a directory of root the user's.
func giveTo(dir string, owner int, who identity) error {
	refused := exit.Fail(exit.State, "choose another --state, or make it over with chown -R", "state directory %s belongs to uid %d and holds other things; it is not taken over", dir, owner)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return exit.Fail(exit.State, "", "state directory %s: %s", dir, ErrText(err))
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return exit.Fail(exit.State, "", "state directory %s: %s", dir, ErrText(err))
	}
	// Another process of root may have given it away since we looked.
	if now, err := root.Lstat("."); err == nil && OwnerOf(now) == who.uid {
		return nil
	}
	if len(entries) > 0 {
		v, err := root.Lstat("VERSION")
		if err != nil || !v.Mode().IsRegular() || owner != 0 {
			return refused
		}
	}
	err = fs.WalkDir(root.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return root.Lchown(path, who.uid, who.gid)
	})
	if err != nil {
		return exit.Fail(exit.State, "", "give %s to uid %d: %s", dir, who.uid, ErrText(err))
	}
	return nil
}

// BackArg is the only argument of a process that is a back: it is started with
// the connection to the front as descriptor BackFD.
const (
	BackArg = "back"
	BackFD  = 3
)

// becomeBack gives root up for good and executes this program again as the
// back, with the socket as descriptor 3 and the standard streams as they are.
// The second execution matters: a process that changed its uid may not make
// user namespaces (it is not dumpable, prctl(2) PR_SET_DUMPABLE).
func becomeBack(who identity, sock *os.File) error {
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("give up root's groups: %w", err)
	}
	if err := syscall.Setgid(who.gid); err != nil {
		return fmt.Errorf("give up root's gid: %w", err)
	}
	if err := syscall.Setuid(who.uid); err != nil {
		return fmt.Errorf("give up root's uid: %w", err)
	}
	if err := dup(int(sock.Fd()), BackFD); err != nil {
		return fmt.Errorf("hand the socket over: %w", err)
	}
	err := syscall.Exec(SelfPath(), []string{"mcp-vdisk", BackArg}, backEnv())
	return fmt.Errorf("execute %s again: %w", strings.TrimSpace(os.Args[0]), err)
}
