package pipconf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Places of links are pages, and directories by path or by URL. Without net/url they are
// read as that reads them.
func TestLinks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	quoted := strings.ReplaceAll(dir, " ", "%20")
	plain := t.TempDir()
	for link, want := range map[string]string{
		"http://page/links.html": "http://page/links.html", "HTTPS://page": "HTTPS://page", "https://": "", "http:///x": "", "ftp://host/x": "",
		plain: plain, "file://" + plain: plain, "file:" + plain: plain, "FILE://localhost" + plain: plain, "file://" + plain + "?q#f": plain,
		"file://" + quoted: dir, "file://" + plain + "%zz": "", "file://": "", "file://host": "", "/nowhere": "", "/": "", "http:": "",
	} {
		s, warnings, err := Read([]string{"PIP_CONFIG_FILE=" + os.DevNull, "PIP_FIND_LINKS=" + link}, "")
		var list []string
		if want != "" {
			list = []string{want}
		}
		if err != nil || !slices.Equal(s.FindLinks, list) || (len(warnings) == 0) != (want != "") {
			t.Errorf("%s: %q, %q, %v", link, s.FindLinks, warnings, err)
		}
	}
}

// Nothing that prints settings, or an error about them, shows a value.
func TestNothingIsShown(t *testing.T) {
	s := Settings{IndexURL: "https://u:canary@index", Proxy: "http://canary@p", ClientCert: []byte("canary")}
	if text := fmt.Sprintf("%v %+v %#v %s %v %+v", s, s, s, s, &s, struct{ S Settings }{s}); strings.Contains(text, "canary") || strings.Contains(text, "99 97 110") {
		t.Error(text)
	}
	_, _, err := Read([]string{"PIP_CONFIG_FILE=" + os.DevNull, "PIP_NO_INDEX=canary"}, "")
	if !errors.Is(err, ErrBad) || strings.Contains(err.Error(), "canary") {
		t.Error(err)
	}
}
