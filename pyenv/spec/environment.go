package spec

import "strings"

// Environment is what markers ask about, by the names of the specification.
type Environment struct {
	ImplementationName           string // "cpython"
	ImplementationVersion        string // "3.12.14"
	OSName                       string // "posix"
	PlatformMachine              string // "x86_64"
	PlatformPythonImplementation string // "CPython"
	PlatformRelease              string // of the kernel
	PlatformSystem               string // "Linux"
	PlatformVersion              string // of the kernel's build
	PythonFullVersion            string // "3.12.14"
	PythonVersion                string // "3.12"
	SysPlatform                  string // "linux"
}

// CPythonLinux is the environment of CPython full ("3.12.14") on Linux on a
// machine ("x86_64"). The kernel's release and version are left empty: a set of
// packages that depended on them would not be the same elsewhere.
func CPythonLinux(full, machine string) Environment {
	parts := strings.SplitN(full, ".", 3)
	short := strings.Join(parts[:min(2, len(parts))], ".")
	return Environment{
		ImplementationName: "cpython", ImplementationVersion: full,
		OSName: "posix", PlatformMachine: machine, PlatformPythonImplementation: "CPython",
		PlatformSystem: "Linux", PythonFullVersion: full, PythonVersion: short, SysPlatform: "linux",
	}
}

// variables map the names that a marker may use, old spellings included, to the
// name that Environment.get knows.
var variables = map[string]string{
	"implementation_name": "implementation_name", "implementation_version": "implementation_version",
	"os_name": "os_name", "os.name": "os_name",
	"platform_machine": "platform_machine", "platform.machine": "platform_machine",
	"platform_python_implementation": "platform_python_implementation",
	"platform.python_implementation": "platform_python_implementation", "python_implementation": "platform_python_implementation",
	"platform_release": "platform_release", "platform_system": "platform_system",
	"platform_version": "platform_version", "platform.version": "platform_version",
	"python_full_version": "python_full_version", "python_version": "python_version",
	"sys_platform": "sys_platform", "sys.platform": "sys_platform",
	"extra": "extra",
}

// versioned are the variables whose values compare as versions.
var versioned = map[string]bool{
	"implementation_version": true, "platform_release": true,
	"python_full_version": true, "python_version": true,
}

func (e Environment) get(name string) string {
	switch name {
	case "implementation_name":
		return e.ImplementationName
	case "implementation_version":
		return e.ImplementationVersion
	case "os_name":
		return e.OSName
	case "platform_machine":
		return e.PlatformMachine
	case "platform_python_implementation":
		return e.PlatformPythonImplementation
	case "platform_release":
		return e.PlatformRelease
	case "platform_system":
		return e.PlatformSystem
	case "platform_version":
		return e.PlatformVersion
	case "python_full_version":
		return e.PythonFullVersion
	case "python_version":
		return e.PythonVersion
	default:
		return e.SysPlatform
	}
}
