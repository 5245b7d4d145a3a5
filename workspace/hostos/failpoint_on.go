//go:build failpoint

package hostos

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// The environment variable MCP_VDISK_FAILPOINT is "name" or "name:n": the
// process ends by SIGKILL when it comes to that step for the first or the n-th
// time. MCP_VDISK_FAILPOINT_LOG names a file to which the name of every step that is
// reached is appended, one a line, so that a test can prove that it knows them all.
var failpoint = parseFailpoint(os.Getenv("MCP_VDISK_FAILPOINT"))

type failpointAt struct {
	name string
	left atomic.Int64
}

func parseFailpoint(spec string) *failpointAt {
	name, count, ok := strings.Cut(spec, ":")
	at := &failpointAt{name: name}
	n := int64(1)
	if ok {
		var err error
		if n, err = strconv.ParseInt(count, 10, 64); err != nil || n < 1 {
			panic("MCP_VDISK_FAILPOINT: not name:n: " + spec)
		}
	}
	at.left.Store(n)
	return at
}

// Failpoint marks a step at which a test can kill the process, see the variables.
func Failpoint(name string) {
	if log := os.Getenv("MCP_VDISK_FAILPOINT_LOG"); log != "" {
		if f, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600); err == nil {
			f.WriteString(name + "\n")
			f.Close()
		}
	}
	if name != failpoint.name || failpoint.left.Add(-1) != 0 {
		return
	}
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		panic(err)
	}
	for { // the signal is on its way
		time.Sleep(time.Hour)
	}
}
