package hostbox

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/hostname"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Mirror keeps a folder of the host as a folder of a disk is, one way. It belongs to one
// goroutine, and to one process: the folder is locked while it is open.
//
// What was written is listed in a manifest in the folder, and only what still is as it
// was written is ever replaced or removed. Where something else stands, such as a file
// that the person changed, the new content goes beside it, as "NAME (2).EXT"; what they
// deleted comes back when its content changes. Each file appears whole: it is written
// under a name that begins with ".mcp-vdisk-tmp-", which the next Mirror sweeps, and
// renamed. No link in the folder is followed. Nothing is synced: the disk has it all.
type Mirror struct {
	dir  string
	warn io.Writer

	root   *os.Root
	lock   *os.File
	rules  hostname.Rules
	folds  bool // the file system takes names that differ in case for one
	disk   string
	held   map[string]*kept
	places map[place]string // what is where
	saved  bool             // the manifest is in the folder
	dirty  bool             // and not as it should be
	warned map[string]bool

	refuses func(host string) error // of the file system, for names; in tests
}

// Item is one entry that a Mirror is to hold.
type Item struct {
	Name    string // below the folder, raw bytes; its components are separated by "/"
	Kind    Kind
	Mode    fs.FileMode // permission bits
	ModTime time.Time
	Size    int64
	SHA256  [32]byte // of a file
	Target  string   // of a link
}

// Kind is that of an Item.
type Kind string

const (
	KindFile Kind = "f"
	KindDir  Kind = "d"
	KindLink Kind = "l"
)

// place is a name in a folder of the host, as far as the file system tells names apart.
type place struct{ folder, name string }

// ours is how the names begin that a Mirror keeps for itself.
const (
	ours       = ".mcp-vdisk-"
	tempPrefix = ours + "tmp-"
	manifest   = ours + "outbox.json"
)

// OpenMirror opens a folder that is empty or was a Mirror before. One that is missing is
// made when create says so; its parent must be there.
//
// Errors: an *exit.Failure with [exit.Refused] for a folder that holds other things, or
// is none; [exit.Busy] while another process has it.
func OpenMirror(dir string, create bool, warn io.Writer) (*Mirror, error) {
	if create {
		if err := os.Mkdir(dir, 0o755); errors.Is(err, fs.ErrNotExist) {
			return nil, exit.Fail(exit.NotFound, "make the folder first", "outbox: there is no folder above %s", dir)
		} else if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, exit.Fail(exit.Refused, "choose another folder", "outbox: make %s: %s", dir, front.ErrText(err))
		}
	}
	root, err := openFolder(dir)
	if err != nil {
		return nil, exit.Because(err, exit.Refused, "name a folder", "outbox: %s: %s", dir, front.ErrText(err))
	}
	m := &Mirror{dir: dir, warn: warn, root: root, rules: hostRules(), held: map[string]*kept{}, places: map[place]string{}, warned: map[string]bool{}}
	if err = m.take(); err == nil {
		err = m.load()
	}
	if err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// openFolder opens a folder that a person named: it may be a link to one.
func openFolder(dir string) (*os.Root, error) {
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() { // a pipe would keep us waiting
		err = errors.New("it is not a folder")
	}
	if err != nil {
		return nil, err
	}
	return os.OpenRoot(dir)
}

// take locks the folder itself: no file in it lives as long.
func (m *Mirror) take() error {
	f, err := m.root.Open(".")
	if err != nil {
		return exit.Fail(exit.Refused, "give yourself the right to read it", "outbox: %s: %s", m.dir, front.ErrText(err))
	}
	m.lock = f
	free, err := hostos.TryLock(f, true)
	if err != nil { // such as a file system of the network
		fmt.Fprintf(m.warn, "mcp-vdisk: outbox: %s cannot be locked, so let no other session have it: %s\n", m.dir, front.ErrText(err))
		return nil
	}
	if !free {
		return exit.Fail(exit.Busy, "end it, or choose another folder", "outbox: another session has %s", m.dir)
	}
	return nil
}

// Claim says whose folder it is to be, and sweeps what a killed process left.
//
// Errors: an *exit.Failure with [exit.Refused] when it is another disk's.
func (m *Mirror) Claim(disk string) error {
	if m.disk != "" && m.disk != disk {
		return exit.Fail(exit.Refused, "choose another folder; one holds what one disk has", "outbox: %s is the outbox of another disk (%s)", m.dir, m.disk)
	}
	m.disk, m.dirty = disk, !m.saved
	m.folds = m.foldsCase()
	for name, k := range m.held {
		m.places[m.place(name, k.As)] = name
	}
	m.sweep()
	m.resolve()
	return nil
}

// Close lets the folder go.
func (m *Mirror) Close() error {
	var err error
	if m.lock != nil {
		err = m.lock.Close()
	}
	return errors.Join(err, m.root.Close())
}

// Here says whether the folder is still at its path, with the manifest that was written.
func (m *Mirror) Here() error {
	at, err := os.Stat(m.dir)
	if err != nil {
		return err
	}
	is, err := m.root.Stat(".")
	if err == nil && !os.SameFile(at, is) {
		err = fmt.Errorf("another folder is in its place: %w", fs.ErrNotExist)
	}
	if err == nil && m.saved {
		_, err = m.root.Lstat(manifest)
	}
	return err
}

// Held are the names of what the folder has by its manifest.
func (m *Mirror) Held() []string {
	names := make([]string, 0, len(m.held))
	for name := range m.held {
		names = append(names, name)
	}
	return names
}

// Fetch gets the contents of files and calls put for each; one whose content is there no
// more is left out, and comes again with other content. What put leaves of a reader is
// read by Fetch.
type Fetch func(items []Item, put func(Item, io.Reader)) error

// Limits of one call of Fetch.
const (
	batchItems = 500
	batchNames = 100_000 // bytes
)

// Settle makes the folder as want says for the names of todo; nil is what is not to be
// there. It goes on behind what fails, and returns the names that are left to do, with
// the first failure: of the host, or of fetch, which ends it.
func (m *Mirror) Settle(todo []string, want func(name string) *Item, fetch Fetch) (left []string, err error) {
	r := round{m: m, left: map[string]bool{}}
	todo = slices.Clone(todo)
	slices.Sort(todo)
	for _, name := range slices.Backward(todo) { // what is in a folder goes before it
		if k, it := m.held[name], want(name); k != nil && (it == nil || it.Kind != k.Kind) {
			r.note(name, m.remove(name))
		}
	}
	var files []Item
	for _, name := range todo {
		it := want(name)
		switch {
		case it == nil || r.left[name] || m.has(it):
		case m.holds(it):
			r.note(name, m.retime(it))
		case it.Kind == KindDir:
			r.note(name, m.folderFor(it))
		case it.Kind == KindLink:
			r.note(name, m.link(it))
		default:
			files = append(files, *it)
		}
	}
	slices.SortStableFunc(files, func(a, b Item) int { return cmp.Compare(turn(a), turn(b)) })
	for len(files) > 0 && r.ended == nil {
		n := batch(files)
		r.fetch(files[:n], fetch)
		files = files[n:]
	}
	for _, it := range files {
		r.left[it.Name] = true
	}
	r.note("", m.save())
	for name := range r.left {
		if name != "" {
			left = append(left, name)
		}
	}
	return left, errors.Join(r.ended, r.err)
}

// turn orders files: small ones come first, by their names, and do not wait for larger
// ones, which come by their sizes.
func turn(it Item) int64 {
	const small = 1 << 20 // bytes
	if it.Size <= small {
		return 0
	}
	return it.Size
}

func batch(files []Item) int {
	size := 0
	for i, it := range files {
		if size += len(it.Name); i == batchItems || i > 0 && size > batchNames {
			return i
		}
	}
	return len(files)
}

// round is one call of Settle.
type round struct {
	m     *Mirror
	left  map[string]bool
	err   error // the first of the host
	ended error // of fetch
}

func (r *round) note(name string, err error) {
	if err == nil {
		return
	}
	r.left[name] = true
	err = reason(err)
	if r.err == nil && name != "" {
		err = fmt.Errorf("%s: %w", shown(name), err)
	}
	r.err = cmp.Or(r.err, err)
}

// opened is the folder of the last file: that of the next one is mostly the same.
type opened struct {
	name string
	dir  *os.Root
	done func()
}

func (o *opened) folder(m *Mirror, name string) (*os.Root, error) {
	if o.dir != nil && o.name == name {
		return o.dir, nil
	}
	o.close()
	dir, done, err := m.inside(name)
	if err == nil {
		o.name, o.dir, o.done = name, dir, done
	}
	return dir, err
}

func (o *opened) close() {
	if o.dir != nil {
		o.done()
		o.dir = nil
	}
}

// reason is an error of the system without the names of ours.
func reason(err error) error {
	var p *fs.PathError
	var l *os.LinkError
	switch {
	case errors.As(err, &p):
		return p.Err
	case errors.As(err, &l):
		return l.Err
	}
	return err
}

// fetch gets some files. What is about to be written is in the manifest first, so that
// after a killed process it is known as what it is.
func (r *round) fetch(files []Item, fetch Fetch) {
	var ready []Item
	for _, it := range files {
		if err := r.m.room(it.Size); err != nil {
			r.note(it.Name, err)
			continue
		}
		r.m.intend(it)
		ready = append(ready, it)
	}
	if err := r.m.save(); err != nil || len(ready) == 0 {
		for _, it := range ready {
			r.note(it.Name, err)
		}
		return
	}
	missing := map[string]bool{}
	for _, it := range ready {
		missing[it.Name] = true
	}
	var at opened
	r.ended = fetch(ready, func(it Item, content io.Reader) {
		delete(missing, it.Name)
		dir, err := at.folder(r.m, path.Dir(it.Name))
		if err == nil {
			err = r.m.file(dir, &it, content)
		}
		r.note(it.Name, err)
	})
	at.close()
	for name := range missing { // its next content is told by itself, unless fetch failed
		r.m.unintend(name)
		if r.ended != nil {
			r.left[name] = true
		}
	}
}

// room says whether a file has room on the host, so that none is fetched in vain.
func (m *Mirror) room(size int64) error {
	free, _, err := hostos.Free(m.dir)
	if err == nil && uint64(size) > free {
		return errFull
	}
	return nil
}

// has says whether the folder was given an item already.
func (m *Mirror) has(it *Item) bool {
	return m.holds(it) && (it.Kind != KindFile || m.held[it.Name].Time == it.ModTime.UnixNano())
}

// holds is has but for the time.
func (m *Mirror) holds(it *Item) bool {
	k := m.held[it.Name]
	return k != nil && k.Kind == it.Kind && k.Next == "" && k.SHA256 == sumOf(it) && k.Target == it.Target &&
		(it.Kind != KindFile || k.Mode == it.Mode.Perm())
}

// tell warns once of a name.
func (m *Mirror) tell(name, format string, a ...any) {
	const most = 1_000 // names are as many as the agent likes
	text := fmt.Sprintf(format, a...)
	if m.warned[name+text] || len(m.warned) > most {
		return
	}
	if m.warned[name+text] = true; len(m.warned) > most {
		text = "and more of this kind, which is told no more"
	}
	fmt.Fprintf(m.warn, "mcp-vdisk: outbox: %s %s\n", shown(name), text)
}

// shown is a name for people: odd ones are quoted.
func shown(name string) string {
	if q := fmt.Sprintf("%q", name); q != `"`+name+`"` {
		return q
	}
	return name
}

// hostName is what a name is to be called in its folder, if it is free.
func (m *Mirror) hostName(name string, r hostname.Rules) string {
	base := path.Base(name)
	host := hostname.Escape(base, r)
	if strings.HasPrefix(strings.ToLower(host), ours) {
		host = "%2E" + host[1:]
	}
	if other, taken := m.places[m.place(name, host)]; taken && other != name {
		host = hostname.Mark(host, base, r.Max)
	}
	return host
}
