package prober

// Arg is the first argument of a process that is the prober.
const Arg = "mcp-vdisk-prober"

// The second argument says what it does.
const (
	// ModeProbe reads an Order from standard input and writes an Observation
	// for each of its probes to standard output, a line of JSON each.
	ModeProbe = "probe"
	// ModeForks starts processes until no more can be, and prints how many.
	ModeForks = "forks"
	// ModeBomb starts processes that start processes, for ever.
	ModeBomb = "bomb"
	// ModeFill writes to a file in each directory that follows as an argument
	// until there is no room, and prints a line with the directory, the bytes
	// and the name of the errno.
	ModeFill = "fill"
	// ModeCrowd makes empty files in the directory that follows until it may
	// not, or until it has made as many as the next argument says, and prints
	// a line as ModeFill does, with a count.
	ModeCrowd = "crowd"
	// ModeMemory takes memory: the kind, InPages or InFile, the MiB of each
	// child, and the number of children follow. They keep it until the last
	// has it, and how many got all of theirs is printed.
	ModeMemory = "memory"
	// ModeType types a line end into every terminal that it can get at.
	ModeType = "type"

	modeCall = "call" // one system call, in a child of its own
	modeTake = "take" // a child of ModeMemory
)

// The kinds of memory.
const (
	InPages = "pages" // of the process
	InFile  = "file"  // of memfd_create, which no rlimit counts
)

// Order is what a prober is told: what to try, and what there is on the host
// that it should not get at.
type Order struct {
	Probes     []string          `json:"probes"`
	Namespaces map[string]string `json:"namespaces"` // links of /proc/self/ns on the host
	Canary     string            `json:"canary"`     // path of a file of the host that all may read
	Secrets    []string          `json:"secrets"`    // paths of the host that must not show anywhere
	Port       int               `json:"port"`       // a TCP listener of the host on 127.0.0.1
	Abstract   string            `json:"abstract"`   // an abstract socket of the host
	Socket     string            `json:"socket"`     // name in the workspace of a socket of the host
	Link       string            `json:"link"`       // name in the workspace of a link to Canary
}

// Observation is what came of one probe.
type Observation struct {
	ID string `json:"id"`
	// Got is the name of the errno, "OK" where the call went through, the name
	// of the signal that ended it, or what was found, "" being nothing.
	Got string `json:"got"`
	// Broke says why the probe could not be made. Got means nothing then.
	Broke string `json:"broke,omitempty"`
}
