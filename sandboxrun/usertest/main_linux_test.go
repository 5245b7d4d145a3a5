package usertest

import (
	"slices"
	"testing"
)

// TestKept: names and patterns, and nothing of a name that only begins alike.
func TestKept(t *testing.T) {
	environ := []string{"PIP_CERT=/a", "PIPX=1", "PIP_INDEX_URL=http://h/?a=b", "https_proxy=p", "HOME=/root", "CI=", "CIRCLE=1", "odd"}
	for _, tc := range []struct{ patterns, want []string }{
		{nil, nil},
		{[]string{"CI", "PIP_*"}, []string{"PIP_CERT=/a", "PIP_INDEX_URL=http://h/?a=b", "CI="}},
		{[]string{"*_proxy", "[bad"}, []string{"https_proxy=p"}},
	} {
		if got := kept(environ, tc.patterns); !slices.Equal(got, tc.want) {
			t.Errorf("%q: %q, want %q", tc.patterns, got, tc.want)
		}
	}
}
