package sandboxrun

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// HandOver gives a user two directories to make control groups in: name, below
// the groups of this process for memory and for pids. Root calls it before it
// becomes that user; a Runner with the same Config.Group then finds them, as
// long as it is in the groups that root was in. They stay when it ends, empty.
// Calling it again changes nothing.
//
// It is for hosts with cgroup v1. With v2 the service manager does the same
// (systemd: Delegate=yes), and the error says so.
func HandOver(name string, uid, gid int) error {
	if !validGroupName(name) {
		return fmt.Errorf("sandboxrun: %q is not the name of a control group", name)
	}
	var errs []error
	for _, controller := range []string{"memory", "pids"} {
		dir, err := ownGroup("/", controller)
		if err == nil {
			dir = filepath.Join(dir, name)
			err = os.Mkdir(dir, 0o755)
		}
		if err == nil || errors.Is(err, os.ErrExist) {
			err = os.Lchown(dir, uid, gid)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sandboxrun: hand a cgroup of %s over: %w", controller, err))
		}
	}
	return errors.Join(errs...)
}

func validGroupName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\n\x00")
}

// serverGroup is the v2 group in which this process waits: a group that has
// controllers for its children cannot have processes of its own.
const serverGroup = "mcp-vdisk-server"

// findGroups looks for the directories in which groups can be made, below host
// ("/" but for tests). name is that of HandOver. With v2 it moves this process
// into a group of its own below the one that it is in.
func findGroups(host, name string) groups {
	var g groups
	no := map[string]string{}
	v2, err := delegated(host)
	if err == nil {
		g.hierarchies = append(g.hierarchies, v2)
	}
	for _, controller := range []string{"memory", "pids"} {
		if controller == "memory" && v2.memory || controller == "pids" && v2.pids {
			continue
		}
		h, err1 := handedOver(host, controller, name)
		switch {
		case err1 == nil:
			g.add(h)
		case errors.Is(err1, errNotMounted) && err != nil:
			no[controller] = err.Error()
		case errors.Is(err1, errNotMounted):
			no[controller] = "the controller is not delegated to this process's cgroup"
		default:
			no[controller] = err1.Error()
		}
	}
	g.noMemory, g.noPids = no["memory"], no["pids"]
	return g
}

// add adds a hierarchy of version 1; controllers may be mounted together.
func (g *groups) add(h hierarchy) {
	i := slices.IndexFunc(g.hierarchies, func(o hierarchy) bool { return o.dir == h.dir })
	if i < 0 {
		g.hierarchies = append(g.hierarchies, h)
		return
	}
	g.hierarchies[i].memory = g.hierarchies[i].memory || h.memory
	g.hierarchies[i].pids = g.hierarchies[i].pids || h.pids
}

// handedOver finds what HandOver made.
func handedOver(host, controller, name string) (hierarchy, error) {
	dir, err := ownGroup(host, controller)
	if err != nil {
		return hierarchy{}, err
	}
	dir = filepath.Join(dir, name)
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
		return hierarchy{}, fmt.Errorf("cgroup v1 of %s: there is no directory that root handed over; started as root, mcp-vdisk makes it", controller)
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return hierarchy{}, fmt.Errorf("cgroup v1 of %s: the directory is not this user's: %w", controller, err)
	}
	return hierarchy{version: 1, dir: dir, memory: controller == "memory", pids: controller == "pids"}, nil
}

// delegated makes the v2 group of this process ready for groups below it: it
// must belong to this user and have no other process.
func delegated(host string) (hierarchy, error) {
	dir, err := ownGroup(host, "")
	if err != nil {
		return hierarchy{}, err
	}
	inside := path.Base(dir) == serverGroup
	if inside {
		dir = path.Dir(dir)
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return hierarchy{}, errNotDelegated
	}
	h := hierarchy{version: 2, dir: dir}
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	var enable []string
	for _, c := range strings.Fields(string(b)) {
		switch c {
		case "memory":
			h.memory = true
		case "pids":
			h.pids = true
		default:
			continue
		}
		enable = append(enable, "+"+c)
	}
	if len(enable) == 0 {
		return hierarchy{}, errors.New("cgroup v2: neither memory nor pids is delegated to this process's cgroup")
	}
	if !inside {
		if err := moveAside(dir); err != nil {
			return hierarchy{}, err
		}
	}
	if err := writeControl(dir, "cgroup.subtree_control", strings.Join(enable, " ")); err != nil {
		return hierarchy{}, fmt.Errorf("cgroup v2: enable the controllers: %w", bare(err))
	}
	return h, nil
}

var (
	errNotMounted   = errors.New("no cgroup of this process is mounted")
	errNotDelegated = errors.New("cgroup v2: this process's cgroup is not delegated to it; start it by systemd-run --user --scope -p Delegate=yes, or in a service with Delegate=yes")
)

// moveAside moves this process, which must be alone there, out of its group
// into one below it.
func moveAside(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return fmt.Errorf("cgroup v2: %w", bare(err))
	}
	if pids := strings.Fields(string(b)); len(pids) != 1 || pids[0] != strconv.Itoa(os.Getpid()) {
		return errors.New("cgroup v2: other processes are in this process's cgroup; start it in one of its own, by systemd-run --user --scope -p Delegate=yes")
	}
	aside := filepath.Join(dir, serverGroup)
	if err := os.Mkdir(aside, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cgroup v2: %w", bare(err))
	}
	if err := writeControl(aside, "cgroup.procs", strconv.Itoa(os.Getpid())); err != nil {
		return fmt.Errorf("cgroup v2: leave the group for one below it: %w", bare(err))
	}
	return nil
}

// ownGroup returns the directory of the group that this process is in, in the
// hierarchy of a v1 controller, or in that of v2 for "". See cgroups(7) and
// proc_pid_mountinfo(5).
func ownGroup(host, controller string) (string, error) {
	group := groupPath(host, controller)
	if group == "" {
		return "", errNotMounted
	}
	b, _ := os.ReadFile(filepath.Join(host, "proc/self/mountinfo"))
	for line := range strings.Lines(string(b)) {
		before, after, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		f, s := strings.Fields(before), strings.Fields(after)
		if len(f) < 5 || len(s) < 3 {
			continue
		}
		v2 := controller == "" && s[0] == "cgroup2"
		v1 := controller != "" && s[0] == "cgroup" && slices.Contains(strings.Split(s[2], ","), controller)
		root := unescape(f[3])
		rel, below := strings.CutPrefix(group+"/", strings.TrimSuffix(root, "/")+"/")
		if (v1 || v2) && below {
			return filepath.Join(host, unescape(f[4]), rel), nil
		}
	}
	return "", errNotMounted
}

// groupPath is the path of this process's group as the kernel names it; "" if
// there is none, or none that can be seen from this cgroup namespace.
func groupPath(host, controller string) string {
	b, _ := os.ReadFile(filepath.Join(host, "proc/self/cgroup"))
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) == 3 && slices.Contains(strings.Split(f[1], ","), controller) &&
			(controller != "" || f[0] == "0") && path.Clean(f[2]) == f[2] && !strings.HasPrefix(f[2], "/..") {
			return f[2]
		}
	}
	return ""
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace

// writeControl writes a control file of a group.
func writeControl(dir, file, value string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644)
}

// readCount reads the number that stands behind a key, or alone in the file
// when the key is "". What cannot be read is 0.
func readCount(dir, file, key string) int64 {
	b, _ := os.ReadFile(filepath.Join(dir, file))
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if key != "" && (len(f) < 2 || f[0] != key) {
			continue
		}
		if len(f) > 0 {
			n, _ := strconv.ParseInt(f[len(f)-1], 10, 64)
			return n
		}
	}
	return 0
}

// bare is a system error without its path, which is the host's.
func bare(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
