package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
)

// Nothing of a configuration is in the text of what holds it.
func TestCallersPip(t *testing.T) {
	const canary = "https://u:canary-7f3e@index/simple"
	whole := `{"index_url":"` + canary + `"}`
	big := bytes.Repeat([]byte("x"), maxPipConfig/8)
	other := `{"index_url":"https://other/"}`
	for name, c := range map[string]struct {
		pieces []string
		err    error
		want   string // index, "-" for no configuration
	}{
		"none":                {nil, nil, "-"},
		"empty":               {[]string{""}, errNoPip, "-"},
		"one":                 {[]string{whole, ""}, nil, canary},
		"in pieces":           {[]string{whole[:1], whole[1:9], whole[9:], ""}, nil, canary},
		"of pip's own":        {[]string{"{}", ""}, nil, ""},
		"cut off":             {[]string{whole}, nil, "-"},
		"garbage":             {[]string{"\x00\xff{", ""}, errNoPip, "-"},
		"half":                {[]string{whole[:20], ""}, errNoPip, "-"},
		"another value":       {[]string{`null`, ""}, errNoPip, "-"},
		"a list":              {[]string{`[]`, ""}, errNoPip, "-"},
		"another type":        {[]string{`{"index_url":7}`, ""}, errNoPip, "-"},
		"twice":               {[]string{other, "", whole, ""}, nil, canary},
		"garbage after it":    {[]string{whole, "", "{", ""}, errNoPip, canary},
		"oversized":           {[]string{string(big), string(big), string(big), string(big), string(big), string(big), string(big), string(big), "x", "x", ""}, errLongPip, "-"},
		"good after too long": {[]string{string(big), string(big), string(big), string(big), string(big), string(big), string(big), string(big), "x", "", whole, ""}, nil, canary},
	} {
		t.Run(name, func(t *testing.T) {
			var p callersPip
			var err error
			for _, piece := range c.pieces {
				err = p.take([]byte(piece))
			}
			got := "-"
			if config := p.get(); config != nil {
				got = config.IndexURL
			}
			if !errors.Is(err, c.err) || got != c.want {
				t.Errorf("%v and %q, want %v and %q", err, got, c.err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "canary") {
				t.Error(err)
			}
			if c.pieces != nil && name != "cut off" {
				if text := fmt.Sprintf("%v %+v %#v", &p, &p, &p); strings.Contains(text, "canary") || len(p.text) > 0 {
					t.Errorf("it tells %s", text)
				}
			}
		})
	}
}

// A session gets the configuration that its front sent before its first message, and a
// request of another kind gets none.
func TestPipConfigOfARequest(t *testing.T) {
	for verb, want := range map[string]bool{"serve": true, "call": true, "env.gc": false, "image.put": false} {
		ours, theirs, err := front.Pair()
		if err != nil {
			t.Fatal(err)
		}
		end, err := front.NewFrames(theirs)
		if err != nil {
			t.Fatal(err)
		}
		caller, err := front.NewFrames(ours)
		if err != nil {
			t.Fatal(err)
		}
		defer end.Close()
		var said bytes.Buffer
		b := &back{req: front.Request{Verb: verb}, stderr: &said}
		for _, f := range []struct {
			typ  byte
			text string
		}{{front.FramePip, "{"}, {front.FramePip, ""}, {front.FramePip, `{"index_url":"https://index/"}`}, {front.FramePip, ""}, {front.FrameStdin, "hello"}, {front.FrameStdinEnd, ""}} {
			if err := caller.Write(f.typ, []byte(f.text)); err != nil {
				t.Fatal(err)
			}
		}
		in := b.receiveStdin(t.Context(), end, func() {})
		text := make([]byte, 5)
		if _, err := in.Read(text); err != nil || string(text) != "hello" {
			t.Fatalf("%s: %v, %q", verb, err, text)
		}
		if got := b.pip.get() != nil; got != want {
			t.Errorf("%s: has a configuration: %v", verb, got)
		}
		if told := strings.Contains(said.String(), "goes on without"); told != want {
			t.Errorf("%s: it says %q", verb, said.String())
		}
		caller.Close()
	}
}
