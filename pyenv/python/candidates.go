package python

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Candidate is an interpreter that was considered, for doctor.
type Candidate struct {
	Path   string // as it was configured or found
	Real   string // the file or directory that it leads to, "" if there is none
	Chosen bool
	Why    string // one sentence without a full stop
}

// Candidates tells of every interpreter that the options, the system and the PATH
// of the caller have, best first, which one Make takes and why not the others. It
// reads names and links, and the hash of an archive; it runs nothing.
func Candidates(o Options) []Candidate {
	var list []Candidate
	taken := false
	add := func(path string, src source, err error) {
		c := Candidate{Path: path}
		c.Real, _ = filepath.EvalSymlinks(path)
		switch {
		case err != nil:
			c.Why = reason(err)
		case taken:
			c.Why = "another one comes first"
		default:
			c.Chosen, c.Why = true, "it is the first that can be used"
		}
		if src != nil {
			src.close()
		}
		taken = taken || c.Chosen
		list = append(list, c)
	}
	if o.Prefix != "" {
		src, err := openPrefix(o.Prefix)
		add(o.Prefix, src, err)
		taken = true // it was asked for: nothing else is taken in its place
	}
	if o.Archive != "" || o.SHA256 != "" {
		src, err := openArchive(o.Archive, o.SHA256)
		add(o.Archive, src, err)
		taken = true
	}
	for _, path := range o.systemPythons() {
		src, err := openSystem(path)
		add(path, src, err)
	}
	return append(list, onPath(o)...)
}

// Usable tells whether what the options name looks as if an interpreter could be made of
// it; nil if they name nothing. It reads names and links, and not the bytes of an archive.
// Errors: those of Make for what it finds.
func Usable(o Options) error {
	switch {
	case o.Archive != "" || o.SHA256 != "":
		info, err := os.Stat(o.Archive)
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%w: the archive is no regular file", ErrRefused)
		}
		return err
	case o.Prefix != "":
		src, err := openPrefix(o.Prefix)
		if src != nil {
			src.close()
		}
		return err
	}
	return nil
}

// mostOnPath bounds how many directories of a PATH are looked at.
const mostOnPath = 100

// onPath tells of the interpreters that the caller would run, none of which is.
func onPath(o Options) []Candidate {
	var list []Candidate
	known := map[string]bool{}
	for _, path := range o.systemPythons() {
		known[path] = true
	}
	for i, dir := range o.HostPath {
		path := filepath.Join(dir, "python3")
		info, err := os.Stat(path)
		out := errors.Is(err, fs.ErrPermission)
		if i >= mostOnPath || !filepath.IsAbs(dir) || err != nil && !out || err == nil && info.Mode().Type()&^fs.ModeSymlink != 0 || known[path] {
			continue
		}
		known[path] = true
		c := Candidate{Path: path, Why: "it is on the PATH, which decides nothing here"}
		if out {
			c.Why += "; the user that scripts run as cannot reach it"
			list = append(list, c)
			continue
		}
		if c.Real, err = filepath.EvalSymlinks(path); err == nil {
			if why := hidden(c.Real); why != "" {
				c.Why = fmt.Sprintf("%s: %s", c.Why, why)
			}
		}
		list = append(list, c)
	}
	return list
}
