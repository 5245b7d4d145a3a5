package workspace

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// memoryEnv makes the test binary the process whose memory is measured:
// "size,image".
const memoryEnv = "MCP_VDISK_MEMORY"

func init() { roles[memoryEnv] = memoryProcess }

// memoryLimit is how much more than an idle process one may ever need, however
// large the file: the heap, and what is mapped of the image.
const memoryLimit = 64 << 20

// A process of its own commits a large file and reads it in every way there is.
// What counts is the peak of its resident set, in which everything is.
func TestPeakMemory(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector has a heap of its own")
	}
	t.Parallel()
	size := 100 << 20
	if soak() {
		size = 300 << 20
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d,%s", memoryEnv, size, filepath.Join(t.TempDir(), "m.vdisk")))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	phases := 0
	for line := range strings.Lines(string(out)) {
		phase, n, _ := strings.Cut(strings.TrimSpace(line), ": ")
		peak := must(strconv.Atoi(n))
		if t.Logf("%s of %d MiB: peak %d KiB above idle", phase, size>>20, peak>>10); peak > memoryLimit {
			t.Errorf("%s takes too much", phase)
		}
		phases++
	}
	if phases != 7 {
		t.Errorf("%d phases were measured", phases)
	}
}

// memoryProcess prints the peak above idle of each phase.
func memoryProcess(arg string) int {
	n, path, _ := strings.Cut(arg, ",")
	size := must(strconv.ParseInt(n, 10, 64))
	if err := measure(path, size); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func measure(path string, size int64) error {
	im, err := Create(path, CreateOptions{})
	if err != nil {
		return err
	}
	defer im.Close()
	runtime.GC()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // VmHWM begins anew, proc(5)
		return err
	}
	idle, err := peakMemory()
	if err != nil {
		return err
	}
	var sum [32]byte
	for _, phase := range []struct {
		name string
		run  func() error
	}{
		{"commit", func() error { return commitGenerated(im, mixed(), size, &sum) }},
		{"lines", func() error {
			return readPages(im, sum, func(f *File, p Page) (Page, error) { return f.Lines(p.LastLine+1, 2000, 128<<10) })
		}},
		{"bytes", func() error {
			return readPages(im, sum, func(f *File, p Page) (Page, error) { return f.Bytes(p.Next, 128<<10) })
		}},
		{"reader", func() error {
			_, err := io.Copy(io.Discard, must(im.Open(must(Clean("big")))).Reader())
			return err
		}},
		{"commit of text", func() error { return commitGenerated(im, numbered(), size, &sum) }},
		{"copy", func() error {
			_, err := im.CopyTo(context.Background(), path+".copy", CopyOptions{})
			return err
		}},
		{"gc", func() error {
			if err := commitGenerated(im, io.LimitReader(numbered(), 1000), 1000, &sum); err != nil {
				return err
			}
			_, err := im.GC(context.Background(), GCOptions{KeepCommits: 1})
			return err
		}},
	} {
		if err := phase.run(); err != nil {
			return fmt.Errorf("%s: %w", phase.name, err)
		}
		peak, err := peakMemory()
		if err != nil {
			return err
		}
		fmt.Printf("%s: %d\n", phase.name, peak-idle)
	}
	return nil
}

// mixed is a stream that packs well in one half and not at all in the other.
func mixed() io.Reader {
	random := rand.NewChaCha8([32]byte{1})
	return readerFunc(func(p []byte) (int, error) {
		random.Read(p[:len(p)/2])
		for i := len(p) / 2; i < len(p); i++ {
			p[i] = "some text\n"[i%10]
		}
		return len(p), nil
	})
}

// numbered are lines that differ in little: they take a tenth when packed.
func numbered() io.Reader {
	n, rest := 0, []byte(nil)
	return readerFunc(func(p []byte) (int, error) {
		if len(rest) == 0 {
			n++
			rest = fmt.Appendf(rest, "line %d of a log that says the same thing over and over again\n", n)
		}
		k := copy(p, rest)
		rest = rest[k:]
		return k, nil
	})
}

// commitGenerated commits a file that is made while it is read.
func commitGenerated(im *Image, from io.Reader, size int64, sum *[32]byte) error {
	hash := sha256.New()
	src := io.TeeReader(bufio.NewReader(io.LimitReader(from, size)), hash)
	s := im.Stage(context.Background())
	defer s.Discard()
	c, err := s.Add(src)
	if err != nil {
		return err
	}
	hash.Sum(sum[:0])
	_, err = im.Commit(context.Background(), Txn{Stage: s, Changes: []Change{{Op: OpPut, Path: must(Clean("big")), Content: c}}})
	return err
}

func readPages(im *Image, want [32]byte, next func(*File, Page) (Page, error)) error {
	f, err := im.Open(must(Clean("big")))
	if err != nil {
		return err
	}
	hash := sha256.New()
	for p := (Page{More: true}); p.More; {
		if p, err = next(f, p); err != nil {
			return err
		}
		hash.Write(p.Data)
	}
	if !bytes.Equal(hash.Sum(nil), want[:]) {
		return errors.New("the pages are not the file")
	}
	return nil
}

// peakMemory is VmHWM in bytes.
func peakMemory() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("no VmHWM")
}
