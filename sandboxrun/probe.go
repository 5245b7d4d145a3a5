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
	// Limits are what bounds memory and pids; see Runner.Limits. They do not
	// change Level: files and scripts work without.
	Limits []Enforcement
	// Cause and Remedy are set when OK is false.
	Cause, Remedy string
	Steps         string // of the SetupError
	Checks        []Check
}

// Check is one thing that was tried.
type Check struct {
	Name   string // "stage", "bubblewrap", "sandbox"; "limits" where groups can be made
	OK     bool
	Detail string
}
