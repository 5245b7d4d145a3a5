package tools

import (
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// TestEndings: how a script ended, in words.
func TestEndings(t *testing.T) {
	limits := sandboxrun.Limits{MemoryBytes: 1_000_000_000, Processes: 1024}
	for _, tc := range []struct {
		res  sandboxrun.Result
		want string
	}{
		{sandboxrun.Result{Outcome: sandboxrun.MemoryLimit, ExitCode: -1}, "killed: more than 1.0 GB of memory"},
		{sandboxrun.Result{Outcome: sandboxrun.PidsLimit, ExitCode: 254}, "exit 254, out of processes: at most 1,024 processes and threads at a time"},
	} {
		r := report{s: &script{spec: sandboxrun.Run{Limits: limits}, res: tc.res}}
		if got := r.s.ending(); got != tc.want {
			t.Errorf("%s: %q", tc.res.Outcome, got)
		}
	}
}
