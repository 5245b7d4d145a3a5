package indextest

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// Index is a server on loopback. Its methods may be called by many goroutines at once.
type Index struct {
	srv  *httptest.Server
	o    Options
	stop chan struct{} // ends answers that never come

	mu       sync.Mutex
	files    []File
	handlers map[string]http.HandlerFunc
	log      []string
}

// Options are about the whole index. The zero value is a good one.
type Options struct {
	HTML           bool   // it knows no JSON
	NoMetadata     bool   // wheels have no metadata beside them
	NoTimes        bool   // it tells no upload times
	NoSizes        bool   // it tells no sizes
	User, Password string // what it wants; "" for nothing
}

// File is a file of a project. The zero values of all but Name and Body are an
// ordinary file.
type File struct {
	Name           string
	Body           []byte
	Project        string // "" is what Name begins with
	Uploaded       time.Time
	Yanked         string // the reason
	RequiresPython string

	Sent      []byte // other bytes than those whose hash is told
	SHA256    string // the hash that is told; "-" for none
	Status    int    // in place of the file
	Truncated bool   // the answer breaks off in the middle
	Slow      bool   // the answer never comes
}

// New starts an index. The caller closes it.
func New(o Options, files ...File) *Index {
	x := &Index{o: o, stop: make(chan struct{}), handlers: map[string]http.HandlerFunc{}}
	x.Add(files...)
	x.srv = httptest.NewServer(x)
	return x
}

// Close ends the server and all answers under way.
func (x *Index) Close() {
	close(x.stop)
	x.srv.CloseClientConnections()
	x.srv.Close()
}

// URL is the address of the index, for pip's index-url, without credentials.
func (x *Index) URL() string { return x.srv.URL + "/simple/" }

// Root is the address of the server.
func (x *Index) Root() string { return x.srv.URL }

// URLWith is URL with the user and the password that the index wants.
func (x *Index) URLWith() string {
	return strings.Replace(x.URL(), "http://", "http://"+url.UserPassword(x.o.User, x.o.Password).String()+"@", 1)
}

// Add puts files on the index; one of a name that is there replaces it.
func (x *Index) Add(files ...File) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range files {
		x.files = slices.DeleteFunc(x.files, func(old File) bool { return old.Name == f.Name })
		x.files = append(x.files, f)
	}
}

// Handle replaces the answer for a path, such as "/simple/demo/".
func (x *Index) Handle(path string, h http.HandlerFunc) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.handlers[path] = h
}

// Requests are the methods and paths that were asked for, in order.
func (x *Index) Requests() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.log)
}

// Wheels is how many of them were for files, not for pages or metadata.
func (x *Index) Wheels() int {
	n := 0
	for _, r := range x.Requests() {
		if strings.HasPrefix(r, "GET /files/") && !strings.HasSuffix(r, ".metadata") {
			n++
		}
	}
	return n
}

// ServeHTTP answers one request.
func (x *Index) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x.mu.Lock()
	x.log = append(x.log, r.Method+" "+r.URL.Path)
	h := x.handlers[r.URL.Path]
	x.mu.Unlock()
	user, password, _ := r.BasicAuth()
	switch {
	case x.o.User != "" && (user != x.o.User || password != x.o.Password):
		w.Header().Set("WWW-Authenticate", `Basic realm="index"`)
		http.Error(w, "no", http.StatusUnauthorized)
	case h != nil:
		h(w, r)
	case strings.HasPrefix(r.URL.Path, "/simple/"):
		x.project(w, r)
	case strings.HasPrefix(r.URL.Path, "/files/"):
		x.file(w, r)
	default:
		http.NotFound(w, r)
	}
}

// project answers with the files of a project.
func (x *Index) project(w http.ResponseWriter, r *http.Request) {
	name := strings.Trim(strings.TrimPrefix(r.URL.Path, "/simple/"), "/")
	x.mu.Lock()
	var files []File
	for _, f := range x.files {
		if f.project() == name {
			files = append(files, f)
		}
	}
	x.mu.Unlock()
	if len(files) == 0 {
		http.NotFound(w, r)
		return
	}
	if x.o.HTML || !strings.Contains(r.Header.Get("Accept"), "application/vnd.pypi.simple.v1+json") {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		io.WriteString(w, x.page(name, files))
		return
	}
	w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
	var list []map[string]any
	for _, f := range files {
		list = append(list, x.row(f))
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"meta": map[string]string{"api-version": "1.1"}, "name": name, "files": list})
}

// project is the normalised name of the project that a file is of.
func (f File) project() string {
	name := f.Project
	if name == "" {
		name, _, _ = strings.Cut(f.Name, "-")
	}
	return strings.ToLower(strings.NewReplacer("_", "-", ".", "-").Replace(name))
}

func (f File) hash() string {
	switch f.SHA256 {
	case "-":
		return ""
	case "":
		return sum(f.Body)
	}
	return f.SHA256
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// row is a file in JSON.
func (x *Index) row(f File) map[string]any {
	row := map[string]any{"filename": f.Name, "url": x.fileURL(f), "hashes": map[string]string{}, "yanked": false}
	if h := f.hash(); h != "" {
		row["hashes"] = map[string]string{"sha256": h}
	}
	if f.RequiresPython != "" {
		row["requires-python"] = f.RequiresPython
	}
	if f.Yanked != "" {
		row["yanked"] = f.Yanked
	}
	if !x.o.NoSizes {
		row["size"] = len(f.Body)
	}
	if !x.o.NoTimes {
		row["upload-time"] = f.uploaded().Format("2006-01-02T15:04:05.000000Z")
	}
	if m := x.metadata(f); m != nil {
		row["core-metadata"] = map[string]string{"sha256": sum(m)}
	}
	return row
}

func (f File) uploaded() time.Time {
	if f.Uploaded.IsZero() {
		return time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	}
	return f.Uploaded.UTC()
}

func (x *Index) fileURL(f File) string { return "/files/" + url.PathEscape(f.Name) }

// page is the files in HTML.
func (x *Index) page(name string, files []File) string {
	var b strings.Builder
	fmt.Fprintf(&b, "<!DOCTYPE html><html><head><title>%s</title></head><body>\n", html.EscapeString(name))
	for _, f := range files {
		href := x.fileURL(f)
		if h := f.hash(); h != "" {
			href += "#sha256=" + h
		}
		fmt.Fprintf(&b, "<a href=%q", href)
		if f.RequiresPython != "" {
			fmt.Fprintf(&b, ` data-requires-python="%s"`, html.EscapeString(f.RequiresPython))
		}
		if f.Yanked != "" {
			fmt.Fprintf(&b, ` data-yanked="%s"`, html.EscapeString(f.Yanked))
		}
		if m := x.metadata(f); m != nil {
			fmt.Fprintf(&b, ` data-core-metadata="sha256=%s"`, sum(m))
		}
		fmt.Fprintf(&b, ">%s</a><br/>\n", html.EscapeString(f.Name))
	}
	b.WriteString("</body></html>\n")
	return b.String()
}

// metadata is the METADATA of a wheel, nil if there is none to be served.
func (x *Index) metadata(f File) []byte {
	if x.o.NoMetadata || !strings.HasSuffix(f.Name, ".whl") {
		return nil
	}
	z, err := zip.NewReader(bytes.NewReader(f.Body), int64(len(f.Body)))
	if err != nil {
		return nil
	}
	for _, e := range z.File {
		if !strings.HasSuffix(e.Name, ".dist-info/METADATA") {
			continue
		}
		r, err := e.Open()
		if err != nil {
			return nil
		}
		defer r.Close()
		b, err := io.ReadAll(r)
		if err != nil {
			return nil
		}
		return b
	}
	return nil
}

// file answers with a file or its metadata.
func (x *Index) file(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/files/")
	wheel, isMetadata := strings.CutSuffix(name, ".metadata")
	x.mu.Lock()
	at := slices.IndexFunc(x.files, func(f File) bool { return f.Name == wheel })
	var f File
	if at >= 0 {
		f = x.files[at]
	}
	x.mu.Unlock()
	if at < 0 {
		http.NotFound(w, r)
		return
	}
	if isMetadata {
		_, _ = w.Write(x.metadata(f))
		return
	}
	x.send(w, r, f)
}

func (x *Index) send(w http.ResponseWriter, r *http.Request, f File) {
	body := f.Body
	if f.Sent != nil {
		body = f.Sent
	}
	switch {
	case f.Status != 0:
		http.Error(w, "no", f.Status)
	case f.Slow:
		x.Never(w, r)
	case f.Truncated:
		Truncated(body)(w, r)
	default:
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(body)
	}
}

// Never is an answer that does not come, for Handle.
func (x *Index) Never(_ http.ResponseWriter, r *http.Request) {
	select {
	case <-x.stop:
	case <-r.Context().Done():
	}
}

// Truncated is an answer that breaks off in the middle, for Handle.
func Truncated(body []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
		w.Header().Set("Content-Length", fmt.Sprint(len(body)+100))
		_, _ = w.Write(body[:len(body)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}
