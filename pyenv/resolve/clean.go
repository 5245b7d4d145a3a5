package resolve

import (
	"net/url"
	"regexp"
	"strings"
	"unicode"
)

// clean makes a stranger's text fit to be shown on one or more lines: no control
// characters (terminal escapes), no direction marks, valid UTF-8.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) && r != unicode.ReplacementChar {
			return r
		}
		return -1
	}, strings.ToValidUTF8(s, ""))
}

// line is a cleaned text on one line, cut to a number of bytes.
func line(s string, most int) string {
	s = strings.Join(strings.Fields(clean(s)), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// inURL is what stands between "//" and "@", with some room for what is no valid URL.
var inURL = regexp.MustCompile(`//[^/\s@]+@`)

// scrub takes the credentials of a configuration out of a text: where they stand in
// a URL, whoever's they are, and wherever else the secret itself stands.
func (c Config) scrub(s string) string {
	s = inURL.ReplaceAllString(s, "//***@")
	for _, secret := range c.secrets() {
		s = strings.ReplaceAll(s, secret, "***")
	}
	return s
}

// secrets are the passwords, and the user names that stand alone as tokens do, as
// they are and as they are written in URLs.
func (c Config) secrets() []string {
	var list []string
	add := func(s string) {
		const least = 4 // a shorter one is left to inURL: it would tear words apart
		if len(s) >= least {
			list = append(list, s)
		}
	}
	for _, raw := range c.urls() {
		rest, _, ok := cutUserinfo(raw)
		if !ok {
			continue
		}
		user, password, has := strings.Cut(rest, ":")
		if !has || password == "" {
			password = user
		}
		add(password)
		add(url.PathEscape(password))
		if plain, err := url.PathUnescape(password); err == nil {
			add(plain)
			add(url.QueryEscape(plain))
		}
	}
	return list
}

// cutUserinfo splits a URL at its "user:password@", also one that cannot be parsed.
func cutUserinfo(raw string) (userinfo, without string, ok bool) {
	scheme, rest, has := strings.Cut(raw, "://")
	if !has {
		scheme, rest = "", raw
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	at := strings.LastIndexByte(rest[:end], '@')
	if at < 0 {
		return "", raw, false
	}
	without = rest[at+1:]
	if has {
		without = scheme + "://" + without
	}
	return rest[:at], without, true
}

// hostOf is the host of a URL, which is all of it that is shown.
func hostOf(raw string) string {
	_, without, _ := cutUserinfo(raw)
	u, err := url.Parse(without)
	if err != nil || u.Hostname() == "" {
		return "an index"
	}
	return line(u.Host, 100)
}

// tail is the end of pip's output for Error.Detail.
func (c Config) tail(out []byte) string {
	const most = 2 << 10
	s := strings.TrimSpace(c.scrub(clean(string(out))))
	if len(s) > most {
		s = strings.ToValidUTF8(s[len(s)-most:], "")
	}
	return s
}
