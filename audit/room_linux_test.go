package audit

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// fullDisk is where the child of TestFullDisk mounts a file system of 64 MB.
const fullDisk = "AUDIT_TEST_FULL_DISK"

// TestFullDisk: on a disk that is full the database is neither opened nor closed,
// and the process goes on. What was acknowledged is there when there is room
// again. It runs itself in namespaces of its own, where it may mount; the
// last opening is one of a copy, as the database that was not closed stays locked.
func TestFullDisk(t *testing.T) {
	if place := os.Getenv(fullDisk); place != "" {
		onFullDisk(t, place)
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), fullDisk+"="+t.TempDir())
	const sysAdmin = 21 // CAP_SYS_ADMIN, in the namespace only
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		AmbientCaps: []uintptr{sysAdmin},
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestFullDisk") {
		t.Errorf("%v\n%s", err, out)
	}
}

func onFullDisk(t *testing.T, place string) {
	if err := syscall.Mount("tmpfs", place, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	dir, filler := filepath.Join(place, "db"), filepath.Join(place, "filler")
	db, err := OpenDB(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	log, err := New(db, filepath.Join(dir, "tail"), Options{MinFree: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.Append(t.Context(), "s", intentOf("a")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filler, make([]byte, 64<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	if err := CloseDB(db, dir); err != nil || db.IsClosed() {
		t.Errorf("closed %v, %v", db.IsClosed(), err)
	}
	again := filepath.Join(place, "copy") // not locked
	if _, err := OpenDB(again, nil); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "too little free space") {
		t.Errorf("opening on a full disk: %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "AUDIT_TEST_OPENER="+copied(t, dir, again))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "opened: [s]") {
		t.Errorf("%v\n%s", err, out)
	}
	if err := CloseDB(db, dir); err != nil || !db.IsClosed() {
		t.Errorf("closed with room: %v, %v", db.IsClosed(), err)
	}
}

// copied copies the files of a database with their holes, which is why it is not
// os.CopyFS: Badger's files are bigger than the disk.
func copied(t *testing.T, from, to string) string {
	if out, err := exec.Command("cp", "-r", "--sparse=always", from+"/.", to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return to
}

// A log whose disk became full while a group waited gives its waiters an error,
// and keeps the notes in the tail.
func TestCloseOfTheLogOnAFullDisk(t *testing.T) {
	var full atomic.Bool
	f := newFixture(t, Options{})
	f.close()
	f.o.Free = func() (uint64, error) {
		if full.Load() {
			return MinOpenFree - 1, nil
		}
		return DefaultMinFree, nil
	}
	f.open()
	f.log.lock()
	f.log.save = func(*batch) error { panic("written on a full disk") }
	f.log.unlock()
	f.queueNote("s", intentOf("a"))
	full.Store(true)
	if err := f.log.Close(); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
	f.log = nil
	full.Store(false)
	f.reopen()
	if got, err := f.log.Verify(t.Context(), "s"); err != nil || !got.OK || got.Records != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// queueNote does what Note does, but its group is not due for a long time.
func (f *fixture) queueNote(stream string, e Entry) {
	f.Helper()
	p, err := f.log.prepare(stream, e)
	if err != nil {
		f.Fatal(err)
	}
	f.log.lock()
	defer f.log.unlock()
	s, now := f.log.stream(stream), moment{f.log.o.Clock(), f.log.o.Mono() / 1000, f.log.o.Boot}
	it := makeItem(s, now, p)
	if err := f.log.spill(it); err != nil {
		f.Fatal(err)
	}
	f.log.push(s, it, now, p.move, p.call).due = time.Now().Add(time.Hour)
}
