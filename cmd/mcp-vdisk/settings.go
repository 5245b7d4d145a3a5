package main

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/BurntSushi/toml"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
)

// settings are the limits of one state directory, and its Python, from its config.toml.
type settings struct {
	imageBytes, imageEntries int64
	limits                   tools.Limits
	scratch                  string
	unixSockets              bool
	minFree                  int64
	idle                     time.Duration // after which a daemon that nobody needs ends
	env                      envSettings
}

// envSettings say which Python scripts get, and where it is kept.
type envSettings struct {
	root     string // "" is envs in the state directory
	python   string // a directory or, with sha256, an archive
	sha256   string
	pipWheel string
	strict   bool     // compare every file before each run
	elicit   bool     // the person at a client may approve packages
	notify   []string // program and arguments; none: nobody is told of requests
}

// kind of a setting's value.
type kind int

const (
	sizeKind     kind = iota // bytes, written "64MiB", "10MB" or as a number
	countKind                // a whole number
	durationKind             // "90s", "1m30s"
	choiceKind               // one of a few words
	pathKind                 // an absolute path, or ""
	digestKind               // a SHA-256 in hexadecimal, or ""
	commandKind              // "exec:" and a program with its arguments, or ""
)

// setting is one key of config.toml.
type setting struct {
	key      string
	kind     kind
	def      string
	min, max int64 // of a size in bytes, a count, or a duration in nanoseconds; max 0: no limit
	choices  []string
	doc      string
	put      func(*settings, int64, string)
}

const maxSize = 1 << 50

// table lists every setting, in the order in which they are shown.
func table() []setting {
	n := func(p func(*settings) *int64) func(*settings, int64, string) {
		return func(s *settings, v int64, _ string) { *p(s) = v }
	}
	script := func(p func(*sandboxrun.Limits) *int64) func(*settings, int64, string) {
		return func(s *settings, v int64, _ string) { *p(&s.limits.Script) = v }
	}
	return []setting{
		{"image.bytes", sizeKind, "4GiB", 1 << 20, maxSize, nil, "what a new disk may hold", n(func(s *settings) *int64 { return &s.imageBytes })},
		{"image.entries", countKind, "500000", 1, 100_000_000, nil, "files, directories and links a new disk may hold", n(func(s *settings) *int64 { return &s.imageEntries })},
		{"write.bytes", sizeKind, "4MiB", 1, 8 << 20, nil, "content of one write_file call, decoded", n(func(s *settings) *int64 { return &s.limits.WriteBytes })},
		{"read.lines", countKind, "2000", 1, 100_000, nil, "lines of one page of read_file", n(func(s *settings) *int64 { return &s.limits.ReadLines })},
		{"read.chars", countKind, "40000", 1000, 600_000, nil, "characters of one page of read_file", func(s *settings, v int64, _ string) { s.limits.ReadChars = int(v) }},
		{"list.limit", countKind, "200", 1, 1000, nil, "entries of one page of list_files", func(s *settings, v int64, _ string) { s.limits.ListEntries = int(v) }},
		{"script.source_bytes", sizeKind, "1MiB", 1, 8 << 20, nil, "source of one script", n(func(s *settings) *int64 { return &s.limits.SourceBytes })},
		{"script.stdin_bytes", sizeKind, "4MiB", 1, 8 << 20, nil, "standard input of one script", n(func(s *settings) *int64 { return &s.limits.StdinBytes })},
		{"script.write_bytes", sizeKind, "256MiB", 1 << 20, maxSize, nil, "what one script may write to /workspace", script(func(l *sandboxrun.Limits) *int64 { return &l.WriteBytes })},
		{"script.write_files", countKind, "65536", 16, 10_000_000, nil, "files one script may write to /workspace, and to /tmp, /dev/shm and $HOME each", script(func(l *sandboxrun.Limits) *int64 { return &l.WriteFiles })},
		{"script.tmp_bytes", sizeKind, "256MiB", 1 << 20, maxSize, nil, "size of a script's /tmp", script(func(l *sandboxrun.Limits) *int64 { return &l.TmpBytes })},
		{"script.shm_bytes", sizeKind, "64MiB", 1 << 20, maxSize, nil, "size of a script's /dev/shm", script(func(l *sandboxrun.Limits) *int64 { return &l.ShmBytes })},
		{"script.home_bytes", sizeKind, "64MiB", 1 << 20, maxSize, nil, "size of a script's $HOME", script(func(l *sandboxrun.Limits) *int64 { return &l.HomeBytes })},
		{"script.memory_bytes", sizeKind, "1GiB", 16 << 20, maxSize, nil, "memory of one script, besides the files that it writes to memory", script(func(l *sandboxrun.Limits) *int64 { return &l.MemoryBytes })},
		{"script.processes", countKind, "256", 4, 30_000, nil, "processes and threads of one script", func(s *settings, v int64, _ string) { s.limits.Script.Processes = uint64(v) }},
		{"script.open_files", countKind, "1024", 16, 1 << 20, nil, "open files of each process of a script", func(s *settings, v int64, _ string) { s.limits.Script.OpenFiles = uint64(v) }},
		{"script.output_bytes", sizeKind, "64MiB", 1 << 20, 1 << 30, nil, "output after which a script is killed", script(func(l *sandboxrun.Limits) *int64 { return &l.OutputMax })},
		{"script.timeout", durationKind, "10m0s", int64(time.Second), int64(tools.MaxScript), nil, "how long a script may run without timeout_s", func(s *settings, v int64, _ string) { s.limits.Script.Timeout = time.Duration(v) }},
		{"script.max_timeout", durationKind, "1h0m0s", int64(time.Second), int64(tools.MaxScript), nil, "limit of timeout_s and of script.timeout", func(s *settings, v int64, _ string) { s.limits.MaxTimeout = time.Duration(v) }},
		{"script.at_once", countKind, "4", 1, 64, nil, "scripts that run at once", func(s *settings, v int64, _ string) { s.limits.Scripts = int(v) }},
		{"script.memory_percent", countKind, "25", 1, 90, nil, "share of the memory that scripts at once may fill with files", func(s *settings, v int64, _ string) { s.limits.ScriptMemory = shareOfMemory(v) }},
		{"script.queue", durationKind, "10s", int64(time.Millisecond), int64(30 * time.Second), nil, "how long a script waits for its turn", func(s *settings, v int64, _ string) { s.limits.Queue = time.Duration(v) }},
		{"jobs.keep", durationKind, "1h0m0s", int64(time.Minute), int64(24 * time.Hour), nil, "how long results and unsaved changes of scripts are kept", func(s *settings, v int64, _ string) { s.limits.KeepJobs = time.Duration(v) }},
		{"script.scratch", choiceKind, "memory", 0, 0, []string{"memory", "disk"}, "where a script's changes lie until they are saved", func(s *settings, _ int64, v string) { s.scratch = v }},
		{"script.unix_sockets", choiceKind, "no", 0, 0, []string{"no", "yes"}, "whether scripts may make AF_UNIX sockets among themselves", func(s *settings, _ int64, v string) { s.unixSockets = v == "yes" }},
		{"daemon.idle", durationKind, "10m0s", int64(time.Second), int64(30 * 24 * time.Hour), nil, "how long a daemon stays that nobody needs", func(s *settings, v int64, _ string) { s.idle = time.Duration(v) }},
		{"env.root", pathKind, "", 0, 0, nil, "directory of the Python environments, which several state directories may share; empty: envs in the state directory", func(s *settings, _ int64, v string) { s.env.root = v }},
		{"env.python", pathKind, "", 0, 0, nil, "Python to give to scripts: a directory or, with env.python_sha256, an archive; empty: that of the system", func(s *settings, _ int64, v string) { s.env.python = v }},
		{"env.python_sha256", digestKind, "", 0, 0, nil, "SHA-256 of the archive env.python, or of one that mcp-vdisk env python --archive took", func(s *settings, _ int64, v string) { s.env.sha256 = v }},
		{"env.pip_wheel", pathKind, "", 0, 0, nil, "wheel of pip to find packages with; empty: the one that mcp-vdisk env ensure gets", func(s *settings, _ int64, v string) { s.env.pipWheel = v }},
		{"env.verify", choiceKind, "owner", 0, 0, []string{"owner", "strict"}, "what is looked at before each script: owner and modes, or strict: every file of its Python and packages", func(s *settings, _ int64, v string) { s.env.strict = v == "strict" }},
		{"env.approvers", choiceKind, "operator", 0, 0, []string{"operator", "operator,client"}, "who decides about requests for packages: the operator, or also the person at the client, which may answer by itself: its answer is recorded as asserted by the client", func(s *settings, _ int64, v string) { s.env.elicit = v == "operator,client" }},
		{"env.notify", commandKind, "", 0, 0, nil, "program to run when a request for packages begins to wait for a person, which gets it as JSON on standard input; empty: none", func(s *settings, _ int64, v string) { s.env.notify = commandWords(v) }},
		{"audit.min_free", sizeKind, "64MiB", audit.MinOpenFree, maxSize, nil, "free space below which calls are refused", n(func(s *settings) *int64 { return &s.minFree })},
	}
}

// shareOfMemory is so many percent of this host's memory in bytes. A host that
// does not tell bounds scripts by their number only.
func shareOfMemory(percent int64) int64 {
	total, err := sandboxrun.MemoryTotal()
	if err != nil {
		return math.MaxInt64
	}
	return total / 100 * percent
}

func find(key string) (setting, error) {
	t := table()
	i := slices.IndexFunc(t, func(s setting) bool { return s.key == key })
	if i < 0 {
		return setting{}, fmt.Errorf("there is no setting %q", key)
	}
	return t[i], nil
}

// parseSettings reads a config.toml; name is what errors call it. An empty text
// gives the defaults. Unknown keys and wrong types are refused by name.
func parseSettings(text, name string) (settings, map[string]string, error) {
	var s settings
	given, err := configValues(text)
	if err != nil {
		return s, nil, exit.Fail(exit.State, "", "%s: %s", name, err)
	}
	values := map[string]string{}
	for _, d := range table() {
		raw, ok := given[d.key]
		delete(given, d.key)
		if !ok {
			raw = d.def
		}
		v, shown, err := d.parse(raw)
		if err != nil {
			return s, nil, exit.Fail(exit.State, "mcp-vdisk config show --defaults lists what each takes", "%s: %s: %s", name, d.key, err)
		}
		d.put(&s, v, shown)
		values[d.key] = shown
	}
	if len(given) > 0 {
		var names []string
		for k := range given {
			names = append(names, k)
		}
		sort.Strings(names)
		return s, nil, exit.Fail(exit.State, "mcp-vdisk config show --defaults lists all", "%s: there is no setting %s", name, strings.Join(names, ", "))
	}
	return s, values, nil
}

// configValues flattens a TOML document to dotted keys.
func configValues(text string) (map[string]any, error) {
	var tree map[string]any
	if _, err := toml.Decode(text, &tree); err != nil {
		var p toml.ParseError
		if errors.As(err, &p) {
			return nil, fmt.Errorf("line %d: %s", p.Position.Line, p.Message)
		}
		return nil, err
	}
	flat := map[string]any{}
	var walk func(prefix string, m map[string]any)
	walk = func(prefix string, m map[string]any) {
		for k, v := range m {
			if sub, ok := v.(map[string]any); ok {
				walk(prefix+k+".", sub)
				continue
			}
			flat[prefix+k] = v
		}
	}
	walk("", tree)
	return flat, nil
}

// parse checks a value and returns it as a number and as it is shown.
func (d setting) parse(raw any) (int64, string, error) {
	var v int64
	var err error
	text, isText := raw.(string)
	num, isNum := raw.(int64)
	switch {
	case d.kind == choiceKind:
		if !isText || !slices.Contains(d.choices, text) {
			return 0, "", fmt.Errorf("must be one of %q, is %v", d.choices, raw)
		}
		return 0, text, nil
	case isText && d.kind == pathKind:
		return 0, text, checkPath(text)
	case isText && d.kind == commandKind:
		return 0, text, checkCommand(text)
	case isText && d.kind == digestKind:
		text = strings.ToLower(text)
		if text != "" && !lock.ValidSHA256(text) {
			return 0, "", fmt.Errorf("must be 64 hexadecimal digits, is %q", text)
		}
		return 0, text, nil
	case isNum && (d.kind == sizeKind || d.kind == countKind):
		v = num
	case isText && d.kind == sizeKind:
		v, err = parseSize(text)
	case isText && d.kind == durationKind:
		var dur time.Duration
		if dur, err = time.ParseDuration(text); err != nil {
			err = fmt.Errorf("must be a duration such as \"90s\", is %q", text)
		}
		v = int64(dur)
	case isText && d.kind == countKind:
		if v, err = strconv.ParseInt(text, 10, 64); err != nil {
			err = fmt.Errorf("must be a whole number, is %q", text)
		}
	default:
		err = fmt.Errorf("must be %s, is %v", d.kind, raw)
	}
	if err == nil && (v < d.min || d.max > 0 && v > d.max) {
		err = fmt.Errorf("must be from %s to %s, is %v", d.show(d.min), d.show(d.max), raw)
	}
	return v, d.show(v), err
}

// checkPath takes "" or a clean absolute path. It is not looked at: whoever sets it
// may be another user than the one who uses it.
func checkPath(p string) error {
	const most = 1024
	switch {
	case p == "":
		return nil
	case !filepath.IsAbs(p) || filepath.Clean(p) != p || p == "/":
		return fmt.Errorf("must be an absolute path without \"..\" and the like, is %q", p)
	case len(p) > most || !utf8.ValidString(p) || strings.ContainsFunc(p, unicode.IsControl):
		return fmt.Errorf("must be a path in UTF-8 without control characters, of at most %d bytes", most)
	}
	return nil
}

// commandPrefix begins a setting that is a command. It says how that is run: by itself,
// and by no shell.
const commandPrefix = "exec:"

// checkCommand takes "" or a command whose program is named by a clean absolute path.
func checkCommand(text string) error {
	if text == "" {
		return nil
	}
	words := commandWords(text)
	if len(words) == 0 || !filepath.IsAbs(words[0]) {
		return fmt.Errorf("must be such as \"exec:/usr/local/bin/tell-me --now\", is %q", text)
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return errors.New("must not hold control characters")
	}
	return checkPath(words[0])
}

// commandWords are the program and its arguments, which are separated by spaces; no
// character has a meaning of its own.
func commandWords(text string) []string {
	rest, ok := strings.CutPrefix(text, commandPrefix)
	if !ok || len(rest) > maxCommand || !utf8.ValidString(rest) {
		return nil
	}
	return strings.Fields(rest)
}

const maxCommand = 2048 // bytes

func (k kind) String() string {
	return [...]string{"a size such as \"64MiB\"", "a whole number", "a duration such as \"90s\"", "a word", "an absolute path", "a SHA-256", "a command such as \"exec:/usr/local/bin/tell-me\""}[k]
}

func (d setting) show(v int64) string {
	switch d.kind {
	case sizeKind:
		return showSize(v)
	case durationKind:
		return time.Duration(v).String()
	}
	return strconv.FormatInt(v, 10)
}

var units = []struct {
	name string
	n    int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1}}

// parseSize reads "64MiB", "10MB", "512B" or a plain number of bytes.
func parseSize(s string) (int64, error) {
	num, unit := strings.TrimSpace(s), int64(1)
	for _, u := range units {
		if strings.HasSuffix(num, u.name) {
			num, unit = strings.TrimSpace(strings.TrimSuffix(num, u.name)), u.n
			break
		}
	}
	n, err := strconv.ParseInt(num, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return 0, fmt.Errorf("must be a size such as \"64MiB\", is %q", s)
	}
	return n * unit, nil
}

func showSize(n int64) string {
	for _, u := range units[:4] {
		if n >= u.n && n%u.n == 0 {
			return fmt.Sprintf("%d%s", n/u.n, u.name)
		}
	}
	return fmt.Sprintf("%dB", n)
}
