package workspace

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// CheckOptions say how to check an image. The zero value checks and changes
// nothing.
type CheckOptions struct {
	File *os.File // an open descriptor of the image, used instead of the path; Check owns it from the call on

	// Repair puts right what can be put right from what the image itself
	// proves; see Check.
	Repair bool

	// Progress is told how many bytes of the file were read, of about how
	// many. A repair reads the file more than once and begins at 0 each time.
	Progress func(done, total int64)

	Wait  time.Duration    // how long to wait for the lock; 0 is two seconds
	Clock func() time.Time // nil is time.Now
}

// Check reads all of an image and tells everything that is wrong with it: its
// pages, every value, the tree, all contents against their hashes, the history
// against its ids and against the tree, and the index. It does not use bbolt,
// so no damage can hurt the process, and what lies behind a damaged page does
// not keep the rest from being looked at. It takes the shared lock, and memory
// for about 150 bytes per chunk and per path.
//
// With Repair it takes the exclusive lock and then
//
//   - makes the index of chunks anew, and sweeps what is pending;
//   - restores paths of the tree, its totals and the record of the head from the
//     commits, as far as these prove themselves by the chain of their ids;
//   - forgets chunks that are damaged and that nothing refers to;
//   - when the pages are damaged, writes a new file from all entries that can
//     still be read, each for itself when its leaf is damaged, and puts it in the place of the old one, which is kept beside
//     it as NAME.damaged-TIME. For that it needs the path, and space for a second
//     file. The new file has the same uuid, commits and chunk ids.
//
// It never invents content: a chunk whose bytes are gone stays a finding, with
// the paths that need it. Whether a finding was repaired is seen by checking
// again. A crash leaves the file as it was or repaired.
//
// Damage is no error but a finding. The errors are those of Open: ErrNotFound,
// ErrLocked, ErrNotImage, ErrFormat, ErrReadOnly, and ErrCorrupt when neither
// copy of the header is good, from where nothing can be found; ErrNoSpace; the
// cause of ctx. A repair is ErrCorrupt, too, when no commit is left or nothing
// says any more which uuid the image has. When a repair fails, the report is of the file as it still is.
func Check(ctx context.Context, path string, o CheckOptions) (*Report, error) {
	f, err := openPath(path, o.File, o.Repair)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.File != nil {
		path = ""
	}
	if err := lock(f, o.Repair, o.Wait); err != nil {
		return nil, err
	}
	k, err := inspect(ctx, f, &o)
	if err != nil {
		return nil, err
	}
	if o.Repair && (k.plan.needed() || !k.identified()) {
		return repair(k, path)
	}
	return k.report, nil
}

// Report is what Check found. Sizes are in bytes.
type Report struct {
	UUID   string `json:"uuid"`
	Label  string `json:"label,omitempty"`
	Seq    uint64 `json:"seq"`    // of the newest commit
	Commit string `json:"commit"` // its id, hex

	Files       int64 `json:"files"` // what can be read of the tree
	Directories int64 `json:"directories"`
	Symlinks    int64 `json:"symlinks"`
	Bytes       int64 `json:"bytes"` // sizes of all files and symlink targets

	Chunks      int64  `json:"chunks"`
	ChunkBytes  int64  `json:"chunk_bytes"` // as stored
	PlainBytes  int64  `json:"plain_bytes"` // unpacked
	Commits     int64  `json:"commits"`
	Oldest      uint64 `json:"oldest"` // first commit that is kept
	Checkpoints int64  `json:"checkpoints"`

	Unused      int64 `json:"unused"` // chunks that neither the tree nor the history refers to
	UnusedBytes int64 `json:"unused_bytes"`
	Pending     int64 `json:"pending"` // chunks of commits that never came; no damage, swept by Open

	FileSize  int64 `json:"file_size"`
	Pages     int64 `json:"pages"` // in use or free
	FreePages int64 `json:"free_pages"`
	Leaked    int64 `json:"leaked"` // pages that are neither; no damage by themselves

	Findings []Finding `json:"findings"`
	More     int64     `json:"more"` // findings behind the first thousand

	Kept string `json:"kept,omitempty"` // name of the damaged file that a repair put aside, in the same directory
}

// maxFindings is how many a report lists.
const maxFindings = 1000

// Clean says that nothing was found, or that everything found was repaired.
func (r *Report) Clean() bool { return r.Left() == 0 }

// Left is how many findings are there still.
func (r *Report) Left() int64 {
	left := r.More
	for i := range r.Findings {
		if !r.Findings[i].Repaired {
			left++
		}
	}
	return left
}

// Finding is one thing that is wrong.
type Finding struct {
	Kind     FindingKind
	Where    string // "page 17 (branch) of chunks", "chunk 42", "commit v12", …; may be empty when there is a path
	Path     Path
	HasPath  bool
	Text     string // one plain sentence
	Repaired bool
}

// FindingKind says what is concerned.
type FindingKind string

// The kinds of findings.
const (
	FindFile       FindingKind = "file"       // its length
	FindHeader     FindingKind = "header"     // one of the two copies of bbolt's header
	FindPage       FindingKind = "page"       // the structure of the file
	FindMeta       FindingKind = "meta"       // a record about the image
	FindNode       FindingKind = "node"       // a path of the tree
	FindParent     FindingKind = "parent"     // a path whose directory is missing
	FindTotals     FindingKind = "totals"     // the sums kept with the head
	FindChunk      FindingKind = "chunk"      // stored bytes
	FindContent    FindingKind = "content"    // a file whose bytes cannot be had
	FindIndex      FindingKind = "index"      // by hash
	FindPending    FindingKind = "pending"    // marks of chunks without a commit
	FindCommit     FindingKind = "commit"     // a record of the history
	FindHistory    FindingKind = "history"    // commits or tree that contradict each other
	FindCheckpoint FindingKind = "checkpoint" // a name for a commit
)

// MarshalJSON gives the path as it is shown, and only when there is one.
func (f Finding) MarshalJSON() ([]byte, error) {
	path := ""
	if f.HasPath {
		path = f.Path.String()
	}
	return json.Marshal(struct {
		Kind     FindingKind `json:"kind"`
		Where    string      `json:"where,omitempty"`
		Path     string      `json:"path,omitempty"`
		Text     string      `json:"text"`
		Repaired bool        `json:"repaired"`
	}{f.Kind, f.Where, path, f.Text, f.Repaired})
}

// String is "page 17 (branch) of chunks: leads to …".
func (f Finding) String() string {
	s := f.Where
	if f.HasPath {
		if s != "" {
			s += ", "
		}
		s += f.Path.String()
	}
	return s + ": " + f.Text
}

// about is what a finding is about: what a repair is compared by.
func (f *Finding) about() string {
	return fmt.Sprintf("%s\x00%s\x00%s\x00%v", f.Kind, f.Where, f.Path.rel, f.HasPath)
}
