package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// failpoints are the steps at which TestKillAtEveryStep kills a process, and
// for the how-manieth time it comes there.
var failpoints = map[string][]int{
	"create.temp":          {1, 3},
	"create.initialised":   {1, 3},
	"create.synced":        {1, 3},
	"create.linked":        {1, 3},
	"create.published":     {1, 3},
	"open.sweep":           {1, 3},
	"open.swept":           {1, 3},
	"sweep.batch":          {1, 3},
	"stage.flush":          {1, 3},
	"stage.marked":         {1, 3},
	"stage.flushed":        {1, 3},
	"discard.begin":        {1, 3},
	"discard.end":          {1, 3},
	"copy.temp":            {1},
	"copy.batch":           {1, 2, 4},
	"copy.filled":          {1},
	"compact.copied":       {1},
	"compact.renamed":      {1},
	"gc.decided":           {1, 2},
	"gc.dropped":           {1, 2},
	"gc.indexed":           {1},
	"gc.freed":             {1, 2, 3, 4},
	"commit.begin":         {1, 3},
	"commit.fence":         {1, 3},
	"commit.preconditions": {1, 3},
	"commit.later":         {1, 3},
	"commit.apply":         {1, 3},
	"commit.effects":       {1, 3},
	"commit.base":          {1, 3},
	"commit.quota":         {1, 3},
	"commit.admit":         {1, 3},
	"commit.settled":       {1, 3},
	"commit.recorded":      {1, 3},
	"commit.durable":       {1, 3},
	"update.filled":        {1, 3, 4, 6, 7, 8, 9, 12, 16},
	"update.durable":       {1, 3, 4, 6, 7, 8, 9, 12, 16},
}

// scriptEnv makes the test binary the process that works through workScript,
// in the directory that is its value.
const scriptEnv = "MCP_VDISK_SCRIPT"

func init() { roles[scriptEnv] = scriptProcess }

// act is one step of the script: one of its fields is set.
type act struct {
	commit  []step
	discard string // a content that is staged and given back
	reopen  string // a content that is staged and left behind by a process that ends
	copied  bool   // the image is copied
}

// workScript has every kind of work that writes.
var workScript = sync.OnceValue(func() []act {
	big := string(randomBytes(1, 20<<20))
	edited := big[:10<<20] + "edited" + big[10<<20:]
	staged := func(seed byte) string { return string(randomBytes(seed, stageBytes+100_000)) }
	many := make([]step, 300)
	for i := range many {
		many[i] = put(fmt.Sprintf("many/%d/%d", i%7, i), fmt.Sprint("small content ", i))
	}
	return []act{
		{commit: []step{put("a", "alpha"), put("d/b", lines(50))}},
		{commit: []step{put("big", big), put("d/sub/deep", "x\n")}},
		{commit: []step{put("copy", big), put("d/c", lines(50)), link("l", "big")}},
		{discard: staged(2)},
		{reopen: staged(3)},
		{commit: []step{
			mkdir("d").with(func(c *Change) { c.Opaque = true }), put("d/new", lines(20)),
			mkdir("e/f/g"), remove("a"), link("l", "d/new").with(replacing),
		}},
		{discard: staged(4)},
		{commit: many},
		{reopen: staged(5)},
		{commit: []step{put("big", edited), remove("copy"), put("e", "a file").with(replacing)}},
		{commit: []step{remove("many"), put("a", "again")}},
		{discard: staged(6)},
		{copied: true},
		{reopen: staged(7)},
		{commit: []step{put("last", lines(3000))}},
	}
})

// scriptImages are made in this order; the work is done on the last.
var scriptImages = []string{"one.vdisk", "two.vdisk", "work.vdisk"}

// scriptCopy is a copy of the last, from before the work is done.
const scriptCopy = "copy.vdisk"

func scriptCall(i int) string { return fmt.Sprintf("call-%d", i) }

// scriptProcess says on stdout what is done, and therefore has to be there
// whatever happens to the process.
func scriptProcess(dir string) int {
	if err := runScript(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("end")
	return 0
}

func runScript(dir string) error {
	for _, name := range scriptImages {
		im, err := Create(filepath.Join(dir, name), CreateOptions{})
		if err != nil {
			return err
		}
		fmt.Println("created", name)
		if err := im.Close(); err != nil {
			return err
		}
	}
	path := filepath.Join(dir, scriptImages[len(scriptImages)-1])
	im, err := Open(path, OpenOptions{})
	if err != nil {
		return err
	}
	ctx := context.Background()
	for i, a := range workScript() {
		s := im.Stage(ctx)
		if a.discard != "" || a.reopen != "" {
			if _, err := s.Add(strings.NewReader(a.discard + a.reopen)); err != nil {
				return err
			}
		}
		switch {
		case a.discard != "":
			err = s.Discard()
		case a.copied:
			if _, err = im.CopyTo(ctx, filepath.Join(dir, scriptCopy), CopyOptions{}); err == nil {
				fmt.Println("copied")
			}
		case a.reopen != "":
			if err = im.Close(); err == nil {
				im, err = Open(path, OpenOptions{})
			}
		default:
			if err = commitSteps(im, s, scriptCall(i), a.commit); err == nil {
				fmt.Println(scriptCall(i))
			}
		}
		if err != nil {
			return err
		}
	}
	if err := im.Close(); err != nil {
		return err
	}
	return runCollections(dir)
}

// scriptCollected is an image of which the history is cut.
const scriptCollected = "collected.vdisk"

// runCollections leaves chunks that nothing needs, among them one of two with the same
// bytes, and collects them, twice.
func runCollections(dir string) error {
	im, err := Create(filepath.Join(dir, scriptCollected), CreateOptions{})
	if err != nil {
		return err
	}
	ctx := context.Background()
	a, b := im.Stage(ctx), im.Stage(ctx)
	for _, s := range []*Stage{a, b} {
		if _, err := s.Add(strings.NewReader(lines(400))); err != nil {
			return err
		}
	}
	if err := errors.Join(commitSteps(im, a, "twin", []step{put("a", lines(400))}), commitSteps(im, b, "twin", []step{put("b", lines(400))})); err != nil {
		return err
	}
	for round := range 2 {
		big := string(randomBytes(byte(round), 20<<20))
		for _, steps := range [][]step{{put("big", big)}, {put("big", lines(1000)), remove("a")}, {put("a", fmt.Sprint(round))}, {put("x", fmt.Sprint("x", round))}} {
			if err := commitSteps(im, im.Stage(ctx), "", steps); err != nil {
				return err
			}
		}
		fmt.Println("collecting", round)
		if _, err := im.GC(ctx, GCOptions{}); err != nil {
			return err
		}
		fmt.Println("collected", round)
		if _, err := im.Checkpoint(ctx, fmt.Sprint("c", round), ""); err != nil {
			return err
		}
		if err := im.DropCheckpoint(fmt.Sprint("c", round)); err != nil {
			return err
		}
	}
	if err := im.Close(); err != nil {
		return err
	}
	_, _, err = Compact(ctx, filepath.Join(dir, scriptCollected), CompactOptions{})
	return err
}

// checkCollected looks at it after a crash: it is whole, and the next collection
// finishes what was begun.
func checkCollected(t *testing.T, path, acknowledged string) {
	t.Helper()
	wantClean(t, path)
	im := must(Open(path, OpenOptions{}))
	defer im.Close()
	verifyChain(t, im)
	begun := strings.Count(acknowledged, "collecting ")
	if strings.Contains(acknowledged, fmt.Sprint("collecting ", begun-1, "\n")) && !strings.HasSuffix(acknowledged, fmt.Sprint("collected ", begun-1, "\n")) {
		for p, want := range map[string]string{"big": lines(1000), "b": lines(400), "a": fmt.Sprint(begun - 1), "x": fmt.Sprint("x", begun-1)} {
			if text(t, im, p) != want {
				t.Errorf("%s is another one", p)
			}
		}
	}
	snapshot(t, im) // reads everything
	gc(t, im, GCOptions{})
	if s := must(im.Sizes(t.Context())); s.Unused != 0 || s.Pending != 0 || s.Commits != 1 {
		t.Errorf("after the next collection: %+v", s)
	}
	mustDo(t, im, put("twin", lines(400)))
	snapshot(t, im)
	im.Close()
	wantClean(t, path)
}

func commitSteps(im *Image, s *Stage, call string, steps []step) error {
	txn := Txn{Call: call, Stage: s}
	for _, st := range steps {
		if st.Op == OpPut {
			var err error
			if st.Content, err = s.Add(strings.NewReader(st.text)); err != nil {
				return err
			}
		}
		txn.Changes = append(txn.Changes, st.Change)
	}
	_, err := im.Commit(context.Background(), txn)
	return err
}

// The process dies at each step of everything that writes. What it had
// acknowledged is there, and nothing is half there.
func TestKillAtEveryStep(t *testing.T) {
	if raceDetector {
		t.Skip("the process that is killed has no race detector")
	}
	t.Parallel()
	binary := buildWithFailpoints(t)
	t.Run("all", func(t *testing.T) { checkFailpoints(t, binary) })
	for name, times := range failpoints {
		for _, n := range times {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				out := runKilled(t, binary, dir, fmt.Sprintf("MCP_VDISK_FAILPOINT=%s:%d", name, n))
				if strings.Contains(out, "end\n") {
					t.Fatal("it was not killed: it does not come there so often")
				}
				checkScript(t, dir, out)
			})
		}
	}
}

// checkFailpoints checks that the table has all steps that there are, and that
// the script comes to each.
func checkFailpoints(t *testing.T, binary string) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	out := runKilled(t, binary, dir, "MCP_VDISK_FAILPOINT_LOG="+log)
	if !strings.HasSuffix(out, "end\n") {
		t.Fatalf("the script did not come to its end: %s", out)
	}
	checkScript(t, dir, out)
	reached := map[string]bool{}
	for line := range strings.Lines(string(must(os.ReadFile(log)))) {
		reached[strings.TrimSpace(line)] = true
	}
	table := slices.Sorted(maps.Keys(failpoints))
	if got := slices.Sorted(maps.Keys(reached)); !slices.Equal(got, table) {
		t.Errorf("the script reaches %q\nthe table has %q", got, table)
	}
	if got := slices.Sorted(maps.Keys(failpointsInSources(t))); !slices.Equal(got, table) {
		t.Errorf("the sources have %q\nthe table has %q", got, table)
	}
}

// failpointsInSources finds calls, and the names that go with the checks of a
// commit.
func failpointsInSources(t *testing.T) map[string]bool {
	t.Helper()
	call := regexp.MustCompile(`hostos\.Failpoint\("([^"]+)"\)|\{"([a-z]+\.[a-z]+)", w\.`)
	names := map[string]bool{}
	for _, file := range must(filepath.Glob("*.go")) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range call.FindAllStringSubmatch(string(must(os.ReadFile(file))), -1) {
			names[m[1]+m[2]] = true
		}
	}
	return names
}

// buildWithFailpoints builds this test binary once more, with steps at which it
// can be killed.
func buildWithFailpoints(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command to build a binary with failpoints")
	}
	binary := filepath.Join(t.TempDir(), "failpoint.test")
	if out, err := exec.Command("go", "test", "-c", "-tags", "failpoint", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return binary
}

// runKilled runs the script with a variable set and returns what was
// acknowledged.
func runKilled(t *testing.T, binary, dir, variable string) string {
	t.Helper()
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), scriptEnv+"="+dir, variable)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if stderr.Len() > 0 || err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	return stdout.String()
}

// checkScript compares what a process left with what it acknowledged.
func checkScript(t *testing.T, dir, acknowledged string) {
	t.Helper()
	for _, name := range scriptImages {
		path := filepath.Join(dir, name)
		_, err := os.Lstat(path)
		switch made := strings.Contains(acknowledged, "created "+name+"\n"); {
		case err == nil:
			checkImage(t, path, acknowledged)
		case made:
			t.Errorf("%s is gone: %v", name, err)
		}
	}
	if path := filepath.Join(dir, scriptCollected); exists(path) {
		checkCollected(t, path, acknowledged)
	}
	path := filepath.Join(dir, scriptCopy)
	switch _, err := os.Lstat(path); {
	case err == nil:
		checkCopy(t, path)
	case strings.Contains(acknowledged, "copied\n"):
		t.Errorf("the copy is gone: %v", err)
	}
	if rest := must(filepath.Glob(filepath.Join(dir, ".vdisk-new-*"))); len(rest) > 1 {
		t.Errorf("one crash left %q", rest)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func checkCopy(t *testing.T, path string) {
	t.Helper()
	wantClean(t, path)
	im := must(Open(path, OpenOptions{}))
	defer im.Close()
	verify(t, im)
	verifyChain(t, im)
	if _, found, err := im.FindCommit(scriptCall(10)); !found || err != nil {
		t.Errorf("the copy lacks what was committed before it (%v)", err)
	}
}

func checkImage(t *testing.T, path, acknowledged string) {
	t.Helper()
	im, err := Open(path, OpenOptions{})
	if err != nil {
		t.Fatalf("%s: %v", filepath.Base(path), err)
	}
	defer im.Close()
	verify(t, im)
	verifyChain(t, im)
	want, commits := model{}, uint64(1)
	head := must(im.Info()).Seq
	for i, a := range workScript() {
		if a.commit == nil {
			continue
		}
		_, found, err := im.FindCommit(scriptCall(i))
		if err != nil || found != (commits < head) {
			t.Errorf("%s was found: %v, the head is %d (%v)", scriptCall(i), found, head, err)
		}
		if filepath.Base(path) == scriptImages[2] && strings.Contains(acknowledged, scriptCall(i)+"\n") && !found {
			t.Errorf("%s was acknowledged and is lost", scriptCall(i))
		}
		if !found {
			break
		}
		commits++
		for _, s := range a.commit {
			if err := want.apply(s); err != nil {
				t.Fatal(err)
			}
		}
	}
	if head > commits || head > uint64(strings.Count(acknowledged, "call-")+2) {
		t.Errorf("the head is %d, %d commits were known, acknowledged: %s", head, commits, acknowledged)
	}
	checkModel(t, im, want)
	mustDo(t, im, put("after", "the crash"))
}

// checkModel compares all paths with the model. That contents are what their
// nodes say is left to verify.
func checkModel(t *testing.T, im *Image, want model) {
	t.Helper()
	paths := 0
	if err := im.Walk(t.Context(), Path{}, func(e Entry) error {
		n, it := e.Node, want[e.Path.Rel()]
		ok := n.Kind == it.kind && n.Mode == it.mode && n.Size == int64(len(it.body))
		switch n.Kind {
		case KindFile:
			ok = ok && n.SHA256 == sumOf([]byte(it.body))
		case KindSymlink:
			ok = ok && n.Target == it.body
		}
		if !ok {
			t.Errorf("%v is %c, mode %o, %d bytes; want %c, mode %o, %d bytes", e.Path, n.Kind, n.Mode, n.Size, it.kind, it.mode, len(it.body))
		}
		paths++
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if paths != len(want) {
		t.Errorf("there are %d paths, want %d", paths, len(want))
	}
}

// verifyChain computes the id of every commit anew.
func verifyChain(t testing.TB, im *Image) {
	t.Helper()
	err := im.view("verify", func(tx *bolt.Tx) error {
		h, err := readHead(tx)
		if err != nil {
			return err
		}
		var parent [sha256.Size]byte
		first, _ := tx.Bucket(bucketCommits).Cursor().First()
		for seq := keyUint(first); seq <= h.seq; seq++ {
			r, err := readRecord(tx, seq)
			if err != nil {
				return err
			}
			if seq == keyUint(first) && seq > 1 {
				parent = r.parent
			}
			id := r.id
			if r.encode(); r.id != id || r.parent != parent {
				t.Errorf("commit %d: its id does not follow from its parent and its record", seq)
			}
			parent = id
		}
		if h.id != parent {
			t.Errorf("the head is not commit %d", h.seq)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
