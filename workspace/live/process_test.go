package live

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// syncerEnv makes the test binary the process that gets killed: image and
// state directory.
const syncerEnv = "MCP_VDISK_LIVE_SYNCER"

func TestMain(m *testing.M) {
	if where := os.Getenv(syncerEnv); where != "" {
		os.Exit(syncer(where))
	}
	if where := os.Getenv(stepperEnv); where != "" {
		if err := stepper(where); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	flag.Set("rapid.nofailfile", "true") // the seed in the report does
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		f.Value.Set("20")
		if os.Getenv("MCP_VDISK_SOAK") == "1" {
			f.Value.Set("1000")
		}
	}
	os.Exit(m.Run())
}

// syncer commits and pins for ever, up to four generations at once.
func syncer(where string) int {
	image, state, _ := strings.Cut(where, "|")
	im, err := workspace.Open(image, workspace.OpenOptions{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	v, err := Open(state, im)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var held []*Generation
	for i := 0; ; i++ {
		s := im.Stage(context.Background())
		txn := workspace.Txn{Stage: s}
		for j := range 30 {
			txn.Changes = append(txn.Changes, file(fmt.Sprintf("d%d/f%d", (i+j)%5, j), strings.Repeat("x", i))(s))
		}
		if i%3 == 2 {
			txn.Changes = append(txn.Changes, removed(fmt.Sprintf("d%d", i%5))(s))
		}
		if _, err := im.Commit(context.Background(), txn); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		g, err := v.Pin(context.Background())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if held = append(held, g); len(held) > i%4 {
			held[0].Release()
			held = held[1:]
		}
	}
}

func TestKillDuringPin(t *testing.T) {
	p := newPair(t)
	kills := 6
	if os.Getenv("MCP_VDISK_SOAK") == "1" {
		kills = 100
	}
	for range kills {
		p.view.Close()
		p.im.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(50+rand.IntN(200))*time.Millisecond)
		cmd := exec.CommandContext(ctx, os.Args[0]) // its end is a SIGKILL
		cmd.Env = append(os.Environ(), syncerEnv+"="+p.path+"|"+p.state)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		cmd.Run()
		cancel()
		if stderr.Len() > 0 {
			t.Fatal(stderr.String())
		}
		var err error
		if p.im, err = workspace.Open(p.path, workspace.OpenOptions{}); err != nil {
			t.Fatal(err)
		}
		if p.view, err = Open(p.state, p.im); err != nil {
			t.Fatal(err)
		}
		if left := p.generations(t); len(left) > 1 {
			t.Errorf("left: %v", left)
		}
		p.sync(t)
	}
}
