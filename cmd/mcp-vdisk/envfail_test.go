package main_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
)

// told checks how a command has failed: a code, a hint that is not meant for an agent,
// and no line of a log.
func (o output) told(t testing.TB, code string) {
	t.Helper()
	if !regexp.MustCompile(`(?m)^mcp-vdisk: ` + code + `: \S`).MatchString(o.stderr) {
		t.Errorf("does not say %q:\n%s", code, o.stderr)
	}
	for _, bad := range []string{"sk the operator", "ell the operator", `{"time"`, "level="} {
		if strings.Contains(o.stderr, bad) {
			t.Errorf("says %q:\n%s", bad, o.stderr)
		}
	}
}

// Where there can be no environments a command names the directory and what is wrong
// with it, and ends as other troubles of the state do.
func TestEnvRootRefused(t *testing.T) {
	t.Parallel()
	e := newEnvs(t, false, indextest.Options{})
	at := func(name string) string { return filepath.Join(filepath.Dir(e.state), name) }
	if err := os.WriteFile(at("file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at("loose"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(at("loose"), 0o777); err != nil {
		t.Fatal(err)
	}
	loose := "it can be written to by others"
	if isRoot() { // whose commands work for somebody else
		loose = "it belongs to uid 0"
	}
	for _, row := range []struct{ root, code, says string }{
		{at("file"), "no_root", "it is not a directory"},
		{at("file/below"), "no_root", "it cannot be made: not a directory"},
		{"/dev/null", "no_root", "it is not a directory"},
		{"/proc/envs", "no_root", "it cannot be made: no such file or directory"},
		{"/", "unsafe_root", "it is the root of the file system"},
		{"/usr", "unsafe_root", "it belongs to uid 0"},
		{at("loose"), "unsafe_root", loose},
	} {
		e.env = append(e.env, "MCP_VDISK_ENVS="+row.root)
		for _, args := range [][]string{{"ensure"}, {"python"}, {"lock"}} {
			out := e.fails(11, append([]string{"env"}, args...)...)
			out.told(t, row.code)
			out.says(t, "the directory of the Python environments, "+row.root+", cannot be used: "+row.says, "hint: the setting env.root")
		}
	}
}

// What goes wrong on the way to packages is told to the operator who runs the command.
func TestEnvEnsureRefusals(t *testing.T) {
	t.Parallel()
	e := newEnvs(t, false, indextest.Options{})
	other := indextest.New(indextest.Options{}) // it has nothing
	t.Cleanup(other.Close)
	portal := indextest.New(indextest.Options{})
	t.Cleanup(portal.Close)
	for _, w := range append(baseNames(), "pip", "six") {
		portal.Handle("/simple/"+w+"/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, `<html><a href="/login">Log in</a></html>`)
		})
	}
	plain := e.env
	for _, row := range []struct {
		env  []string
		code string
		says []string
	}{
		{[]string{"PIP_INDEX_URL=" + strings.Replace(other.URL(), "http://", "http://me:hunter2@", 1)}, "not_found", []string{"the package index 127.0.0.1 has no project", "hint: the pip configuration (index-url) probably leads elsewhere"}},
		{[]string{"PIP_INDEX_URL=" + portal.URL()}, "index_unreachable", []string{"no list of files", "hint: packages come from"}},
		{[]string{"PIP_NO_INDEX=1"}, "bad_config", []string{"no-index"}},
		{[]string{"PIP_NO_INDEX=1", "PIP_FIND_LINKS=/no/such/place"}, "bad_config", []string{"no-index", "there is no such directory"}},
		{[]string{"PIP_PROXY=socks5://hunter2:x@127.0.0.1:1"}, "bad_config", []string{"SOCKS"}},
		{[]string{"PIP_PROXY=http://127.0.0.1:1", "PIP_INDEX_URL=http://index.invalid/simple", "PIP_TRUSTED_HOST=index.invalid"}, "index_unreachable", []string{"the proxy does not answer"}},
		{[]string{"PIP_INDEX_URL=http://index.invalid/simple"}, "bad_config", []string{"trusted-host", "hint: use https"}},
	} {
		e.env = append(plain[:len(plain):len(plain)], row.env...)
		out := e.fails(1, "env", "ensure")
		out.told(t, row.code)
		out.says(t, row.says...)
		if strings.Contains(out.stderr, "hunter2") {
			t.Errorf("a password is shown:\n%s", out.stderr)
		}
	}
	e.clean()
}

// baseNames are the projects of the base list.
func baseNames() (names []string) {
	for _, w := range baseWheels() {
		names = append(names, strings.ReplaceAll(w.Name, "_", "-"))
	}
	return names
}

// A Python or a wheel of pip that the settings name and that is not there is said to
// be just that.
func TestEnvSettingsRefused(t *testing.T) {
	t.Parallel()
	e := newEnvs(t, false, indextest.Options{})
	e.must("env", "status")
	for _, row := range []struct {
		setting, code string
		args          []string
		says          []string
	}{
		{`pip_wheel = "/no/such/pip-27.0-py3-none-any.whl"`, "bad_config", []string{"env", "ensure"}, []string{"there is no such file", "hint: look at the setting env.pip_wheel"}},
		{`python = "/no/such/python"`, "no_python", []string{"env", "python"}, []string{"this Python is refused: ", "hint: "}},
	} {
		if err := os.WriteFile(filepath.Join(e.state, "config.toml"), []byte("[env]\n"+row.setting+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		out := outputOf(t, asOwner(t, e.state, e.command(row.args...)))
		if out.code != 1 {
			t.Errorf("exit %d", out.code)
		}
		out.told(t, row.code)
		out.says(t, row.says...)
	}
}
