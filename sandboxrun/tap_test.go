package sandboxrun

import (
	"slices"
	"strings"
	"testing"
)

// TestTapPieces: what is handed on for pieces as they may arrive.
func TestTapPieces(t *testing.T) {
	long := "bwrap: " + strings.Repeat("x", maxBwrap)
	for _, tc := range []struct {
		name   string
		max    int64
		pieces []string // "1:" or "2:" in front
		want   []string
		atEnd  []string // on top of want, when the command was started
	}{
		{"both", 100, []string{"1:a", "2:err", "1:c"}, []string{"1:a", "2:err", "1:c"}, nil},
		{"nothing", 100, []string{"1:", "2:"}, nil, nil},
		{"limit", 5, []string{"1:abc", "2:def", "1:g"}, []string{"1:abc", "2:de"}, nil},
		{"limit reached exactly", 3, []string{"1:abc", "1:d"}, []string{"1:abc"}, nil},
		{"bubblewrap", 100, []string{"2:bwrap: no", "2: such", "1:out"}, []string{"1:out"}, []string{"2:bwrap: no such"}},
		{"begins alike", 100, []string{"2:bw", "2:rong", "2:x"}, []string{"2:bwrong", "2:x"}, nil},
		{"later", 100, []string{"2:a", "2:bwrap: b"}, []string{"2:a", "2:bwrap: b"}, nil},
		{"too long for a message", 1 << 20, []string{"2:" + long, "2:y"}, []string{"2:" + long, "2:y"}, nil},
		{"held and over the limit", 9, []string{"2:bwrap: ab", "2:cd"}, nil, []string{"2:bwrap: ab"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			tp := &tap{left: tc.max, f: func(s Stream, p []byte) {
				got = append(got, map[Stream]string{Stdout: "1:", Stderr: "2:"}[s]+string(p))
			}}
			for _, p := range tc.pieces {
				s := Stdout
				if p[0] == '2' {
					s = Stderr
				}
				tp.write(s, []byte(p[2:]))
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %.60q, want %.60q", got, tc.want)
			}
			tp.finish()
			if want := append(tc.want, tc.atEnd...); !slices.Equal(got, want) {
				t.Errorf("got %.60q at the end, want %.60q", got, want)
			}
		})
	}
}

func TestStreamNames(t *testing.T) {
	if Stdout.String() != "stdout" || Stderr.String() != "stderr" {
		t.Errorf("%s, %s", Stdout, Stderr)
	}
}
