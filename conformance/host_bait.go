package conformance

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun/prober"
)

// host is one round of RunHost with the bait that is laid out for it: things of
// the host that a script must not get at.
type host struct {
	HostCase
	bwrap  string // path of bubblewrap
	onDisk bool   // changes of the runs are kept on disk, where their limits are watched

	mark   string // a word that stands nowhere else on this host
	number string // the same in digits
	dir    string // our directory; not below /tmp where that can be, since the stage hides /tmp
	lower  string // the workspace of the runs, in dir
	victim string // a directory in dir that must stay empty
	tmp    string // our directory below the temporary one; all may pass it
	canary string // a file in tmp that all may read

	port     int
	contacts atomic.Int64 // connections that the listeners got
	closers  []func()

	before    traces // of the host, before the first run
	naive     map[string]prober.Observation
	naiveErr  error
	naiveDone bool
}

// Names in the workspace.
const (
	baitSocket = "bait-socket"
	baitLink   = "bait-link"
)

// plantedNames are links in the workspace that lead to the victim. They have the
// names of the places where mounts are made.
var plantedNames = []string{"planted", "run", "opt", "tmp", "dev", "etc", "home", "proc"}

func (h *host) open() error {
	h.mark = "vdisk" + rand.Text()
	h.number = digits()
	if err := h.makeDirs(); err != nil {
		return err
	}
	if err := os.WriteFile(h.canary, []byte("a file of the host\n"), 0o644); err != nil {
		return err
	}
	if err := os.Symlink(h.canary, filepath.Join(h.lower, baitLink)); err != nil {
		return err
	}
	// /oldroot is where bubblewrap has the host while it makes the mounts.
	for i, name := range plantedNames {
		target := h.victim
		if i%2 == 0 {
			target = "/oldroot" + target
		}
		if err := os.Symlink(target, filepath.Join(h.lower, name)); err != nil {
			return err
		}
	}
	if err := h.listen(); err != nil {
		return err
	}
	var err error
	h.before, err = h.look()
	return err
}

// digits are twelve digits at random.
func digits() string {
	var b [8]byte
	rand.Read(b[:])
	return fmt.Sprintf("%012d", binary.BigEndian.Uint64(b[:])%1e12)
}

// makeDirs makes the directories of a round.
func (h *host) makeDirs() (err error) {
	for _, parent := range []string{"/var/tmp", "/dev/shm", ""} {
		if h.dir, err = h.makeDir(parent); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	if h.tmp, err = h.makeDir("/tmp"); err != nil {
		return err
	}
	h.lower, h.victim = filepath.Join(h.dir, "workspace"), filepath.Join(h.dir, "victim")
	h.canary = filepath.Join(h.tmp, "canary")
	return errors.Join(os.Chmod(h.tmp, 0o755), os.Mkdir(h.lower, 0o755), os.Mkdir(h.victim, 0o777))
}

// makeDir makes a directory that close removes, else the next round of this user.
func (h *host) makeDir(parent string) (string, error) {
	dir, drop, err := sandboxrun.TempDir(parent, "mcp-vdisk-conform-")
	if err == nil {
		h.closers = append(h.closers, func() { _ = drop() })
	}
	return dir, err
}

// listen opens the three doors of the host and counts who comes.
func (h *host) listen() error {
	for _, door := range [][2]string{{"tcp4", "127.0.0.1:0"}, {"unix", "@" + h.mark}, {"unix", filepath.Join(h.lower, baitSocket)}} {
		l, err := net.Listen(door[0], door[1])
		if err != nil {
			return err
		}
		if a, ok := l.Addr().(*net.TCPAddr); ok {
			h.port = a.Port
		}
		done := make(chan struct{})
		h.closers = append(h.closers, func() { l.Close(); <-done })
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				h.contacts.Add(1)
				c.Close()
			}
		}()
	}
	return nil
}

// close removes all of it.
func (h *host) close() {
	for _, f := range slices.Backward(h.closers) {
		f()
	}
}

// order is what the prober is told.
func (h *host) order(probes []string) (prober.Order, error) {
	o := prober.Order{
		Probes: probes, Namespaces: map[string]string{},
		Canary: h.canary, Secrets: []string{h.dir, h.tmp, h.mark},
		Port: h.port, Abstract: h.mark, Socket: baitSocket, Link: baitLink,
	}
	for _, ns := range []string{"user", "pid", "mnt", "net", "ipc", "uts", "cgroup"} {
		link, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			return o, fmt.Errorf("namespaces of the host: %w", err)
		}
		o.Namespaces[ns] = link
	}
	return o, nil
}
