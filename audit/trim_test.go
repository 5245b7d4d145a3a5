package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
)

// lineOf is the line of an entry in an empty stream.
func lineOf(t testing.TB, e Entry) (Record, []byte) {
	t.Helper()
	l := &Log{o: Options{Boot: "b", Run: "r"}.withDefaults("x")}
	p, err := l.prepare("system", e)
	if err != nil {
		t.Fatal(err)
	}
	it := makeItem(newStream("system"), moment{mono: 1 << 50}, p)
	r, err := Decode(it.line)
	if err != nil {
		t.Fatalf("%v: %q", err, it.line)
	}
	return r, it.line
}

func TestAnyEntryFits(t *testing.T) {
	control := strings.Repeat("\x01", 1<<20)
	broken := strings.Repeat("\xed\xa0\x80", 1<<18)
	long := strings.Repeat("x", 4<<20)
	many := make([]ChangeFact, 10000)
	for i := range many {
		many[i] = ChangeFact{Path: fmt.Sprintf("/workspace/%s/%d", strings.Repeat("d", i%300), i), Kind: "created", SHA256: strings.Repeat("a", 64)}
	}
	ugly := make([]ChangeFact, 100)
	for i := range ugly {
		ugly[i] = ChangeFact{Path: control[:5000], Kind: control[:1000], SHA256: broken[:1000]}
	}
	facts := Facts{"list": strings.Split(control[:5000], ""), "broken": broken, "long": long, "": long, "dot.ted": long, long: control}
	for i := range 500 {
		facts[fmt.Sprint("fact", i)] = long[:600]
	}
	everything := func(s string, changes []ChangeFact) Entry {
		return Entry{
			Record: Record{
				Ev: Event(s), Call: s, Tool: s, Act: s, Cli: s, Proto: s, Rid: s, Img: s, Args: facts, Src: s, Cap: facts, Env: facts,
				Dec: s, Reason: s, Err: s, Out: &Out{Code: s, Digest: s, Outcome: s, Bytes: -1 << 63}, Hb: s, Ha: s,
				Fence: 1<<64 - 1, Dur: -1 << 63, Red: 1<<63 - 1,
			},
			RawArgs: []byte(s), Changes: changes,
		}
	}
	cases := map[string]Entry{
		"control bytes everywhere":  everything(control, nil),
		"broken UTF-8 everywhere":   everything(broken, many),
		"4 MiB everywhere":          everything(long, ugly),
		"10,000 changes":            {Record: Record{Ev: EvCallOutcome, Call: "c"}, Changes: many},
		"ugly changes":              {Record: Record{Ev: EvCallOutcome, Call: "c"}, Changes: ugly},
		"4 MiB of raw arguments":    {Record: Record{Ev: EvCallRefused}, RawArgs: []byte(long)},
		"changes given in Out":      {Record: Record{Ev: EvCallOutcome, Out: &Out{OK: true, Changes: many}}},
		"nothing at all":            {},
		"a lone surrogate argument": {Record: Record{Ev: EvCallRefused, Args: Facts{"path": "\xed\xa0\x80"}}, RawArgs: []byte(`{"path":"\ud800"}`)},
	}
	for name, e := range cases {
		t.Run(name, func(t *testing.T) {
			_, line := lineOf(t, e)
			if len(line) > MaxRecord {
				t.Errorf("%d bytes", len(line))
			}
		})
	}
}

func TestWhatIsCutKeepsItsDigest(t *testing.T) {
	path := "/workspace/" + strings.Repeat("p", 4000)
	tool := strings.Repeat("t", 300)
	list := strings.Split(strings.Repeat("word,", 300), ",")
	r, _ := lineOf(t, Entry{Record: Record{Ev: EvCallRefused, Tool: tool, Args: Facts{"path": path, "argv": list, "short": "s"}}})
	if got := r.Args["path"].(string); len(got) > MaxFact || !strings.HasPrefix(path, strings.TrimSuffix(got, ellipsis)) {
		t.Errorf("path was cut to %q", got)
	}
	for name, want := range map[string]any{
		"path.sha256": digestOf(path), "path.bytes": int64(len(path)), "short": "s",
		"argv.items": int64(len(list)), "argv.sha256": digestOf(string(appendStrings(nil, list))),
		".tool.sha256": digestOf(tool), ".tool.bytes": int64(300),
	} {
		if r.Args[name] != want {
			t.Errorf("%s = %v, want %v", name, r.Args[name], want)
		}
	}
	if len(r.Tool) > maxLabel {
		t.Errorf("tool has %d bytes", len(r.Tool))
	}
}

func TestACallerCannotForgeADigest(t *testing.T) {
	r, _ := lineOf(t, Entry{Record: Record{Args: Facts{"path.sha256": "forged", ".tool.sha256": "forged", "path": "p"}}})
	for name, value := range r.Args {
		if value == "forged" && strings.Contains(name, ".") {
			t.Errorf("%s was taken from the caller", name)
		}
	}
}

func TestFactsOverTheBudgetAreCounted(t *testing.T) {
	facts := Facts{}
	for i := range 40 {
		facts[fmt.Sprintf("f%02d", i)] = strings.Repeat("v", 400)
	}
	r, _ := lineOf(t, Entry{Record: Record{Args: facts}})
	left := r.Args[".left_out"].(int64)
	if int(left)+len(r.Args)-2 != 40 || left == 0 {
		t.Errorf("%d kept, %d left out", len(r.Args)-2, left)
	}
	if r.Args[".sha256"] != digestOf(string(appendFacts(nil, facts))) {
		t.Error("the digest is not that of all facts")
	}
}

func TestChangesAreListedAsFarAsTheyFit(t *testing.T) {
	var all []ChangeFact
	h := sha256.New()
	for i := range 1000 {
		c := ChangeFact{Path: fmt.Sprintf("/workspace/f%d", i), Kind: "modified", SHA256: strings.Repeat("0", 64)}
		all = append(all, c)
		fmt.Fprintf(h, `{"path":"/workspace/f%d","kind":"modified","sha256":"%064d"}`+"\n", i, 0)
	}
	r, line := lineOf(t, Entry{Record: Record{Ev: EvCallOutcome, Out: &Out{OK: true}}, Changes: all})
	if r.Out.Changed != 1000 || r.Out.ChangesDigest != hex.EncodeToString(h.Sum(nil)) {
		t.Errorf("changed %d, digest %s", r.Out.Changed, r.Out.ChangesDigest)
	}
	if n := len(r.Out.Changes); n < 90 || n >= 1000 || r.Out.Changes[0] != all[0] {
		t.Errorf("%d changes are listed", n)
	}
	if i := bytes.Index(line, []byte(`"changes":`)); len(line)-i > MaxChanges+400 {
		t.Errorf("the list takes %d bytes", len(line)-i)
	}
}

func TestAnEntryIsNotChangedByTheLog(t *testing.T) {
	out := &Out{OK: true}
	facts := Facts{"path": strings.Repeat("p", 4000)}
	lineOf(t, Entry{Record: Record{Tool: strings.Repeat("t", 1000), Args: facts, Out: out}, Changes: []ChangeFact{{Path: "p"}}})
	if out.Changes != nil || out.Changed != 0 || len(facts) != 1 || len(facts["path"].(string)) != 4000 {
		t.Errorf("now %+v, %v", out, facts)
	}
}

func TestRawArgumentsAreDigestedWithASaltOfTheirOwn(t *testing.T) {
	l := &Log{o: Options{}.withDefaults("x")}
	e := Entry{Record: Record{Ev: EvCallRefused}, RawArgs: []byte(`{"n":9007199254740993}`)}
	seen := map[string]bool{}
	for range 2 {
		var r Record
		body := seal(&r, e.RawArgs)
		salt, err := hex.DecodeString(string(body[len(`{"salt":"`) : len(body)-len(`"}`)]))
		if err != nil || len(salt) != saltSize {
			t.Fatalf("salt in %s: %v", body, err)
		}
		if hex.EncodeToString(argsDigest(salt, e.RawArgs)) != r.Argd || digestOf(string(body)) != r.Body {
			t.Error("digest or commitment does not fit")
		}
		seen[r.Argd] = true
	}
	if len(seen) != 2 {
		t.Error("two records have the same digest")
	}
	p, err := l.prepare("system", Entry{})
	if err != nil || p.body != nil || bytes.Contains(p.rest, []byte("argd")) {
		t.Errorf("an entry without arguments has a body: %s, %v", p.rest, err)
	}
}
