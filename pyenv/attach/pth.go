package attach

import (
	"fmt"
	"path"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
)

// pathLines is the text of the file that puts layers on the import path, "" for
// none: for each its site-packages, then the directories in there that its wheels
// ask for.
func pathLines(layers []*store.Layer) (string, error) {
	var b strings.Builder
	for _, l := range layers {
		site := store.MountDir + "/" + l.ID + "/site-packages"
		fmt.Fprintln(&b, site)
		for _, pkg := range l.Manifest.Packages {
			for _, dir := range pkg.PthPaths {
				if !oneLine(dir) || dir != path.Clean(dir) || path.IsAbs(dir) || dir == ".." || strings.HasPrefix(dir, "../") {
					return "", fmt.Errorf("%w: %s asks for the directory %q", ErrInvalid, pkg.Name, dir)
				}
				fmt.Fprintln(&b, path.Join(site, dir))
			}
		}
	}
	return b.String(), nil
}

// startupLines is the text of the file with approved code, "" for none. All of it
// is in one file: when a line fails, Python says so and leaves out the rest.
func startupLines(s Set) (string, error) {
	var b strings.Builder
	for _, l := range s.Layers {
		for _, line := range s.Startup[l.ID] {
			if !hasStartup(l, line) {
				return "", fmt.Errorf("%w: %s has no startup code %q", ErrInvalid, l.ID, line)
			}
			fmt.Fprintln(&b, line)
		}
	}
	return b.String(), nil
}

// hasStartup says whether a line is one of a .pth file of the layer's wheels that
// Python executes. Lines of .start files (PEP 829) are of another kind.
func hasStartup(l *store.Layer, line string) bool {
	if !oneLine(line) || !strings.HasPrefix(line, "import ") && !strings.HasPrefix(line, "import\t") {
		return false
	}
	for _, pkg := range l.Manifest.Packages {
		for _, file := range pkg.Startup {
			for _, known := range file.Lines {
				if known == line && strings.HasSuffix(file.File, ".pth") {
					return true
				}
			}
		}
	}
	return false
}

// oneLine says whether Python sees one line in a text, whichever way it splits it.
func oneLine(text string) bool {
	return !strings.ContainsAny(text, "\x00\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029")
}
