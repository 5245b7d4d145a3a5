package queue

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
)

// The victim of the tests that kill: a process with its own queue.
const (
	victimEnv     = "QUEUE_TEST_VICTIM"
	victimModeEnv = "QUEUE_TEST_MODE"
)

// ways are the lives of a request. The last step of each is Finish.
var ways = map[string][]State{
	"asked":     {Received, Resolving, PendingApproval, Approved, Fetching, Building, Probing, Ready},
	"automatic": {Received, Resolving, AutoApproved, Fetching, Building, Probing, Ready},
}

// victim goes one of the ways, step by step as its standard input says, or without end
// both at once. It prints what was done.
func victim(dir, mode string) int {
	db, err := audit.OpenDB(filepath.Join(dir, "db"), nil)
	if err != nil {
		panic(err)
	}
	q, err := Open(db, Options{})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	if _, err := q.Recover(ctx); err != nil {
		panic(err)
	}
	in := bufio.NewReader(os.Stdin)
	if mode == "forget" {
		return forgetter(ctx, q)
	}
	if way := ways[mode]; way != nil {
		var r Request
		for _, s := range way {
			if _, err := in.ReadString('\n'); err != nil {
				return 1
			}
			r = step(ctx, q, r, wsA, "foo", s)
			fmt.Printf("%s %s\n", r.ID, r.State)
		}
		in.ReadString('\n') // until it is killed
		return 1
	}
	for n := 0; ; n++ {
		race(2, func(i int) {
			mode, ws := []string{"asked", "automatic"}[i], []string{wsA, wsB}[i]
			var r Request
			for _, s := range ways[mode] {
				r = step(ctx, q, r, ws, fmt.Sprintf("foo==%d.%d", os.Getpid(), n), s)
				fmt.Printf("%s %s\n", r.ID, r.State) // one write: lines are whole
			}
		})
	}
}

func step(ctx context.Context, q *Queue, r Request, ws, spec string, s State) Request {
	var err error
	switch s {
	case Received:
		for { // what earlier victims left fills the queue
			r, _, err = q.Submit(ctx, Request{Workspace: ws, Specs: []string{spec}})
			if !errors.Is(err, ErrFull) {
				break
			}
			old, oerr := q.List(Filter{Workspace: ws, States: []State{Received, PendingApproval, Approved, AutoApproved}})
			if oerr != nil || len(old) == 0 {
				panic(fmt.Sprint("full of nothing: ", oerr))
			}
			if _, err := q.Move(ctx, old[0].ID, old[0].State, furnish(Cancelled)); err != nil {
				panic(err)
			}
		}
	case Ready:
		r, err = finish(ctx, q, r)
	default:
		r, err = q.Move(ctx, r.ID, r.State, furnish(s))
	}
	if err != nil {
		panic(err)
	}
	return r
}

// finish binds the layer of a request as one more.
func finish(ctx context.Context, q *Queue, r Request) (Request, error) {
	b, err := q.Binding(r.Workspace)
	if err != nil {
		return r, err
	}
	b.Layers = []string{layer1}
	b.Requests = append(b.Requests[max(0, len(b.Requests)-10):], r.ID)
	return q.Finish(ctx, r.ID, r.State, b.Rev, b, func(r *Request) error { r.Layer = layer1; return nil })
}

// Case 39, as far as it is the queue's: kill -9 between any two moves, and the request
// goes on from its last durable point, to the end.
func TestCase39KilledBetweenMoves(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP -short: it starts processes")
	}
	point := map[State]State{
		Received: Received, Resolving: Received, PendingApproval: PendingApproval, Approved: Approved, AutoApproved: AutoApproved, Ready: Ready,
	}
	for mode, way := range ways {
		for n, last := range way {
			f := &fixture{t: t, dir: t.TempDir(), clock: &clock{t: start}}
			v := startVictim(t, f.dir, mode)
			var id, state string
			for range n + 1 {
				fmt.Fprintln(v.in)
				if id, state = v.line(t); id == "" {
					t.Fatalf("%s, step %d: the victim ended by itself: %s", mode, n, v.stderr.String())
				}
			}
			v.kill()
			want(t, "last state", State(state), last)

			f.open()
			got := consistent(t, f.Queue)[id]
			want(t, mode+": after the kill", got.State, last)
			if _, err := f.Recover(t.Context()); err != nil {
				t.Fatal(err)
			}
			r, err := f.Get(wsA, id)
			if err != nil {
				t.Fatal(err)
			}
			back, durable := point[last]
			if !durable {
				back = way[slices.Index(way, Fetching)-1] // the approval
			}
			want(t, fmt.Sprintf("%s: killed in %s, restarted", mode, last), r.State, back)
			want(t, "attempt", r.Attempt, map[bool]int{true: 1, false: 2}[r.State == last])
			for _, s := range way[slices.Index(way, back)+1:] {
				r = step(t.Context(), f.Queue, r, wsA, "foo", s)
			}
			b, err := f.Binding(wsA)
			if err != nil || r.State != Ready || b.Rev != 1 || !slices.Equal(b.Requests, []string{id}) {
				t.Errorf("%s from %s: it ends %s, bound %+v: %v", mode, last, r.State, b, err)
			}
			consistent(t, f.Queue)
			if err := f.db.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// kill -9 at any moment: what was said to be done is done, and what was on its way is
// done as a whole or not at all.
func TestCase39KilledAnywhere(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP -short: it starts processes")
	}
	rounds := 3
	if soak() {
		rounds = 100
	}
	dir := t.TempDir() // the same over all rounds: a killed queue goes on
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	moves := 0
	for round := range rounds {
		v := startVictim(t, dir, "both")
		said := map[string]State{}
		lines := 1 + rnd.IntN(100)
		for n := 0; ; n++ {
			id, state := v.line(t)
			if id == "" {
				break
			}
			said[id] = State(state)
			if n == lines {
				after := time.Duration(rnd.IntN(5_000)) * time.Microsecond
				time.AfterFunc(after, func() { v.cmd.Process.Kill() })
			}
			moves++
		}
		v.kill()
		if text := v.stderr.String(); text != "" {
			t.Fatalf("round %d, seed %d: the victim ended by itself: %s", round, seed, text)
		}
		f := &fixture{t: t, dir: dir, clock: &clock{t: start}}
		f.open()
		all := consistent(t, f.Queue)
		for id, state := range said {
			r, kept := all[id]
			way := ways["asked"]
			if r.Workspace == wsB {
				way = ways["automatic"]
			}
			// At most one move more than was said; what is ready for long may be gone.
			if n := slices.Index(way, r.State) - slices.Index(way, state); kept && n != 0 && n != 1 || !kept && state != Ready {
				t.Errorf("%s was %s and is %q", id, state, r.State)
			}
			if r.State == Ready && r.Layer == "" {
				t.Errorf("%s is ready without a layer", id)
			}
		}
		for _, ws := range []string{wsA, wsB} {
			list, err := f.List(Filter{Workspace: ws, States: []State{Ready}, Last: 1})
			b, berr := f.Binding(ws)
			if err != nil || berr != nil {
				t.Fatal(err, berr)
			}
			if len(list) == 1 && !slices.Contains(b.Requests, list[0].ID) || b.Rev > 0 && len(list) == 0 {
				t.Errorf("bound %+v, and %v is ready", b, idsOf(list))
			}
		}
		if err := f.db.Close(); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			t.Fatalf("in round %d, seed %d", round, seed)
		}
	}
	t.Logf("%d kills, %d moves that were said to be done", rounds, moves)
}

// process is a victim that runs.
type process struct {
	cmd    *exec.Cmd
	in     interface{ Write([]byte) (int, error) }
	out    *bufio.Reader
	stderr strings.Builder
}

func startVictim(t *testing.T, dir, mode string) *process {
	t.Helper()
	v := &process{cmd: exec.Command(os.Args[0])}
	v.cmd.Env = append(os.Environ(), victimEnv+"="+dir, victimModeEnv+"="+mode)
	v.cmd.Stderr = &v.stderr
	in, err := v.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := v.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	v.in, v.out = in, bufio.NewReader(out)
	if err := v.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.kill)
	return v
}

// line reads what the victim says next, "" if it is dead.
func (v *process) line(t *testing.T) (id, state string) {
	t.Helper()
	text, err := v.out.ReadString('\n')
	if err != nil {
		return "", "" // what follows the last newline was not said in full
	}
	if _, err := fmt.Sscan(text, &id, &state); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return id, state
}

func (v *process) kill() {
	v.cmd.Process.Kill()
	v.cmd.Wait()
}
