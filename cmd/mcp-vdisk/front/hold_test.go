package front

import (
	"bytes"
	"io"
	"testing"
)

// What a daemon tells of a session's lease is kept for the next one; what an earlier
// daemon told is not, once one serves the session that tells nothing.
func TestHoldIsKept(t *testing.T) {
	const answer = `{"jsonrpc":"2.0","id":1,"result":{}}` + "\n"
	for name, c := range map[string]struct {
		before Hold
		told   []string
		after  Hold
	}{
		"told":             {Hold{}, []string{`{"token":3}`}, Hold{Token: 3}},
		"told twice":       {Hold{Token: 3}, []string{`{"token":4}`, `{"token":4,"lost":true,"why":"w"}`}, Hold{Token: 4, Lost: true, Why: "w"}},
		"told nothing":     {Hold{Token: 3}, nil, Hold{}},
		"lost before":      {Hold{Token: 3, Lost: true, Why: "w"}, nil, Hold{Token: 3, Lost: true, Why: "w"}},
		"told nonsense":    {Hold{Token: 3}, []string{`{"token":`}, Hold{Token: 3}},
		"told what is new": {Hold{}, []string{`{"token":3,"later":true}`}, Hold{Token: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs, err := Pair()
			if err != nil {
				t.Fatal(err)
			}
			conn, err := NewFrames(ours)
			if err != nil {
				t.Fatal(err)
			}
			daemon, err := NewFrames(theirs)
			if err != nil {
				t.Fatal(err)
			}
			defer daemon.Close()
			for _, h := range c.told {
				daemon.Write(FrameHold, []byte(h))
			}
			daemon.Write(FrameStdout, []byte(answer))
			daemon.Write(FrameExit, []byte("null"))
			var out bytes.Buffer
			s := &shim{a: &Caller{Stderr: io.Discard}, r: Request{Hold: &c.before}, out: &out}
			lines := 0
			if over, err := s.receive(conn, &lines); !over || err != nil || out.String() != answer {
				t.Errorf("%v, %v, %q", over, err, out.String())
			}
			if *s.r.Hold != c.after {
				t.Errorf("it keeps %+v, want %+v", *s.r.Hold, c.after)
			}
		})
	}
}
