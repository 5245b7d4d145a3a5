package live

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// steps are the names of all steps at which a crash is tried.
var steps = []string{
	"live.made",     // a generation has a directory and nothing in it
	"live.moving",   // its state says that work is under way
	"live.linked",   // a file was linked into it
	"live.opened",   // a closed directory was opened up
	"live.written",  // a file has its content, under a temporary name
	"live.renamed",  // and now its own
	"live.removed",  // a file, symlink or directory was removed
	"live.done",     // the tree is whole, its state does not say so yet
	"live.clean",    // now it does
	"live.disowned", // a generation that goes has lost its state
	"live.erased",   // a view has nothing left but its lock
	"live.unlocked", // and now not even that
}

// stepperEnv makes the test binary the process that goes through all steps.
const stepperEnv = "MCP_VDISK_LIVE_STEPPER"

// stepper comes to every step, the same number of times whenever it runs.
func stepper(where string) error {
	image, state, _ := strings.Cut(where, "|")
	im, err := workspace.Open(image, workspace.OpenOptions{})
	if err != nil {
		return err
	}
	defer im.Close()
	v, err := Open(state, im)
	if err != nil {
		return err
	}
	pin := func() *Generation {
		g, pinErr := v.Pin(context.Background())
		err = errors.Join(err, pinErr)
		return g
	}
	commit := func(changes ...func(*workspace.Stage) step) {
		s := im.Stage(context.Background())
		txn := workspace.Txn{Stage: s}
		for _, c := range changes {
			txn.Changes = append(txn.Changes, c(s))
		}
		_, commitErr := im.Commit(context.Background(), txn)
		err = errors.Join(err, commitErr)
	}
	for round := range 3 {
		var held []*Generation
		for i := range 3 {
			for j := range 5 {
				commit(file(fmt.Sprintf("d%d/f%d", j, i), fmt.Sprint(round, i)), link(fmt.Sprintf("l%d", j), fmt.Sprint(round)))
			}
			commit(file("closed/f", fmt.Sprint(round)), mode("closed", 0), removed("d1"))
			if held = append(held, pin()); err != nil {
				return err
			}
		}
		commit(file("d2/f0", "more"), mode("l0", 0o777), removed("d3"))
		held[2].Release()
		last := pin() // in place
		held[1].Release()
		if round == 1 { // while the newest is not clean, an older one goes
			last.Release()
			commit(file("d4/f9", "x"))
			ctx, cancel := context.WithCancel(context.Background())
			v.free = func(path string) (uint64, uint64, error) { // called when it has begun
				cancel()
				return hostos.Free(path)
			}
			if _, pinErr := v.Pin(ctx); !errors.Is(pinErr, context.Canceled) {
				err = errors.Join(err, fmt.Errorf("pinned: %v", pinErr))
			}
			held[0].Release()
		}
		if err != nil { // in the other rounds, two are left to the next Open
			return err
		}
		if err := v.Close(); err != nil {
			return err
		}
		if v, err = Open(state, im); err != nil {
			return err
		}
	}
	pin().Release()
	return errors.Join(err, v.Drop())
}

// A process that is killed at any step leaves what the next one makes good.
func TestKillAtEveryStep(t *testing.T) {
	gobin, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command to build the process that is killed")
	}
	binary := filepath.Join(t.TempDir(), "stepper")
	build := exec.Command(gobin, "test", "-c", "-tags", "failpoint", "-o", binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	counts := map[string]int{}
	log := filepath.Join(t.TempDir(), "log")
	if err := runStepper(t, newClosedPair(t), binary, "MCP_VDISK_FAILPOINT_LOG="+log); err != nil {
		t.Fatal(err)
	}
	reached, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.Lines(string(reached)) {
		if name = strings.TrimSpace(name); strings.HasPrefix(name, "live.") {
			counts[name]++
		}
	}
	if got, want := slices.Sorted(maps.Keys(counts)), slices.Sorted(slices.Values(steps)); !slices.Equal(got, want) {
		t.Fatalf("it comes to the steps %v, the table has %v", got, want)
	}
	kills := 0
	for _, name := range steps {
		for _, n := range sample(counts[name]) {
			p := newClosedPair(t)
			err := runStepper(t, p, binary, fmt.Sprintf("MCP_VDISK_FAILPOINT=%s:%d", name, n))
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != -1 {
				t.Errorf("%s:%d of %d: it was not killed: %v", name, n, counts[name], err)
				continue
			}
			kills++
			p.afterCrash(t)
			if t.Failed() {
				t.Fatalf("after a kill at %s:%d of %d", name, n, counts[name])
			}
		}
	}
	t.Logf("%d kills at %d steps", kills, len(steps))
}

// sample is some of the times that a step is come to, the first and the last
// among them; all in a soak run.
func sample(count int) []int {
	most := 6
	if os.Getenv("MCP_VDISK_SOAK") == "1" {
		most = count
	}
	var list []int
	for i := range min(count, most) {
		list = append(list, 1+i*(count-1)/max(1, min(count, most)-1))
	}
	return slices.Compact(list)
}

// newClosedPair is a pair that nothing has open.
func newClosedPair(t *testing.T) *pair {
	t.Helper()
	p := newPair(t)
	if err := errors.Join(p.view.Close(), p.im.Close()); err != nil {
		t.Fatal(err)
	}
	return p
}

func runStepper(t *testing.T, p *pair, binary, env string) error {
	t.Helper()
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), stepperEnv+"="+p.path+"|"+p.state, env)
	out, err := cmd.CombinedOutput()
	if len(out) > 0 {
		t.Errorf("%s", out)
	}
	return err
}

// afterCrash opens everything again: at most one generation is left, Pin gives
// exactly the head, and nothing is left over then.
func (p *pair) afterCrash(t *testing.T) {
	t.Helper()
	var err error
	if p.im, err = workspace.Open(p.path, workspace.OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	defer p.im.Close()
	if p.view, err = Open(p.state, p.im); err != nil {
		t.Fatal(err)
	}
	if n := p.generations(t); len(n) > 1 {
		t.Errorf("after Open: %v", n)
	}
	p.sync(t)
	p.wantDrift(t, false)
	p.commit(t, file("after", "x"), removed("d0"))
	p.sync(t)
	if n := p.generations(t); len(n) != 1 {
		t.Errorf("after Pin: %v", n)
	}
	if err := p.view.Drop(); err != nil {
		t.Error(err)
	}
}
