package front

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

var messages = []string{
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"write_file","arguments":{"content":"\"id\":7,\\\"{[,"}}}`,
	`{"id":"a\"b","method":"ping"}`,
	`{"id":-9007199254740993,"method":"ping"}`,
	`{"id":1e400,"method":"ping"}`,
	`{"ID":3,"Method":"tools/call"}`,
	`{"\u0069d":3,"m\u0065thod":"tools\/call"}`,
	`{"method":"tools/call","method":null,"id":1,"id":2}`,
	`{"method":"tools/call","method":5,"id":1}`,
	`{"id":[1],"method":"ping"}`,
	`{"id":null,"method":"ping"}`,
	`{"id":{"id":2},"method":"ping"}`,
	`{"params":{"id":1,"method":"x"}}`,
	`{"id":1,"re\u017fult":{}}`,
	`{"id":1,"result":null}`,
	"{\"id\":\"\xff\",\"method\":\"p\xff\"}",
	" \t{ \"id\" : 1 ,\r\"method\" : \"ping\" } ",
	`[{"id":1,"method":"ping"}]`,
	`"id"`, `1`, `{}`, ``, `{"id":1`, `{"id`, `{"id":"`, `{"`, `{"id":1,}`, `{,"id":1}`, `{"id"1}`, `{"a":}`, `}`, `{{`, `{"a":"\`,
}

// An envelope is what encoding/json reads, by which the daemon goes.
func FuzzEnvelope(f *testing.F) {
	for _, m := range messages {
		f.Add([]byte(m))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		got := envelopeOf(msg)
		if !json.Valid(msg) {
			return // it is enough that it is survived
		}
		var want struct {
			ID            json.RawMessage
			Method        string
			Params        json.RawMessage
			Result, Error json.RawMessage
		}
		_ = json.Unmarshal(msg, &want) // a member of another type is none
		if !bytes.Equal(got.id, want.ID) || got.method != want.Method || !bytes.Equal(got.params, want.Params) || got.answers != (want.Result != nil || want.Error != nil) {
			t.Errorf("%q: got %+v, want %+v", msg, got, want)
		}
		if !bytes.HasPrefix(msg[got.idAt:], got.id) {
			t.Errorf("%q: the id is not at %d", msg, got.idAt)
		}
	})
}

// What is noted is what the daemon answers under its id, and only what can be
// repeated without harm is.
func TestPending(t *testing.T) {
	for _, c := range []struct {
		name       string
		said       string // by the client, "<" before what is answered
		lost       string // ids that are told to be lost
		repeated   int    // requests
		handshakes int    // lines of one that is repeated
	}{
		{"a call is lost", `{"id":1,"method":"tools/call"}`, "1", 0, 0},
		{"a question is repeated", `{"id":1,"method":"tools/list"}`, "", 1, 0},
		{"a call spelt in another way", `{"ID":"x","m\u0065thod":"tools\/call"}`, `"x"`, 0, 0},
		{"what is answered is over", "{\"id\":1,\"method\":\"tools/call\"}\n<1", "", 0, 0},
		{"two of one id", "{\"id\":1,\"method\":\"tools/call\"}\n{\"id\":1,\"method\":\"tools/call\"}\n<1", "1", 0, 0},
		{"no JSON", `{"id":1,"method":"tools/call"`, "", 0, 0},
		{"a batch", `[{"id":1,"method":"tools/call"}]`, "", 0, 0},
		{"an id that is none", `{"id":[1],"method":"tools/call"}`, "", 0, 0},
		{"null", `{"id":null,"method":"tools/call"}`, "", 0, 0},
		{"no method", `{"id":1}`, "", 1, 0},
		{"an answer of the client", `{"id":1,"result":{}}`, "", 0, 0},
		{"a notification", `{"method":"notifications/x"}`, "", 0, 0},
		{"cancelled", "{\"id\":1,\"method\":\"tools/call\"}\n{\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":1}}", "", 0, 0},
		{"another cancelled", "{\"id\":1,\"method\":\"tools/call\"}\n{\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":\"1\"}}", "1", 0, 0},
		{"nothing cancelled", "{\"id\":1,\"method\":\"tools/call\"}\n{\"method\":\"notifications/cancelled\"}", "1", 0, 0},
		{"a handshake", "{\"id\":0,\"method\":\"initialize\"}\n<0\n{\"method\":\"notifications/initialized\"}", "", 0, 2},
		{"a handshake without its end", "{\"id\":0,\"method\":\"initialize\"}\n<0", "", 0, 1},
		{"a handshake that is not answered", "{\"id\":0,\"method\":\"initialize\"}", "", 1, 0},
		{"and a client that did not wait", "{\"id\":0,\"method\":\"initialize\"}\n{\"method\":\"notifications/initialized\"}\n{\"id\":1,\"method\":\"tools/call\"}", "1", 1, 1},
		{"blank", " \t\r", "", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p pending
			for line := range strings.Lines(c.said) {
				if id, ok := strings.CutPrefix(strings.TrimSpace(line), "<"); ok {
					p.answered(id)
				} else {
					p.say([]byte(line))
				}
			}
			if lost := strings.Join(p.lost(), " "); lost != c.lost {
				t.Errorf("lost are %q, want %q", lost, c.lost)
			}
			lines := p.repeat()
			if greeting := p.greeting(); greeting != nil {
				lines = append(lines, greeting)
			}
			if len(p.open) != c.repeated || len(lines) != c.repeated+c.handshakes {
				t.Errorf("repeated are %q, want %d and %d of a handshake", lines, c.repeated, c.handshakes)
			}
			for _, line := range lines {
				if !json.Valid(line) || line[len(line)-1] != '\n' {
					t.Errorf("%q is no line", line)
				}
			}
		})
	}
}

// A handshake that the client has the answer of is repeated under an id of ours.
func TestTheHandshakeIsRepeatedUnderAnotherID(t *testing.T) {
	var p pending
	p.say([]byte(`{"jsonrpc":"2.0", "id" : "first" ,"method":"initialize","params":{"clientInfo":{"name":"x"}}}` + "\n"))
	p.answered(`"first"`)
	e := envelopeOf(p.greeting())
	if string(e.id) != againID || e.method != "initialize" || !strings.Contains(string(e.params), `"name":"x"`) {
		t.Errorf("repeated is %q", p.greeting())
	}
}

// A long line is looked through after it was sent.
func TestALongLineThatIsBroken(t *testing.T) {
	long := strings.Repeat("x", longLine)
	for line, broken := range map[string]bool{
		`{"id":1,"method":"initialize","params":"` + long + `"}`:    false,
		`{"id":1,"method":"initialize","params":"` + long + "\n\"}": true,
		`{"id":1,"method":"initialize","params":"` + long + `"} x`:  true,
		`{"id":1,"method":"initialize"`:                             false, // it is short, and was not noted
	} {
		var p pending
		p.say([]byte(line))
		if got := isBroken([]byte(line)); got != broken {
			t.Errorf("%.60s…: broken is %v", line, got)
		}
		if p.unsay([]byte(line)); len(p.repeat()) != 0 || p.greeting() != nil {
			t.Errorf("%.60s…: %d are repeated", line, len(p.open))
		}
	}
}

// What daemons die of is not asked for ever.
func TestARequestIsRepeatedTwice(t *testing.T) {
	var p pending
	p.say([]byte(`{"id":1,"method":"tools/list"}`))
	for range maxAsked {
		if lost := p.lost(); len(lost) > 0 || len(p.repeat()) != 1 {
			t.Fatalf("lost are %q", lost)
		}
	}
	if lost := p.lost(); len(lost) != 1 || len(p.repeat()) != 0 {
		t.Errorf("lost are %q after %d times", lost, maxAsked)
	}
}

func TestLostAnswer(t *testing.T) {
	for _, id := range []string{`1`, `"a\u0000b"`, `-9007199254740993`} {
		var m struct {
			ID    json.RawMessage
			Error struct{ Message string }
		}
		if err := json.Unmarshal(lostAnswer(id), &m); err != nil || string(m.ID) != id || !strings.HasPrefix(m.Error.Message, "OUTCOME_UNKNOWN: ") {
			t.Errorf("%s: %v %+v", id, err, m)
		}
	}
}

func BenchmarkNote1KiB(b *testing.B) { benchNote(b, 1<<10) }
func BenchmarkNote4MiB(b *testing.B) { benchNote(b, 4<<20) }

// What noting a call costs on its way.
func benchNote(b *testing.B, size int) {
	line := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"write_file","arguments":{"path":"a.txt","content":"` + strings.Repeat(`some text\n`, size/11) + `"}}}` + "\n")
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		var p pending
		p.say(line)
		if len(p.open) != 1 {
			b.Fatal("it is not noted")
		}
	}
}
