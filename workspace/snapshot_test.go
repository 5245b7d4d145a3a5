package workspace

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A snapshot is the image at its commit, whatever is committed before it is written.
func TestSnapshotIsOfOneCommit(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	for _, text := range []string{"first", "second"} {
		if _, err := do(t, im, Txn{}, put("f", text)); err != nil {
			t.Fatal(err)
		}
	}
	s := must(im.BeginSnapshot())
	defer s.Close()
	want := must(im.Info())
	for i := range 40 {
		if _, err := do(t, im, Txn{}, put("f", string(bytes.Repeat([]byte{byte('a' + i%26)}, 200_000+i)))); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "copy.vdisk")
	for range 2 {
		f := must(os.Create(path))
		n, err := s.WriteTo(f)
		if err = errors.Join(err, f.Close()); err != nil || n != s.Info().FileSize {
			t.Fatalf("%d of %d bytes, %v", n, s.Info().FileSize, err)
		}
	}
	if rep := must(Check(t.Context(), path, CheckOptions{})); !rep.Clean() || rep.Commit != want.Commit {
		t.Errorf("the copy is at %s, not %s: %v", rep.Commit, want.Commit, rep.Findings)
	}
	if got := s.Info(); got.Commit != want.Commit || got.Seq != want.Seq || got.UUID != want.UUID || got.Bytes != want.Bytes {
		t.Errorf("%+v, want %+v", got, want)
	}
	c := must(Open(path, OpenOptions{}))
	defer c.Close()
	if got := must(c.Info()); got.Commit != want.Commit {
		t.Errorf("opened at %s", got.Commit)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if _, err := s.WriteTo(&bytes.Buffer{}); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	verify(t, im)
}

// While an image is held no change is made, and reads go on.
func TestPause(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	resume := im.Pause()
	before := must(im.Info())
	done := make(chan error, 1)
	go func() {
		_, err := do(t, im, Txn{}, put("f", "x"))
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("committed: %v", err)
	case <-time.After(50 * time.Millisecond): // a change takes about one
	}
	if now := must(im.Info()); now.Commit != before.Commit {
		t.Error("the head moved")
	}
	resume()
	resume()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if now := must(im.Info()); now.Seq != before.Seq+1 {
		t.Errorf("at %d", now.Seq)
	}
}
