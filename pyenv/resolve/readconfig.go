package resolve

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ReadConfig reads the pip configuration of whoever calls it, in the order in which
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
// sentences for a person, as is the error (ErrBadConfig): they may name files, and
// hold no value of them.
func ReadConfig(environ []string, home string) (Config, []string, error) {
	r := configReader{env: map[string]string{}, home: home, values: map[string]string{}}
	for _, kv := range environ {
		k, v, _ := strings.Cut(kv, "=")
		r.env[k] = v
	}
	if err := r.readFiles(); err != nil {
		return Config{}, nil, err
	}
	r.readVariables()
	c, err := r.config()
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return Config{}, nil, err
	}
	if n := c.Indexes(); n > 1 {
		r.warn("pip is configured with %d places of packages (index, extra-index-url, find-links): it takes the newest version from any of them, also when it is not whose you think", n)
	}
	return c, r.warnings, nil
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
			return fail(ErrBadConfig, "%s %s", name, err)
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

func (r *configReader) config() (Config, error) {
	c := Config{
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
			return c, fail(ErrBadConfig, "the pip setting no-index is neither yes nor no")
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
func (r *configReader) links(c *Config) {
	for _, l := range strings.Fields(r.values["find-links"]) {
		if u, err := url.Parse(l); err == nil && u.Scheme == "file" {
			l = u.Path
		}
		if isWeb(l) {
			c.FindLinks = append(c.FindLinks, l)
			continue
		}
		abs, err := filepath.Abs(l)
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

// badLinks says why an absolute path, or what could not be made one, is no directory
// of links; "" if it is one.
func badLinks(abs string, err error) string {
	if err == nil {
		var info fs.FileInfo
		if info, err = os.Stat(abs); err == nil && info.IsDir() && isDir(abs) {
			return unlisted(abs)
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
func (r *configReader) numbers(c *Config) error {
	if v := r.values["timeout"]; v != "" {
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || !(f > 0) {
			return fail(ErrBadConfig, "the pip setting timeout is no number of seconds")
		}
		c.Timeout = int(max(1, min(f, maxTimeout)))
	}
	if v := r.values["retries"]; v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			return fail(ErrBadConfig, "the pip setting retries is no number")
		}
		n = min(n, maxRetries)
		c.Retries = &n
	}
	return nil
}

func (r *configReader) certificates(c *Config) error {
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
			return fail(ErrBadConfig, "the file of the pip setting %s, %s, cannot be read: %s", from.key, from.path, reason(err))
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

// readFile reads a regular file of at most maxCert bytes.
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
	b, err := io.ReadAll(io.LimitReader(f, maxCert+1))
	if err == nil && len(b) > maxCert {
		err = errors.New("it has more than 4 MiB")
	}
	return b, err
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
