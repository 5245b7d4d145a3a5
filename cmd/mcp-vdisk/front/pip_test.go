package front

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pipconf"
)

// framesPair are two ends of a connection.
func framesPair(t testing.TB) (ours, theirs *Frames) {
	t.Helper()
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	if ours, err = NewFrames(a); err != nil {
		t.Fatal(err)
	}
	if theirs, err = NewFrames(b); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

// What is sent is the JSON of the configuration, in frames that may be sent, and ends.
func TestSendPip(t *testing.T) {
	retries := 3
	for name, c := range map[string]*pipconf.Settings{
		"empty":        {},
		"index":        {IndexURL: "https://u:p@index/simple", Retries: &retries},
		"cert":         {Cert: []byte("ca\x00\xff")},
		"client":       {ClientCert: []byte("key")},
		"certs":        {Cert: []byte("ca"), ClientCert: []byte("key")},
		"all":          {IndexURL: "https://index", Cert: []byte("ca"), ClientCert: []byte("key")},
		"an empty one": {Cert: []byte{}, IndexURL: "https://index"},
		"large":        {Cert: bytes.Repeat([]byte("c"), pipconf.MaxCert), ClientCert: bytes.Repeat([]byte("k"), pipconf.MaxCert-1), NoProxy: "x"},
		"long lists":   {ExtraIndexURLs: []string{strings.Repeat("a", 300<<10), "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := framesPair(t)
			sent := make(chan error, 1)
			go func() { sent <- ours.sendPip(c) }()
			var text []byte
			for {
				typ, piece, err := theirs.Read()
				if err != nil || typ != FramePip {
					t.Fatalf("%q, %v", typ, err)
				}
				if len(piece) == 0 {
					break
				}
				text = append(text, piece...)
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			var got pipconf.Settings
			if err := json.Unmarshal(text, &got); err != nil {
				t.Fatalf("%v: %.200s", err, text)
			}
			if len(got.Cert) == 0 && len(c.Cert) == 0 {
				got.Cert, c.Cert = nil, nil
			}
			if !reflect.DeepEqual(&got, c) {
				t.Errorf("got %.300s", text)
			}
		})
	}
}

func TestSendNoPip(t *testing.T) {
	ours, theirs := framesPair(t)
	if err := ours.sendPip(nil); err != nil {
		t.Fatal(err)
	}
	ours.Write(FrameStdin, []byte("x"))
	if typ, _, err := theirs.Read(); typ != FrameStdin || err != nil {
		t.Errorf("%q, %v", typ, err)
	}
	theirs.Close()
	if err := ours.sendPip(&pipconf.Settings{IndexURL: strings.Repeat("x", 1<<20)}); err == nil {
		t.Error("a connection that is gone takes it")
	}
}

// Whoever waits for an answer to a handshake need not wait for the configuration, and
// packages are asked for by calls alone.
func TestMayAsk(t *testing.T) {
	for line, want := range map[string]bool{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`: false,
		`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`:             false,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`:     true,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`: true,
		`{"METHOD":"tools/call","id":"x"}`:                           true,
		`{"method":"tools/list","id":1,"method":"tools/call"}`:       true,
		`{"method":"tools\/call","id":1}`:                            true,
		`[{"jsonrpc":"2.0","id":1,"method":"tools/call"}]`:           true,
		"\x00\xff": true,
		"":         true,
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"method":"tools/call"}} `: false,
	} {
		if got := mayAsk([]byte(line + "\n")); got != want {
			t.Errorf("%q: %v", line, got)
		}
	}
}

// A configuration that is broken is none, which is said once and shows no value.
func TestBrokenPipConfig(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "pip.conf")
	t.Setenv("PIP_CONFIG_FILE", conf)
	t.Setenv("PIP_CERT", "")
	for _, text := range []string{"password = canary\n", "\x00\xffcanary", "[global]\nno-index = canary\n"} {
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		a := &Caller{Stderr: &said}
		for range 2 {
			if c := a.PipConfig(); c != nil {
				t.Errorf("%q: there is one", text)
			}
		}
		if got := said.String(); strings.Count(got, "goes on without the pip configuration") != 1 || strings.Contains(got, "canary") {
			t.Errorf("%q: it says %q", text, got)
		}
	}
}
