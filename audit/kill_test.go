package audit

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const victimWriters = 16

// victim writes to the log in dir until it is killed, and says on standard output
// what was acknowledged: stream, n and leaf.
func victim(dir string) {
	db, err := OpenDB(filepath.Join(dir, "db"), nil)
	if err != nil {
		panic(err)
	}
	log, err := New(db, filepath.Join(dir, "tail"), Options{})
	if err != nil {
		panic(err)
	}
	streams := []string{StreamSystem, disk}
	var group sync.WaitGroup
	var out sync.Mutex
	for w := range victimWriters {
		group.Go(func() {
			for i := 0; ; i++ {
				stream, call := streams[(w+i/7)%2], fmt.Sprintf("%d-%d-%d", os.Getpid(), w, i)
				write := log.Append
				if (w+i)%3 == 0 {
					write = log.Note
				}
				r, err := write(context.Background(), stream, intentOf(call))
				if err != nil {
					panic(err)
				}
				out.Lock()
				fmt.Printf("%s %d %s\n", r.Stream, r.N, r.Leaf)
				out.Unlock()
			}
		})
	}
	group.Wait()
}

// kill -9 at any moment loses nothing that was acknowledged and leaves no gap.
func TestKill(t *testing.T) {
	rounds := 10
	if os.Getenv("MCP_VDISK_SOAK") == "1" {
		rounds = 100
	}
	dir := t.TempDir() // the same over all rounds: a killed log goes on
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	acknowledged := map[Receipt]bool{}
	replayed := 0
	for round := range rounds {
		for _, r := range runVictim(t, dir, 1+rnd.IntN(1500), time.Duration(rnd.IntN(20_000))*time.Microsecond) {
			acknowledged[r] = true
		}
		if info, err := os.Stat(filepath.Join(dir, "tail")); err == nil && info.Size() > 0 {
			replayed++
		}
		checkAcknowledged(t, dir, acknowledged)
		if t.Failed() {
			t.Fatalf("in round %d, seed %d", round, seed)
		}
	}
	t.Logf("%d kills, %d acknowledged records, %d tails replayed", rounds, len(acknowledged), replayed)
}

// runVictim kills the writer a little after it acknowledged so many records.
func runVictim(t *testing.T, dir string, records int, after time.Duration) (list []Receipt) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "AUDIT_TEST_VICTIM="+dir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	for {
		text, err := lines.ReadString('\n')
		if err != nil {
			break // what follows the last newline was not said in full
		}
		var r Receipt
		if _, err := fmt.Sscanf(text, "%s %d %s", &r.Stream, &r.N, &r.Leaf); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		list = append(list, r)
		if len(list) == records {
			time.AfterFunc(after, func() { cmd.Process.Kill() })
		}
	}
	cmd.Wait()
	if len(list) < records {
		t.Fatalf("the writer ended by itself after %d records: %s", len(list), stderr.String())
	}
	return list
}

func checkAcknowledged(t *testing.T, dir string, acknowledged map[Receipt]bool) {
	t.Helper()
	f := &fixture{T: t, dir: filepath.Join(dir, "db")}
	f.openDB()
	defer f.close()
	log, err := New(f.db, filepath.Join(dir, "tail"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	f.log = log
	found := 0
	err = f.log.Query(context.Background(), Query{}, func(raw []byte, r Record) error {
		if acknowledged[Receipt{r.Stream, r.N, leafOf(raw).String()}] {
			found++
		}
		return nil
	})
	if err != nil || found != len(acknowledged) {
		t.Errorf("%d of %d acknowledged records are there, %v", found, len(acknowledged), err)
	}
	for _, stream := range []string{StreamSystem, disk} {
		if r := f.verify(stream); !r.OK {
			t.Errorf("%+v", r)
		}
	}
}
