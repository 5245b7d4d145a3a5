package pipconf

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Read reads the pip configuration of whoever calls it, in the order in which
// pip does, where later ones win:
//
//   - pip/pip.conf in $XDG_CONFIG_DIRS (/etc/xdg), and /etc/pip.conf;
//   - ~/.pip/pip.conf and $XDG_CONFIG_HOME/pip/pip.conf (~/.config), unless
//     $PIP_CONFIG_FILE names a file that exists;
//   - $VIRTUAL_ENV/pip.conf;
//   - $PIP_CONFIG_FILE (/dev/null: no file at all is read);
//   - the variables PIP_*.
//
// In the files the sections [global], [download] and [install] count, in this order.
// Taken are index-url, extra-index-url, find-links, no-index, trusted-host, proxy,
// timeout, retries, cert and client-cert, besides the proxies of the environment and
// the authorities of $REQUESTS_CA_BUNDLE, $CURL_CA_BUNDLE or $SSL_CERT_FILE. All other
// settings are passed over: they say what pip is to do, not where packages are.
//
// environ is like os.Environ, home the home directory. The warnings are whole
// sentences for a person, as is the error, which wraps ErrBad: they may name files, and
// hold no value of them. Whether pip could use a value is not looked at.
func Read(environ []string, home string) (Settings, []string, error) {
	r := configReader{env: map[string]string{}, home: home, values: map[string]string{}}
	for _, kv := range environ {
		k, v, _ := strings.Cut(kv, "=")
		r.env[k] = v
	}
	if err := r.readFiles(); err != nil {
		return Settings{}, nil, err
	}
	r.readVariables()
	s, err := r.settings()
	if err != nil {
		return Settings{}, nil, err
	}
	return s, r.warnings, nil
}

type configReader struct {
	env      map[string]string
	home     string
	values   map[string]string // by key
	warnings []string
}

func (r *configReader) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// files are those that pip would read, in its order.
func (r *configReader) files() []string {
	own, hasOwn := r.env["PIP_CONFIG_FILE"]
	if own == os.DevNull {
		return nil
	}
	var list []string
	for dir := range strings.SplitSeq(or(r.env["XDG_CONFIG_DIRS"], "/etc/xdg"), ":") {
		list = append(list, filepath.Join(dir, "pip", "pip.conf"))
	}
	list = append(list, "/etc/pip.conf")
	if _, err := os.Stat(own); (own == "" || err != nil) && r.home != "" {
		list = append(list, filepath.Join(r.home, ".pip", "pip.conf"),
			filepath.Join(or(r.env["XDG_CONFIG_HOME"], filepath.Join(r.home, ".config")), "pip", "pip.conf"))
	}
	if venv := r.env["VIRTUAL_ENV"]; venv != "" {
		list = append(list, filepath.Join(venv, "pip.conf"))
	}
	if hasOwn && own != "" {
		list = append(list, own)
	}
	return slices.DeleteFunc(list, func(p string) bool { return !filepath.IsAbs(p) })
}

// readFiles merges the files by section and key, and then the sections.
func (r *configReader) readFiles() error {
	merged := map[string]map[string]string{"global": {}, "download": {}, "install": {}}
	for _, name := range r.files() {
		b, err := readFile(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			r.warn("the pip configuration %s was passed over: %s", name, reason(err))
			continue
		}
		sections, err := parseIni(string(b))
		if err != nil {
			return bad("%s %s", name, err)
		}
		for section, into := range merged {
			for key, value := range sections[section] {
				into[normalKey(key)] = value
			}
		}
	}
	for _, section := range []string{"global", "download", "install"} {
		for key, value := range merged[section] {
			r.set(key, value)
		}
	}
	return nil
}

// set takes a value; an empty one says nothing, as with pip.
func (r *configReader) set(key, value string) {
	if alias := aliases[key]; alias != "" {
		key = alias
	}
	if value != "" {
		r.values[key] = value
	}
}

// aliases are other names of options that pip takes.
var aliases = map[string]string{"pypi-url": "index-url", "default-timeout": "timeout"}

func normalKey(key string) string {
	return strings.TrimPrefix(strings.ReplaceAll(strings.ToLower(key), "_", "-"), "--")
}

func (r *configReader) readVariables() {
	for key, value := range r.env {
		if name, ok := strings.CutPrefix(key, "PIP_"); ok {
			r.set(normalKey(name), value)
		}
	}
}

func (r *configReader) settings() (Settings, error) {
	c := Settings{
		IndexURL: r.values["index-url"], ExtraIndexURLs: strings.Fields(r.values["extra-index-url"]),
		TrustedHosts: strings.Fields(r.values["trusted-host"]), Proxy: r.values["proxy"],
		HTTPProxy: r.env["http_proxy"], // in capitals a CGI would take it from a request
		NoProxy:   or(r.env["no_proxy"], r.env["NO_PROXY"]),
	}
	c.HTTPSProxy = or(r.env["https_proxy"], r.env["HTTPS_PROXY"])
	c.AllProxy = or(r.env["all_proxy"], r.env["ALL_PROXY"])
	c.HTTPProxy = or(c.HTTPProxy, r.env["HTTP_PROXY"])
	if v := r.values["no-index"]; v != "" {
		yes, ok := boolean(v)
		if !ok {
			return c, bad("the pip setting no-index is neither yes nor no")
		}
		c.NoIndex = yes
	}
	r.links(&c)
	if err := r.numbers(&c); err != nil {
		return c, err
	}
	return c, r.certificates(&c)
}

// links takes pages and directories; a file of links is not supported.
func (r *configReader) links(c *Settings) {
	for _, l := range strings.Fields(r.values["find-links"]) {
		if isPage(l) {
			c.FindLinks = append(c.FindLinks, l)
			continue
		}
		path := pathOf(l)
		abs, err := filepath.Abs(path)
		if path == "" {
			err = fs.ErrNotExist
		}
		if err == nil {
			abs, err = filepath.EvalSymlinks(abs)
		}
		if why := badLinks(abs, err); why != "" {
			r.warn("one place of the pip setting find-links was passed over: %s", why)
			continue
		}
		c.FindLinks = append(c.FindLinks, abs)
	}
}

// isPage says whether a place of links is a URL of the web. Package net/url is not used
// here: whoever imports it is initialized after much that a front does not need.
func isPage(l string) bool {
	scheme, rest, _ := strings.Cut(l, "://")
	scheme = strings.ToLower(scheme)
	return (scheme == "http" || scheme == "https") && strings.Trim(rest, "/?#") != "" && !strings.ContainsAny(rest[:1], "/?#")
}

// pathOf is the path of a file URL (RFC 8089), and of what is none that very text.
func pathOf(l string) string {
	rest, ok := cutFold(l, "file:")
	if !ok {
		return l
	}
	if end := strings.IndexAny(rest, "?#"); end >= 0 {
		rest = rest[:end]
	}
	if authority, ok := strings.CutPrefix(rest, "//"); ok {
		_, path, _ := strings.Cut(authority, "/")
		rest = "/" + path
	}
	var path []byte
	for i := 0; i < len(rest); i++ {
		if rest[i] == '%' && i+2 < len(rest) {
			if b, err := hex.DecodeString(rest[i+1 : i+3]); err == nil {
				path = append(path, b[0])
				i += 2
				continue
			}
		}
		path = append(path, rest[i])
	}
	return string(path)
}

// cutFold is strings.CutPrefix for a prefix in upper or lower case.
func cutFold(s, prefix string) (string, bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}

// badLinks says why an absolute path, or what could not be made one, is no directory
// of links; "" if it is one.
func badLinks(abs string, err error) string {
	if err == nil {
		var info fs.FileInfo
		if info, err = os.Stat(abs); err == nil && info.IsDir() && IsDir(abs) {
			return Unlisted(abs)
		}
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("it cannot be read by uid %d", os.Geteuid())
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such directory, and it is no http or https URL"
	}
	return "it is no directory and no http or https URL"
}

// numbers takes timeout and retries, and brings them down to what a jail has time for.
func (r *configReader) numbers(c *Settings) error {
	if v := r.values["timeout"]; v != "" {
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || !(f > 0) {
			return bad("the pip setting timeout is no number of seconds")
		}
		c.Timeout = int(max(1, min(f, MaxTimeout)))
	}
	if v := r.values["retries"]; v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			return bad("the pip setting retries is no number")
		}
		n = min(n, MaxRetries)
		c.Retries = &n
	}
	return nil
}

func (r *configReader) certificates(c *Settings) error {
	cert := r.values["cert"]
	for _, name := range []string{"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"} {
		cert = or(cert, r.env[name])
	}
	for _, from := range []struct {
		key, path string
		to        *[]byte
	}{{"cert", cert, &c.Cert}, {"client-cert", r.values["client-cert"], &c.ClientCert}} {
		if from.path == "" {
			continue
		}
		b, err := readFile(from.path)
		if err != nil {
			return bad("the file of the pip setting %s, %s, cannot be read: %s", from.key, from.path, reason(err))
		}
		*from.to = b
	}
	return nil
}

// boolean is how pip reads one.
func boolean(s string) (yes, ok bool) {
	switch strings.ToLower(s) {
	case "y", "yes", "t", "true", "on", "1":
		return true, true
	case "n", "no", "f", "false", "off", "0":
		return false, true
	}
	return false, false
}

// readFile reads a regular file of at most MaxCert bytes.
func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, errors.New("it is a directory")
	case !info.Mode().IsRegular():
		return nil, errors.New("it is no regular file")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// With room for all of it: the front is a small process.
	var b bytes.Buffer
	b.Grow(int(min(info.Size(), MaxCert)) + bytes.MinRead)
	_, err = b.ReadFrom(io.LimitReader(f, MaxCert+1))
	if err == nil && b.Len() > MaxCert {
		err = errors.New("it has more than 4 MiB")
	}
	return b.Bytes(), err
}

// reason is the bare reason of an error of the file system.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
