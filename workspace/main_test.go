package workspace

import (
	"flag"
	"os"
	"testing"
)

// roles are what the test binary is instead, when a test started it with one
// of these variables: a process that is killed, measured or shut out.
var roles = map[string]func(arg string) int{
	crashEnv: crashWriter,
}

// TestMain plays a role when there is one, and sets the number of model runs.
func TestMain(m *testing.M) {
	for name, play := range roles {
		if arg := os.Getenv(name); arg != "" {
			os.Exit(play(arg))
		}
	}
	if path := os.Getenv(damageEnv); path != "" {
		os.Exit(useDamaged(path))
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
