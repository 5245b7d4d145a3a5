package python

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// tree is a source that lies on the host as files.
type tree struct {
	said  Source
	parts []part
	roots []*os.Root
	items []item // nil until list was called
}

// part is a directory of the host and where it is in the prefix.
type part struct {
	root   *os.Root
	at     string                 // in the prefix, "." for all of it
	wanted func(name string) bool // name is a path in root
	// lenient: a link that leads out is left out, instead of refused. What the
	// system has in /usr is put together by its packages.
	lenient bool
}

// item is a file to copy.
type item struct {
	root   *os.Root
	name   string // in root
	to     string // in the prefix
	link   string // target, of a link to a name beside it
	exec   bool
	sha256 string
}

// openPrefix looks at a directory that the operator named.
func openPrefix(dir string) (source, error) {
	if !filepath.IsAbs(dir) {
		return nil, refuse("the prefix %q is not an absolute path", dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, refuse("the prefix cannot be opened: %w", err)
	}
	t := &tree{said: Source{Kind: KindPrefix, From: dir}, roots: []*os.Root{root}}
	if _, err := root.Lstat("pyvenv.cfg"); err == nil {
		t.close()
		return nil, refuse("%s is a virtual environment, which needs the interpreter that it was made from: name the prefix of that one", dir)
	}
	if info, err := root.Stat("bin/python3"); err != nil || !info.Mode().IsRegular() {
		t.close()
		return nil, refuse("%s has no bin/python3 of its own: a link that leads elsewhere is none", dir)
	}
	name, err := leads(root, "bin/python3")
	if err != nil {
		t.close()
		return nil, err
	}
	// It may have several; the others are not copied.
	keep := func(p string) bool { return wanted(p) && (path.Dir(p) != "bin" || p == name) }
	t.parts = []part{{root: root, at: ".", wanted: keep}}
	return t, nil
}

// leads follows a link in root that leads to a program bin/python3.N.
func leads(root *os.Root, name string) (string, error) {
	for range 8 {
		info, err := root.Lstat(name)
		if err != nil {
			return "", refuse("the prefix cannot be read: %w", err)
		}
		if info.Mode().IsRegular() && path.Dir(name) == "bin" && program.MatchString(path.Base(name)) {
			return name, nil
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			break
		}
		target, err := root.Readlink(name)
		if err != nil {
			return "", refuse("the prefix cannot be read: %w", err)
		}
		name = path.Join(path.Dir(name), target)
	}
	return "", refuse("bin/python3 leads to no program bin/python3.N in %s", root.Name())
}

// systemPythons are the interpreters of the system, best first. Where they are on
// the host they are in the sandbox.
var systemPythons = [...]string{"/usr/bin/python3", "/usr/local/bin/python3"}

func (o Options) systemPythons() []string {
	if o.system != nil {
		return o.system
	}
	return systemPythons[:]
}

// openSystem looks at a Python of the system. Its program is copied with its
// standard library; shared libraries are those of the host.
func openSystem(path string) (source, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, refuse("%s is not there", path)
	}
	if why := hidden(real); why != "" {
		return nil, refuse("%s is not used: %s", path, why)
	}
	name := filepath.Base(real)
	if !program.MatchString(name) {
		return nil, refuse("%s is not used: %s is no program python3.N", path, real)
	}
	base := filepath.Dir(filepath.Dir(real))
	t := &tree{said: Source{Kind: KindSystem, From: real, Why: "degraded, a copy of the system's Python: its extension modules use the libraries of the system, " +
		"and updates reach it only when it is made anew; no prefix and no archive is configured"}}
	bin, err := os.OpenRoot(filepath.Dir(real))
	if err != nil {
		return nil, refuse("%s cannot be opened: %w", path, err)
	}
	t.roots = append(t.roots, bin)
	t.parts = append(t.parts, part{root: bin, at: "bin", wanted: func(p string) bool { return p == name }})
	for _, lib := range []string{"lib64", "lib"} {
		std, err := os.OpenRoot(filepath.Join(base, lib, name))
		if err != nil {
			continue
		}
		t.roots = append(t.roots, std)
		if _, err := std.Lstat("os.py"); err != nil {
			continue
		}
		t.parts = append(t.parts, part{root: std, at: lib + "/" + name, wanted: wantedModule, lenient: true})
		return t, nil
	}
	t.close()
	return nil, refuse("%s is not used: there is no standard library in %s/lib/%s", path, base, name)
}

// hidden says why a program of the host is no Python of the system, "" if it may be.
func hidden(real string) string {
	if strings.HasPrefix(real, "/usr/") {
		return ""
	}
	for _, dir := range []string{"/root", "/home", "/tmp", "/var", "/opt", "/nix"} {
		if strings.HasPrefix(real, dir+"/") {
			return fmt.Sprintf("%s lies below %s, which the sandbox does not show", real, dir)
		}
	}
	return fmt.Sprintf("%s lies outside /usr, which is all that the sandbox shows", real)
}

func (t *tree) tell() Source { return t.said }

func (t *tree) close() {
	for _, r := range t.roots {
		r.Close()
	}
}

// id hashes all that will be copied.
func (t *tree) id(ctx context.Context) (string, error) {
	if err := t.list(ctx); err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%d %s\n", layoutRev, t.said.Kind)
	for _, it := range t.items {
		fmt.Fprintf(h, "%q %q %t %s\n", it.to, it.link, it.exec, it.sha256)
	}
	return newID(t.said.Kind, h.Sum(nil)), nil
}

// layoutRev is part of every id, and changes when a prefix is made otherwise.
const layoutRev = 1

func newID(kind string, sum []byte) string { return kind + "-" + hex.EncodeToString(sum[:8]) }

// list finds what is wanted, in the order of the paths in the prefix.
func (t *tree) list(ctx context.Context) error {
	t.items = nil
	for _, p := range t.parts {
		if err := p.walk(ctx, &t.items); err != nil {
			return err
		}
	}
	slices.SortFunc(t.items, func(a, b item) int { return cmp.Compare(a.to, b.to) })
	return nil
}

func (p part) walk(ctx context.Context, items *[]item) error {
	return fs.WalkDir(p.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			if name != "." && !p.mayHold(name) {
				return fs.SkipDir // of no matter, so it need not be readable
			}
			return refuse("it cannot be read: %w", err)
		}
		if d.IsDir() {
			if name != "." && !p.mayHold(name) {
				return fs.SkipDir
			}
			return checkOwner(p.root, name)
		}
		if !p.wanted(name) {
			return nil
		}
		if len(*items) >= maxFiles {
			return refuse("it has more than %d files", maxFiles)
		}
		it, ok, err := p.look(name)
		if err == nil && ok {
			*items = append(*items, it)
		}
		return err
	})
}

// mayHold says whether something below a directory can be wanted: what a file in
// it would be called decides, for the rules are about directories.
func (p part) mayHold(dir string) bool {
	if p.at != "." {
		return p.wanted(dir + "/x.py")
	}
	first, rest, _ := strings.Cut(dir, "/")
	switch {
	case first == "bin":
		return rest == ""
	case first != "lib" && first != "lib64":
		return false
	case rest == "":
		return true
	}
	return wanted(dir + "/x.py")
}

// look opens a wanted file and hashes it.
func (p part) look(name string) (it item, ok bool, err error) {
	it = item{root: p.root, name: name, to: path.Join(p.at, name)}
	info, err := p.root.Lstat(name)
	if err != nil {
		return it, false, refuse("it cannot be read: %w", err)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := p.root.Readlink(name)
		if err != nil {
			return it, false, refuse("it cannot be read: %w", err)
		}
		if !strings.Contains(target, "/") && p.wanted(path.Join(path.Dir(name), target)) {
			it.link = target
			return it, true, nil
		}
		// Any other is copied as the file that it leads to, if that is of the tree.
		if info, err = p.root.Stat(name); err != nil {
			if p.lenient {
				return it, false, nil
			}
			return it, false, refuse("the link %s leads out of %s, or nowhere", name, p.root.Name())
		}
	}
	if !info.Mode().IsRegular() {
		return it, false, refuse("%s in %s is neither a file nor a directory", name, p.root.Name())
	}
	if err := checkInfo(p.root, name, info); err != nil {
		return it, false, err
	}
	it.exec = info.Mode()&0o111 != 0
	f, err := p.root.OpenFile(name, os.O_RDONLY|hostos.NonBlock, 0)
	if err != nil {
		return it, false, refuse("it cannot be read: %w", err)
	}
	defer f.Close()
	it.sha256, err = hash(f)
	return it, true, err
}

func hash(r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func checkOwner(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil {
		return refuse("it cannot be read: %w", err)
	}
	return checkInfo(root, name, info)
}

// checkInfo refuses what others than this user and root can change.
func checkInfo(root *os.Root, name string, info fs.FileInfo) error {
	if uid, ok := hostos.Owner(info); ok && uid != 0 && uid != os.Geteuid() {
		return refuse("%s in %s belongs to another user, uid %d", name, root.Name(), uid)
	}
	if info.Mode().Perm()&0o002 != 0 {
		return refuse("%s in %s can be written by everybody", name, root.Name())
	}
	return nil
}

// copy writes what was listed, and makes sure that it is what was hashed.
func (t *tree) copy(ctx context.Context, w *writer) error {
	if t.items == nil {
		if err := t.list(ctx); err != nil {
			return err
		}
	}
	for _, it := range t.items {
		if err := it.copy(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

func (it item) copy(ctx context.Context, w *writer) error {
	if it.link != "" {
		return w.link(it.to, it.link)
	}
	f, err := it.root.OpenFile(it.name, os.O_RDONLY|hostos.NonBlock, 0)
	if err != nil {
		return refuse("it cannot be read: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if err := w.file(ctx, it.to, it.exec, io.TeeReader(f, h)); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return refuse("it has %s twice", it.to)
		}
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != it.sha256 {
		return refuse("%s changed while it was copied: try again", it.name)
	}
	return nil
}
