package resolve

import (
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pipconf"
)

// Config says where packages come from: what of a person's pip configuration is
// about that. It is JSON for the way from the caller to the server, with all that is
// secret in it; as text, in logs too, it is never more than [Config.String].
//
// The zero value is pip's own default index.
type Config pipconf.Settings

// Limits of a Config.
const (
	maxCert    = pipconf.MaxCert
	maxURL     = pipconf.MaxURL
	maxSources = 16 // indexes, and places of links
	maxHosts   = 64
	maxTimeout = pipconf.MaxTimeout
	maxRetries = pipconf.MaxRetries
)

// String tells what may be told: hosts.
func (c Config) String() string {
	var parts []string
	add := func(what string, raw ...string) {
		var hosts []string
		for _, r := range raw {
			if r != "" {
				hosts = append(hosts, hostOf(r))
			}
		}
		if len(hosts) > 0 {
			parts = append(parts, what+" "+strings.Join(hosts, " "))
		}
	}
	switch {
	case c.NoIndex:
		parts = append(parts, "no index")
	case c.IndexURL == "":
		parts = append(parts, "pip's default index")
	}
	if !c.NoIndex {
		add("index", c.IndexURL)
		add("extra index", c.ExtraIndexURLs...)
	}
	if n := len(c.FindLinks); n > 0 {
		parts = append(parts, fmt.Sprintf("%d places of links", n))
	}
	add("proxy", c.Proxy, c.HTTPProxy, c.HTTPSProxy, c.AllProxy)
	if c.Cert != nil {
		parts = append(parts, "own authorities")
	}
	if c.ClientCert != nil {
		parts = append(parts, "client certificate")
	}
	return strings.Join(parts, ", ")
}

// GoString is String: %#v shows no more than the rest.
func (c Config) GoString() string { return "resolve.Config{" + c.String() + "}" }

// LogValue is String.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Indexes is how many indexes and pages of links are merged. With more than one,
// whoever can upload to any of them can offer a newer version of what is on another.
func (c Config) Indexes() int {
	n := len(c.FindLinks)
	if !c.NoIndex {
		n += 1 + len(c.ExtraIndexURLs)
	}
	return n
}

// Sources are the indexes and pages of links, without credentials: equal for
// configurations that ask the same ones. They may name what is nobody else's business,
// and are not for showing.
func (c Config) Sources() []string {
	list := slices.Clone(c.ExtraIndexURLs)
	if c.NoIndex {
		list = []string{}
	} else {
		list = append(list, "index "+c.IndexURL)
	}
	list = append(list, c.FindLinks...)
	for i, raw := range list {
		_, list[i], _ = cutUserinfo(raw)
	}
	return list
}

// urls are all that may hold credentials.
func (c Config) urls() []string {
	list := append([]string{c.IndexURL, c.Proxy, c.HTTPProxy, c.HTTPSProxy, c.AllProxy}, c.ExtraIndexURLs...)
	return append(list, c.FindLinks...)
}

var hostForm = regexp.MustCompile(`^[A-Za-z0-9.*_\[\]:-]{1,255}$`)

// check refuses what pip would take for something else, or what is no place of
// packages. Errors: ErrBadConfig, without the values.
func (c Config) check() error {
	bad := func(key, why string) error { return fail(ErrBadConfig, "the pip setting %s %s", key, why) }
	for _, u := range append([]string{c.IndexURL}, c.ExtraIndexURLs...) {
		if u != "" && !isWeb(u) {
			return bad("index-url or extra-index-url", "is no http or https URL")
		}
	}
	for _, l := range c.FindLinks {
		if !isWeb(l) && !pipconf.IsDir(l) {
			return bad("find-links", "is neither an http or https URL nor an absolute path")
		}
	}
	if why := badProxyURL(c.Proxy); why != "" {
		return bad("proxy", why)
	}
	for _, p := range []string{c.HTTPProxy, c.HTTPSProxy, c.AllProxy} {
		if !pipconf.Plain(p) || len(p) > maxURL { // of another scheme it may be for other programs
			return fail(ErrBadConfig, "a proxy of the environment (http_proxy, https_proxy, all_proxy) is no URL")
		}
	}
	if slices.ContainsFunc(c.TrustedHosts, func(h string) bool { return !hostForm.MatchString(h) }) {
		return bad("trusted-host", "is no host")
	}
	switch {
	case len(c.ExtraIndexURLs) > maxSources || len(c.FindLinks) > maxSources || len(c.TrustedHosts) > maxHosts:
		return bad("extra-index-url, find-links or trusted-host", "has too many values")
	case c.Timeout < 0 || c.Timeout > maxTimeout:
		return bad("timeout", "is not between 1 and 60 seconds")
	case c.Retries != nil && (*c.Retries < 0 || *c.Retries > maxRetries):
		return bad("retries", "is not between 0 and 10")
	case len(c.Cert) > maxCert || len(c.ClientCert) > maxCert:
		return bad("cert or client-cert", "is a file of more than 4 MiB")
	case len(c.NoProxy) > maxURL || strings.ContainsFunc(c.NoProxy, unicode.IsControl):
		return bad("NO_PROXY", "is no list of hosts")
	}
	return nil
}

// isWeb says whether a text is an http or https URL.
func isWeb(raw string) bool {
	if !pipconf.Plain(raw) || len(raw) > maxURL {
		return false
	}
	u, err := url.Parse(raw)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
}

// badProxyURL says why pip could not use a proxy; "" if it can, or if there is none.
func badProxyURL(raw string) string {
	if raw == "" {
		return ""
	}
	if !pipconf.Plain(raw) || len(raw) > maxURL {
		return "is no URL"
	}
	_, rest, _ := cutUserinfo(raw)
	if !strings.Contains(rest, "://") {
		rest = "http://" + rest
	}
	u, err := url.Parse(rest)
	switch {
	case err != nil || u.Hostname() == "":
		return "is no URL of a proxy, http://HOST:PORT"
	case strings.HasPrefix(u.Scheme, "socks"):
		return "is a SOCKS proxy, which pip cannot use here; wanted is http://HOST:PORT"
	case u.Scheme != "http" && u.Scheme != "https":
		return "is no URL of a proxy, http://HOST:PORT"
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "has a port that is not between 1 and 65535"
		}
	}
	return ""
}

// readable refuses a configuration that leaves no place to look in, and a directory of
// links that this user cannot list. Which one it is is only in Detail.
func (c Config) readable() error {
	if c.NoIndex && len(c.FindLinks) == 0 {
		return fail(ErrBadConfig, "the pip configuration forbids an index (no-index), and its find-links names no place that can be used")
	}
	for _, dir := range c.dirs() {
		if why := pipconf.Unlisted(dir); why != "" {
			e := fail(ErrBadConfig, "a directory of the pip setting find-links cannot be used: %s", why)
			e.Detail = dir
			return e
		}
	}
	return nil
}

// dirs are the directories of FindLinks.
func (c Config) dirs() []string {
	return slices.DeleteFunc(slices.Clone(c.FindLinks), isWeb)
}

// Where the parts of a configuration are in the jail.
const (
	confPath   = "/run/vdisk/pip.conf"
	certPath   = "/run/vdisk/cert.pem"
	clientPath = "/run/vdisk/client.pem"
	linksPath  = "/opt/mcp/links"
)

// file is the pip.conf of the jail. Every value is one word: see check.
func (c Config) file() []byte {
	var b strings.Builder
	b.WriteString("[global]\nkeyring-provider = disabled\n")
	set := func(key string, values ...string) {
		values = slices.DeleteFunc(values, func(s string) bool { return s == "" })
		if len(values) > 0 {
			fmt.Fprintf(&b, "%s = %s\n", key, strings.Join(values, "\n    "))
		}
	}
	set("index-url", c.IndexURL)
	set("extra-index-url", slices.Clone(c.ExtraIndexURLs)...)
	var links []string
	dir := 0
	for _, l := range c.FindLinks {
		if !isWeb(l) {
			l = fmt.Sprintf("%s/%d", linksPath, dir)
			dir++
		}
		links = append(links, l)
	}
	set("find-links", links...)
	if c.NoIndex {
		set("no-index", "true")
	}
	set("trusted-host", slices.Clone(c.TrustedHosts)...)
	set("proxy", c.Proxy)
	if c.Cert != nil {
		set("cert", certPath)
	}
	if c.ClientCert != nil {
		set("client-cert", clientPath)
	}
	timeout, retries := 15, 2
	if c.Timeout > 0 {
		timeout = c.Timeout
	}
	if c.Retries != nil {
		retries = *c.Retries
	}
	set("timeout", fmt.Sprint(timeout))
	set("retries", fmt.Sprint(retries))
	return []byte(b.String())
}

// env are the variables of the jail.
func (c Config) env() []string {
	env := []string{"PIP_CONFIG_FILE=" + confPath, "TMPDIR=/out/tmp", "COLUMNS=400", "NO_COLOR=1", "TERM=dumb"}
	for key, value := range map[string]string{"http_proxy": c.HTTPProxy, "https_proxy": c.HTTPSProxy, "all_proxy": c.AllProxy, "no_proxy": c.NoProxy} {
		if value != "" {
			env = append(env, key+"="+value)
		}
	}
	slices.Sort(env)
	return env
}
