package sandboxrun

// Report says whether this host can run scripts, found out by doing.
type Report struct {
	OK bool
	// Level is "L3" when scripts can run, "L1" when only file tools work.
	Level   string
	Bwrap   string // path of bubblewrap; "" = not found
	Version string // of bubblewrap
	Kernel  string // release
	Upper   string // where changes are kept: "tmpfs" or "disk"
	// Cause and Remedy are set when OK is false.
	Cause, Remedy string
	Checks        []Check
}

// Check is one thing that was tried.
type Check struct {
	Name   string // "stage", "bubblewrap", "sandbox"
	OK     bool
	Detail string
}
