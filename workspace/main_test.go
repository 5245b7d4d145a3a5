package workspace

import (
	"flag"
	"os"
	"testing"
)

// TestMain runs the writer of the kill tests when the binary was started as
// one, and sets the number of model runs.
func TestMain(m *testing.M) {
	if path := os.Getenv(crashEnv); path != "" {
		os.Exit(crashWriter(path))
	}
	flag.Parse()
	flag.Set("rapid.nofailfile", "true") // the seed in the report does
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		f.Value.Set("100")
		if soak() {
			f.Value.Set("5000")
		}
	}
	os.Exit(m.Run())
}
