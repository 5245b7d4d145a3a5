package python

import "github.com/mcp-vdisk/mcp-vdisk/pyenv/tags"

// Where the interpreter is in the sandbox.
const (
	Prefix     = "/opt/mcp/python"
	Executable = Prefix + "/bin/python3"
)

// The placeholders in Facts.SitePackages. A run that has layers shows its own
// files in their place: a mount needs something to be mounted on. Their names come
// late in the order in which Python reads such files, and the first before the
// second.
const (
	LayersPth  = "zz_mcpvdisk_layers.pth"  // directories for the import path, one a line
	StartupPth = "zz_mcpvdisk_startup.pth" // approved lines of code
)

// Interpreter is a prefix that was proved to work in the sandbox. It is immutable.
type Interpreter struct {
	ID     string // name of its directory below python/ in the environment root
	Dir    string // the prefix in that directory, absolute, on the host; shown at Prefix
	Source Source // where it came from
	Facts  Facts  // what it said of itself in the sandbox
}

// Source is python/<id>/SOURCE, as JSON.
type Source struct {
	Kind   string `json:"kind"`             // "prefix", "standalone", "system"
	From   string `json:"from"`             // path or URL
	SHA256 string `json:"sha256,omitempty"` // of the archive
	Why    string `json:"why,omitempty"`    // why nothing better was chosen
}

// The kinds of sources.
const (
	KindPrefix     = "prefix"     // a directory that the operator named
	KindStandalone = "standalone" // an archive of python-build-standalone
	KindSystem     = "system"     // the Python below /usr: degraded
)

// Facts is what a probe inside the sandbox told.
type Facts struct {
	Full         string      `json:"full"`          // "3.11.2"
	Target       tags.Target `json:"target"`        // what wheels fit
	Stdlib       []string    `json:"stdlib"`        // sys.stdlib_module_names, sorted
	SitePackages string      `json:"site_packages"` // absolute, inside the sandbox
}
