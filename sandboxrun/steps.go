package sandboxrun

// The steps of the stage that a host can refuse, as they are in a failure.
const (
	stepPrivate = "make mounts private"
	stepProc    = "mount proc"
	stepLower   = "open the workspace"
	stepBind    = "open a bind source"
	stepTmpfs   = "mount tmpfs"
	stepXattr   = "user xattrs on tmpfs"
	stepDisk    = "use the scratch directory"
	stepOverlay = "mount overlay"
	stepGroup   = "join the control group"
	stepBwrap   = "start bubblewrap"
	stepTest    = "test the overlay"
)
