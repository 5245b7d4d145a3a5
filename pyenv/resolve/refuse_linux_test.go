package resolve

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
)

// TestWhereItFails: whatever stands between pip and a file is told for what it is, when
// packages are resolved and when locked ones are fetched.
func TestWhereItFails(t *testing.T) {
	p := newWorld(t).pip
	x := index(t, indextest.Options{})
	page := func(kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			io.WriteString(w, body)
		}
	}
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0); err != nil {
		t.Fatal(err)
	}
	links := func(dir string) Config { return Config{NoIndex: true, FindLinks: []string{dir}} }
	proxied := func(change func(c *Config)) Config {
		none := 0
		c := Config{IndexURL: "http://index.invalid/simple/", TrustedHosts: []string{"index.invalid"}, Retries: &none, Timeout: 2}
		change(&c)
		return c
	}
	uid := fmt.Sprintf("cannot be read by uid %d", os.Geteuid())
	for _, tc := range []struct {
		name   string
		answer http.HandlerFunc
		config Config
		code   Code
		words  []string
	}{
		{"404", http.NotFound, at(x), ErrNotFound, []string{"the package index 127.0.0.1 has no project", `"foo"`}},
		{"login page", page("text/html", `<html><title>Hotel</title><a href="/login">Log in</a></html>`), at(x), ErrIndexUnreachable, []string{"127.0.0.1", "no list of files", "login"}},
		{"in circles", func(w http.ResponseWriter, q *http.Request) { http.Redirect(w, q, q.URL.Path, http.StatusFound) }, at(x), ErrIndexUnreachable, []string{"circles"}},
		{"garbage", page("application/vnd.pypi.simple.v1+json", "\x00\xff<<<"), at(x), ErrIndexUnreachable, []string{"no list of files"}},
		{"broken compression", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			page("text/html", "not gzip")(w, nil)
		}, at(x), ErrIndexUnreachable, []string{"no list of files"}},
		{"no place", nil, Config{NoIndex: true}, ErrBadConfig, []string{"no-index", "find-links"}},
		{"closed directory", nil, links(closed), ErrBadConfig, []string{"find-links", uid}},
		{"missing directory", nil, links(closed + "x"), ErrBadConfig, []string{"find-links", "no such directory"}},
		{"empty directory", nil, links(t.TempDir()), ErrNotFound, []string{"no directory of the pip setting find-links", `"foo"`}},
		{"proxy of no kind", nil, proxied(func(c *Config) { c.Proxy = "gopher://proxy:1" }), ErrBadConfig, []string{"proxy", "no URL of a proxy"}},
		{"dead proxy", nil, proxied(func(c *Config) { c.Proxy = "http://127.0.0.1:1" }), ErrIndexUnreachable, []string{"proxy does not answer"}},
		{"socks proxy of the environment", nil, proxied(func(c *Config) { c.HTTPProxy = "socks5://127.0.0.1:1" }), ErrIndexUnreachable, []string{"SOCKS"}},
		{"proxy of the environment of no kind", nil, proxied(func(c *Config) { c.HTTPProxy = "http://:1" }), ErrIndexUnreachable, []string{"proxy of the configuration is no address"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x.Handle("/simple/foo/", tc.answer)
			_, err := p.Resolve(t.Context(), Request{Specs: specs(t, "foo"), Config: tc.config, Sure: true})
			for _, s := range refused(t, err, tc.code, tc.words...).Suggestions {
				if strings.Contains(s, "Check the name") {
					t.Errorf("nobody has mistyped it: %q", s)
				}
			}
			locked := []lock.Package{{Name: "foo", Version: "1.0", SHA256: strings.Repeat("ab", 32)}}
			err = p.Fetch(t.Context(), locked, tc.config, func(lock.Package, *os.File) error { return nil })
			refused(t, err, tc.code, tc.words...)
		})
	}
	t.Run("guessed name", func(t *testing.T) {
		x.Handle("/simple/foo/", http.NotFound)
		_, err := p.Resolve(t.Context(), Request{Specs: specs(t, "foo"), Config: at(x)})
		if e := refused(t, err, ErrNotFound, "127.0.0.1"); len(e.Suggestions) != 1 || !strings.Contains(e.Suggestions[0], "Check the name") {
			t.Errorf("%q", e.Suggestions)
		}
	})
	t.Run("another version is locked", func(t *testing.T) {
		x := index(t, indextest.Options{HTML: true}, pkg("foo", "2.0"))
		locked := []lock.Package{{Name: "foo", Version: "1.0", SHA256: strings.Repeat("ab", 32)}}
		err := p.Fetch(t.Context(), locked, at(x), func(lock.Package, *os.File) error { return nil })
		refused(t, err, ErrNotFound, "has foo, but not version 1.0")
	})
	t.Run("an index without files", func(t *testing.T) { // it says that it is one
		x.Handle("/simple/foo/", page("text/html", `<meta name="pypi:repository-version" content="1.0"><title>Links for foo</title>`))
		_, err := p.Resolve(t.Context(), Request{Specs: specs(t, "foo"), Config: at(x)})
		refused(t, err, ErrNotFound, "127.0.0.1")
	})
}

// TestNotFoundShowsHosts: of an index no more is told than its host.
func TestNotFoundShowsHosts(t *testing.T) {
	for want, hosts := range map[string][]string{
		`the package index a.example has no project "foo"`:                     {"a.example", ""},
		`none of the package indexes a.example, b.example has a project "foo"`: {"a.example", "b.example", "a.example"},
		`no directory of the pip setting find-links has a file of "foo"`:       {""},
	} {
		var sources []source
		for _, h := range hosts {
			sources = append(sources, source{Host: h, Status: 404})
		}
		if e := notFound("foo", sources); e.Sentence != want || len(e.Suggestions) != 1 {
			t.Errorf("%q, %q; want %q", e.Sentence, e.Suggestions, want)
		}
	}
}

// TestProxySetting: what pip cannot use is refused before it is started, and none of
// its text is shown.
func TestProxySetting(t *testing.T) {
	for raw, want := range map[string]string{
		"": "", "http://proxy:3128": "", "proxy:3128": "", "https://u:p%40ss@proxy": "", "http://u:p@ss^%w@proxy:80/": "", "http://[::1]:80": "",
		"http://": "no URL of a proxy", "://": "no URL of a proxy", "http://:80": "no URL of a proxy", "http://proxy:99999": "port", "http://proxy:0": "port", "http://proxy:x": "no URL of a proxy",
		"ftp://hunter2@proxy": "no URL of a proxy", "socks5h://hunter2:x@proxy:1": "SOCKS", "a b": "is no URL", "http://" + strings.Repeat("x", maxURL): "is no URL",
	} {
		err := Config{Proxy: raw}.check()
		if got := fmt.Sprint(err); (want == "") != (err == nil) || !strings.Contains(got, want) || strings.Contains(got, "hunter2") {
			t.Errorf("%.40q: %v, want %q", raw, err, want)
		}
	}
}

// TestPipWheelRefused: a wheel of pip that cannot be had is refused for what it is.
func TestPipWheelRefused(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	put := func(name string, mode os.FileMode) string {
		if err := os.WriteFile(at(name), []byte("x"), mode); err != nil {
			t.Fatal(err)
		}
		return at(name)
	}
	if err := os.Mkdir(at("pip-27.0-py3-none-any.whl"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ file, says string }{
		{at("nope.whl"), `"nope.whl", cannot be used: there is no such file`},
		{at("nothing/pip-27.1-py3-none-any.whl"), "there is no such file"},
		{put("pip-27.2-py3-none-any.whl", 0), fmt.Sprintf("cannot be read by uid %d", os.Geteuid())},
		{at("pip-27.0-py3-none-any.whl"), "it is a directory"},
		{at("pip-27.2-py3-none-any.whl/x"), "not a directory"},
		{"/dev/zero", "it is no regular file"},
		{put("other-27.0-py3-none-any.whl", 0o600), "is no wheel of pip 23.0 or newer"},
		{put("pip-22.0-py3-none-any.whl", 0o600), "is no wheel of pip 23.0 or newer"},
	} {
		_, err := InstallTool(t.Context(), t.TempDir(), tc.file, Config{}, nil, nil)
		refused(t, err, ErrBadConfig, tc.says)
	}
}

// TestFindLinksWarning: a place that cannot be used is passed over, with the reason.
func TestFindLinksWarning(t *testing.T) {
	dir := t.TempDir()
	closed, file := filepath.Join(dir, "closed"), filepath.Join(dir, "file")
	if err := os.Mkdir(closed, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for place, says := range map[string]string{closed: "cannot be read by uid", closed + "x": "no such directory", file: "is no directory", closed + "/in": "cannot be read by uid"} {
		c, warnings, err := ReadConfig([]string{"PIP_CONFIG_FILE=" + os.DevNull, "PIP_NO_INDEX=1", "PIP_FIND_LINKS=" + place}, "")
		if err != nil || len(c.FindLinks) > 0 || len(warnings) != 1 || !strings.Contains(warnings[0], says) {
			t.Errorf("%s: %v, %v, %q, want %q", place, c, err, warnings, says)
		}
	}
}
