package conformance

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// FactNames are the keys of Facts, in the order in which people are shown them.
func FactNames() []string {
	return []string{"system", "kernel", "bubblewrap", "user", "changes", "modules", "namespaces", "cgroups", "memory", "processes", "terminals", "container"}
}

// Facts is what is known of the host that a report holds for. A value is empty
// where the host does not say.
func Facts(ctx context.Context, r *sandboxrun.Runner) map[string]string {
	rep := r.Probe(ctx)
	facts := map[string]string{
		"system":     runtime.GOOS + "/" + runtime.GOARCH,
		"kernel":     rep.Kernel,
		"bubblewrap": strings.TrimSpace(rep.Version + " " + rep.Bwrap),
		"user":       fmt.Sprintf("uid %d gid %d", os.Geteuid(), os.Getegid()),
		"changes":    rep.Upper,
		"modules":    readLine("/sys/kernel/security/lsm"),
		"namespaces": sysctls("user/max_user_namespaces", "kernel/unprivileged_userns_clone", "kernel/apparmor_restrict_unprivileged_userns"),
		"cgroups":    cgroups(),
		"terminals":  sysctls("dev/tty/legacy_tiocsti"),
	}
	for _, l := range rep.Limits {
		name := map[string]string{"memory": "memory", "pids": "processes"}[l.Resource]
		facts[name] = "limited by " + l.By
	}
	for _, name := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(name); err == nil {
			facts["container"] = name
		}
	}
	return facts
}

func readLine(path string) string {
	b, _ := os.ReadFile(path)
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return line
}

// sysctls lists those that the kernel has.
func sysctls(names ...string) string {
	var list []string
	for _, n := range names {
		if v := readLine("/proc/sys/" + n); v != "" {
			list = append(list, n+"="+v)
		}
	}
	return strings.Join(list, " ")
}

// cgroups says which hierarchies are mounted.
func cgroups() string {
	b, _ := os.ReadFile("/proc/self/mounts")
	one, two := false, false
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 2 {
			one, two = one || f[2] == "cgroup", two || f[2] == "cgroup2"
		}
	}
	switch {
	case one && two:
		return "v1 and v2"
	case one:
		return "v1"
	case two:
		return "v2"
	}
	return ""
}
