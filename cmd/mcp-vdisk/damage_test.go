package main_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// A damaged disk under a server: what is undamaged is served exactly, what is
// damaged is said to be, nothing ends the process, and fsck tells the rest.

// injured is a state directory whose disk can be damaged and put back.
type injured struct {
	t     *testing.T
	state string
	image string // its file
	sound []byte
	db    string // a copy of the log as it was with sound
	files map[string]stored
	last  string // call of the newest commit
}

const pageSize = 4096

// newInjured makes a disk with files of every size, and enough of them that its
// buckets have branch pages.
func newInjured(t *testing.T) *injured {
	t.Helper()
	d := &injured{t: t, state: newState(t)}
	s := serve(t, d.state)
	s.hello()
	for name, n := range map[string]int{"small": 100, "one": 10_000, "two": 60_000, "many": 400_000} {
		s.ok("write_file", object{"path": name, "content": strings.Repeat("x", n/2) + fmt.Sprintf("%x", noise(n/4, uint64(n)))})
	}
	if r := s.bash("mkdir d; for i in $(seq 400); do echo $i $RANDOM > d/file$i; done; head -c 200000 /dev/urandom > noise"); !strings.HasPrefix(r.Text, "SAVED") {
		t.Fatal(r.Text)
	}
	d.last = s.ok("write_file", object{"path": "newest", "content": "the newest\n"}).Facts["call"].(string)
	s.end()
	d.image = filepath.Join(d.state, "images", "default.vdisk")
	d.files = contents(t, d.state)
	var err error
	if d.sound, err = os.ReadFile(d.image); err != nil {
		t.Fatal(err)
	}
	d.db = filepath.Join(filepath.Dir(d.state), "db of "+filepath.Base(d.state))
	copyTree(t, filepath.Join(d.state, "db"), d.db)
	return d
}

// put writes the file of the image in place, which keeps its owner, and puts back
// the log: else the disk would be older than that.
func (d *injured) put(b []byte) {
	d.t.Helper()
	db := filepath.Join(d.state, "db")
	if err := os.RemoveAll(db); err != nil {
		d.t.Fatal(err)
	}
	copyTree(d.t, d.db, db)
	if err := os.WriteFile(d.image, b, 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// damaged puts a copy that was changed.
func (d *injured) damaged(change func(b []byte) []byte) {
	d.t.Helper()
	d.put(change(bytes.Clone(d.sound)))
}

// find is where a text lies in the file; it has to lie somewhere.
func (d *injured) find(text []byte) (at []int) {
	d.t.Helper()
	for from := 0; ; {
		i := bytes.Index(d.sound[from:], text)
		if i < 0 {
			break
		}
		at = append(at, from+i)
		from += i + 1
	}
	if len(at) == 0 {
		d.t.Fatalf("%q is not in the image", text)
	}
	return at
}

// served is what a server made of a disk.
type served struct {
	code  int               // of a server that did not begin
	words string            // on its standard error
	lost  []string          // files that it said to be damaged
	codes map[string]string // of what else it was asked, "" for success
}

func (got served) whole() bool {
	return got.code == 0 && len(got.lost) == 0 && got.codes["list_files"]+got.codes["write_file"]+got.codes["run_script"] == ""
}

// serve lets a server use the disk as it is. Whatever is no success has to be
// IMAGE_CORRUPT, and whatever is read what was written.
func (d *injured) serve() served {
	t := d.t
	t.Helper()
	s := serveUnread(t, d.state, nil)
	s.torn = true // it may not begin
	go s.read()
	got := served{codes: map[string]string{}}
	if _, ok := s.greet("2025-11-25"); ok {
		s.torn = false
		got.lost = d.read(s)
		for tool, args := range map[string]object{
			"list_files": {"recursive": true, "limit": 1000}, "write_file": {"path": "written", "content": "new\n"},
			"run_script": bashArgs("cat * d/* | wc -c; echo x > made"),
		} {
			got.codes[tool] = d.ask(s, tool, args)
		}
		if again := d.read(s); !slices.Equal(again, got.lost) {
			t.Errorf("lost were %v, and then %v", got.lost, again)
		}
		s.end()
		got.words = s.words()
	} else {
		s.kill()
		got.code, got.words = s.cmd.ProcessState.ExitCode(), s.words()
		plainFailure(t, "serve", output{code: got.code, stderr: got.words})
	}
	if regexp.MustCompile(`goroutine |panic|fatal error|SIG`).MatchString(got.words) {
		t.Errorf("on standard error:\n%s", got.words)
	}
	return got
}

// plainFailure holds a command that could not use a disk to say so plainly.
func plainFailure(t *testing.T, name string, out output) {
	t.Helper()
	if out.code != 10 && out.code != 11 || !regexp.MustCompile(`(?m)^mcp-vdisk: disk .*(is damaged|is not a disk image|has a format that this program does not know)`).MatchString(out.stderr) ||
		regexp.MustCompile(`goroutine |panic|fatal error`).MatchString(out.stdout+out.stderr) {
		t.Errorf("%s: exit %d\n%.3000s%.3000s", name, out.code, out.stdout, out.stderr)
	}
}

// ask makes a call that may meet the damage, and returns its code.
func (d *injured) ask(s *server, tool string, args object) string {
	r := s.call(tool, args)
	if r.IsError && !strings.HasPrefix(r.Text, "IMAGE_CORRUPT: ") || strings.Contains(r.Text, "bbolt") || strings.Contains(r.Text, d.state+"/images") {
		d.t.Errorf("%s %.100s: %.2000s", tool, encoded(args), r.Text)
	}
	if !r.IsError {
		return ""
	}
	return "IMAGE_CORRUPT"
}

// read reads the files, of the many small ones a few, and returns which are lost.
func (d *injured) read(s *server) (lost []string) {
	for _, name := range slices.Sorted(maps.Keys(d.files)) {
		if strings.HasPrefix(name, "d/") && !strings.HasSuffix(name, "00") {
			continue
		}
		args := object{"path": name, "encoding": "base64", "byte_limit": 480_000}
		if d.ask(s, "read_file", args) != "" {
			lost = append(lost, name)
		} else if r := s.call("read_file", args); !strings.HasPrefix(r.Text, base64.StdEncoding.EncodeToString(d.files[name].data)) {
			d.t.Errorf("%s was read wrong: %.300s", name, r.Text)
		}
	}
	return lost
}

// fsck checks the disk, and that its report and its exit code fit together.
func (d *injured) fsck(flags ...string) output {
	d.t.Helper()
	out := command(d.t, d.state, append([]string{"image", "fsck"}, flags...)...)
	said := map[string]int{"clean (": 0, "repaired (": 1, " left (": 10}
	for words, code := range said {
		if strings.Contains(out.stdout, words) != (out.code == code) {
			d.t.Errorf("fsck %v: exit %d\n%.3000s%.3000s", flags, out.code, out.stdout, out.stderr)
		}
	}
	return out
}

// survive uses the damaged disk, checks it, repairs it, and uses it again.
func (d *injured) survive() (before, after served, found, repaired output) {
	t := d.t
	t.Helper()
	found = d.fsck()
	before = d.serve()
	if found.code == 0 && !before.whole() {
		t.Errorf("fsck finds nothing, and the server %+v", before)
	}
	repaired = d.fsck("--repair")
	again := d.fsck()
	if repaired.code < 10 && again.code != 0 { // what a repair says to be lost, such as names of checkpoints, may be told once
		t.Errorf("repaired: exit %d\n%safter that: exit %d\n%s", repaired.code, repaired.stdout, again.code, again.stdout)
	}
	if after = d.serve(); again.code == 0 && !after.whole() {
		t.Errorf("after the repair: %+v\n%s", after, repaired.stdout)
	}
	if kept, err := filepath.Glob(d.image + ".damaged-*"); err == nil {
		for _, name := range kept {
			os.Remove(name)
		}
	}
	return before, after, found, repaired
}

func TestADamagedDiskIsServed(t *testing.T) {
	t.Parallel()
	d := newInjured(t)
	flip := func(at int) { d.damaged(func(b []byte) []byte { b[at] ^= 1; return b }) }

	// One byte of one content.
	flip(d.find(d.files["noise"].data[100_000:100_032])[0])
	before, after, found, _ := d.survive()
	for _, got := range []served{before, after} {
		if got.code != 0 || !slices.Equal(got.lost, []string{"noise"}) || got.codes["write_file"]+got.codes["list_files"] != "" {
			t.Errorf("a damaged chunk: %+v", got)
		}
	}
	if found.code != 10 || !strings.Contains(found.stdout, "/workspace/noise") {
		t.Errorf("a damaged chunk: exit %d\n%s", found.code, found.stdout)
	}
	if before.codes["run_script"] != "IMAGE_CORRUPT" { // its directory cannot be made
		t.Errorf("a damaged chunk: a script runs on %q", before.codes["run_script"])
	}

	// A node of the tree, and the record of a commit: each place that has the
	// content, and that has the call. What is not in use any more may be among them.
	for what, text := range map[string][]byte{"content": d.files["newest"].data, "call": []byte(d.last)} {
		ends := map[int]int{}
		for _, at := range d.find(text) {
			flip(at + 3)
			before, after, found, repaired := d.survive()
			if ends[repaired.code]++; before.code != 0 || found.code == 10 && what == "content" && len(before.lost) == 0 && !strings.Contains(found.stdout, "commit v") {
				t.Errorf("%s at %d: %+v\n%s", what, at, before, found.stdout)
			}
			if len(after.lost) > 0 {
				t.Errorf("%s at %d, repaired: %+v\n%s", what, at, after, repaired.stdout)
			}
		}
		t.Logf("the %s of the newest commit damaged; exit codes of the repair: %v", what, ends)
		if ends[1]+ends[10] == 0 {
			t.Errorf("no place with the %s was in use: %v", what, ends)
		}
	}
}

// Damage that cannot be lived with ends the server before it begins, with a code
// and a sentence.
func TestADiskThatCannotBeServed(t *testing.T) {
	t.Parallel()
	d := newInjured(t)
	for _, c := range []struct {
		name   string
		code   int
		says   string
		change func(b []byte) []byte
	}{
		{"text", 11, "is not a disk image", func([]byte) []byte { return []byte("This is no disk image.\n") }},
		{"one page", 10, "is damaged", func(b []byte) []byte { return b[:pageSize-1] }},
		{"the header alone", 10, "is damaged", func(b []byte) []byte { return b[:2*pageSize] }},
		{"both headers", 10, "is damaged", func(b []byte) []byte { b[40] ^= 1; b[pageSize+40] ^= 1; return b }},
		{"another format", 11, "version 99", d.anotherFormat},
	} {
		d.damaged(c.change)
		before, err := os.ReadFile(d.image)
		if err != nil {
			t.Fatal(err)
		}
		if got := d.serve(); got.code != c.code || !strings.Contains(got.words, c.says) {
			t.Errorf("%s: serve: %+v", c.name, got)
		}
		for _, args := range [][]string{{"image", "show"}, {"image", "tree"}, {"call", "list_files", "{}"}} {
			out := command(t, d.state, args...)
			if plainFailure(t, c.name+": "+args[1], out); out.code != c.code {
				t.Errorf("%s: %v: exit %d", c.name, args, out.code)
			}
		}
		if now, err := os.ReadFile(d.image); err != nil || !bytes.Equal(now, before) {
			t.Errorf("%s: its file was changed", c.name)
		}
	}

	// Every branch page leads to itself.
	branches := 0
	d.damaged(func(b []byte) []byte {
		o := binary.NativeEndian
		for at := 2 * pageSize; at < len(b); at += pageSize {
			if page := b[at:]; o.Uint64(page) == uint64(at/pageSize) && o.Uint16(page[8:]) == 1 && o.Uint16(page[10:]) > 0 {
				o.PutUint64(page[16+8:], uint64(at/pageSize))
				branches++
			}
		}
		return b
	})
	if branches == 0 {
		t.Fatal("no branch pages")
	}
	for _, args := range [][]string{{"image", "show"}, {"image", "log"}, {"image", "get", "/workspace", filepath.Join(passable(t), "out")}} {
		plainFailure(t, args[1], command(t, d.state, args...))
	}
	before, after, found, repaired := d.survive()
	if before.code != 10 || found.code != 10 || repaired.code != 1 || !after.whole() {
		t.Errorf("pages that lead to themselves: served %+v, found %d, repaired %d\n%s\nserved %+v", before, found.code, repaired.code, repaired.stdout, after)
	}

	// Cut short, it is served as far as it goes, or not.
	for _, part := range []int{10, 3, 2} {
		d.damaged(func(b []byte) []byte { return b[:len(b)/part+100] })
		before, _, found, _ := d.survive()
		t.Logf("1/%d of the file: serve exit %d, %d files lost, fsck exit %d", part, before.code, len(before.lost), found.code)
	}

	// What is no file, and what is not there.
	if err := os.Remove(d.image); err != nil {
		t.Fatal(err)
	}
	if out := command(t, d.state, "serve", "--read-only"); out.code != 3 || !strings.Contains(out.stderr, "there is no disk") {
		t.Errorf("no image: %+v", out)
	}
	if err := os.Mkdir(d.image, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := d.serve(); got.code != 11 || !strings.Contains(got.words, "not a regular file") {
		t.Errorf("a directory: %+v", got)
	}
}

// anotherFormat is the disk as a later program may write it. The value is sealed
// with CRC-32C over key and value, like every one.
func (d *injured) anotherFormat(b []byte) []byte {
	name := filepath.Join(d.t.TempDir(), "later.vdisk")
	err := os.WriteFile(name, b, 0o600)
	if err == nil {
		var db *bolt.DB
		if db, err = bolt.Open(name, 0o600, &bolt.Options{PageSize: pageSize}); err == nil {
			key, value := []byte("format"), []byte{99}
			sum := crc32.Checksum(append(slices.Clone(key), value...), crc32.MakeTable(crc32.Castagnoli))
			err = errors.Join(db.Update(func(tx *bolt.Tx) error {
				return tx.Bucket([]byte("meta")).Put(key, binary.LittleEndian.AppendUint32(value, sum))
			}), db.Close())
		}
	}
	if err != nil {
		d.t.Fatal(err)
	}
	b, err = os.ReadFile(name)
	if err != nil {
		d.t.Fatal(err)
	}
	return b
}

// Damage at random.
func TestRandomDamageServed(t *testing.T) {
	t.Parallel()
	d := newInjured(t)
	n, first := max(rounds(40), 1), uint64(time.Now().UnixNano())
	if v := os.Getenv("MCP_VDISK_DAMAGE_SEED"); v != "" {
		if _, err := fmt.Sscan(v, &first); err != nil {
			t.Fatal(err)
		}
		n = 1
	}
	ends := map[string]int{}
	for i := range uint64(n) {
		what := ""
		d.damaged(func(b []byte) []byte { what = harm(rand.New(rand.NewPCG(first+i, 0)), b); return b })
		before, after, found, repaired := d.survive()
		ends[fmt.Sprintf("serve exit %d", before.code)]++
		ends[fmt.Sprintf("fsck exit %d", found.code)]++
		ends[fmt.Sprintf("repair exit %d", repaired.code)]++
		ends["files lost"] += len(before.lost)
		ends["files lost after the repair"] += len(after.lost)
		if t.Failed() {
			t.Fatalf("MCP_VDISK_DAMAGE_SEED=%d, %s\n%.3000s", first+i, what, repaired.stdout)
		}
	}
	t.Logf("%d damaged disks, seeds from %d: %v", n, first, ends)
}

// harm does one to three things to pages in use behind the header.
func harm(r *rand.Rand, b []byte) (what string) {
	for range 1 + r.IntN(3) {
		used := len(b)/pageSize - 2
		for used > 1 && len(bytes.Trim(b[(used+1)*pageSize:(used+2)*pageSize], "\x00")) == 0 {
			used--
		}
		page := 2 + r.IntN(used)
		at := page * pageSize
		switch r.IntN(6) {
		case 0:
			clear(b[at:][:pageSize])
			what += fmt.Sprintf("page %d zeroed; ", page)
		case 1:
			to := 2 + r.IntN(used)
			copy(b[to*pageSize:][:pageSize], b[at:])
			what += fmt.Sprintf("page %d over page %d; ", page, to)
		case 2, 3: // where the structure is
			off := at + r.IntN(16+8*16)
			b[off] ^= 1 << r.IntN(8)
			what += fmt.Sprintf("bit of page %d + %d; ", page, off-at)
		default:
			off := at + r.IntN(pageSize)
			b[off] ^= 1 << r.IntN(8)
			what += fmt.Sprintf("bit of page %d + %d; ", page, off-at)
		}
	}
	return what
}
