package wheel

import (
	"cmp"
	"path"
	"slices"
	"strings"
)

// The directories of a layer.
const (
	SitePackages = "site-packages" // on the import path
	Bin          = "bin"           // scripts and launchers
	Data         = "data"          // what a wheel has in .data/data
	Include      = "include"       // headers
)

// item is a file that Unpack writes.
type item struct {
	root    string // SitePackages, Bin, Data or Include
	rel     string // path below it
	from    *entry // nil for one that is made here
	content []byte // of one that is made here
	script  bool   // its "#!python" line is made to fit
	exec    bool
}

// target is the path in the layer.
func (it item) target() string { return it.root + "/" + it.rel }

// layout says where every file goes.
type layout struct {
	dist  string // "demo-1.0.dist-info/"
	items []item
	mixed bool     // files come from more than one place, so that names may meet
	pth   []*entry // top-level .pth and .start files, which are not written
}

// schemes are the keys of a .data directory (PEP 427).
var schemes = map[string]string{
	"purelib": SitePackages, "platlib": SitePackages, "scripts": Bin, "data": Data, "headers": Include,
}

// newLayout places the files of the archive, without those that are left out on
// purpose. No two may end up in one place.
func newLayout(dist string, entries []*entry, o Options) (*layout, error) {
	l := &layout{dist: dist}
	data := strings.TrimSuffix(dist, ".dist-info/") + ".data/"
	for _, e := range entries {
		if e.dir {
			continue
		}
		root, rel := SitePackages, e.name
		if rest, ok := strings.CutPrefix(e.name, data); ok {
			var key string
			key, rel, _ = strings.Cut(rest, "/")
			if root = schemes[key]; root == "" || rel == "" {
				return nil, refuse(ErrWheelMetadata, e.name, "%s is no place for files of a .data directory", quote(key))
			}
			l.mixed = true
		}
		l.place(e, root, rel)
	}
	return l, l.checkTargets(o)
}

// place adds a file unless it is one to leave out.
func (l *layout) place(e *entry, root, rel string) {
	site := root == SitePackages
	switch {
	case site && !strings.Contains(rel, "/") && (strings.HasSuffix(rel, ".pth") || strings.HasSuffix(rel, ".start")):
		l.pth = append(l.pth, e)
	case strings.HasSuffix(rel, ".pyc") && path.Base(path.Dir(rel)) == "__pycache__":
	case site && l.aboutInstallation(rel):
	default:
		l.items = append(l.items, item{root: root, rel: rel, from: e, script: root == Bin, exec: root == Bin || e.exec})
	}
}

// aboutInstallation says whether a file tells how the wheel was installed, which
// is ours to tell.
func (l *layout) aboutInstallation(rel string) bool {
	rest, ok := strings.CutPrefix(rel, l.dist)
	name, _, _ := strings.Cut(rest, "/")
	return ok && slices.Contains([]string{"RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json"}, name)
}

// addLauncher places a script that is made here, not in the archive.
func (l *layout) addLauncher(name string, content []byte) {
	l.mixed = true
	l.items = append(l.items, item{root: Bin, rel: name, content: content, exec: true})
}

// checkTargets refuses a layout that puts two files in one place, or one over a
// directory, and one that has a second distribution.
func (l *layout) checkTargets(o Options) error {
	if !l.mixed {
		return nil // the names are those of the archive
	}
	u := newUnique(o)
	for _, it := range l.items {
		if err := u.add(it.target(), false); err != nil {
			return err
		}
		dir, _, _ := strings.Cut(it.rel, "/")
		if it.root == SitePackages && isDistInfo(dir) && dir+"/" != l.dist {
			return refuse(ErrWheelMetadata, it.from.name, "it belongs to another .dist-info directory")
		}
	}
	return nil
}

// sort brings the items into the order in which they are written: directory by
// directory.
func (l *layout) sort() {
	dir := func(it item) string { return it.rel[:max(0, strings.LastIndexByte(it.rel, '/'))] }
	slices.SortFunc(l.items, func(a, b item) int {
		return cmp.Or(cmp.Compare(a.root, b.root), cmp.Compare(dir(a), dir(b)), cmp.Compare(a.rel, b.rel))
	})
}

// isDistInfo is how importlib.metadata sees it.
func isDistInfo(dir string) bool { return strings.HasSuffix(strings.ToLower(dir), ".dist-info") }

// findDist finds the one .dist-info directory, whose name must agree with that
// of the file, and refuses .data directories of another name.
func (w *Wheel) findDist(entries []*entry) (string, error) {
	found := ""
	for _, e := range entries {
		dir, _, nested := strings.Cut(e.name, "/")
		switch {
		case !nested:
		case isDistInfo(dir) && found == "":
			found = dir
		case isDistInfo(dir) && dir != found:
			return "", refuse(ErrWheelMetadata, dir, "it has another .dist-info directory, %s", quote(found))
		}
	}
	stem, ok := strings.CutSuffix(found, ".dist-info")
	if !ok || !w.named(stem) {
		return "", refuse(ErrWheelMetadata, found, "it has no .dist-info directory for %s %s", w.File.Name, w.File.Version)
	}
	for _, e := range entries {
		dir, _, nested := strings.Cut(e.name, "/")
		if nested && strings.HasSuffix(dir, ".data") && dir != stem+".data" {
			return "", refuse(ErrWheelMetadata, e.name, "the .data directory must be named as the .dist-info directory")
		}
	}
	return found + "/", nil
}
