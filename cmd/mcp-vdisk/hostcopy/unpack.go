package hostcopy

import (
	"archive/tar"
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/hostname"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Unpacker writes a stream to the host, below one directory. It is for one stream, and
// for one goroutine.
//
// A link of the host is followed where the person named it, in Dest; one that is found
// below is an obstacle like a file. A link of the stream is made when it cannot lead out
// of what is copied: its target is relative, climbs no higher than the top, and goes up
// only at its beginning (a link on the way would make "link/.." anything). Another is
// left out.
//
// Modes are those of the stream as far as the process's mask of modes allows; setuid,
// setgid and sticky are dropped. A folder that is there already keeps its mode.
type Unpacker struct {
	Dest  string            // a directory to write into, or the name to write under
	Force bool              // overwrite files and links, never a folder or anything else
	Warn  io.Writer         // is told what is left out, and what tools run by themselves
	Entry func(name string) // is told each entry when it begins; may be nil
	Bytes io.Writer         // gets the content of files once more; may be nil

	Shown string // where the stream went
	Total int64  // bytes of files to come, when Plan has returned
	Count int    // entries that were written, or were there

	name    string    // in Dest's directory, in place of the top-level name; "" keeps it
	folders []*folder // from Dest's directory down to where the stream is
	buf     []byte
	left    tally
	autorun tally
	renamed tally

	around string            // the last names of Dest's directory
	rules  *hostname.Rules   // of Dest's directory
	taken  map[string]string // names by the form that the host compares, where it tells no case
}

// Run unpacks a tar stream. Each file is there whole or not at all, whenever it ends: it
// is written under a name of its own, which a process that is killed may leave behind
// (.mcp-vdisk-*.part), and which hinders nobody.
//
// Errors: an *exit.Failure for what the host refuses; what reading the stream returns.
// What was written before stays.
func (u *Unpacker) Run(r io.Reader) (err error) {
	u.left = tally{w: u.Warn, what: "more were left out"}
	u.autorun = tally{w: u.Warn, what: "more files that tools run by themselves"}
	u.buf = make([]byte, copyBuffer)
	defer func() { err = cmp.Or(err, u.climb(0)) }()
	defer u.left.end()
	defer u.autorun.end()
	u.renamed = tally{w: u.Warn, what: "more names that this computer cannot hold"}
	defer u.renamed.end()
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		if err := u.next(t, h); err != nil {
			return err
		}
	}
}

func (u *Unpacker) next(t *tar.Reader, h *tar.Header) error {
	in, name, err := u.place(h.Name, h.Typeflag == tar.TypeDir)
	if err != nil {
		return err
	}
	full := in.join(name)
	if u.Entry != nil {
		u.Entry(full)
	}
	made := true
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.dir(in, name, h)
	case tar.TypeSymlink:
		made, err = u.link(in, name, h)
	case tar.TypeReg:
		err = u.file(in, name, t, h)
	default:
		err = fmt.Errorf("the stream has an entry of type %q", h.Typeflag)
	}
	if err != nil {
		return u.refusal(in, name, err)
	}
	if !made {
		return nil
	}
	u.Count++
	if was := path.Base(h.Name); name != was && (u.name == "" || strings.Contains(strings.TrimSuffix(h.Name, "/"), "/")) {
		u.renamed.add("note: %s is written as %s, for this computer cannot hold its name", Shown(was), Shown(full))
	}
	if why, ok := AutoRun(u.around + "/" + full); ok && h.Typeflag != tar.TypeDir {
		u.autorun.add("note: %s: %s", Shown(full), why)
	}
	return nil
}

// Plan reads what WritePlanned wrote, from its beginning to its end, and looks whether all
// of it can be written. Nothing is written yet; Run follows, on the same reader.
//
// Errors: an *exit.Failure that names the first entry which cannot, and counts the
// others; what reading returns.
func (u *Unpacker) Plan(r *bufio.Reader) error {
	var first error
	others := 0
	for {
		p, err := readPlanned(r)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		u.Total += p.Size
		in, name, err := u.place(p.Name, p.Kind == PlannedDir)
		if err != nil {
			return err
		}
		switch err := u.refusal(in, name, u.free(in, name, p.Kind)); {
		case err != nil && first == nil:
			first = err
		case err != nil:
			others++
		}
	}
	return cmp.Or(whole(first, others), u.climb(0))
}

// whole says that nothing was written, and how many entries have the like of err.
func whole(err error, others int) error {
	var said *exit.Failure
	if !errors.As(err, &said) {
		return err
	}
	more := ""
	if others > 0 {
		more = fmt.Sprintf(", and %d more are in the way", others)
	}
	return exit.Fail(said.Code, said.Hint, "%s%s; nothing was copied", said.Text, more)
}

// free says whether an entry can be written, and goes into a folder that is there. In one
// that is not, all is free.
func (u *Unpacker) free(in *folder, name string, kind byte) error {
	if in.root == nil {
		if kind == PlannedDir {
			u.folders = append(u.folders, &folder{rel: in.join(name)})
		}
		return nil
	}
	if kind != PlannedDir {
		return u.replaceable(in, name)
	}
	sub := &folder{rel: in.join(name)}
	_, err := in.root.Lstat(name)
	if err == nil {
		sub, err = in.open(name)
	}
	if sub == nil { // what is below it cannot be written either, which is told once
		sub = &folder{rel: in.join(name)}
	}
	u.folders = append(u.folders, sub)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// place finds the folder that an entry of the stream goes into and its name there. The
// folder is one that the stream is in: entries come with their folder before them, and
// all of a folder together.
func (u *Unpacker) place(entry string, isDir bool) (*folder, string, error) {
	entry = strings.TrimSuffix(entry, "/")
	top, rest, below := strings.Cut(entry, "/")
	if len(u.folders) == 0 {
		if err := u.open(top, isDir); err != nil {
			return nil, "", err
		}
	}
	full := cmp.Or(u.name, u.hostPath("", top))
	for below {
		var part string
		part, rest, below = strings.Cut(rest, "/")
		full = u.hostPath(full, part)
	}
	dir, name := path.Split(full)
	dir = strings.TrimSuffix(dir, "/")
	at := len(u.folders) - 1
	for at > 0 && u.folders[at].rel != dir {
		at--
	}
	if name == "" || name == "." || name == ".." || u.folders[at].rel != dir {
		return nil, "", fmt.Errorf("the stream has an entry %q out of place", entry)
	}
	return u.folders[at], name, u.climb(at + 1)
}

// hostPath adds a name of the stream to a path on the host, in a form that the host can
// hold.
func (u *Unpacker) hostPath(dir, name string) string {
	at := func(host string) string { return strings.TrimPrefix(dir+"/"+host, "/") }
	if name == "" || name == "." || name == ".." { // which are refused as they are
		return at(name)
	}
	host := hostname.Escape(name, *u.rules)
	if !u.rules.Folds {
		return at(host)
	}
	if u.taken == nil {
		u.taken = map[string]string{}
	}
	key := strings.ToLower(at(host))
	if other, ok := u.taken[key]; ok && other != name {
		return at(hostname.Mark(host, name, u.rules.Max))
	}
	u.taken[key] = name
	return at(host)
}

// open finds the directory to write below: dest itself if it is one, else the
// directory that dest is to be made in.
func (u *Unpacker) open(top string, isDir bool) error {
	dir, name := u.Dest, ""
	if info, err := os.Stat(u.Dest); err != nil || !info.IsDir() {
		dest := u.Dest
		if isDir { // as cp does, which takes "new/" for a folder that is made
			dest = strings.TrimRight(dest, "/")
		}
		dir, name = filepath.Dir(dest), filepath.Base(dest)
		if strings.HasSuffix(dest, "/") {
			dir = dest
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return exit.Fail(exit.NotFound, "", "%s: %s", Shown(dir), front.ErrText(err))
	}
	base, err := opened(root, "")
	if err != nil {
		return err
	}
	if u.rules == nil {
		rules := hostname.RulesIn(root)
		u.rules = &rules
	}
	if abs, err := filepath.Abs(dir); err == nil {
		u.around = path.Join(filepath.Base(filepath.Dir(abs)), filepath.Base(abs))
	}
	u.folders, u.name = []*folder{base}, name
	u.Shown = filepath.Join(dir, cmp.Or(name, u.hostPath("", top)))
	return nil
}

// climb leaves the folders of the stream from a depth on; 0 is all.
func (u *Unpacker) climb(depth int) (err error) {
	for len(u.folders) > depth {
		last := len(u.folders) - 1
		f := u.folders[last]
		u.folders = u.folders[:last]
		if e := f.close(); e != nil && err == nil {
			err = u.refusal(u.parent(f), path.Base(f.rel), e)
		}
	}
	return err
}

// parent of a folder that was just left.
func (u *Unpacker) parent(f *folder) *folder {
	if len(u.folders) == 0 {
		return f
	}
	return u.folders[len(u.folders)-1]
}

// refusal gives an error about an entry its words.
func (u *Unpacker) refusal(in *folder, name string, err error) error {
	var said *exit.Failure
	switch {
	case err == nil:
		return nil
	case errors.As(err, &said):
		return said
	}
	shown := Shown(filepath.Join(filepath.Dir(u.Shown), filepath.FromSlash(in.join(name))))
	switch {
	case errors.Is(err, errNoFolder):
		return exit.Fail(exit.Refused, "choose another place", "%s is there already and is no folder", shown)
	case errors.Is(err, errOther):
		return exit.Fail(exit.Refused, "choose another place", "%s is neither a file nor a link; it is not replaced", shown)
	case errors.Is(err, fs.ErrExist):
		return exit.Fail(exit.Refused, "pass --force to overwrite, or another place", "%s is there already", shown)
	}
	hint := ""
	if hostos.IsNoSpace(err) {
		hint = "make room there; what was written before is whole"
	}
	return exit.Fail(exit.Failed, hint, "write %s: %s", shown, reason(err))
}

// reason is why a call failed, without the names that it was made with.
func reason(err error) string {
	var l *os.LinkError
	if errors.As(err, &l) {
		return l.Err.Error()
	}
	return front.ErrText(err)
}

// Why an entry cannot be written, beside fs.ErrExist.
var (
	errNoFolder = errors.New("something else than a folder is there")
	errOther    = errors.New("what is there is not replaced")
)

// dir makes a folder, or takes the one that is there, and goes into it. Its mode and time
// follow when it is left: until then it can be filled.
func (u *Unpacker) dir(in *folder, name string, h *tar.Header) error {
	mode := fs.FileMode(h.Mode) & 0o777
	err := in.root.Mkdir(name, mode|0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	made := err == nil
	f, err := in.open(name)
	if err != nil {
		return err
	}
	if made {
		f.made, f.mode, f.mtime = true, mode, h.ModTime
	}
	u.folders = append(u.folders, f)
	return nil
}

// link makes a link that stays within what is copied.
func (u *Unpacker) link(in *folder, name string, h *tar.Header) (made bool, err error) {
	top, _, _ := strings.Cut(in.join(name), "/")
	if !staysIn(top, in.rel, h.Linkname) {
		u.left.add("left out the link %q: it leads to %q, out of what is copied", in.join(name), h.Linkname)
		return false, nil
	}
	if err := u.replaceable(in, name); err != nil {
		return false, err
	}
	return true, in.finish(name, h.ModTime, u.Force, func(tmp string) error { return in.root.Symlink(h.Linkname, tmp) })
}

// staysIn says whether a link in a folder, which lies in top or is the one above it,
// leads to something in top, whatever other such links there are.
func staysIn(top, folder, target string) bool {
	if target == "" || strings.HasPrefix(target, "/") {
		return false
	}
	at, down := folder, false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if down || at == "" {
				return false
			}
			at = strings.TrimSuffix(at[:strings.LastIndexByte(at, '/')+1], "/")
		default:
			at, down = path.Join(at, part), true
		}
	}
	return at == top || strings.HasPrefix(at, top+"/")
}

// replaceable says whether name may be written: it is free or, by force, a file
// or a link. Whoever names a device or a pipe means to write to it, and would
// lose it to a file of the same name.
func (u *Unpacker) replaceable(in *folder, name string) error {
	info, err := in.root.Lstat(name)
	switch {
	case err != nil:
		return nil // it is not there, or writing tells why not
	case !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeSymlink:
		return errOther
	case !u.Force:
		return fs.ErrExist
	}
	return nil
}

// file writes a file whole or not at all.
func (u *Unpacker) file(in *folder, name string, t *tar.Reader, h *tar.Header) error {
	if err := u.replaceable(in, name); err != nil {
		return err
	}
	return in.finish(name, h.ModTime, u.Force, func(tmp string) error {
		f, err := in.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fs.FileMode(h.Mode)&0o777)
		if err != nil {
			return err
		}
		s := &sparse{f: f}
		var out io.Writer = s
		if u.Bytes != nil {
			out = io.MultiWriter(s, u.Bytes)
		}
		if _, err = io.CopyBuffer(out, t, u.buf); err == nil {
			err = s.finish()
		}
		return errors.Join(err, f.Close())
	})
}
