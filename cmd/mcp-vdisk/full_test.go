package main_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// The disk of the host gets full under a server. Whatever is asked of it then is
// answered with success or with what is wrong; it lives, nothing old is lost, and
// when there is room again everything works, in the same process.

// fullDisk is where the child of TestFullDisk mounts a small file system.
const fullDisk = "MCP_VDISK_TEST_FULL_DISK"

// TestFullDisk runs itself in a mount namespace of its own, and, as an ordinary
// user, in a user namespace, where it may mount.
func TestFullDisk(t *testing.T) {
	if place := os.Getenv(fullDisk); place != "" {
		onSmallDisk(t, place)
		return
	}
	t.Parallel()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), fullDisk+"="+passable(t), "MCP_VDISK_TEST_BIN="+program)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if !isRoot() {
		const sysAdmin = 21 // CAP_SYS_ADMIN, in the namespace only
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
			AmbientCaps: []uintptr{sysAdmin},
		}
	}
	out, err := cmd.CombinedOutput()
	switch why := regexp.MustCompile(`(?m)^.*no file system to fill: .*$`).Find(out); {
	case why != nil:
		t.Skipf("%s", why)
	case err != nil || !bytes.Contains(out, []byte("--- PASS: TestFullDisk")):
		t.Errorf("%v\n%s", err, out)
	default:
		for _, line := range regexp.MustCompile(`(?m)^ +full_test.go:\d+: (.*)$`).FindAllSubmatch(out, -1) {
			t.Logf("%s", line[1])
		}
	}
}

// onSmallDisk does it all for several levels of free space.
func onSmallDisk(t *testing.T, place string) {
	mountSmallDisk(t, place)
	base := newFullDisk(t, filepath.Join(place, "base"))
	base.copy("daemon", nil).daemon()
	levels := []int64{48 << 20, 0, 33 << 20, 60 << 20, 35 << 20, 16 << 20, 31 << 20, 32 << 20, 32<<20 + 4096, 37 << 20, 40 << 20, 44 << 20, 52 << 20, 56 << 20, 64 << 20, 72 << 20, 80 << 20}
	answers := map[string]int{}
	n := max(rounds(2*len(levels))-1, 1)
	for i := range n {
		d := base.copy(fmt.Sprint("level", i), answers)
		d.memory = i%len(levels)%2 == i/len(levels) // the other way round in the second turn
		d.serve(levels[i%len(levels)])
		if i == 0 || n > len(levels) {
			d.commands(levels[i%len(levels)])
			d.check()
		}
		d.remove()
		if t.Failed() {
			t.Fatalf("with %d bytes free, in memory: %v", levels[i%len(levels)], d.memory)
		}
	}
	var list []string
	for _, what := range slices.Sorted(maps.Keys(answers)) {
		list = append(list, fmt.Sprintf("%s %d", what, answers[what]))
	}
	t.Logf("%d levels of free space: %s", n, strings.Join(list, ", "))
}

const smallDisk = 256 << 20

func mountSmallDisk(t *testing.T, place string) {
	err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "") // or all of the host would see it
	if err == nil {
		err = syscall.Mount("tmpfs", place, "tmpfs", 0, fmt.Sprintf("mode=0755,size=%d", smallDisk))
	}
	if err != nil {
		t.Fatalf("no file system to fill: %s", err)
	}
	if !isRoot() { // what this thread starts is not to have what it took to mount
		const ambient, clearAll = 47, 4 // prctl(2) PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL
		runtime.LockOSThread()
		if _, _, errno := syscall.Syscall(syscall.SYS_PRCTL, ambient, clearAll, 0); errno != 0 {
			t.Fatal(errno)
		}
	}
}

// crowded is a state directory on the small file system.
type crowded struct {
	t       *testing.T
	state   string
	memory  bool // scripts write to memory, not to this disk
	answers map[string]int
	refused map[string]string // call by id
	s       *server
}

// Nothing is compressible, so that what is stored takes the room that it seems to.
func noise(n int, seed uint64) []byte {
	b, r := make([]byte, n), rand.New(rand.NewPCG(seed, 0))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// newFullDisk makes a state directory whose disk holds 9 MB that no script has
// seen yet.
func newFullDisk(t *testing.T, state string) *crowded {
	t.Helper()
	must(t, state, "image", "create")
	d := &crowded{t: t, state: state, memory: true}
	s := d.start()
	for i := range uint64(3) {
		s.ok("write_file", object{"path": fmt.Sprint("keep", i), "content": base64.StdEncoding.EncodeToString(noise(3_000_000, i)), "encoding": "base64"})
	}
	s.ok("write_file", object{"path": "old", "content": "old\n"})
	s.end()
	return d
}

// copy makes another one; Badger's files have holes.
func (d *crowded) copy(name string, answers map[string]int) *crowded {
	d.t.Helper()
	to := filepath.Join(filepath.Dir(d.state), name)
	if out, err := exec.Command("cp", "-a", "--sparse=always", d.state, to).CombinedOutput(); err != nil {
		d.t.Fatalf("%v: %s", err, out)
	}
	return &crowded{t: d.t, state: to, answers: answers, refused: map[string]string{}}
}

func (d *crowded) remove() {
	d.t.Helper()
	if err := os.RemoveAll(d.state); err != nil {
		d.t.Fatal(err)
	}
}

// start starts a server as the owner of the state, which is asked for as little
// free space as can be.
func (d *crowded) start() *server {
	d.t.Helper()
	config := "[audit]\nmin_free = \"32MiB\"\n[script]\nscratch = \"disk\"\n"
	if d.memory {
		config = strings.Replace(config, "disk", "memory", 1)
	}
	name := filepath.Join(d.state, "config.toml")
	if err := os.WriteFile(name, []byte(config), 0o644); err != nil {
		d.t.Fatal(err)
	}
	s := serveCommand(d.t, asOwner(d.t, d.state, exec.Command(program, "serve", "--state", d.state)))
	go s.read()
	s.hello()
	return s
}

func (d *crowded) filler() string { return filepath.Join(filepath.Dir(d.state), "filler") }

// leave leaves so many bytes of the disk free.
func (d *crowded) leave(free int64) {
	d.t.Helper()
	if err := os.WriteFile(d.filler(), nil, 0o600); err != nil {
		d.t.Fatal(err)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(d.filler(), &st); err != nil {
		d.t.Fatal(err)
	}
	if n := int64(st.Bavail)*st.Bsize - free; n > 0 {
		f, err := os.OpenFile(d.filler(), os.O_WRONLY, 0)
		if err == nil {
			err = errors.Join(syscall.Fallocate(int(f.Fd()), 0, 0, n), f.Close())
		}
		if err != nil {
			d.t.Fatal(err)
		}
	}
}

func (d *crowded) makeRoom() {
	d.t.Helper()
	if err := os.Remove(d.filler()); err != nil {
		d.t.Fatal(err)
	}
}

// serve asks a server for everything with so much free before each call, and then
// once more with room.
func (d *crowded) serve(free int64) {
	t := d.t
	d.s = d.start()
	for round, level := range []int64{free, -1} {
		seed := uint64(100 * (round + 1))
		for _, c := range []struct {
			tool string
			args object
		}{
			{"write_file", object{"path": "small", "content": fmt.Sprint("small", round)}},
			{"write_file", object{"path": "new", "content": base64.StdEncoding.EncodeToString(noise(3_000_000, seed)), "encoding": "base64"}},
			{"run_script", bashArgs("cat keep* | wc -c")}, // its view must be made
			{"run_script", bashArgs("head -c 20000000 /dev/urandom > big")},
			{"run_script", bashArgs("for i in $(seq 40000); do echo line $i; done")},
			{"run_script", bashArgs("head -c 20000000 /dev/urandom > dropped; exit 1")},
			{"make_directory", object{"path": "dir"}},
			{"write_file", object{"path": "old", "content": "more\n", "mode": "append"}},
			{"delete_file", object{"path": "small"}},
		} {
			if level >= 0 {
				d.leave(level)
			}
			d.ask(c.tool, c.args, level >= 0)
		}
		if level >= 0 {
			d.fillMeanwhile()
			d.makeRoom()
		}
		for i := range uint64(3) {
			r := d.s.ok("run_script", bashArgs(fmt.Sprintf("cat keep%d | sha256sum", i)))
			if want := fmt.Sprintf("%x", sha256.Sum256(noise(3_000_000, i))); !strings.Contains(r.Text, want) {
				t.Errorf("keep%d is not what it was: %s", i, r.Text)
			}
		}
	}
	d.s.end()
	d.check()
}

// daemon asks the same of a daemon: one that cannot start says why to its client,
// and one that runs serves whoever comes as far as there is room.
func (d *crowded) daemon() {
	t := d.t
	front := func() *server {
		t.Helper()
		cmd := asOwner(t, d.state, frontOf(d.state, "serve"))
		return serveVia(t, cmd)
	}
	d.leave(0)
	failing(t, asOwner(t, d.state, frontOf(d.state, "serve")), 11, "make room")
	d.makeRoom()
	a := front()
	a.hello()
	a.ok("write_file", object{"path": "small", "content": "x"})
	d.leave(0)
	for i := range 20 {
		if r := a.call("write_file", object{"path": fmt.Sprint("f", i), "content": "x"}); r.IsError && !strings.HasPrefix(r.Text, "AUDIT_UNAVAILABLE: ") && !strings.HasPrefix(r.Text, "NO_SPACE: ") {
			t.Errorf("without room: %s", r.Text)
		}
	}
	if out := outputOf(t, asOwner(t, d.state, frontOf(d.state, "serve"))); out.code != 0 && !strings.Contains(out.stderr, "room") {
		t.Errorf("a client that comes without room: exit %d %s", out.code, out.stderr)
	}
	d.makeRoom()
	a.ok("read_file", object{"path": "small"})
	b := front()
	b.hello()
	b.ok("write_file", object{"path": "after", "content": "x"})
	a.ok("read_file", object{"path": "after"})
	a.end()
	b.end()
	if out := outputOf(t, asOwner(t, d.state, frontOf(d.state, "daemon", "stop"))); out.code != 0 {
		t.Errorf("stop: exit %d %s", out.code, out.stderr)
	}
	d.remove()
}

func bashArgs(source string) object { return object{"language": "bash", "source": source} }

// ask makes a call, which may fail for want of room only when there is little.
func (d *crowded) ask(tool string, args object, little bool) {
	d.t.Helper()
	r := d.s.call(tool, args)
	code, _, _ := strings.Cut(r.Text, ":")
	switch {
	case !r.IsError && strings.Contains(r.Text, "could not be kept: the host has no room for it"):
		d.answers["ok without all of its output"]++
	case !r.IsError:
		d.answers["ok"]++
	case little && (code == "NO_SPACE" || code == "AUDIT_UNAVAILABLE"):
		d.answers[code]++
		d.refused[r.Facts["call"].(string)] = fmt.Sprintf("%s %.100s: %s", tool, encoded(args), r.Text)
	default:
		d.t.Errorf("%s %.100s: %s", tool, encoded(args), r.Text)
	}
	if r := d.s.call("read_file", object{"path": "old"}); r.IsError && !(little && strings.HasPrefix(r.Text, "AUDIT_UNAVAILABLE")) {
		d.t.Errorf("read after %s: %s", tool, r.Text)
	}
}

// fillMeanwhile lets the disk get full while a script runs, whose output then has
// no room either.
func (d *crowded) fillMeanwhile() {
	d.t.Helper()
	d.makeRoom()
	marker := unique()
	id := d.s.askCall("run_script", object{"language": "bash", "args": []string{marker},
		"source": "sleep 1.5; seq 40000; head -c 1000000 /dev/urandom > meanwhile"})
	within(d.t, patience, "the script runs", func() bool { return len(marked(d.t, marker)) > 0 })
	d.leave(0)
	r := d.s.answer(id).result(d.t)
	code, _, _ := strings.Cut(r.Text, ":")
	if !r.IsError || code != "NO_SPACE" && code != "AUDIT_UNAVAILABLE" {
		d.t.Errorf("the disk got full under a script: %s", r.Text)
	}
	d.answers["full meanwhile: "+code]++
	d.refused[r.Facts["call"].(string)] = "the script under which the disk got full"
	d.makeRoom()
	d.leave(smallDisk / 2)
	r = d.s.call("run_script", object{"job": r.Facts["job"], "output_offset": 60_000})
	if lost, _ := r.Facts["output_lost"].(float64); lost > 0 && strings.Contains(r.Text, "could not be kept: the host has no room for it") {
		d.answers["output lost"]++
	} else {
		d.t.Errorf("the output that had no room: %s", r.Text)
	}
}

// check looks at what is there in the end. What was refused has not happened.
func (d *crowded) check() {
	d.t.Helper()
	for _, args := range [][]string{{"audit", "verify"}, {"image", "fsck", "--live", "--cross"}} {
		if out := d.command(args...); out.code != 0 {
			d.t.Errorf("%v: exit %d\n%s%s", args, out.code, out.stdout, out.stderr)
		}
	}
	for _, c := range look(d.t, d.state).commits {
		if call := d.refused[c.Call]; call != "" {
			d.t.Errorf("v%d is of a call that was refused: %s", c.Seq, call)
		}
	}
	files := contents(d.t, d.state)
	for i := range uint64(3) {
		if name := fmt.Sprint("keep", i); !bytes.Equal(files[name].data, noise(3_000_000, i)) {
			d.t.Errorf("%s is not what it was", name)
		}
	}
}

// commands runs what a person runs, each with so much free, and then with room.
func (d *crowded) commands(free int64) {
	for _, level := range []int64{free, -1} {
		for _, args := range [][]string{
			{"image", "checkpoint", fmt.Sprint("mark", level)},
			{"image", "restore", "v4", "/workspace/keep2"},
			{"image", "restore", "v3"},
			{"image", "restore", "v5"},
			{"call", "run_script", `{"language":"bash","source":"head -c 20000000 /dev/urandom > big"}`},
		} {
			if level >= 0 {
				d.leave(level)
			}
			out := d.command(args...)
			name := fmt.Sprintf("%s exit %d", args[1], out.code)
			text := out.stdout + out.stderr
			switch {
			case out.code == 0:
			case level >= 0 && (out.code == 1 || out.code == 11 || out.code == 5) && regexp.MustCompile(`NO_SPACE|AUDIT_UNAVAILABLE|no space|too little free space|bytes are free on the disk of the log`).MatchString(text):
			default:
				d.t.Errorf("%v, %d bytes free: exit %d\n%s", args, level, out.code, text)
			}
			d.answers[name]++
			if level >= 0 {
				d.makeRoom()
			}
		}
	}
}

func (d *crowded) command(args ...string) output {
	d.t.Helper()
	return outputOf(d.t, asOwner(d.t, d.state, exec.Command(program, append([]string{"--state", d.state}, args...)...)))
}
