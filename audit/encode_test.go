package audit

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gowebpki/jcs"
)

// samples are records that show every field and every way to write a value.
func samples() map[string]Record {
	exit := 3
	at := time.Date(2027, 1, 2, 3, 4, 5, 678901234, time.FixedZone("", 3600))
	return map[string]Record{
		"least": {V: 1, N: 1, Prev: genesis("system").String(), T: at, Mono: 1, Boot: "b", Run: "r", Ev: EvServerStart},
		"full": {
			V: 1, N: MaxInt, Prev: strings.Repeat("a", 64), T: at, Mono: 987654321, Boot: "boot", Run: "run", Ev: EvCallOutcome,
			Call: "01JGFJJZ00SX7BRRBJSVZBTAHW", Tool: "run_script", Act: "alice@host", Cli: "client/1.2", Proto: "2026-07-28",
			Rid: `"7"`, Img: "5c3b6a1e-0000-4000-8000-000000000001",
			Args: Facts{"path": "/workspace/a.py", "bytes": 12, "deep": int64(-1), "recursive": true, "argv": []string{"-x", "é"}, "none": []string{}},
			Argd: strings.Repeat("b", 64), Src: strings.Repeat("c", 64),
			Cap: Facts{"read_only": false, "tools": []string{"read_file"}}, Env: Facts{"python": "3.11"},
			Dec: "allow", Reason: "because", Err: "QUOTA_EXCEEDED",
			Out: &Out{
				OK: false, Code: "QUOTA_EXCEEDED", Bytes: 5, Digest: strings.Repeat("d", 64), Outcome: "exited", Exit: &exit, Changed: 2,
				Changes:       []ChangeFact{{Path: "/workspace/x", Kind: "created", SHA256: strings.Repeat("e", 64)}, {Path: "", PathSHA256: "f", Kind: "deleted"}},
				ChangesDigest: strings.Repeat("f", 64),
			},
			Hb: "11", Ha: "22", Fence: 9, Dur: 1234, Red: 2, Body: strings.Repeat("9", 64),
		},
		"escapes": {
			V: 1, N: 2, T: at, Ev: EvCallRefused,
			Tool:   "quote \" backslash \\ slash / bell \a nul \x00 tab \t newline \n return \r back \b feed \f esc \x1b del \x7f",
			Reason: "line sep \u2028 paragraph sep \u2029 html <&> bom \ufeff emoji \U0001F600 combining e\u0301 replacement \ufffd",
			Act:    "not UTF-8 \xff, half \xe2\x82, surrogate \xed\xa0\x80, overlong \xc0\xaf",
		},
		"integers": {
			V: 1, N: 3, T: at, Ev: EvCallRead, Dur: 1 << 60, Fence: 1 << 63,
			Args: Facts{
				"most": int64(MaxInt), "least": int64(-MaxInt), "over": int64(MaxInt + 1), "under": int64(-MaxInt - 1), "unsigned": uint64(1 << 63),
				"small": uint8(7), "float": 1.5, "error": os.ErrNotExist, "duration": time.Second, "event": EvFsck, "object": map[string]int{"a": 1},
			},
		},
	}
}

func TestGoldenLines(t *testing.T) {
	var got []byte
	all := samples()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		r := all[name]
		got = append(got, name+"\t"...)
		got = append(r.append(got), '\n')
	}
	golden := filepath.Join("testdata", "records.golden")
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("lines changed; every stored hash depends on them\ngot:\n%s\nwant:\n%s", got, want)
	}
}

// The line is RFC 8785 but for the order of the keys, which is ours.
func TestLinesAreJCSButForTheOrder(t *testing.T) {
	for name, r := range samples() {
		t.Run(name, func(t *testing.T) {
			line := r.append(nil)
			want, err := jcs.Transform(line)
			if err != nil {
				t.Fatal(err)
			}
			if got := inKeyOrder(t, line); !bytes.Equal(got, want) {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// inKeyOrder sorts the keys of every object and leaves the rest byte for byte.
func inKeyOrder(t testing.TB, text []byte) []byte {
	t.Helper()
	switch text[0] {
	case '[':
		var list []json.RawMessage
		if err := json.Unmarshal(text, &list); err != nil {
			t.Fatal(err)
		}
		var parts [][]byte
		for _, e := range list {
			parts = append(parts, inKeyOrder(t, e))
		}
		return slices.Concat([]byte("["), bytes.Join(parts, []byte(",")), []byte("]"))
	case '{':
		var object map[string]json.RawMessage
		if err := json.Unmarshal(text, &object); err != nil {
			t.Fatal(err)
		}
		var parts [][]byte
		for key, e := range object {
			parts = append(parts, slices.Concat(appendString(nil, key), []byte(":"), inKeyOrder(t, e)))
		}
		slices.SortFunc(parts, bytes.Compare)
		return slices.Concat([]byte("{"), bytes.Join(parts, []byte(",")), []byte("}"))
	}
	return text
}

func TestDecodeGivesBackWhatWasEncoded(t *testing.T) {
	for name, r := range samples() {
		t.Run(name, func(t *testing.T) {
			line := r.append(nil)
			d, err := Decode(line)
			if err != nil {
				t.Fatalf("%v\n%s", err, line)
			}
			if again := d.append(nil); !bytes.Equal(again, line) {
				t.Errorf("decoded and encoded again:\n%s\nwas:\n%s", again, line)
			}
		})
	}
	full := samples()["full"]
	d, err := Decode(full.append(nil))
	if err != nil {
		t.Fatal(err)
	}
	if d.Out.Exit == nil || *d.Out.Exit != 3 || d.Args["deep"] != int64(-1) || d.Args["recursive"] != true ||
		!slices.Equal(d.Args["argv"].([]string), []string{"-x", "é"}) || !d.T.Equal(full.T.Truncate(time.Microsecond)) || d.Fence != 9 {
		t.Errorf("decoded %+v", d)
	}
}

func TestDecodeRefusesOtherForms(t *testing.T) {
	least := samples()["least"]
	good := string(least.append(nil))
	cases := map[string]string{
		"empty":               "",
		"white space":         strings.Replace(good, `"n":1`, `"n": 1`, 1),
		"trailing newline":    good + "\n",
		"trailing object":     good + good,
		"leading zero":        strings.Replace(good, `"n":1`, `"n":01`, 1),
		"number zero":         strings.Replace(good, `"n":1`, `"n":0`, 1),
		"negative number":     strings.Replace(good, `"n":1`, `"n":-1`, 1),
		"minus zero":          strings.Replace(good, `"mono":1`, `"mono":-0`, 1),
		"exponent":            strings.Replace(good, `"mono":1`, `"mono":1e3`, 1),
		"fraction":            strings.Replace(good, `"mono":1`, `"mono":1.0`, 1),
		"over 2^53":           strings.Replace(good, `"mono":1`, `"mono":9007199254740992`, 1),
		"other version":       strings.Replace(good, `"v":1`, `"v":2`, 1),
		"keys swapped":        strings.Replace(good, `"boot":"b","run":"r"`, `"run":"r","boot":"b"`, 1),
		"key twice":           strings.Replace(good, `"boot":"b"`, `"boot":"b","boot":"b"`, 1),
		"unknown key":         strings.Replace(good, `"boot":"b"`, `"boot":"b","foot":"b"`, 1),
		"missing key":         strings.Replace(good, `"boot":"b",`, ``, 1),
		"empty optional":      strings.Replace(good, `"server.start"}`, `"server.start","call":""}`, 1),
		"empty facts":         strings.Replace(good, `"server.start"}`, `"server.start","args":{}}`, 1),
		"facts out of order":  strings.Replace(good, `"server.start"}`, `"server.start","args":{"b":1,"a":1}}`, 1),
		"fact twice":          strings.Replace(good, `"server.start"}`, `"server.start","args":{"a":1,"a":1}}`, 1),
		"null":                strings.Replace(good, `"server.start"}`, `"server.start","args":{"a":null}}`, 1),
		"escaped slash":       strings.Replace(good, `"b"`, `"\/"`, 1),
		"escaped letter":      strings.Replace(good, `"b"`, `"\u0062"`, 1),
		"long newline":        strings.Replace(good, `"b"`, `"\u000a"`, 1),
		"upper case hex":      strings.Replace(good, `"b"`, `"\u001B"`, 1),
		"lone surrogate":      strings.Replace(good, `"b"`, `"\ud800"`, 1),
		"raw control byte":    strings.Replace(good, `"b"`, "\"\x01\"", 1),
		"invalid UTF-8":       strings.Replace(good, `"b"`, "\"\xff\"", 1),
		"time with offset":    strings.Replace(good, `Z"`, `+00:00"`, 1),
		"impossible date":     strings.Replace(good, `"2027-01-02`, `"2027-02-30`, 1),
		"cut in the middle":   good[:len(good)/2],
		"outcome without ok":  strings.Replace(good, `"server.start"}`, `"server.start","out":{"code":"x"}}`, 1),
		"no changes":          strings.Replace(good, `"server.start"}`, `"server.start","out":{"ok":true,"changes":[]}}`, 1),
		"zero optional":       strings.Replace(good, `"server.start"}`, `"server.start","dur":0}`, 1),
		"array instead":       `[1]`,
		"more than a string?": `"` + good + `"`,
	}
	for name, line := range cases {
		t.Run(name, func(t *testing.T) {
			if line == good {
				t.Fatal("the case does not change the line")
			}
			if _, err := Decode([]byte(line)); err == nil {
				t.Errorf("accepted %s", line)
			}
		})
	}
	if _, err := Decode([]byte(good)); err != nil {
		t.Fatal(err)
	}
	if _, err := Decode(make([]byte, MaxRecord+1)); err == nil {
		t.Error("accepted a line over the limit")
	}
}

// What Decode accepts is canonical: it encodes to the same bytes.
func FuzzDecode(f *testing.F) {
	for _, r := range samples() {
		f.Add(r.append(nil))
	}
	f.Add([]byte(`{"v":1}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := Decode(line)
		if err != nil {
			return
		}
		if again := r.append(nil); !bytes.Equal(again, line) {
			t.Fatalf("accepted %q\nbut encodes to %q", line, again)
		}
		if !json.Valid(line) {
			t.Fatalf("accepted what is not JSON: %q", line)
		}
	})
}

// Whatever a caller hands in becomes a canonical line within the limit.
func FuzzEntry(f *testing.F) {
	f.Add("write_file", "path", "/workspace/a", "reason", int64(1))
	f.Add("\xed\xa0\x80", "na me", strings.Repeat("\x00", 3000), strings.Repeat("é", 500), int64(-1<<63))
	f.Add("", ".sha256", strings.Repeat("\u2028", 400), "\\", int64(1<<53))
	f.Fuzz(func(t *testing.T, tool, key, value, reason string, n int64) {
		e := Entry{
			Record: Record{
				Ev: EvCallRefused, Tool: tool, Reason: reason, Rid: value, Dur: n, Fence: uint64(n),
				Args: Facts{key: value, value: n, "list": []string{value, tool, reason}},
				Cap:  Facts{key: reason}, Out: &Out{Code: value, Bytes: n},
			},
			RawArgs: []byte(value),
			Changes: []ChangeFact{{Path: value, Kind: key, SHA256: reason}},
		}
		l := &Log{o: Options{}.withDefaults("x")}
		p, err := l.prepare("system", e)
		if err != nil {
			t.Fatal(err)
		}
		it := makeItem(newStream("system"), moment{time.Unix(n, 0), n, ""}, p)
		if len(it.line) > MaxRecord {
			t.Fatalf("%d bytes", len(it.line))
		}
		r, err := Decode(it.line)
		if err != nil {
			t.Fatalf("%v: %q", err, it.line)
		}
		if again := r.append(nil); !bytes.Equal(again, it.line) {
			t.Fatalf("not canonical:\n%q\n%q", it.line, again)
		}
		sorted, err := jcs.Transform(it.line)
		if err != nil {
			t.Fatalf("%v: %q", err, it.line)
		}
		if !bytes.Equal(inKeyOrder(t, it.line), sorted) {
			t.Fatalf("not RFC 8785 but for the order: %q", it.line)
		}
	})
}

func TestQuotedLenCountsWhatIsWritten(t *testing.T) {
	for _, s := range []string{"", "plain", "\x00\x1f\t\"\\", "é\u2028\U0001F600", "\xff\xfe", "a\xe2\x82"} {
		if got, want := quotedLen(s, 1000), len(appendString(nil, s))-2; got != want {
			t.Errorf("%q: %d, want %d", s, got, want)
		}
	}
	cut, ok := cutString(strings.Repeat("é", 100), 21)
	if !ok || !utf8.ValidString(cut) || quotedLen(cut, 100) > 21 {
		t.Errorf("cut to %q", cut)
	}
}
