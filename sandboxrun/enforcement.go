package sandboxrun

// Enforcement says what bounds one resource of a run on this host.
type Enforcement struct {
	Resource string // "memory" or "pids"
	By       string // ByGroupV1, ByGroupV2 or ByRlimit
	// Reason says why it is only an rlimit; empty with a control group.
	Reason string
}

// What can bound memory and pids. A control group bounds all processes of a run
// together and counts what it refused. An rlimit bounds each process by itself:
// many small ones, and files in memory, get past the one on memory.
const (
	ByGroupV1 = "cgroup v1"
	ByGroupV2 = "cgroup v2"
	ByRlimit  = "rlimit-only (weak)"
)

// Limits says what bounds the memory and the processes of the next run, in this
// order. It can change: where a group cannot be made or joined, the run goes on
// with rlimits, and the reason is here.
func (r *Runner) Limits() []Enforcement {
	r.mu.Lock()
	defer r.mu.Unlock()
	memory := Enforcement{Resource: "memory", By: ByRlimit, Reason: r.groups.noMemory}
	pids := Enforcement{Resource: "pids", By: ByRlimit, Reason: r.groups.noPids}
	for _, h := range r.groups.hierarchies {
		by := ByGroupV1
		if h.version == 2 {
			by = ByGroupV2
		}
		if h.memory {
			memory.By, memory.Reason = by, ""
		}
		if h.pids {
			pids.By, pids.Reason = by, ""
		}
	}
	if r.groupFault != "" {
		memory.By, memory.Reason = ByRlimit, r.groupFault
		pids.By, pids.Reason = ByRlimit, r.groupFault
	}
	return []Enforcement{memory, pids}
}

// groups are the places where a group can be made for each run.
type groups struct {
	hierarchies      []hierarchy
	noMemory, noPids string // why there is none for the resource
}

// hierarchy is a directory of a cgroup file system that belongs to this user.
type hierarchy struct {
	version      int // 1 or 2
	dir          string
	memory, pids bool // what its groups can limit
}
