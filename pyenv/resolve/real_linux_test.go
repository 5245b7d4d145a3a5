package resolve

import (
	"os"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
)

// TestRealErrors: what the index of the person who runs the tests says of names that it
// does not have. What it does have is resolved and fetched by TestRealBase of
// pyenv/attach, once for all packages.
func TestRealErrors(t *testing.T) {
	if !pyenvtest.Soak() {
		t.Skip("SKIP errors of a real index are for make soak; TestNoSolution and TestCase14_15SdistOnly ask one of their own")
	}
	w := newWorld(t)
	if w.pip.host != nil {
		t.Skip("SKIP no package index answers: ", thePip(w).why)
	}
	c, _, err := ReadConfig(os.Environ(), os.Getenv("HOME"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.pip.Resolve(t.Context(), Request{Specs: specs(t, "mcp-vdisk-no-such-package-7f3e1b0c"), Config: c})
	refused(t, err, ErrNotFound)
	_, err = w.pip.Resolve(t.Context(), Request{Specs: specs(t, "lxml==2.3"), Config: c})
	refused(t, err, ErrSdistOnly, "lxml 2.3")
}
