package resolve

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"testing"
)

// evilSdist is a source archive with a build backend of its own that writes a file, and
// asks for a URL if there is one, as soon as it is imported.
func evilSdist(t testing.TB, name, version, marker string, urls ...string) []byte {
	t.Helper()
	backend := fmt.Sprintf("import os, urllib.request\nfor p in (%q, '/out/marker', '/tmp/marker'):\n    try: open(p, 'w').close()\n    except OSError: pass\nfor u in %s:\n    urllib.request.urlopen(u)\n", marker, pyList(urls))
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for file, body := range map[string]string{
		"PKG-INFO":       fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\n", name, version),
		"pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n",
		"backend.py":     backend,
		"setup.py":       backend,
	} {
		if err := w.WriteHeader(&tar.Header{Name: name + "-" + version + "/" + file, Mode: 0o644, Size: int64(len(body))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func pyList(list []string) string {
	s := "["
	for _, v := range list {
		s += fmt.Sprintf("%q,", v)
	}
	return s + "]"
}
