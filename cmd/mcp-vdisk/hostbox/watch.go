package hostbox

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"
)

// Watch looks into a folder of the host for files that are new or changed, and whole. It
// only looks: nothing in the folder is changed. It belongs to one goroutine.
//
// It finds regular files, whose name and whose folders' names do not begin with a dot.
// Links are not followed, and told once, as is whatever else is no file.
type Watch struct {
	dir    string
	warn   io.Writer
	root   *os.Root
	seen   map[string]*sight
	round  int // of looks
	warned map[string]bool
}

// sight is what a file was like when it was looked at.
type sight struct {
	info  fs.FileInfo
	since time.Time // since when it is like that
	taken bool      // it was, and is not found again until it changes
	left  bool      // it is to be found again after Retry
	told  bool      // that it was left out
	round int
}

// Found is a file that a look found.
type Found struct {
	Name    string // below the folder, raw bytes
	Size    int64
	Mode    fs.FileMode
	ModTime time.Time

	info fs.FileInfo
}

// Limits of a look, beyond which files are left out and told.
const (
	watchDepth   = 16     // folders in each other
	watchEntries = 10_000 // of all folders together
)

// whole is for how long size and time of a file must not have changed.
const whole = 300 * time.Millisecond

// ErrChanging says that a file is not as it was found: it comes again when it rests.
var ErrChanging = errors.New("it changes while it is read")

// OpenWatch opens a folder, which must be there.
func OpenWatch(dir string, warn io.Writer) (*Watch, error) {
	root, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	return &Watch{dir: dir, warn: warn, root: root, seen: map[string]*sight{}, warned: map[string]bool{}}, nil
}

// Close lets the folder go.
func (w *Watch) Close() error { return w.root.Close() }

// look is one look.
type look struct {
	w       *Watch
	at      time.Time
	entries int
	found   []Found
}

// Look returns the files that have been the same since an earlier look, for 300 ms at
// least, and were not Taken as they are. at is the time, which only rises. Another folder
// in the place of the one that was opened is taken up.
//
// Errors: that the folder cannot be read.
func (w *Watch) Look(at time.Time) ([]Found, error) {
	if err := w.follow(); err != nil {
		return nil, err
	}
	w.round++
	l := &look{w: w, at: at}
	if err := l.folder(w.root, "", 0); err != nil {
		return nil, err
	}
	for name, s := range w.seen {
		if s.round != w.round {
			delete(w.seen, name) // it is gone; another one of its name is new
		}
	}
	return l.found, nil
}

// follow opens the folder anew when its path leads to another one.
func (w *Watch) follow() error {
	now, err := os.Stat(w.dir)
	if err != nil {
		return err
	}
	if was, err := w.root.Stat("."); err == nil && os.SameFile(now, was) {
		return nil
	}
	root, err := openFolder(w.dir)
	if err != nil {
		return err
	}
	w.root.Close()
	w.root = root
	return nil
}

func (l *look) folder(dir *os.Root, prefix string, depth int) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		names, err := f.Readdirnames(256)
		for _, name := range names {
			if strings.HasPrefix(name, ".") {
				continue
			}
			if l.entries++; l.entries > watchEntries {
				l.w.tell("", "has more than %d entries; the rest is left out", watchEntries)
				return nil
			}
			l.entry(dir, prefix+name, name, depth)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (l *look) entry(dir *os.Root, name, base string, depth int) {
	info, err := dir.Lstat(base)
	switch {
	case err != nil: // it is gone already
	case info.IsDir() && depth == watchDepth:
		l.w.tell(name, "is left out: it is more than %d folders deep", watchDepth)
	case info.IsDir():
		next, err := enter(dir, base)
		if err == nil {
			err = l.folder(next, name+"/", depth+1)
			next.Close()
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.w.tell(name, "is left out: %s", err)
		}
	case info.Mode().IsRegular():
		l.file(name, info)
	case info.Mode()&fs.ModeSymlink != 0:
		l.w.tell(name, "is left out: it is a link")
	default:
		l.w.tell(name, "is left out: it is neither a file nor a folder")
	}
}

func (l *look) file(name string, info fs.FileInfo) {
	s := l.w.seen[name]
	if s == nil || !same(s.info, info) {
		l.w.seen[name] = &sight{info: info, since: l.at, round: l.w.round}
		return
	}
	s.round = l.w.round
	if !s.taken && l.at.Sub(s.since) >= whole {
		l.found = append(l.found, Found{Name: name, Size: info.Size(), Mode: info.Mode().Perm(), ModTime: info.ModTime(), info: info})
	}
}

func same(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// Taken says that a file need not be found again as it is.
func (w *Watch) Taken(f Found) {
	if s := w.seen[f.Name]; s != nil && same(s.info, f.info) {
		s.taken = true
	}
}

// Leave says that a file need not be found again as it is before Retry, and tells why,
// once for the file as it is.
func (w *Watch) Leave(f Found, why string) {
	s := w.seen[f.Name]
	if s == nil || !same(s.info, f.info) {
		return
	}
	if s.taken, s.left = true, true; !s.told {
		s.told = true
		w.Tell(f.Name, why)
	}
}

// Left says whether Retry would have anything found again.
func (w *Watch) Left() bool {
	for _, s := range w.seen {
		if s.left {
			return true
		}
	}
	return false
}

// Retry has the next look find again what Leave left.
func (w *Watch) Retry() {
	for _, s := range w.seen {
		if s.left {
			s.taken, s.left = false, false
		}
	}
}

// Open opens a file that was found.
//
// Errors: ErrChanging when it is another one by now.
func (w *Watch) Open(f Found) (*os.File, error) {
	dir, done := w.root, func() {}
	above, base := path.Split(f.Name)
	for _, part := range strings.Split(strings.TrimSuffix(above, "/"), "/") {
		if part == "" {
			continue
		}
		next, err := enter(dir, part)
		done()
		if err != nil {
			return nil, err
		}
		dir, done = next, func() { next.Close() }
	}
	defer done()
	file, err := dir.OpenFile(base, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := w.Rests(f, file); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// Rests says whether an open file still is as it was found.
func (w *Watch) Rests(f Found, file *os.File) error {
	info, err := file.Stat()
	if err == nil && (!info.Mode().IsRegular() || !same(info, f.info)) {
		err = ErrChanging
	}
	return err
}

// Sum is the SHA-256 of a file that was found. Errors: as for Open.
func (w *Watch) Sum(f Found) (sum [32]byte, err error) {
	file, err := w.Open(f)
	if err != nil {
		return sum, err
	}
	defer file.Close()
	h := sha256.New()
	if _, err = io.Copy(h, file); err == nil {
		err = w.Rests(f, file)
	}
	return [32]byte(h.Sum(nil)), err
}

// Tell warns once of a file.
func (w *Watch) Tell(name, text string) { w.tell(name, "%s", text) }

func (w *Watch) tell(name, format string, a ...any) {
	const most = 1_000
	text := fmt.Sprintf(format, a...)
	if w.warned[name+text] || len(w.warned) > most {
		return
	}
	if w.warned[name+text] = true; len(w.warned) > most {
		text = "and more of this kind, which is told no more"
	}
	if name == "" {
		name = w.dir
	}
	fmt.Fprintf(w.warn, "mcp-vdisk: inbox: %s %s\n", shown(name), text)
}
