package hostbox

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/hostcopy"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/hostname"
	"golang.org/x/text/unicode/norm"
)

// What the writing into a folder of a person may come upon.
var (
	errFull    = fmt.Errorf("there is no room for it: %w", syscall.ENOSPC)
	errNoPlace = errors.New("too many files with names like it are there")
	errWay     = errors.New("something else than a folder stands in its way")
	errCut     = errors.New("its content arrived damaged")
)

// maxBeside is the highest number of a name that is beside another.
const maxBeside = 99

func hostRules() hostname.Rules { return hostname.RulesOf(runtime.GOOS) }

// place is where a name is, with the name that it has there.
func (m *Mirror) place(name, as string) place {
	if m.folds {
		as = strings.ToLower(strings.ToUpper(norm.NFC.String(as)))
	}
	return place{path.Dir(name), as}
}

// foldsCase asks the file system whether it takes two names that differ in case for one.
// One that cannot be written does not say.
func (m *Mirror) foldsCase() bool {
	f, tmp, err := create(m.root, 0o600)
	if err != nil {
		return runtime.GOOS == "darwin" || runtime.GOOS == "windows"
	}
	f.Close()
	defer m.root.Remove(tmp)
	_, err = m.root.Lstat(strings.ToUpper(tmp))
	return err == nil
}

// sweep removes what a killed process left in the folders of the manifest.
func (m *Mirror) sweep() {
	m.sweepIn(m.root)
	for name, k := range m.held {
		if k.Kind != KindDir {
			continue
		}
		if dir, done, err := m.existing(name); err == nil {
			m.sweepIn(dir)
			done()
		}
	}
}

// resolve finds out which of the files were written that a killed process was about to
// write.
func (m *Mirror) resolve() {
	for _, name := range m.Held() {
		k := m.held[name]
		if k.Next == "" {
			continue
		}
		if dir, done, err := m.existing(path.Dir(name)); err == nil {
			if sum, err := sumAt(dir, k.As); err == nil && sum == k.Next {
				k.SHA256 = sum
			}
			done()
		}
		m.unintend(name)
	}
}

func (m *Mirror) sweepIn(dir *os.Root) {
	f, err := dir.Open(".")
	if err != nil {
		return
	}
	defer f.Close()
	for {
		names, err := f.Readdirnames(100)
		for _, name := range names {
			if strings.HasPrefix(name, tempPrefix) {
				dir.Remove(name)
			}
		}
		if err != nil {
			return
		}
	}
}

// inside opens a folder of the disk on the host; "." is the whole. One that the person
// removed is made again, beside what they put in its place. done closes it.
func (m *Mirror) inside(name string) (dir *os.Root, done func(), err error) {
	if name == "." {
		return m.root, func() {}, nil
	}
	k := m.held[name]
	if k == nil || k.Kind != KindDir {
		return nil, nil, errWay
	}
	above, done, err := m.inside(path.Dir(name))
	if err != nil {
		return nil, nil, err
	}
	defer done()
	if dir, err = enter(above, k.As); errors.Is(err, fs.ErrNotExist) || errors.Is(err, errWay) {
		if err = m.makeFolder(above, name, k.Mode); err == nil {
			dir, err = enter(above, m.held[name].As)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	return dir, func() { dir.Close() }, nil
}

// enter opens a folder that is one itself, and no link to one: os.Root follows links as
// long as they do not lead out.
func enter(dir *os.Root, name string) (*os.Root, error) {
	before, err := dir.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !before.IsDir() {
		return nil, errWay
	}
	next, err := dir.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	if after, err := next.Stat("."); err != nil || !os.SameFile(before, after) {
		next.Close()
		return nil, errWay
	}
	return next, nil
}

// folderFor makes a folder, or takes one that is there.
func (m *Mirror) folderFor(it *Item) error {
	above, done, err := m.inside(path.Dir(it.Name))
	if err != nil {
		return err
	}
	defer done()
	return m.makeFolder(above, it.Name, it.Mode.Perm())
}

// makeFolder makes a folder of a mode, as far as we can still look into it. One that is
// there keeps its own.
func (m *Mirror) makeFolder(above *os.Root, name string, mode fs.FileMode) error {
	return m.settle(&kept{Name: name, Kind: KindDir, Mode: mode}, func(host string) (bool, error) {
		err := above.Mkdir(host, mode|0o700)
		if errors.Is(err, fs.ErrExist) {
			if info, lerr := above.Lstat(host); lerr == nil && info.IsDir() {
				return true, nil
			}
			return false, nil
		}
		return err == nil, err
	})
}

// link makes a link, if it stays below the folder whatever other links there are.
func (m *Mirror) link(it *Item) error {
	to, ok := m.within(it)
	if !ok {
		m.tell(it.Name, "is left out: it is a link to %s, out of the outbox", shown(it.Target))
		return nil
	}
	above, done, err := m.inside(path.Dir(it.Name))
	if err != nil {
		return err
	}
	defer done()
	had := m.held[it.Name]
	k := &kept{Name: it.Name, Kind: KindLink, Target: it.Target}
	err = m.settle(k, func(host string) (bool, error) {
		now, err := above.Readlink(host)
		switch {
		case err == nil && now == to:
			return true, nil
		case err == nil && had != nil && host == had.As:
			if was, ok := m.within(&Item{Name: it.Name, Target: had.Target}); ok && now == was {
				return true, replaceLink(above, to, host)
			}
			return false, nil
		}
		err = above.Symlink(to, host)
		if errors.Is(err, fs.ErrExist) {
			return false, nil
		}
		return err == nil, err
	})
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EPERM) {
		m.tell(it.Name, "is left out: links cannot be made there")
		return nil
	}
	return err
}

func replaceLink(dir *os.Root, to, host string) error {
	tmp := tempName()
	if err := dir.Symlink(to, tmp); err != nil {
		return err
	}
	defer dir.Remove(tmp)
	return dir.Rename(tmp, host)
}

// within gives a link's target as it is on the host. It may climb first and then
// descend: behind a name ".." could lead out by another link.
func (m *Mirror) within(it *Item) (to string, ok bool) {
	if it.Target == "" || path.IsAbs(it.Target) {
		return "", false
	}
	depth, descends := strings.Count(it.Name, "/"), false
	var out []string
	for _, part := range strings.Split(it.Target, "/") {
		switch part {
		case "", ".":
		case "..":
			if depth--; depth < 0 || descends {
				return "", false
			}
			out = append(out, part)
		default:
			descends = true
			out = append(out, hostname.Escape(part, m.rules))
		}
	}
	if len(out) == 0 {
		return ".", true
	}
	return strings.Join(out, "/"), true
}

// settle finds a name at which put succeeds, and keeps the entry there. put says
// whether it did; false is a name that is taken.
func (m *Mirror) settle(k *kept, put func(host string) (bool, error)) error {
	rules, had := m.rules, m.held[k.Name]
	first := ""
	if had != nil && had.Kind == k.Kind {
		first = had.As
	}
	for n := 0; n <= maxBeside; n++ {
		plain := m.hostName(k.Name, rules)
		host := plain
		switch {
		case n == 0 && first == "" || n == 1 && first == plain:
			continue
		case n == 0:
			host = first
		case n > 1:
			host = hostname.Beside(plain, n, most(rules))
		}
		if other, taken := m.places[m.place(k.Name, host)]; taken && other != k.Name {
			continue
		}
		done, err := m.try(host, put)
		if hostname.Refused(err) && rules != hostname.Strict() {
			rules, first, n = hostname.Strict(), "", -1
			continue
		}
		if err != nil {
			return err
		}
		if done {
			m.keep(k, host)
			m.remark(k, plain, host, n > 1)
			return nil
		}
	}
	return errNoPlace
}

func (m *Mirror) try(host string, put func(string) (bool, error)) (bool, error) {
	if m.refuses != nil {
		if err := m.refuses(host); err != nil {
			return false, err
		}
	}
	return put(host)
}

func most(r hostname.Rules) int {
	if r.Max == 0 {
		return hostname.Max
	}
	return r.Max
}

// remark says what is odd about a name, or a file. plain is the name that it would have
// if nothing stood there.
func (m *Mirror) remark(k *kept, plain, host string, aside bool) {
	switch {
	case aside:
		m.tell(k.Name, "is beside what the person has there, as %s", shown(host))
	case host == plain && plain != path.Base(k.Name):
		m.tell(k.Name, "is called %s there, where its own name cannot be", shown(host))
	}
	if why, ok := hostcopy.AutoRun(k.Name); ok && k.Kind == KindFile {
		m.tell(k.Name, "%s", why)
	}
}

// file writes a file whole, under another name first.
func (m *Mirror) file(above *os.Root, it *Item, content io.Reader) error {
	tmp, err := m.temp(above, it, content)
	if err != nil {
		return err
	}
	defer above.Remove(tmp)
	had := m.held[it.Name]
	k := &kept{Name: it.Name, Kind: KindFile, SHA256: sumOf(it), Mode: it.Mode.Perm(), Time: it.ModTime.UnixNano()}
	return m.settle(k, func(host string) (bool, error) {
		done, err := m.install(above, tmp, host, it, had)
		if info, lerr := above.Lstat(host); done && lerr == nil {
			k.Size, k.MTime = info.Size(), info.ModTime().UnixNano()
		}
		return done, err
	})
}

// install gives a file its name, if that is free or holds what we wrote there.
func (m *Mirror) install(dir *os.Root, tmp, host string, it *Item, had *kept) (bool, error) {
	_, err := dir.Lstat(host)
	if errors.Is(err, fs.ErrNotExist) {
		if err = dir.Link(tmp, host); errors.Is(err, fs.ErrExist) {
			return false, nil
		}
		if err == nil {
			return true, dir.Remove(tmp)
		}
		if !hostname.Refused(err) { // a file system without hard links
			err = dir.Rename(tmp, host)
		}
		return err == nil, err
	}
	if err != nil {
		return false, err
	}
	sum, err := sumAt(dir, host)
	if err != nil {
		return false, nil // no file, or one that is not ours to read
	}
	if had != nil && host == had.As && (sum == had.SHA256 || sum == had.Next) {
		err = dir.Rename(tmp, host)
		return err == nil, err
	}
	return sum == sumOf(it), nil // equal already
}

// retime gives a file the time that it has on the disk by now, if it is as it was
// written. What the person removed, or made another file of, is left alone.
func (m *Mirror) retime(it *Item) error {
	k := m.held[it.Name]
	if dir, done, err := m.existing(path.Dir(it.Name)); err == nil {
		defer done()
		if err := setTimeAt(dir, k, it.ModTime); err != nil {
			return err
		}
	}
	k.Time, m.dirty = it.ModTime.UnixNano(), true
	return nil
}

func setTimeAt(dir *os.Root, k *kept, at time.Time) error {
	f, sum, err := openSum(dir, k.As)
	if err != nil {
		return nil // no file, or one that is not ours to read
	}
	defer f.Close()
	if sum != k.SHA256 {
		return nil
	}
	if err := setTime(f, at); err != nil && !errors.Is(err, fs.ErrPermission) { // somebody else's
		return err
	}
	if info, err := f.Stat(); err == nil {
		k.MTime = info.ModTime().UnixNano()
	}
	return nil
}

// remove takes an entry away, if it is as it was written.
func (m *Mirror) remove(name string) error {
	k := m.held[name]
	dir, done, err := m.existing(path.Dir(name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errWay) {
		m.forget(name)
		return nil
	}
	if err != nil {
		return err
	}
	defer done()
	_, err = dir.Lstat(k.As)
	if err == nil && !m.unchanged(dir, k) {
		m.tell(name, "was removed from the disk; what is there was changed since, and stays")
		m.forget(name)
		return nil
	}
	if err == nil {
		err = dir.Remove(k.As)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) || k.Kind == KindDir && (errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrExist)) {
		m.forget(name)
		return nil
	}
	return err
}

// existing is inside, and makes nothing.
func (m *Mirror) existing(name string) (dir *os.Root, done func(), err error) {
	dir, done = m.root, func() {}
	if name == "." {
		return dir, done, nil
	}
	at := ""
	for _, part := range strings.Split(name, "/") {
		at = path.Join(at, part)
		k := m.held[at]
		if k == nil || k.Kind != KindDir {
			done()
			return nil, nil, errWay
		}
		next, err := enter(dir, k.As)
		done()
		if err != nil {
			return nil, nil, err
		}
		dir, done = next, func() { next.Close() }
	}
	return dir, done, nil
}

// unchanged says whether an entry is on the host as it was written.
func (m *Mirror) unchanged(dir *os.Root, k *kept) bool {
	switch k.Kind {
	case KindDir:
		info, err := dir.Lstat(k.As)
		return err == nil && info.IsDir()
	case KindLink:
		now, err := dir.Readlink(k.As)
		was, ok := m.within(&Item{Name: k.Name, Target: k.Target})
		return err == nil && ok && now == was
	}
	sum, err := sumAt(dir, k.As)
	return err == nil && (sum == k.SHA256 || sum == k.Next)
}

// sumAt is the SHA-256 of a file, and fails for anything else.
func sumAt(dir *os.Root, name string) (string, error) {
	f, sum, err := openSum(dir, name)
	if err != nil {
		return "", err
	}
	return sum, f.Close()
}

// openSum is sumAt, and leaves the file open. os.Root follows links as long as they do
// not lead out, also with O_NOFOLLOW.
func openSum(dir *os.Root, name string) (f *os.File, sum string, err error) {
	before, err := dir.Lstat(name)
	if err != nil {
		return nil, "", err
	}
	if !before.Mode().IsRegular() {
		return nil, "", errWay
	}
	f, err = dir.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, "", err
	}
	h := sha256.New()
	if after, serr := f.Stat(); serr != nil || !os.SameFile(before, after) {
		err = errWay
	} else {
		_, err = io.Copy(h, f)
	}
	if err != nil {
		f.Close()
		return nil, "", err
	}
	return f, hex.EncodeToString(h.Sum(nil)), nil
}

// temp writes a content under a name of ours, and checks it.
func (m *Mirror) temp(dir *os.Root, it *Item, content io.Reader) (name string, err error) {
	f, name, err := create(dir, it.Mode.Perm()|0o600) // else we could not look at it again
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			dir.Remove(name)
		}
	}()
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(f, h), content)
	if err == nil && [32]byte(h.Sum(nil)) != it.SHA256 {
		err = errCut
	}
	if err == nil {
		err = setTime(f, it.ModTime)
	}
	return name, errors.Join(err, f.Close())
}

// setTime sets a file's time by its descriptor: by its name it could be another one's.
func setTime(f *os.File, at time.Time) error {
	tv := syscall.NsecToTimeval(at.UnixNano())
	return syscall.Futimes(int(f.Fd()), []syscall.Timeval{tv, tv})
}

// create makes a file under a name of ours.
func create(dir *os.Root, mode fs.FileMode) (*os.File, string, error) {
	name := tempName()
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, mode)
	return f, name, err
}

func tempName() string { return tempPrefix + strings.ToLower(rand.Text()[:16]) }
