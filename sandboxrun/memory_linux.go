package sandboxrun

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MemoryTotal returns how many bytes of memory this process and what it starts
// may use together: the RAM of the host, or less where a control group (v2)
// says so, as in a container.
func MemoryTotal() (int64, error) {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return 0, fmt.Errorf("sandboxrun: %w", os.NewSyscallError("sysinfo", err))
	}
	// The fields are as wide as a register.
	return min(int64(si.Totalram)*int64(si.Unit), cgroupMemory(os.DirFS("/"))), nil
}

// cgroupMemory is the least memory.max from the group of this process up to
// the root of what it can see. Where nothing can be read nothing limits.
func cgroupMemory(host fs.FS) int64 {
	least := int64(math.MaxInt64)
	b, _ := fs.ReadFile(host, "proc/self/cgroup")
	for line := range strings.Lines(string(b)) {
		group, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if !ok {
			continue // version 1
		}
		for group = path.Clean("/" + group); ; group = path.Dir(group) {
			b, _ := fs.ReadFile(host, path.Join("sys/fs/cgroup", group, "memory.max"))
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 {
				least = min(least, n)
			}
			if group == "/" {
				break
			}
		}
	}
	return least
}
