package sandboxrun

// Capabilities is what a Backend promises. What is not declared here must not
// be relied on; what is declared is tested by conformance.RunBackend, execution
// audit and the three about leases excepted, which have suites of their own.
type Capabilities struct {
	BackendID           string              `json:"backend_id"`
	FilesystemIsolation FilesystemIsolation `json:"filesystem_isolation"`
	NetworkControl      NetworkControl      `json:"network_control"`

	// ProcessBoundary: commands are processes of their own, and their crash is theirs.
	ProcessBoundary bool `json:"process_boundary"`
	// RequestTimeout: Request.Timeout is kept.
	RequestTimeout bool `json:"request_timeout"`
	// CooperativeCancellation: the end of ctx ends the command.
	CooperativeCancellation bool `json:"cooperative_cancellation"`
	// ArtifactCollection: Artifacts works; without it, it returns ErrUnsupported.
	ArtifactCollection bool `json:"artifact_collection"`
	// DeterministicCleanup: after Close nothing is left, and the handle is refused.
	DeterministicCleanup bool `json:"deterministic_cleanup"`
	// ExecutionAudit: each Execute leaves a record.
	ExecutionAudit bool `json:"execution_audit"`
	// Reconnect: another process can take a handle up again.
	Reconnect bool `json:"reconnect"`
	// OwnershipFencing: a lease guards each operation (ErrFenced).
	OwnershipFencing bool `json:"ownership_fencing"`
	// CommandReconnect: a running command can be taken up again.
	CommandReconnect bool `json:"command_reconnect"`

	// ReadOnlyEnforced: Spec.ReadOnly is kept by the system, not by good will.
	ReadOnlyEnforced bool `json:"read_only_enforced"`
	// EnvScrub: commands have nothing of the environment of this process.
	EnvScrub bool `json:"env_scrub"`
	// TreeKill: with a command all that it started has ended.
	TreeKill bool `json:"tree_kill"`
	// OutputCap: Limits.Head, Tail and OutputMax are kept.
	OutputCap bool `json:"output_cap"`
	// HardLimits are the limits that no command gets past on this host. Others
	// are watched, or not there at all.
	HardLimits []HardLimit `json:"hard_limits"`
}

// FilesystemIsolation says what commands see and change of the host's files.
type FilesystemIsolation string

const (
	FilesystemNone     FilesystemIsolation = "none"
	ScopedWorkspace    FilesystemIsolation = "scoped_workspace"    // a shared directory, by checks of paths
	EphemeralWorkspace FilesystemIsolation = "ephemeral_workspace" // a directory for each handle, which ends with it
	RemoteSandbox      FilesystemIsolation = "remote_sandbox"      // on another host
	OverlayWorkspace   FilesystemIsolation = "overlay_workspace"   // a copy-on-write view, and nothing else of the host
)

// HidesHost reports whether commands are promised to see no file and no process
// of the host, nor of other handles.
func (f FilesystemIsolation) HidesHost() bool {
	return f == RemoteSandbox || f == OverlayWorkspace
}

// NetworkControl says what keeps commands from the network.
type NetworkControl string

const (
	NetworkOpen           NetworkControl = "none"
	NetworkCommandSurface NetworkControl = "command_surface" // no command that uses it can be run
	NetworkAdmission      NetworkControl = "admission_only"  // a spec that asks for it is refused
	NetworkEnforced       NetworkControl = "enforced"        // by the system
)

// HardLimit names a field of Limits.
type HardLimit string

const (
	HardMemory     HardLimit = "memory" // Limits.MemoryBytes, of all processes together
	HardProcesses  HardLimit = "processes"
	HardOpenFiles  HardLimit = "open_files"
	HardWriteBytes HardLimit = "write_bytes"
	HardWriteFiles HardLimit = "write_files"
)
