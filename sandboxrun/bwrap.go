package sandboxrun

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// bwrapDirs is where bubblewrap is looked for. The PATH is not: the agent's
// client may set it.
var bwrapDirs = []string{"/usr/bin", "/usr/local/bin", "/bin", "/run/current-system/sw/bin"}

// neededFlags are the options without which there is no sandbox. They are read
// from --help: distributions move options between versions.
var neededFlags = []string{
	"--args", "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup",
	"--disable-userns", "--assert-userns-disabled", "--uid", "--gid", "--hostname", "--die-with-parent", "--new-session",
	"--cap-drop", "--clearenv", "--setenv", "--perms", "--size", "--tmpfs", "--ro-bind", "--ro-bind-try", "--bind", "--symlink",
	"--ro-bind-data", "--proc", "--dev", "--remount-ro", "--chdir", "--seccomp", "--info-fd", "--block-fd", "--json-status-fd",
}

const installRemedy = "install bubblewrap 0.8.0 or newer: apt install bubblewrap, dnf install bubblewrap, apk add bubblewrap or pacman -S bubblewrap"

// bwrap is a bubblewrap that can be used.
type bwrap struct {
	path    string
	version string
}

// findBwrap looks for bubblewrap and asks for its options. The error is a *SetupError.
func findBwrap(ctx context.Context, path string) (*bwrap, error) {
	path, err := locateBwrap(path, bwrapDirs)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, unavailable("bubblewrap cannot be used: "+errnoText(err), installRemedy, "")
	}
	if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
		return nil, unavailable("bubblewrap at "+path+" is setuid, which is unsafe here",
			"use the build of bubblewrap that is not setuid: chmod u-s,g-s "+path, "")
	}
	help, err := ask(ctx, path, "--help")
	if err != nil {
		return nil, unavailable("bubblewrap at "+path+" does not answer --help", installRemedy, err.Error())
	}
	version, err := ask(ctx, path, "--version")
	if err != nil {
		return nil, unavailable("bubblewrap at "+path+" does not answer --version", installRemedy, err.Error())
	}
	version, _, _ = strings.Cut(strings.TrimSpace(version), "\n")
	b := &bwrap{path: path, version: strings.TrimPrefix(version, "bubblewrap ")}
	if missing := missingFlags(help); len(missing) > 0 {
		return nil, unavailable(fmt.Sprintf("bubblewrap %s at %s is too old: it lacks %s", b.version, path, strings.Join(missing, " ")),
			installRemedy, "")
	}
	return b, nil
}

func locateBwrap(path string, dirs []string) (string, error) {
	if path != "" {
		return path, nil
	}
	for _, dir := range dirs {
		p := filepath.Join(dir, "bwrap")
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", unavailable("bubblewrap is not installed (looked in "+strings.Join(dirs, ", ")+")", installRemedy, "")
}

// ask runs bubblewrap for what it says of itself, without its environment.
func ask(ctx context.Context, path, flag string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, flag)
	cmd.Env = []string{}
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// missingFlags returns the needed options that a help text does not list.
func missingFlags(help string) []string {
	var known []string
	for line := range strings.Lines(help) {
		if f := strings.Fields(line); len(f) > 0 && strings.HasPrefix(f[0], "--") {
			known = append(known, f[0])
		}
	}
	return slices.DeleteFunc(slices.Clone(neededFlags), func(flag string) bool { return slices.Contains(known, flag) })
}

func unavailable(cause, remedy, stderr string) *SetupError {
	return &SetupError{Cause: cause, Remedy: remedy, Stderr: stderr, kind: ErrUnavailable}
}

func setupFailed(cause, remedy, stderr string) *SetupError {
	return &SetupError{Cause: cause, Remedy: remedy, Stderr: stderr, kind: ErrSetup}
}

// errnoText is the bare reason of a system error, without a path of the host.
func errnoText(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}
