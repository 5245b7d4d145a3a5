package sandboxrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
)

// Config says where the sandbox finds what it needs. The zero value is the default.
type Config struct {
	// Bwrap is the absolute path of bubblewrap. Empty: the first one in a
	// fixed list of directories, never the PATH of the agent.
	Bwrap string
	// Scratch is a directory for what scripts write, used when it cannot be
	// kept in memory (kernels before 6.6) or when Disk is set. Its file system
	// must be able to hold an overlay (ext4, xfs, btrfs). New makes it, and
	// removes what killed processes left there.
	Scratch string
	// Disk keeps what scripts write in Scratch. The limit on written bytes is
	// then watched every 100 ms, which is soft, instead of enforced.
	Disk bool
	// AllowUnixSockets lets scripts make sockets of the family AF_UNIX, which
	// the system call filter refuses otherwise (EAFNOSUPPORT). Abstract ones
	// are the sandbox's own. One with a name can be reached if its file can be
	// seen: no directory that a Run shows may then hold a socket of the host.
	AllowUnixSockets bool
	// Group is the name that HandOver was given; see Limits. Empty: "mcp-vdisk-"
	// and the uid of this process.
	Group string
	// Self is the program that is started again as the stage and which
	// holds this package. Empty: /proc/self/exe.
	Self string
}

// Runner runs scripts in sandboxes. It may be used by any number of goroutines.
// Whoever made it closes it when its last Run has returned.
type Runner struct {
	cfg Config
	// filter is the system call filter, ready for bubblewrap. Nothing runs without.
	filter    []byte
	strict    []byte // the same for jails, whatever Config allows to scripts
	filterErr error  // why there is none
	stages    *spares

	mu    sync.Mutex
	bwrap *bwrap // nil until it was found
	disk  bool   // what scripts write goes to Scratch

	groups     groups
	groupFault string // why the last run had none; "" = it had, or there are none
}

// New makes a Runner. A host that cannot sandbox is no error here: Probe
// reports it and Run returns ErrUnavailable, so that a server can start, say
// so, and find a bubblewrap that is installed later. An error means that the
// Config is wrong, that Scratch cannot be used, or that ctx has ended.
//
// New starts no process, so that a server answers its first client soon:
// bubblewrap is looked for, and asked for its options, by the first Probe or Run.
//
// New removes what killed processes left: directories in Scratch, and control
// groups. With cgroup v2, where this process is alone in a group that was
// delegated to it, New moves the process into a new one below.
func New(ctx context.Context, cfg Config) (*Runner, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("sandboxrun: %w", context.Cause(ctx))
	}
	for name, path := range map[string]string{"Bwrap": cfg.Bwrap, "Scratch": cfg.Scratch, "Self": cfg.Self} {
		if path != "" && !filepath.IsAbs(path) {
			return nil, fmt.Errorf("sandboxrun: %s must be an absolute path", name)
		}
	}
	if cfg.Disk && cfg.Scratch == "" {
		return nil, errors.New("sandboxrun: Disk needs a Scratch directory")
	}
	if cfg.Self == "" {
		cfg.Self = "/proc/self/exe"
	}
	if cfg.Group == "" {
		cfg.Group = fmt.Sprintf("mcp-vdisk-%d", os.Geteuid())
	}
	if cfg.Scratch != "" {
		if err := sweepScratch(cfg.Scratch); err != nil {
			return nil, fmt.Errorf("sandboxrun: scratch directory: %w", err)
		}
	}
	r := &Runner{cfg: cfg, disk: cfg.Disk, stages: newSpares(cfg.Self), groups: groups{noMemory: ErrRoot.Error(), noPids: ErrRoot.Error()}}
	r.filter, r.filterErr = compileFilter(runtime.GOARCH, filterRules(cfg.AllowUnixSockets))
	if r.filterErr == nil {
		r.strict, r.filterErr = compileFilter(runtime.GOARCH, filterRules(false))
	}
	if os.Geteuid() != 0 {
		r.groups = findGroups("/", cfg.Group)
		sweepGroups(r.groups)
	}
	return r, nil
}

// find returns the bubblewrap to use. A failure is not remembered.
func (r *Runner) find(ctx context.Context) (*bwrap, error) {
	if r.filterErr != nil {
		return nil, unavailable("scripts cannot be sandboxed: "+r.filterErr.Error(), "run mcp-vdisk on amd64 or arm64", "")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bwrap != nil {
		return r.bwrap, nil
	}
	b, err := findBwrap(ctx, r.cfg.Bwrap)
	if err != nil {
		return nil, err
	}
	r.bwrap = b
	return b, nil
}

func (r *Runner) onDisk() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.disk
}

// fallBack moves what scripts write from memory to Scratch, if there is one,
// and reports whether it is there now.
func (r *Runner) fallBack() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.disk = r.disk || r.cfg.Scratch != ""
	return r.disk
}

// places are the hierarchies in which a run gets a group.
func (r *Runner) places() []hierarchy {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.groups.hierarchies
}

// noteGroup remembers why a run had no group; "" means that it had.
func (r *Runner) noteGroup(fault string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.groupFault = fault
}

// dropGroups gives control groups up for good.
func (r *Runner) dropGroups(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.groups = groups{noMemory: why, noPids: why}
}
