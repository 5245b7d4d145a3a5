package workspace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// damageEnv makes the test binary the process that uses a damaged image: its
// value is the image, beside which lies what was in it.
const damageEnv = "MCP_VDISK_DAMAGED"

// TestRandomDamages damages copies of an image at random and uses them in a
// process each, which must live, serve no wrong byte, and find the damage.
func TestRandomDamages(t *testing.T) {
	rounds := 20
	if soak() {
		rounds = 200
	}
	s := newSample(t, 300)
	first := uint64(time.Now().UnixNano())
	if v := os.Getenv("MCP_VDISK_DAMAGE_SEED"); v != "" {
		if _, err := fmt.Sscan(v, &first); err != nil {
			t.Fatal(err)
		}
		rounds = 1
	}
	harmless := 0
	for i := range uint64(rounds) {
		seed := first + i
		b, what := damageAtRandom(rand.New(rand.NewPCG(seed, 0)), bytes.Clone(s.bytes))
		path := s.write(t, b)
		facts := must(json.Marshal(map[string]any{"now": s.now, "versions": s.versions}))
		if err := os.WriteFile(path+".json", facts, 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), damageEnv+"="+path)
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil || len(out) > 0 && !bytes.Equal(out, []byte("harmless\n")) {
			t.Errorf("MCP_VDISK_DAMAGE_SEED=%d, %s: %v\n%.3000s", seed, what, err, out)
		}
		harmless += len(out) / len("harmless\n")
		os.RemoveAll(filepath.Dir(path))
	}
	t.Logf("%d damaged images, seeds from %d; %d damages changed nothing that is in use", rounds, first, harmless)
}

// damageAtRandom does one to three things to a file.
func damageAtRandom(r *rand.Rand, b []byte) ([]byte, string) {
	what := ""
	for range 1 + r.IntN(3) {
		pages := len(b) / pageSize
		if pages < 3 {
			break
		}
		page := r.IntN(pages)
		at := page * pageSize
		switch r.IntN(8) {
		case 0:
			clear(b[at:][:pageSize])
			what += fmt.Sprintf("page %d zeroed; ", page)
		case 1:
			to := r.IntN(pages)
			copy(b[to*pageSize:][:pageSize], b[at:])
			what += fmt.Sprintf("page %d over page %d; ", page, to)
		case 2:
			n := r.IntN(len(b))
			b = b[:n]
			what += fmt.Sprintf("cut to %d; ", n)
		case 3, 4: // where the structure is
			off := at + r.IntN(pageFront+8*elementSize)
			b[off] ^= 1 << r.IntN(8)
			what += fmt.Sprintf("bit of %d (page %d + %d); ", off, page, off-at)
		default:
			off := r.IntN(len(b))
			b[off] ^= 1 << r.IntN(8)
			what += fmt.Sprintf("bit of %d (page %d + %d); ", off, off/pageSize, off%pageSize)
		}
	}
	return b, what
}

// useDamaged is the process: what it prints is wrong.
func useDamaged(path string) int {
	var s sample
	var facts struct{ Now, Versions map[string]string }
	if err := json.Unmarshal(must(os.ReadFile(path+".json")), &facts); err != nil {
		panic(err)
	}
	s.now, s.versions = facts.Now, facts.Versions
	u := &damagedUse{s: &s, path: path}
	u.run()
	return 0
}

type damagedUse struct {
	s    *sample
	path string
	had  map[string]bool // paths that were read, all bytes right, when they were last read
}

func (u *damagedUse) wrong(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// coded says that an error is one of those that damage may give.
func (u *damagedUse) coded(op string, err error) {
	if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNotImage) && !errors.Is(err, ErrFormat) {
		u.wrong("%s: %v", op, err)
	}
}

func (u *damagedUse) run() {
	lost, opened := u.readAll("before")
	report, err := u.check(false)
	if err != nil {
		return // no image any more
	}
	clean := report.Clean()
	if clean && (lost > 0 || !opened) {
		u.wrong("%d paths cannot be had (it opens: %v), and a check finds nothing", lost, opened)
	}
	if clean {
		fmt.Println("harmless")
	}
	u.tryWrite(clean)
	before := u.had
	u.readAll("after a write")
	u.wantKept("a write", before)
	before = u.had
	repaired, err := u.check(true)
	if err != nil {
		return
	}
	left := map[string]bool{}
	for _, f := range repaired.Findings {
		if !f.Repaired {
			left[f.about()] = true
		}
	}
	again, err := u.check(false)
	if err != nil {
		u.wrong("after the repair: %v", err)
		return
	}
	for _, f := range again.Findings {
		if !left[f.about()] && repaired.More == 0 {
			u.wrong("found only after the repair: %s %v", f.Kind, f)
		}
	}
	older := false
	// A write may have made the header whole already.
	for _, f := range slices.Concat(report.Findings, repaired.Findings) {
		older = older || f.Kind == FindHeader
	}
	lost, opened = u.readAll("after the repair")
	u.wantKept("the repair", before)
	if repaired.Clean() && (!opened || lost > 0 && !older) {
		u.wrong("the repair says that all is well, and %d paths are lost (it opens: %v)", lost, opened)
	}
	u.tryWrite(repaired.Clean())
}

// wantKept wants every path that could be read before something still to be.
func (u *damagedUse) wantKept(what string, before map[string]bool) {
	var lost []string
	for rel := range before {
		if !u.had[rel] {
			lost = append(lost, rel)
		}
	}
	if len(lost) > 0 {
		u.wrong("%s took %d paths that could be read before it: %.300q", what, len(lost), lost)
	}
}

func (u *damagedUse) check(repair bool) (*Report, error) {
	r, err := Check(context.Background(), u.path, CheckOptions{Repair: repair})
	if err != nil {
		u.coded("check", err)
	}
	return r, err
}

// readAll opens the image for writing, as a server does, and reads it.
func (u *damagedUse) readAll(when string) (lost int, opened bool) {
	u.had = map[string]bool{}
	im, err := Open(u.path, OpenOptions{})
	if err != nil {
		u.coded("open", err)
		return 0, false
	}
	defer im.Close()
	gone := u.s.read(im, func(format string, args ...any) { u.wrong(when+": "+format, args...) })
	for rel := range u.s.now {
		u.had[rel] = true
	}
	for _, rel := range gone {
		delete(u.had, rel)
	}
	log, _ := im.Log(0, 1<<20)
	for _, c := range log {
		for _, e := range c.Effects {
			u.readOld(im, e)
		}
	}
	_, err = im.Info()
	if err != nil {
		u.coded("info", err)
	}
	return len(gone), true
}

func (u *damagedUse) readOld(im *Image, e Effect) {
	if e.After == nil || e.After.Kind != KindFile {
		return
	}
	f, err := im.OpenNode(e.Path, *e.After)
	var body bytes.Buffer
	if err == nil {
		_, err = body.ReadFrom(f.Reader())
	}
	if err != nil {
		u.coded("an older version", err)
	} else if got := seen(*e.After, body.String()); got != u.s.versions[at(e.Path, e.After.Version)] && e.Path.Rel() != "new" {
		u.wrong("%v at version %d is %s", e.Path, e.After.Version, got)
	}
}

func (u *damagedUse) tryWrite(must bool) {
	im, err := Open(u.path, OpenOptions{})
	if err != nil {
		u.coded("open", err)
		return
	}
	defer im.Close()
	stage := im.Stage(context.Background())
	defer stage.Discard()
	c, err := stage.Add(bytes.NewReader(bytes.Repeat([]byte("new\n"), 200)))
	if err == nil {
		_, err = im.Commit(context.Background(), Txn{Stage: stage, Changes: []Change{
			{Op: OpPut, Path: Path{"new"}, Content: c},
		}})
	}
	if err != nil {
		u.coded("write", err)
		if must {
			u.wrong("it is clean and cannot be written: %v", err)
		}
	}
}
