package workspace

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// crashEnv makes the test binary the writer that gets killed: its value is
// the image.
const crashEnv = "MCP_VDISK_CRASH_WRITER"

// crashWriters is how many goroutines commit at once.
const crashWriters = 8

// crashWriter commits for ever and says on stdout which commits are durable,
// as "writer number". Every commit changes a pair of files, so that half of one
// would show.
func crashWriter(path string) int {
	im, err := Open(path, OpenOptions{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	first := must(im.Info()).Seq // no number is used in two rounds
	failed := make(chan error)
	for w := range crashWriters {
		go func() {
			for i := first; ; i++ {
				if err := crashCommit(im, w, i); err != nil {
					failed <- err
					return
				}
				fmt.Printf("%d %d\n", w, i) // one write(2), so whole lines only
			}
		}()
	}
	go func() { // beside them the history is cut
		for {
			if _, err := im.GC(context.Background(), GCOptions{KeepCommits: 300}); err != nil {
				failed <- err
				return
			}
		}
	}()
	fmt.Fprintln(os.Stderr, <-failed)
	return 1
}

func crashCommit(im *Image, w int, i uint64) error {
	ctx := context.Background()
	s := im.Stage(ctx)
	c, err := s.Add(strings.NewReader(crashBody(w, i)))
	if err != nil {
		return err
	}
	txn := Txn{Call: crashCall(w, i), Stage: s}
	for _, side := range []string{"left", "right"} {
		txn.Changes = append(txn.Changes, Change{Op: OpPut, Path: crashPath(side, w, i), Content: c, Parents: true})
	}
	dirs := must(Clean(fmt.Sprint("dirs/", w)))
	if i%5 == 0 {
		txn.Changes = append(txn.Changes, Change{Op: OpMkdir, Path: must(dirs.Join(fmt.Sprint(i))), Parents: true})
	}
	if i%10 == 0 {
		txn.Changes = append(txn.Changes, Change{Op: OpRemove, Path: dirs, Recursive: true})
	}
	_, err = im.Commit(ctx, txn)
	return err
}

func crashCall(w int, i uint64) string { return fmt.Sprintf("call-%d-%d", w, i) }

func crashPath(side string, w int, i uint64) Path {
	return must(Clean(fmt.Sprintf("%s/%d/%d", side, w, i%7)))
}

// crashBody is the content of a commit: mostly small, sometimes several
// chunks, and once in a while more than a stage keeps in memory.
func crashBody(w int, i uint64) string {
	n := []int{20, 300, 5000, 200_000}[i%4]
	if w == 0 && i%29 == 0 {
		n = stageBytes + 100_000
	}
	r := rand.NewChaCha8([32]byte{byte(i), byte(i >> 8), byte(w)})
	b := make([]byte, n)
	r.Read(b)
	return fmt.Sprintf("%d %d\n", w, i) + string(b)
}

func TestKill(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector is no help to a process that is killed")
	}
	t.Parallel()
	kills := 20
	if soak() {
		kills = 200
	}
	im, path := newImage(t, CreateOptions{})
	im.Close()
	acknowledged := 0
	for kill := range kills {
		last := runAndKill(t, path)
		acknowledged += last.commits
		checkKilled(t, kill, path, last)
		if t.Failed() {
			return
		}
	}
	t.Logf("%d kills, %d commits acknowledged by %d writers", kills, acknowledged, crashWriters)
}

// acknowledgments are what the writers of one process said.
type acknowledgments struct {
	commits int
	last    map[int]uint64 // by writer
}

// runAndKill starts a process, kills it at some moment, and returns what it
// had acknowledged.
func runAndKill(t *testing.T, path string) acknowledgments {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(50+rand.IntN(250))*time.Millisecond)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0]) // its end is a SIGKILL
	cmd.Env = append(os.Environ(), crashEnv+"="+path)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Run()
	if stderr.Len() > 0 {
		t.Fatalf("the writer failed: %s", stderr.String())
	}
	a := acknowledgments{last: map[int]uint64{}}
	for line := range strings.Lines(stdout.String()) {
		var w int
		var i uint64
		if _, err := fmt.Sscanf(line, "%d %d\n", &w, &i); err != nil {
			t.Fatalf("it said %q", line)
		}
		a.commits++
		a.last[w] = i
	}
	return a
}

// checkKilled finds what was acknowledged, and no pair of files of which one
// half is from another commit.
func checkKilled(t *testing.T, kill int, path string, a acknowledgments) {
	t.Helper()
	im, err := Open(path, OpenOptions{})
	if err != nil {
		t.Fatalf("kill %d: %v", kill, err)
	}
	defer im.Close()
	for w, last := range a.last {
		if _, ok, err := im.FindCommit(crashCall(w, last)); !ok || err != nil {
			t.Errorf("kill %d: commit %d of writer %d is not in the log: %v", kill, last, w, err)
		}
		next := last + 1 // may have been made and not acknowledged
		_, done, err := im.FindCommit(crashCall(w, next))
		if err != nil {
			t.Fatal(err)
		}
		if _, ahead, _ := im.FindCommit(crashCall(w, next+1)); ahead {
			t.Errorf("kill %d: writer %d is further than it said", kill, w)
		}
		for i := next; i+6 > next && i > 0; i-- {
			if i == next && !done {
				continue
			}
			if _, ours, _ := im.FindCommit(crashCall(w, i)); !ours {
				continue // before this process began
			}
			for _, side := range []string{"left", "right"} {
				if got := text(t, im, crashPath(side, w, i).String()); got != crashBody(w, i) {
					t.Errorf("kill %d: %s of commit %d of writer %d is torn or lost", kill, side, i, w)
				}
			}
		}
	}
	verify(t, im)
	verifyChain(t, im)
	im.Close()
	wantClean(t, path)
}

// Who has the image open is in the error.
func TestLockNamesItsHolder(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	im.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); cmd.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_, err = Open(path, OpenOptions{Wait: time.Millisecond})
	wantKind(t, err, ErrLocked)
	if hostos.Implementations()["lock holder"] == "/proc/locks" && !strings.Contains(err.Error(), fmt.Sprintf("process %d on ", cmd.Process.Pid)) {
		t.Errorf("%v does not name process %d", err, cmd.Process.Pid)
	}
}

// A killed Create leaves nothing under the name.
func TestCreateIsWhole(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, ".vdisk-new-123"))
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(f, "left by a killed process")
	f.Close()
	im, err := Create(filepath.Join(dir, "a.vdisk"), CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	im.Close()
}
