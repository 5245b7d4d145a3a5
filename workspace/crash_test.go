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
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// crashEnv makes the test binary the writer that gets killed: its value is
// the image.
const crashEnv = "MCP_VDISK_CRASH_WRITER"

// crashWriter commits for ever and says on stdout which commits are durable.
// Every commit changes a pair of files, so that half of one would show.
func crashWriter(path string) int {
	im, err := Open(path, OpenOptions{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx := context.Background()
	out := bufio.NewWriter(os.Stdout)
	for i := must(im.Info()).Seq + 1; ; i++ {
		s := im.Stage(ctx)
		c, err := s.Add(strings.NewReader(crashBody(i)))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		txn := Txn{Call: fmt.Sprintf("call-%d", i), Stage: s}
		for _, side := range []string{"left", "right"} {
			txn.Changes = append(txn.Changes, Change{Op: OpPut, Path: crashPath(side, i), Content: c, Parents: true})
		}
		if i%5 == 0 {
			txn.Changes = append(txn.Changes, Change{Op: OpMkdir, Path: must(Clean(fmt.Sprint("dirs/", i))), Parents: true})
		}
		if i%10 == 0 {
			txn.Changes = append(txn.Changes, Change{Op: OpRemove, Path: must(Clean("dirs")), Recursive: true})
		}
		if _, err := im.Commit(ctx, txn); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Fprintln(out, i)
		out.Flush()
	}
}

func crashPath(side string, i uint64) Path { return must(Clean(fmt.Sprintf("%s/%d", side, i%7))) }

// crashBody is the content of commit i: mostly small, sometimes several
// chunks, and once in a while more than a stage keeps in memory.
func crashBody(i uint64) string {
	n := []int{20, 300, 5000, 200_000}[i%4]
	if i%29 == 0 {
		n = stageBytes + 100_000
	}
	r := rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)})
	b := make([]byte, n)
	r.Read(b)
	return fmt.Sprintf("%d\n", i) + string(b)
}

func TestKill(t *testing.T) {
	kills := 10
	if soak() {
		kills = 100
	}
	im, path := newImage(t, CreateOptions{})
	im.Close()
	acknowledged := uint64(1)
	for kill := range kills {
		last := runAndKill(t, path)
		if last != 0 {
			acknowledged = last
		}
		checkKilled(t, kill, path, acknowledged)
		if t.Failed() {
			return
		}
	}
	t.Logf("%d kills, %d commits acknowledged", kills, acknowledged)
}

// runAndKill starts a writer, kills it at some moment, and returns the last
// commit that it acknowledged.
func runAndKill(t *testing.T, path string) (last uint64) {
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
	whole := stdout.String()[:strings.LastIndexByte(stdout.String(), '\n')+1]
	if lines := strings.Fields(whole); len(lines) > 0 {
		last = must(strconv.ParseUint(lines[len(lines)-1], 10, 64))
	}
	return last
}

func checkKilled(t *testing.T, kill int, path string, acknowledged uint64) {
	t.Helper()
	im, err := Open(path, OpenOptions{})
	if err != nil {
		t.Fatalf("kill %d: %v", kill, err)
	}
	defer im.Close()
	head := must(im.Info()).Seq
	if head < acknowledged || head > acknowledged+1 {
		t.Errorf("kill %d: head is %d, %d was acknowledged", kill, head, acknowledged)
	}
	for i := head; i > 1 && i+7 > head; i-- {
		for _, side := range []string{"left", "right"} {
			if got := text(t, im, crashPath(side, i).String()); got != crashBody(i) {
				t.Errorf("kill %d: %s of commit %d is torn or lost", kill, side, i)
			}
		}
	}
	if _, ok, err := im.FindCommit(fmt.Sprintf("call-%d", acknowledged)); (!ok || err != nil) && acknowledged > 1 {
		t.Errorf("kill %d: commit %d is not in the log: %v", kill, acknowledged, err)
	}
	verify(t, im)
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
