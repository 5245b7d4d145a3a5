package resolve

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
)

// canary is a password with characters that URLs write differently.
const canary = "canary-7f3e%1b/0c"

// put writes files below a directory and returns it.
func put(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestReadConfigOrder: later places win, as with pip.
func TestReadConfigOrder(t *testing.T) {
	set := func(host string) string { return "[global]\nindex-url = http://" + host + "/simple\n" }
	dir := put(t, map[string]string{
		"xdg/pip/pip.conf": set("xdg"), "home/.pip/pip.conf": set("legacy"), "home/.config/pip/pip.conf": set("user"),
		"other/pip/pip.conf": set("xdghome"), "venv/pip.conf": set("venv"), "own.conf": set("own"),
		"sections.conf": "[install]\nindex-url=http://install/\n[download]\nindex-url=http://download/\n[global]\nindex-url=http://global/\n",
		"default.conf":  "[DEFAULT]\nindex-url=http://default/\n[global]\n",
	})
	at := func(p string) string { return filepath.Join(dir, p) }
	none := "XDG_CONFIG_DIRS=" + at("none")
	for _, tc := range []struct {
		name, home string
		env        []string
		want       string
	}{
		{"xdg", at("nobody"), []string{"XDG_CONFIG_DIRS=" + at("none") + ":" + at("xdg")}, "xdg"},
		{"user over legacy", at("home"), []string{"XDG_CONFIG_DIRS=" + at("xdg")}, "user"},
		{"XDG_CONFIG_HOME", at("home"), []string{none, "XDG_CONFIG_HOME=" + at("other")}, "xdghome"},
		{"virtualenv", at("home"), []string{none, "VIRTUAL_ENV=" + at("venv")}, "venv"},
		{"own file", at("home"), []string{none, "VIRTUAL_ENV=" + at("venv"), "PIP_CONFIG_FILE=" + at("own.conf")}, "own"},
		{"own file that is not there", at("home"), []string{none, "PIP_CONFIG_FILE=" + at("nothing")}, "user"},
		{"variable", at("home"), []string{none, "PIP_CONFIG_FILE=" + at("own.conf"), "PIP_INDEX_URL=http://variable/simple"}, "variable"},
		{"empty variable", at("home"), []string{none, "PIP_INDEX_URL="}, "user"},
		{"no files", at("home"), []string{"XDG_CONFIG_DIRS=" + at("xdg"), "PIP_CONFIG_FILE=" + os.DevNull}, ""},
		{"sections", at("nobody"), []string{none, "PIP_CONFIG_FILE=" + at("sections.conf")}, "install"},
		{"default section", at("nobody"), []string{none, "PIP_CONFIG_FILE=" + at("default.conf")}, "default"},
		{"another name", at("nobody"), []string{none, "PIP_PYPI_URL=http://pypi-url/"}, "pypi-url"},
	} {
		c, _, err := ReadConfig(tc.env, tc.home)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		u, _ := url.Parse(c.IndexURL)
		if u.Host != tc.want {
			t.Errorf("%s: index %q, want host %q", tc.name, c.IndexURL, tc.want)
		}
	}
}

// TestReadConfigKeys: what is taken, and that everything else is not.
func TestReadConfigKeys(t *testing.T) {
	dir := put(t, map[string]string{
		"links/x": "", "ca.pem": "authority", "client.pem": "key",
		"own.conf": `[global]
INDEX_URL = https://one/simple
extra-index-url =
    https://two/simple
    # a comment
    https://three/simple
trusted-host = one two:8080
timeout = 999
retries = 3
target = /evil
constraint = /evil
[install]
no-binary = :all:
user = yes
require-virtualenv = true
[download]
proxy = http://proxy:3128
`})
	env := []string{"XDG_CONFIG_DIRS=" + dir, "PIP_CONFIG_FILE=" + filepath.Join(dir, "own.conf"), "PIP_TARGET=/evil", "PIP_CONSTRAINT=/evil", "PIP_REQUIRE_VIRTUALENV=1",
		"PIP_PREFIX=/evil", "PIP_USER=1", "PIP_PRE=1", "PIP_NO_BINARY=:all:", "PIP_CERT=" + filepath.Join(dir, "ca.pem"), "PIP_CLIENT_CERT=" + filepath.Join(dir, "client.pem"),
		"PIP_FIND_LINKS=" + filepath.Join(dir, "links") + " /nowhere https://page/links.html file://" + filepath.Join(dir, "links"), "HTTPS_PROXY=http://p2", "NO_PROXY=localhost", "SSL_CERT_FILE=/nowhere"}
	c, warnings, err := ReadConfig(env, dir)
	if err != nil {
		t.Fatal(err)
	}
	three := 3
	links := filepath.Join(dir, "links")
	want := Config{IndexURL: "https://one/simple", ExtraIndexURLs: []string{"https://two/simple", "https://three/simple"}, FindLinks: []string{links, "https://page/links.html", links},
		TrustedHosts: []string{"one", "two:8080"}, Proxy: "http://proxy:3128", Timeout: maxTimeout, Retries: &three,
		Cert: []byte("authority"), ClientCert: []byte("key"), HTTPSProxy: "http://p2", NoProxy: "localhost"}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	if len(warnings) != 2 || !strings.Contains(warnings[0], "find-links was passed over") || !strings.Contains(warnings[1], "6 places of packages") {
		t.Errorf("warnings %q", warnings)
	}
	if got := string(c.file()); strings.Contains(got, "evil") || strings.Contains(got, dir) || !strings.Contains(got, "find-links = /opt/mcp/links/0\n    https://page/links.html\n    /opt/mcp/links/1\n") {
		t.Errorf("the file in the jail is %s", got)
	}
}

// TestReadConfigRefuses: what cannot be used is an error that shows no value.
func TestReadConfigRefuses(t *testing.T) {
	dir := put(t, map[string]string{
		"no-section.conf": "password = " + canary + "\n", "twice.conf": "[global]\nindex-url = http://u:" + canary + "@a\nindex-url = b\n",
		"binary.conf": "\x00\x01" + canary, "huge.conf": strings.Repeat("#\n", maxCert),
	})
	for _, env := range [][]string{
		{"PIP_CONFIG_FILE=" + filepath.Join(dir, "no-section.conf")}, {"PIP_CONFIG_FILE=" + filepath.Join(dir, "twice.conf")}, {"PIP_CONFIG_FILE=" + filepath.Join(dir, "binary.conf")},
		{"PIP_INDEX_URL=ftp://u:" + canary + "@host"}, {"PIP_INDEX_URL=u:" + canary + "@host"}, {"PIP_INDEX_URL=http://u:" + canary + "@host/a b"}, {"PIP_INDEX_URL=http://host\n[global]\nno-index = 1"},
		{"PIP_INDEX_URL=http://" + strings.Repeat("a", maxURL)}, {"PIP_EXTRA_INDEX_URL=file:///etc"}, {"PIP_EXTRA_INDEX_URL=" + strings.Repeat("http://a ", 17)},
		{"PIP_PROXY=http://u:" + canary + " @host"}, {"PIP_TIMEOUT=soon"}, {"PIP_TIMEOUT=NaN"}, {"PIP_RETRIES=-1"}, {"PIP_NO_INDEX=perhaps"},
		{"PIP_CERT=/nowhere/" + canary[:6]}, {"PIP_CERT=" + dir}, {"PIP_CERT=" + filepath.Join(dir, "huge.conf")}, {"PIP_CERT=/dev/zero"}, {"PIP_TRUSTED_HOST=a;b"},
	} {
		c, _, err := ReadConfig(append(env, "XDG_CONFIG_DIRS="+dir), "")
		if !errors.Is(err, ErrBadConfig) || strings.Contains(err.Error(), canary) {
			t.Errorf("%.80q: %v (%v)", env, err, c)
		}
	}
	// One that cannot be read is passed over, as by pip.
	_, warnings, err := ReadConfig([]string{"XDG_CONFIG_DIRS=" + dir, "PIP_CONFIG_FILE=" + dir}, "")
	if err != nil || len(warnings) != 1 {
		t.Errorf("%v, %q", err, warnings)
	}
}

// TestConfigTellsNoSecret: whatever prints a Config, and its way to the server.
func TestConfigTellsNoSecret(t *testing.T) {
	secret := url.UserPassword("user", canary).String()
	c := Config{IndexURL: "https://" + secret + "@index:8080/simple", ExtraIndexURLs: []string{"https://token-" + canary[:8] + "@extra"}, FindLinks: []string{"https://" + secret + "@links"},
		Proxy: "http://" + secret + "@proxy", HTTPProxy: secret + "@p1", HTTPSProxy: "http://" + secret + "@p2", AllProxy: "socks5://" + secret + "@p3", ClientCert: []byte(canary)}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "config", c)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "config", c)
	texts := []string{c.String(), fmt.Sprint(c), fmt.Sprintf("%v %+v %#v %s %q", c, c, c, c, c), fmt.Sprintf("%+v", &c), fmt.Sprintf("%+v", Request{Config: c}), log.String()}
	for _, said := range []string{secret, canary, url.QueryEscape(canary), "https://other:word@host/", "token-" + canary[:8]} {
		texts = append(texts, c.scrub("before "+said+" after"))
	}
	for _, text := range texts {
		for _, bad := range []string{"canary", "other:word", base64.StdEncoding.EncodeToString([]byte(canary))} {
			if strings.Contains(text, bad) {
				t.Errorf("%q has %q", text, bad)
			}
		}
	}
	if got := c.String(); !strings.Contains(got, "index:8080") || !strings.Contains(got, "extra") {
		t.Errorf("%q", got)
	}
	b, err := json.Marshal(c)
	var back Config
	if err != nil || json.Unmarshal(b, &back) != nil || !reflect.DeepEqual(c, back) {
		t.Errorf("%v: %#v", err, back)
	}
}

// TestCase56Configuration: index with credentials, certificate and proxy from pip.conf and
// PIP_* are what the jailed pip uses; no text, lock or command line has the credentials.
func TestCase56Configuration(t *testing.T) {
	somePip(t, func(t *testing.T, p *Pip) {
		x := index(t, indextest.Options{User: "user", Password: canary}, pkg("foo", "1.0"))
		root, err := url.Parse(x.Root())
		if err != nil {
			t.Fatal(err)
		}
		front := httptest.NewTLSServer(httputil.NewSingleHostReverseProxy(root))
		defer front.Close()
		var mu sync.Mutex
		proxied := 0
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if r.Header.Get("Proxy-Authorization") != "" {
				proxied++
			}
			httputil.NewSingleHostReverseProxy(root).ServeHTTP(w, r)
		}))
		defer proxy.Close()
		cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})
		user := url.UserPassword("user", canary).String()
		dir := put(t, map[string]string{
			"ca.pem":   string(cert),
			"pip.conf": "[global]\nindex-url = " + strings.Replace(front.URL, "://", "://"+user+"@", 1) + "/simple/\nretries = 0\n",
		})
		env := []string{"XDG_CONFIG_DIRS=" + dir, "PIP_CONFIG_FILE=" + filepath.Join(dir, "pip.conf"), "PIP_CERT=" + filepath.Join(dir, "ca.pem"),
			"PIP_TARGET=/evil", "PIP_CONSTRAINT=/evil", "PIP_REQUIRE_VIRTUALENV=1", "PIP_NO_INDEX=0"}
		c, _, err := ReadConfig(env, "")
		if err != nil {
			t.Fatal(err)
		}
		stop := watchCommandLines(t)
		works(t, p, c)
		if seen := stop(); strings.Contains(seen, "canary") {
			t.Errorf("a command line had the password: %q", seen)
		}
		c.IndexURL = "http://" + user + "@index.invalid/simple/"
		c.Proxy = strings.Replace(proxy.URL, "://", "://proxy-user:"+canary[:6]+"@", 1)
		_, err = p.Resolve(t.Context(), Request{Specs: specs(t, "foo"), Config: c})
		refused(t, err, ErrBadConfig, "index.invalid", "trusted-host")
		c.TrustedHosts = []string{"index.invalid"}
		works(t, p, c)
		if proxied == 0 {
			t.Error("the proxy was not asked, or not with its password")
		}

		// Failures: no text has the password, be it wrong or right.
		c.Proxy = ""
		for _, wrong := range []string{strings.Replace(x.URL(), "://", "://user:wrong-"+canary[:6]+"@", 1), "http://" + user + "@127.0.0.1:1/simple", "http://" + user + "@index.invalid/simple"} {
			if strings.Contains(wrong, ".invalid/") && !pyenvtest.Soak() {
				continue // name servers can take long to say no; TestBadIndexes asks them once
			}
			c.IndexURL = wrong
			_, err := p.Resolve(t.Context(), Request{Specs: specs(t, "foo"), Config: c})
			e := refused(t, err, ErrIndexUnreachable)
			if text := fmt.Sprintf("%+v %#v %v", e, e, err); strings.Contains(text, "canary") {
				t.Errorf("the error has the password: %s", text)
			}
		}
	})
}

// works resolves and fetches foo.
func works(t *testing.T, p *Pip, c Config) {
	t.Helper()
	r, err := p.Resolve(t.Context(), Request{Specs: specs(t, "foo"), Config: c})
	if err != nil || lines(r) != "foo 1.0\n" {
		var e *Error
		if errors.As(err, &e) {
			t.Log(e.Detail)
		}
		t.Fatalf("%v %+v", err, r)
	}
	if text := fmt.Sprintf("%+v", r); strings.Contains(text, "canary") || strings.Contains(text, "user") {
		t.Errorf("the resolution has the credentials: %s", text)
	}
	n := 0
	err = p.Fetch(context.WithoutCancel(t.Context()), r.Packages, c, func(lock.Package, *os.File) error { n++; return nil })
	if err != nil || n != 1 {
		t.Errorf("%d files, %v", n, err)
	}
}

// watchCommandLines collects what others on the host can see of processes until stop.
func watchCommandLines(t *testing.T) (stop func() string) {
	done, seen := make(chan struct{}), make(chan map[string]bool)
	go func() {
		all := map[string]bool{}
		tick := time.NewTicker(5 * time.Millisecond) // pip takes some hundred
		defer tick.Stop()
		for {
			paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, path := range paths {
				if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte("pip")) {
					all[string(b)] = true
				}
			}
			select {
			case <-done:
				seen <- all
				return
			case <-tick.C:
			}
		}
	}()
	return func() string {
		close(done)
		all := slices.Sorted(maps.Keys(<-seen))
		if !slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, "--dry-run") }) {
			t.Error("pip was not seen at all")
		}
		return strings.Join(all, "\n")
	}
}
