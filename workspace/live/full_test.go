package live

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// What does not fit is refused before it is begun, and what turns out not to
// fit is ended before the disk is full.
func TestNoRoom(t *testing.T) {
	for name, c := range map[string]struct {
		bytes, inodes uint64
		later         uint64 // bytes at the second look
		change        func(*workspace.Stage) step
		want          error
	}{
		"plenty":                    {1 << 40, 1 << 20, 1 << 40, file("new", "x"), nil},
		"below the margin":          {roomMargin - 1, 1 << 20, 0, file("new", "x"), workspace.ErrNoSpace},
		"a file too large":          {roomMargin + 1<<20, 1 << 20, 0, file("new", strings.Repeat("x", 2<<20)), workspace.ErrNoSpace},
		"too few inodes":            {1 << 40, 1, 1 << 40, file("new/a/b", "x"), workspace.ErrNoSpace},
		"inodes that are not known": {1 << 40, 0, 1 << 40, file("new/a/b", "x"), nil},
		"gone meanwhile":            {1 << 40, 1 << 20, 1 << 20, file("new", strings.Repeat("x", 5<<20)), workspace.ErrNoSpace},
	} {
		for _, way := range []string{"in place", "by links", "from nothing"} {
			t.Run(name+" "+way, func(t *testing.T) {
				p := newPair(t)
				p.commit(t, file("a", "x"))
				var held *Generation
				if way != "from nothing" {
					held = p.pin(t)
				}
				if way == "in place" {
					held.Release()
				}
				p.commit(t, c.change)
				looks := 0
				p.view.free = func(string) (uint64, uint64, error) {
					if looks++; looks > 1 && (way != "by links" || looks > 2) {
						return c.later, c.inodes, nil
					}
					return c.bytes, c.inodes, nil
				}
				g, err := p.view.Pin(context.Background())
				if !errors.Is(err, c.want) {
					t.Fatalf("got %v, want %v", err, c.want)
				}
				if err == nil {
					g.Release()
				}
				if n := p.generations(t); c.want != nil && way == "from nothing" && len(n) != 0 || len(n) > 2 || c.want != nil && len(n) > 1 {
					t.Errorf("left: %v", n)
				}
				if way == "by links" {
					sameTrees(t, treeAt(t, p.im, held.Seq()), hostTree(t, held.Dir()))
				}
				p.view.free = hostos.Free
				p.sync(t)
			})
		}
	}
}

// Removing is tried on a full disk too: it makes room.
func TestRemovalsNeedNoRoom(t *testing.T) {
	p := newPair(t)
	p.commit(t, file("a", "x"), file("d/b", "y"))
	p.sync(t)
	p.commit(t, removed("d"))
	p.view.free = func(string) (uint64, uint64, error) { return 0, math.MaxInt64, nil }
	p.sync(t)
}

// A system that does not tell how much is free is not full.
func TestUnknownRoom(t *testing.T) {
	p := newPair(t)
	p.view.free = func(string) (uint64, uint64, error) { return 0, 0, errors.New("unknown") }
	p.commit(t, file("a", "x"))
	p.sync(t)
}

// fullEnv names a small file system of its own, in the process that fills it.
const fullEnv = "MCP_VDISK_FULL_DIR"

// TestFullDisk runs out of space and of inodes for real. It needs a file system
// for itself, so it runs in a process with its own mounts.
func TestFullDisk(t *testing.T) {
	if dir := os.Getenv(fullEnv); dir != "" {
		fillDisk(t, dir)
		return
	}
	if hostos.Implementations()["free space"] == "unknown" {
		t.Skip("this system does not tell how much space is free")
	}
	dir := t.TempDir()
	script := `mount -t tmpfs -o size=48m,nr_inodes=600 none "$0" || exit 42; exec "$1" -test.run '^TestFullDisk$'`
	cmd := exec.Command("unshare", "-rm", "sh", "-c", script, dir, os.Args[0])
	cmd.Env = append(os.Environ(), fullEnv+"="+dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 1 && len(out) > 0 && out[0] == '-': // a test that failed
		t.Errorf("%s", out)
	case err != nil:
		t.Skipf("no file system to fill: %v: %s", err, out)
	}
}

func fillDisk(t *testing.T, at string) {
	p := newPair(t) // the image lies elsewhere
	p.view.Close()
	p.state = filepath.Join(at, "live")
	p.reopen(t)
	p.commit(t, file("d/a", "old"), file("d/b", "old"))
	held := p.pin(t)
	wantFull := func(what string) {
		t.Helper()
		if _, err := p.view.Pin(context.Background()); !errors.Is(err, workspace.ErrNoSpace) {
			t.Fatalf("%s: %v, want ErrNoSpace", what, err)
		}
		if n := p.generations(t); len(n) != 1 {
			t.Errorf("%s: left %v", what, n)
		}
		sameTrees(t, treeAt(t, p.im, held.Seq()), hostTree(t, held.Dir()))
	}
	blind := func(string) (uint64, uint64, error) { return math.MaxInt64, math.MaxInt64, nil }

	p.commit(t, file("big", strings.Repeat("x", 60<<20)))
	wantFull("bytes, seen before")
	p.view.free = blind
	wantFull("bytes, run into")
	p.commit(t, removed("big"), file("d/a", "new"))

	s := p.im.Stage(context.Background())
	var many []step
	for i := range 1000 {
		many = append(many, dir(fmt.Sprintf("many/d%d", i), 0o755)(s))
	}
	p.commitAll(t, s, many)
	p.view.free = hostos.Free
	wantFull("inodes, seen before")
	p.view.free = blind
	wantFull("inodes, run into")

	// In place, and from nothing.
	held.Release()
	for range 2 {
		if _, err := p.view.Pin(context.Background()); !errors.Is(err, workspace.ErrNoSpace) {
			t.Fatalf("in place: %v", err)
		}
	}
	if err := p.view.Drop(); err != nil {
		t.Fatal(err)
	}
	var err error
	if p.view, err = Open(p.state, p.im); err != nil {
		t.Fatal(err)
	}
	p.view.free = blind
	if _, err := p.view.Pin(context.Background()); !errors.Is(err, workspace.ErrNoSpace) {
		t.Fatalf("from nothing: %v", err)
	}
	if n := p.generations(t); len(n) != 0 {
		t.Errorf("left: %v", n)
	}
	p.view.free = hostos.Free
	p.commit(t, removed("many"))
	p.sync(t)
}
