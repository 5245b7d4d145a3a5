package workspace

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

const sectorSize = 512

// headerSize is how much of a header page has a meaning: bbolt's page header
// and the record that its checksum ends.
const headerSize = 80

// A power cut leaves some of the sectors that were being written and not
// others. bbolt writes the pages of a commit, waits until they are durable, and
// then writes one header: so whatever part of the pages there is without the
// header, and however the header is torn, the image is as before the commit or
// as after it.
func TestTornWrites(t *testing.T) {
	if raceDetector {
		t.Skip("nothing runs side by side here")
	}
	t.Parallel()
	im, path := newImage(t, CreateOptions{})
	mustDo(t, im, put("a", "alpha"), put("big", string(randomBytes(1, 1<<20))), mkdir("d"))
	r := rand.New(rand.NewPCG(1, 2))
	rounds, stride := 4, 16
	if soak() {
		rounds, stride = 60, 4
	}
	mixtures := 0
	for _, commit := range []struct {
		name  string
		steps []step
	}{
		{"inline", []step{put("a", "beta")}},
		{"file", []step{put("b", lines(3000))}},
		{"grow", []step{put("big", string(randomBytes(2, 5<<20)))}},
		{"remove", []step{remove("d"), remove("b")}},
		{"many", manySteps(400)},
		{"in place", []step{put("a", "gamma"), put("few/3", "other")}},
	} {
		name := commit.name
		mustDo(t, im, put("a", name), put("b", name), put("d/x", name), put("few/3", name))
		before, was := must(os.ReadFile(path)), snapshot(t, im)
		mustDo(t, im, commit.steps...)
		after, is := must(os.ReadFile(path)), snapshot(t, im)
		c := newTear(t, before, after)
		for range rounds {
			c.check(t, name+": pages without a header", c.somePages(r), was)
			mixtures++
		}
		for cut := 0; cut <= headerSize; cut += stride {
			c.check(t, name+": the front of the header", c.header(0, cut), was, is)
			c.check(t, name+": the end of the header", c.header(cut, headerSize), was, is)
			mixtures += 2
		}
		c.check(t, name+": no new header", c.header(0, 0), was)
		c.check(t, name+": all", c.header(0, headerSize), is)
		mixtures += 2
	}
	t.Logf("%d mixtures", mixtures)
}

func manySteps(n int) []step {
	steps := make([]step, n)
	for i := range steps {
		steps[i] = put("many/"+string(rune('0'+i%10))+"/"+string(rune('a'+i/10)), "x")
	}
	return steps
}

// tear is an image before and after one commit.
type tear struct {
	path          string
	before, after []byte // of equal length: the file grows ahead of the pages
	header0       int    // the header page that the commit wrote
	sectors       []int  // all others that differ
}

func newTear(t *testing.T, before, after []byte) *tear {
	t.Helper()
	c := &tear{path: filepath.Join(t.TempDir(), "torn.vdisk"), before: make([]byte, len(after)), after: after, header0: -1}
	copy(c.before, before)
	for i := 0; i < len(after); i += sectorSize {
		end := min(i+sectorSize, len(after))
		switch {
		case bytes.Equal(c.before[i:end], after[i:end]):
		case i >= 2*pageSize:
			c.sectors = append(c.sectors, i)
		case c.header0 >= 0 || i%pageSize != 0:
			t.Fatal("the commit wrote more than one sector of headers")
		default:
			c.header0 = i
		}
	}
	if c.header0 < 0 || len(c.sectors) == 0 {
		t.Fatal("the commit wrote nothing")
	}
	return c
}

// somePages has some of the new pages and none of the new header.
func (c *tear) somePages(r *rand.Rand) []byte {
	b := slices.Clone(c.before)
	share := r.Float64()
	for _, i := range c.sectors {
		if r.Float64() < share {
			copy(b[i:i+sectorSize], c.after[i:])
		}
	}
	return b
}

// header has all new pages, and of the new header the bytes in between.
func (c *tear) header(from, to int) []byte {
	b := slices.Clone(c.after)
	copy(b[:2*pageSize], c.before)
	copy(b[c.header0+from:c.header0+to], c.after[c.header0+from:])
	return b
}

// check opens the bytes as an image, which must be one of those given, works
// on it, and finds all of it in order.
func (c *tear) check(t *testing.T, what string, b []byte, states ...map[string]string) {
	t.Helper()
	if err := os.WriteFile(c.path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	im, err := Open(c.path, OpenOptions{})
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	defer im.Close()
	got := snapshot(t, im)
	if !slices.ContainsFunc(states, func(s map[string]string) bool { return maps.Equal(s, got) }) {
		t.Errorf("%s: the image is in a state that never was", what)
	}
	mustDo(t, im, put("after", "the power cut"))
	verify(t, im)
}
