package pipconf

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Settings are a configuration as it was read, with all that is secret in it. It is a
// resolve.Config that nobody has looked at, and the two are the same as JSON.
type Settings struct {
	IndexURL       string   `json:"index_url,omitempty"` // "" = pip's default
	ExtraIndexURLs []string `json:"extra_index_urls,omitempty"`
	FindLinks      []string `json:"find_links,omitempty"` // URLs of pages, or absolute paths of directories
	NoIndex        bool     `json:"no_index,omitempty"`
	TrustedHosts   []string `json:"trusted_hosts,omitempty"`
	Proxy          string   `json:"proxy,omitempty"`
	Timeout        int      `json:"timeout,omitempty"` // seconds for each answer, 1 to 60; 0 = 15
	Retries        *int     `json:"retries,omitempty"` // 0 to 10; nil = 2

	Cert       []byte `json:"cert,omitempty"`        // PEM, authorities in place of the system's
	ClientCert []byte `json:"client_cert,omitempty"` // PEM, with its key

	// The proxies of the environment, for what Proxy does not say.
	HTTPProxy  string `json:"http_proxy,omitempty"`
	HTTPSProxy string `json:"https_proxy,omitempty"`
	AllProxy   string `json:"all_proxy,omitempty"`
	NoProxy    string `json:"no_proxy,omitempty"`
}

// String tells nothing of it.
func (Settings) String() string { return "a pip configuration" }

// GoString is String.
func (s Settings) GoString() string { return s.String() }

// Limits of what is read.
const (
	MaxCert    = 4 << 20 // bytes of a certificate file
	MaxURL     = 4096    // bytes of a URL
	MaxTimeout = 60
	MaxRetries = 10
)

// ErrBad is a configuration that cannot be read.
var ErrBad = errors.New("the pip configuration cannot be used")

// badError is an ErrBad that says what is wrong in a sentence of its own.
type badError struct{ sentence string }

func (e *badError) Error() string { return e.sentence }
func (e *badError) Unwrap() error { return ErrBad }

func bad(format string, args ...any) error { return &badError{fmt.Sprintf(format, args...)} }

// Plain says whether a text has neither blanks nor control characters, so that it
// is one value of one line wherever pip reads it.
func Plain(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })
}

// IsDir says whether a text is an absolute path that may be that of a directory of links.
func IsDir(p string) bool {
	return filepath.IsAbs(p) && filepath.Clean(p) == p && p != "/" && len(p) <= MaxURL && !strings.ContainsFunc(p, unicode.IsControl)
}

// Unlisted says why the names in a directory cannot be read, "" if they can.
func Unlisted(dir string) string {
	f, err := os.OpenFile(dir, os.O_RDONLY|hostos.NonBlock, 0)
	if err == nil {
		defer f.Close()
		_, err = f.ReadDir(1)
	}
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return ""
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such directory"
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("it cannot be read by uid %d", os.Geteuid())
	}
	return reason(err)
}
