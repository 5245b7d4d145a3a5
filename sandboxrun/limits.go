package sandboxrun

import "time"

// Limits bound one run. A field that is zero takes the value of DefaultLimits.
type Limits struct {
	// Timeout counts from the start of the command. Reaching it kills the tree.
	Timeout time.Duration
	// WriteBytes and WriteFiles bound what the script may write and how many
	// files, directories and deletions it may leave below /workspace. More
	// gives the script ENOSPC. A first write to a file of the workspace
	// counts the whole file.
	WriteBytes, WriteFiles int64
	// TmpBytes, ShmBytes and HomeBytes are the sizes of /tmp, /dev/shm and
	// $HOME, which are empty at the start and vanish at the end. Each takes as
	// many files and directories as WriteFiles says.
	TmpBytes, ShmBytes, HomeBytes int64
	// MemoryBytes is what the processes of the script may use together, besides
	// what they write to files in memory (Runner.Memory): the two have one limit,
	// which is their sum. More kills all of them. Runner.Limits says whether a
	// control group sees to it; without one, each process may have this much
	// address space, 4 GiB at least.
	MemoryBytes int64
	// Processes counts threads, too, and the init of the sandbox; OpenFiles is
	// for each process. More of either is refused to the script.
	Processes, OpenFiles uint64
	// Head and Tail are the bytes kept of the beginning and the end of each
	// stream. What is between is counted and dropped.
	Head, Tail int
	// OutputMax is how many bytes a script may write to both streams
	// together before it is killed.
	OutputMax int64
}

// DefaultLimits returns the limits of docs/limits.md.
func DefaultLimits() Limits {
	const mib = 1 << 20
	return Limits{
		Timeout:    600 * time.Second,
		WriteBytes: 256 * mib, WriteFiles: 65536,
		TmpBytes: 256 * mib, ShmBytes: 64 * mib, HomeBytes: 64 * mib,
		MemoryBytes: 1024 * mib, Processes: 256, OpenFiles: 1024,
		Head: 192 << 10, Tail: 64 << 10,
		OutputMax: 64 * mib,
	}
}

// Filled returns the limits with each zero replaced by its default.
func (l Limits) Filled() Limits {
	d := DefaultLimits()
	orDefault(&l.Timeout, d.Timeout)
	orDefault(&l.WriteBytes, d.WriteBytes)
	orDefault(&l.WriteFiles, d.WriteFiles)
	orDefault(&l.TmpBytes, d.TmpBytes)
	orDefault(&l.ShmBytes, d.ShmBytes)
	orDefault(&l.HomeBytes, d.HomeBytes)
	orDefault(&l.MemoryBytes, d.MemoryBytes)
	orDefault(&l.Processes, d.Processes)
	orDefault(&l.OpenFiles, d.OpenFiles)
	orDefault(&l.Head, d.Head)
	orDefault(&l.Tail, d.Tail)
	orDefault(&l.OutputMax, d.OutputMax)
	return l
}

func orDefault[T int | int64 | uint64 | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}
