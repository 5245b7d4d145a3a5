package indextest

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
)

// get asks the index for a path.
func get(t *testing.T, x *Index, path, accept string) (int, string, error) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, x.Root()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Accept", accept)
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return r.StatusCode, string(b), err
}

const asJSON = "application/vnd.pypi.simple.v1+json, text/html; q=0.1"

func TestGoodIndex(t *testing.T) {
	w := wheeltest.Wheel{Requires: []string{"other"}}
	x := New(Options{}, File{Name: w.FileName(), Body: w.Bytes(), Yanked: "a < b", RequiresPython: ">=3.9", Uploaded: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)})
	defer x.Close()
	status, body, err := get(t, x, "/simple/demo/", asJSON)
	var page struct {
		Files []struct {
			Filename, URL  string
			Size           int
			Yanked         string
			Hashes         map[string]string
			UploadTime     string            `json:"upload-time"`
			RequiresPython string            `json:"requires-python"`
			Metadata       map[string]string `json:"core-metadata"`
		}
	}
	if err != nil || status != 200 || json.Unmarshal([]byte(body), &page) != nil || len(page.Files) != 1 {
		t.Fatalf("%d %v: %s", status, err, body)
	}
	f := page.Files[0]
	if f.Filename != w.FileName() || f.Size != len(w.Bytes()) || f.Yanked != "a < b" || f.UploadTime != "2026-01-02T03:04:05.000000Z" || f.RequiresPython != ">=3.9" {
		t.Errorf("%+v", f)
	}
	if _, body, err := get(t, x, f.URL, ""); err != nil || sum([]byte(body)) != f.Hashes["sha256"] {
		t.Errorf("the file: %v", err)
	}
	if _, body, err := get(t, x, f.URL+".metadata", ""); err != nil || sum([]byte(body)) != f.Metadata["sha256"] || !strings.Contains(body, "Requires-Dist: other") {
		t.Errorf("the metadata: %v %q", err, body)
	}
	if _, body, _ := get(t, x, "/simple/demo/", "text/html"); !strings.Contains(body, `data-yanked="a &lt; b"`) || !strings.Contains(body, "#sha256="+f.Hashes["sha256"]) {
		t.Errorf("the page: %s", body)
	}
	if status, _, _ := get(t, x, "/simple/nothing/", asJSON); status != 404 {
		t.Errorf("a project that is not there: %d", status)
	}
	if x.Wheels() != 1 || len(x.Requests()) != 5 {
		t.Errorf("requests %q", x.Requests())
	}
}

func TestBadIndex(t *testing.T) {
	body := []byte(strings.Repeat("x", 1000))
	x := New(Options{User: "u", Password: "p/w"}, File{Name: "a-1.tar.gz", Body: body})
	defer x.Close()
	if status, _, _ := get(t, x, "/simple/a/", ""); status != 401 {
		t.Errorf("without a password: %d", status)
	}
	if r, err := http.Get(x.URLWith() + "a/"); err != nil || r.StatusCode != 200 {
		t.Errorf("with it: %v", err)
	} else {
		r.Body.Close()
	}
	y := New(Options{}, File{Name: "a-1.tar.gz", Body: body, Truncated: true}, File{Name: "b-1.tar.gz", Body: body, Sent: []byte("y"), SHA256: "00"}, File{Name: "c-1.tar.gz", Status: 503})
	defer y.Close()
	if _, got, err := get(t, y, "/files/a-1.tar.gz", ""); err == nil || len(got) != 500 {
		t.Errorf("truncated: %d bytes, %v", len(got), err)
	}
	if _, got, err := get(t, y, "/files/b-1.tar.gz", ""); err != nil || got != "y" {
		t.Errorf("other bytes: %q %v", got, err)
	}
	if status, _, _ := get(t, y, "/files/c-1.tar.gz", ""); status != 503 {
		t.Errorf("status %d", status)
	}
}
