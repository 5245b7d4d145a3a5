package python

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// facts is python/<id>/FACTS: what the probe told, and on what that rests.
//
// An answer holds as long as the files that ran are the same: the program and its
// library in the prefix, and of the host the loader, the C library (an older one
// takes fewer wheels) and perhaps libpython. They are known by their SHA-256, which
// takes some milliseconds for some megabytes: times and inode numbers are the same
// for different files on systems that set all times to one (OSTree, Nix), and
// differ for one file after a container was made anew.
type facts struct {
	Facts
	Files []mappedFile `json:"files"`
}

// mappedFile is a file that the interpreter had mapped when it answered.
type mappedFile struct {
	Path   string `json:"path"` // in the sandbox
	SHA256 string `json:"sha256"`
}

func newFacts(dir string, a answer) (facts, error) {
	target, err := a.target()
	if err != nil {
		return facts{}, err
	}
	f := facts{Facts: Facts{Full: a.Version, Target: target, Stdlib: a.Stdlib, SitePackages: a.sitePackages()}}
	for _, path := range a.Mapped {
		sum, err := hashMapped(dir, path)
		if err != nil {
			return facts{}, err
		}
		if sum != "" {
			f.Files = append(f.Files, mappedFile{path, sum})
		}
	}
	if len(f.Files) < 2 {
		return facts{}, broken("it told of %d files that it runs", len(f.Files))
	}
	return f, nil
}

// hashMapped finds the file of the host that the sandbox shows at a path, "" for
// one that is of no matter.
func hashMapped(dir, path string) (string, error) {
	host, own := strings.CutPrefix(path, Prefix+"/")
	switch {
	case filepath.Clean(path) != path:
		return "", broken("it told of the file %q", path)
	case own:
		host = filepath.Join(dir, host)
	case strings.HasPrefix(path, "/usr/"), strings.HasPrefix(path, "/lib"):
		host = path
	default:
		return "", nil
	}
	f, err := os.OpenFile(host, os.O_RDONLY|hostos.NonBlock, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return hash(f)
}

// hold says whether every file is what it was.
func (f facts) hold(dir string) bool {
	return len(f.Files) > 0 && !slices.ContainsFunc(f.Files, func(m mappedFile) bool {
		sum, err := hashMapped(dir, m.Path)
		return err != nil || sum != m.SHA256
	})
}

// writeJSON writes a file that nobody has seen yet. It is on disk before it can get
// the name of another one.
func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return writeNew(path, b)
}

// writeNew writes a file of one or more lines.
func writeNew(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Sync(), f.Close())
}
