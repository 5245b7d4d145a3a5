package python

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/tags"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// prober runs the interpreter of a prefix in the sandbox and asks it what it is.
type prober struct {
	box     *sandboxrun.Runner
	dir     string // of the prefix, on the host
	timeout time.Duration
	system  bool // it may run a libpython of the system
	extra   []sandboxrun.Bind
}

// probeTime bounds one question. The answer takes about 0.1 s.
const probeTime = 30 * time.Second

//go:embed probe.py
var probeScript string

// answer is what probe.py prints.
type answer struct {
	Nonce          string    `json:"nonce"`
	Implementation string    `json:"implementation"`
	Version        string    `json:"version"`
	Flags          string    `json:"flags"`
	Bits           int       `json:"bits"`
	Machine        string    `json:"machine"`
	Libc           [2]string `json:"libc"` // name, version
	Executable     string    `json:"executable"`
	Prefix         string    `json:"prefix"`
	Path           []string  `json:"path"`
	Site           []string  `json:"site"`
	Stdlib         []string  `json:"stdlib"`
	Mapped         []string  `json:"mapped"`  // files that were mapped when it started
	Missing        []string  `json:"missing"` // of the modules that were asked for
}

// Modules that an interpreter is asked for. Debian, for one, has them in several
// packages.
var (
	needed = []string{"compileall", "ctypes", "decimal", "hashlib", "json", "select", "socket", "zlib"}
	useful = []string{"bz2", "lzma", "sqlite3", "ssl"}
)

// ask returns an answer that was checked.
func (p prober) ask(ctx context.Context) (answer, error) {
	var a answer
	nonce := rand.Text()
	out, err := p.run(ctx, nonce, strings.Join(slices.Concat(needed, useful), ","))
	if err != nil {
		return a, err
	}
	d := json.NewDecoder(bytes.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil || d.More() || a.Nonce != nonce {
		return a, broken("it did not answer as Python does: it printed %s", quote(out))
	}
	return a, a.check(p.system)
}

func (p prober) run(ctx context.Context, args ...string) ([]byte, error) {
	if p.box == nil {
		return nil, fmt.Errorf("the Python cannot be tried out: %w", sandboxrun.ErrUnavailable)
	}
	res, err := p.box.Run(ctx, sandboxrun.Run{
		Argv:   append([]string{Executable, "-I", "-B", "-c", probeScript}, args...),
		Binds:  append([]sandboxrun.Bind{{Source: p.dir, Target: Prefix}}, p.extra...),
		Limits: sandboxrun.Limits{Timeout: p.timeout},
	}, nil)
	if err := ended(ctx, res, err, p.timeout); err != nil {
		return nil, err
	}
	return res.Stdout.Text, nil
}

// ended is why a run of the interpreter is of no use, nil if it is.
func ended(ctx context.Context, res sandboxrun.Result, err error, timeout time.Duration) error {
	var setup *sandboxrun.SetupError
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &setup) && errors.Is(err, sandboxrun.ErrSetup):
		return broken("it cannot be started: %s", setup.Cause)
	default:
		return fmt.Errorf("the Python cannot be tried out: %w", err)
	}
	switch {
	case res.Outcome == sandboxrun.TimedOut:
		return broken("it did not answer within %s", timeout)
	case res.Outcome == sandboxrun.Signaled:
		return broken("it crashed (%s)", res.Signal)
	case res.Outcome != sandboxrun.Exited:
		return broken("it was ended (%s)", res.Outcome)
	case res.ExitCode != 0:
		return broken("it exited with %d: %s", res.ExitCode, quote(res.Stderr.Text))
	}
	return nil
}

// quote shows the end of an output, where errors are.
func quote(b []byte) string {
	const most = 300
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return "nothing"
	}
	return strconv.Quote(string(bytes.ToValidUTF8(b[max(0, len(b)-most):], nil)))
}

var version = regexp.MustCompile(`^3\.([1-9]?[0-9])\.[0-9]{1,3}((a|b|rc)[0-9]{1,2})?$`)

// oldest is the first CPython with all that is asked for here.
const oldest = 10

// check refuses an answer that no CPython for layers can give.
func (a answer) check(system bool) error {
	switch {
	case a.Implementation != "cpython":
		return broken("it is %q, and layers are for CPython", a.Implementation)
	case !version.MatchString(a.Version):
		return broken("it says that its version is %q", a.Version)
	case a.minor() < oldest:
		return broken("it is Python %s, and 3.%d is the oldest that will do", a.Version, oldest)
	case a.Flags != "":
		return broken("it is a build of another kind (%q), for which wheels differ", a.Flags)
	case a.Bits != 64:
		return broken("it is a program of %d bits, and layers are for 64", a.Bits)
	case a.Executable != Executable:
		return broken("it says that it is %q, not %s", a.Executable, Executable)
	case a.Prefix != Prefix:
		return broken("it looks for its library below %q, not %s", a.Prefix, Prefix)
	case a.sitePackages() == "":
		return broken("it looks for packages in %q, nowhere below %s", a.Site, Prefix)
	case len(a.Stdlib) < 100 || len(a.Stdlib) > 2000 || !slices.IsSorted(a.Stdlib) || !slices.Contains(a.Stdlib, "json"):
		return broken("it names %d modules of its standard library", len(a.Stdlib))
	}
	for _, name := range needed {
		if slices.Contains(a.Missing, name) {
			return broken("it has no module %s: install all of Python's standard library", name)
		}
	}
	for _, file := range a.Mapped {
		own := strings.HasPrefix(file, Prefix+"/") || system && strings.HasPrefix(file, "/usr/")
		if strings.HasPrefix(path.Base(file), "libpython") && !own {
			// pyenv builds find theirs by the path where they were built, and run
			// whatever version the system has when that is not shown, without a word.
			return broken("it runs %s, not a libpython of its own: it was built to find that in one place only", file)
		}
	}
	_, err := a.target()
	return err
}

func (a answer) minor() int {
	n, _ := strconv.Atoi(version.FindStringSubmatch(a.Version)[1])
	return n
}

// sitePackages is the directory for packages: the one with the usual name, else
// the first of the prefix (Debian calls it dist-packages).
func (a answer) sitePackages() string {
	found := ""
	for _, dir := range a.Site {
		if dir != path.Clean(dir) || !strings.HasPrefix(dir, Prefix+"/") {
			continue
		}
		if path.Base(dir) == "site-packages" {
			return dir
		}
		if found == "" {
			found = dir
		}
	}
	return found
}

var libcVersion = regexp.MustCompile(`^([0-9]{1,2})\.([0-9]{1,3})$`)

func (a answer) target() (tags.Target, error) {
	m := libcVersion.FindStringSubmatch(a.Libc[1])
	if (a.Libc[0] != "glibc" && a.Libc[0] != "musl") || m == nil {
		return tags.Target{}, broken("its C library is %q", strings.Join(a.Libc[:], " "))
	}
	t := tags.Target{Minor: a.minor(), Arch: a.Machine, Musl: a.Libc[0] == "musl"}
	t.LibcMajor, _ = strconv.Atoi(m[1])
	t.LibcMinor, _ = strconv.Atoi(m[2])
	if err := t.Validate(); err != nil {
		return t, broken("%w", err)
	}
	return t, nil
}

// prove asks the interpreter of a prefix that is whole, with a directory named in
// the first placeholder, which has to come after the standard library. tmp is a
// directory for the file that says so.
func (p prober) prove(ctx context.Context, tmp string) (facts, error) {
	const layer = "/run/vdisk"
	pth := filepath.Join(tmp, "probe.pth")
	if err := os.WriteFile(pth, []byte(layer+"\n"), 0o444); err != nil {
		return facts{}, err
	}
	defer os.Remove(pth)
	first, err := p.ask(ctx)
	if err != nil {
		return facts{}, err
	}
	p.extra = []sandboxrun.Bind{{Source: pth, Target: first.sitePackages() + "/" + LayersPth}, {Source: pth, Target: layer + "/probe"}}
	a, err := p.ask(ctx)
	if err != nil {
		return facts{}, err
	}
	if n := len(a.Path); n < 2 || a.Path[n-1] != layer || a.Version != first.Version {
		return facts{}, broken("a layer would not be found: it looks for modules in %q", a.Path)
	}
	return newFacts(p.dir, a)
}
