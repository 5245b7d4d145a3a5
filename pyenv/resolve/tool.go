package resolve

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/tags"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// pinned is the pip that InstallTool fetches. It is at least 26.2: older ones follow
// URLs that they decode twice (CVE-2026-13346), and, before 25.3, download every wheel
// of a dry run.
var pinned = lock.Package{
	Name: "pip", Version: "26.2.1", File: "pip-26.2.1-py3-none-any.whl", Size: 1_816_632,
	SHA256: "71138adf1f4ca900cdb7d289c21b7494329f2332b6d85f0e1c42108c0384ed3e",
}

// leastPip is the oldest with a report of version 1.
const leastPip = "23.0"

// FindTool returns the pip to use: the pinned one of tools/ in the environment root,
// another one there (the newest), or one of the host below /usr, which is noted in
// Pip.Lacks. The host's must be of the same minor version of Python as py.
//
// Errors: ErrResolverUnavailable, which tells what was looked for; those of the jail.
func FindTool(ctx context.Context, root string, box *sandboxrun.Runner, py *python.Interpreter) (*Pip, error) {
	tried := []string{"pip in tools/ of the environments"}
	if p := installed(root, box, py); p != nil {
		return p, nil
	}
	host, more, err := findHost(ctx, box, py)
	if host != nil || err != nil {
		return host, err
	}
	e := fail(ErrResolverUnavailable, "there is no pip of version %s or newer to resolve packages with (tried: %s)", leastPip, strings.Join(append(tried, more...), ", "))
	e.Suggestions = []string{"Ask the operator to run `mcp-vdisk env ensure` with access to a package index, or `mcp-vdisk env ensure --pip-wheel FILE`."}
	return nil, e
}

// sourceFile tells where a tool came from. It is written last.
const sourceFile = "SOURCE"

// toolSource is SOURCE, as JSON.
type toolSource struct {
	File    string `json:"file"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
	From    string `json:"from"` // "index" or "file"
}

// installed is the best pip in tools/, nil if there is none.
func installed(root string, box *sandboxrun.Runner, py *python.Interpreter) *Pip {
	dir := filepath.Join(root, "tools")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var best *Pip
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name(), sourceFile))
		var s toolSource
		if !e.IsDir() || err != nil || json.Unmarshal(b, &s) != nil || e.Name() != "pip-"+s.Version {
			continue
		}
		p := &Pip{Box: box, Python: py, Dir: filepath.Join(dir, e.Name(), wheel.SitePackages), Version: s.Version}
		if !p.atLeast(leastPip) {
			continue
		}
		if best == nil || p.Version == pinned.Version || best.Version != pinned.Version && p.atLeast(best.Version) {
			best = p
		}
	}
	if best != nil {
		best.lacks()
	}
	return best
}

// lacks notes what an older pip cannot do.
func (p *Pip) lacks() {
	if !p.atLeast("25.3") {
		p.Lacks = fmt.Sprintf("Resolved by pip %s, which downloads every wheel while it looks for a solution.", p.Version)
	}
}

// hostPythons are where a pip of the host is looked for, best first: what package
// python takes for an interpreter of the system, for a jail shows /usr.
var hostPythons = []string{"/usr/bin/python3", "/usr/local/bin/python3"}

// bundled is where distributions keep the wheel of pip that venv installs.
var bundled = []string{"/usr/share/python-wheels/pip-*.whl", "/usr/lib/python3*/ensurepip/_bundled/pip-*.whl"}

// findHost tries the pips of the host. It is asked in a jail, too: what it imports is
// nobody's promise. With py == nil any Python will do.
func findHost(ctx context.Context, box *sandboxrun.Runner, py *python.Interpreter) (p *Pip, tried []string, err error) {
	for _, host := range hostPips() {
		tried = append(tried, host.String())
		if _, err := os.Stat(host.python); err != nil {
			continue
		}
		version, minor, err := host.ask(ctx, box)
		if err != nil {
			return nil, tried, err
		}
		p := &Pip{Box: box, Python: py, Version: version, host: host}
		switch {
		case version == "" || !p.atLeast(leastPip):
		case py != nil && minor != py.Facts.Target.Minor:
			tried[len(tried)-1] += fmt.Sprintf(" (of Python 3.%d, not 3.%d)", minor, py.Facts.Target.Minor)
		default:
			p.lacks()
			return p, tried, nil
		}
	}
	return nil, tried, nil
}

// hostPips are the places of the host that may have a pip.
func hostPips() (list []*hostPip) {
	var there []string
	for _, python := range hostPythons {
		list = append(list, &hostPip{python, ""})
		if _, err := os.Stat(python); err == nil {
			there = append(there, python)
		}
	}
	for _, pattern := range bundled {
		found, _ := filepath.Glob(pattern) // the patterns are valid
		for _, where := range found {
			for _, python := range there {
				list = append(list, &hostPip{python, where})
			}
		}
	}
	return list
}

// String is how it is told of.
func (h *hostPip) String() string {
	if h.where != "" {
		return h.where + " by " + h.python
	}
	return h.python + " -m pip"
}

const versionScript = `import sys
if sys.argv[1]: sys.path.insert(0, sys.argv[1])
import pip
print(pip.__version__, sys.version_info[1])`

// ask returns the version of pip and the minor version of its Python; "" without one.
func (h *hostPip) ask(ctx context.Context, box *sandboxrun.Runner) (version string, minor int, err error) {
	res, err := box.Jail(ctx, sandboxrun.Jail{Argv: []string{h.python, "-I", "-c", versionScript, h.where}, Timeout: 20 * time.Second, OutBytes: 1 << 20})
	if err != nil {
		return "", 0, jailError(ctx, err)
	}
	if _, err := fmt.Sscanf(string(res.Stdout.Text), "%40s %d", &version, &minor); err != nil || res.ExitCode != 0 {
		return "", 0, nil
	}
	if _, err := spec.ParseVersion(version); err != nil {
		return "", 0, nil
	}
	return version, minor, nil
}

// InstallTool unpacks pip into tools/ of the environment root, unless it is there, and
// returns it: the wheel file, or for "" the pinned one, fetched by a pip of the host in
// a jail, by the configuration. A file may be of any version from 23.0 on: whoever
// names it answers for it, and its SHA-256 is noted.
//
// Several processes may do so at once. A crash leaves a directory or a file of a name
// that begins with ".tmp-", which a call an hour later removes.
//
// Errors: as Fetch; ErrResolverUnavailable without a pip to begin with; ErrBadConfig or
// a *wheel.Error for a file that is no wheel of pip; those of the file system.
func InstallTool(ctx context.Context, root, file string, c Config, box *sandboxrun.Runner, py *python.Interpreter) (*Pip, error) {
	tools := filepath.Join(root, "tools")
	if err := os.MkdirAll(tools, 0o700); err != nil {
		return nil, fmt.Errorf("resolve: %w", err)
	}
	sweep(tools, time.Now())
	in := installer{tools: tools, box: box, py: py}
	if file != "" {
		return in.fromFile(ctx, file)
	}
	if p := installed(root, box, py); p != nil && p.Version == pinned.Version {
		return p, nil
	}
	host, tried, err := findHost(ctx, box, nil)
	if err != nil {
		return nil, err
	}
	if host == nil {
		e := fail(ErrResolverUnavailable, "there is no pip to fetch the pinned one with (tried: %s)", strings.Join(tried, ", "))
		e.Suggestions = []string{"Install python3-pip, or give a wheel of pip: `mcp-vdisk env ensure --pip-wheel FILE`."}
		return nil, e
	}
	host.Temp = tools
	var p *Pip
	err = host.Fetch(ctx, []lock.Package{pinned}, c, func(l lock.Package, f *os.File) error {
		var err error
		p, err = in.unpack(ctx, f, toolSource{l.File, l.Version, l.SHA256, "index"})
		return err
	})
	return p, err
}

// leftTime is the age at which nobody works any more on what begins with tmpPrefix: a
// file of 2 MB is fetched and unpacked within some minutes.
const leftTime = time.Hour

const tmpPrefix = ".tmp-"

// sweep removes what killed processes left. What cannot be removed does no harm.
func sweep(tools string, now time.Time) {
	entries, _ := os.ReadDir(tools)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasPrefix(e.Name(), tmpPrefix) && now.Sub(info.ModTime()) > leftTime {
			_ = os.RemoveAll(filepath.Join(tools, e.Name()))
		}
	}
}

type installer struct {
	tools string
	box   *sandboxrun.Runner
	py    *python.Interpreter
}

func (in installer) fromFile(ctx context.Context, file string) (*Pip, error) {
	name := filepath.Base(file)
	if err := wheelFile(file); err != nil {
		return nil, err
	}
	tag, err := tags.ParseFile(name)
	if err != nil || tag.Name != "pip" || !(&Pip{Version: tag.Version.String()}).atLeast(leastPip) {
		return nil, fail(ErrBadConfig, "%q is no wheel of pip %s or newer", line(name, 100), leastPip)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("resolve: %w", err)
	}
	defer f.Close()
	return in.unpack(ctx, f, toolSource{name, tag.Version.String(), "", "file"})
}

// wheelFile says why a file that should be a wheel of pip cannot be read.
func wheelFile(file string) error {
	f, err := os.OpenFile(file, os.O_RDONLY|hostos.NonBlock, 0)
	var info fs.FileInfo
	if err == nil {
		defer f.Close()
		info, err = f.Stat()
	}
	why := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		why = "there is no such file"
	case errors.Is(err, fs.ErrPermission):
		why = fmt.Sprintf("it cannot be read by uid %d", os.Geteuid())
	case err != nil:
		why = "it cannot be read: " + reason(err)
	case info.IsDir():
		why = "it is a directory"
	case !info.Mode().IsRegular():
		why = "it is no regular file"
	default:
		return nil
	}
	e := fail(ErrBadConfig, "the wheel of pip, %q, cannot be used: %s", line(filepath.Base(file), 100), why)
	e.Suggestions, e.Detail = []string{"Look at the setting env.pip_wheel, or give a wheel with --pip-wheel FILE."}, file
	return e
}

// unpack makes the directory of a tool under another name and gives it its own last.
func (in installer) unpack(ctx context.Context, f *os.File, s toolSource) (_ *Pip, err error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	if s.SHA256, err = hashOf(f); err != nil {
		return nil, err
	}
	w, err := wheel.Open(f, size, s.File, wheel.Options{Tool: true, NoSync: true})
	if err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(in.tools, tmpPrefix)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }() // gone, once it was renamed
	dir, err := os.OpenRoot(tmp)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if _, err := w.Unpack(ctx, dir); err != nil {
		return nil, err
	}
	if err := in.compile(ctx, dir); err != nil {
		return nil, err
	}
	b, err := json.Marshal(s)
	if err == nil {
		err = dir.WriteFile(sourceFile, append(b, '\n'), 0o444)
	}
	if err == nil {
		err = hostos.SyncTree(dir)
	}
	if err != nil {
		return nil, err
	}
	return in.publish(tmp, s.Version)
}

func hashOf(f *os.File) (string, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// publish renames a finished directory. If there is one already, it is as good.
func (in installer) publish(tmp, version string) (*Pip, error) {
	final := filepath.Join(in.tools, "pip-"+version)
	err := os.Rename(tmp, final)
	if err == nil {
		err = hostos.SyncDir(in.tools)
	} else if _, serr := os.Stat(filepath.Join(final, sourceFile)); serr == nil {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	p := &Pip{Box: in.box, Python: in.py, Dir: filepath.Join(final, wheel.SitePackages), Version: version}
	p.lacks()
	return p, nil
}

// bytecode is where compileall puts what it makes.
var bytecode = regexp.MustCompile(`^pip/(?:[A-Za-z0-9_]+/)*__pycache__/[A-Za-z0-9_.-]+\.pyc$`)

// compile adds bytecode, made in the sandbox: it halves the time of every start. A
// Python that cannot do so leaves the tool as it is.
func (in installer) compile(ctx context.Context, dir *os.Root) error {
	if in.py == nil {
		return nil
	}
	run := sandboxrun.Run{
		Lower: filepath.Join(dir.Name(), wheel.SitePackages), Limits: sandboxrun.Limits{Timeout: 2 * time.Minute},
		Binds: []sandboxrun.Bind{{Source: in.py.Dir, Target: python.Prefix}},
		Argv: []string{python.Executable, "-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash",
			"-s", "/workspace", "-p", jailPip, "/workspace/pip"},
	}
	_, err := in.box.Run(ctx, run, func(c sandboxrun.Change) error {
		name := string(c.Path)
		if c.Kind != sandboxrun.File || !bytecode.MatchString(name) {
			return nil
		}
		return writeBytecode(dir, filepath.Join(wheel.SitePackages, name), c.Body)
	})
	if err != nil {
		return jailError(ctx, err)
	}
	return nil
}

func writeBytecode(dir *os.Root, name string, body io.Reader) error {
	if err := dir.Mkdir(filepath.Dir(name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, body)
	return errors.Join(err, f.Close())
}

// Tools are the versions in tools/ of an environment root, sorted, for doctor.
func Tools(root string) []string {
	found, _ := filepath.Glob(filepath.Join(root, "tools", "pip-*", sourceFile)) // the pattern is valid
	var list []string
	for _, f := range found {
		list = append(list, filepath.Base(filepath.Dir(f)))
	}
	slices.Sort(list)
	return list
}
