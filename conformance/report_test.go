package conformance

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// sample has a finding of every kind.
func sample() Report {
	return Report{
		Suite: SuiteSandbox, Subject: "sample", Capabilities: &sandboxrun.Capabilities{BackendID: "sample", FilesystemIsolation: sandboxrun.OverlayWorkspace, NetworkControl: sandboxrun.NetworkEnforced},
		Findings: []Finding{
			{Rule: "execute.stdin", Required: true, Status: Passed, Took: 1500 * time.Microsecond},
			{Rule: "env.given", Required: true, Status: Failed, Detail: "expected this"},
			{Rule: "env.scrubbed", Required: true, Status: Skipped, Reason: Undeclared, Detail: "the backend does not declare env_scrub"},
			{Rule: "limits.processes", Status: Skipped, Reason: UnsupportedHere, Detail: "no way"},
			{Rule: "net.host_unreachable", Required: true, Status: Broken, Detail: "control: broken"},
		},
	}
}

// TestReportJSON: the names that machines rely on.
func TestReportJSON(t *testing.T) {
	b, err := json.Marshal(sample())
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"suite":"sandbox","subject":"sample","ok":false,"summary":{"passed":1,"failed":1,"weak":0,"skipped":2,"error":1},` +
		`"capabilities":{"backend_id":"sample","filesystem_isolation":"overlay_workspace","network_control":"enforced",` +
		`"process_boundary":false,"request_timeout":false,"cooperative_cancellation":false,"artifact_collection":false,"deterministic_cleanup":false,` +
		`"execution_audit":false,"reconnect":false,"ownership_fencing":false,"command_reconnect":false,` +
		`"read_only_enforced":false,"env_scrub":false,"tree_kill":false,"output_cap":false,"hard_limits":null},` +
		`"findings":[{"rule":"execute.stdin","required":true,"status":"passed","took_ms":1},` +
		`{"rule":"env.given","required":true,"status":"failed","detail":"expected this","took_ms":0},` +
		`{"rule":"env.scrubbed","required":true,"status":"skipped","reason":"undeclared","detail":"the backend does not declare env_scrub","took_ms":0},` +
		`{"rule":"limits.processes","required":false,"status":"skipped","reason":"unsupported_here","detail":"no way","took_ms":0},` +
		`{"rule":"net.host_unreachable","required":true,"status":"error","detail":"control: broken","took_ms":0}]}`
	if string(b) != want {
		t.Errorf("got\n%s\nwant\n%s", b, want)
	}
}

// TestReportTable: what people read.
func TestReportTable(t *testing.T) {
	var b strings.Builder
	if err := sample().WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	const want = `PASSED   execute.stdin         standard input arrives whole, need not be read, and without one it is at its end
FAILED   env.given             expected this
SKIPPED  env.scrubbed          undeclared, but required: the backend does not declare env_scrub
SKIPPED  limits.processes      unsupported_here: no way
ERROR    net.host_unreachable  control: broken
sandbox sample: 1 passed, 1 failed, 0 weak, 2 skipped, 1 errors: not OK
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestOK(t *testing.T) {
	for _, tc := range []struct {
		name string
		list []Finding
		want bool
	}{
		{"nothing was tried", nil, false},
		{"passed", []Finding{{Status: Passed, Required: true}}, true},
		{"failed", []Finding{{Status: Passed}, {Status: Failed}}, false},
		{"broke", []Finding{{Status: Passed}, {Status: Broken}}, false},
		{"no status", []Finding{{}}, false},
		{"skipped", []Finding{{Status: Passed}, {Status: Skipped, Reason: Undeclared}}, true},
		{"required and skipped", []Finding{{Status: Skipped, Required: true, Reason: UnsupportedHere}}, false},
	} {
		if got := (Report{Findings: tc.list}).OK(); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

// TestRules: the seed's ids come first, in its order, and every rule says in one
// line what it is.
func TestRules(t *testing.T) {
	seed := strings.Fields(`capabilities.backend_id capabilities.artifact_boundary capabilities.reconnect_lifecycle
		capabilities.ownership_fencing capabilities.command_reconnect execute.result_contract execute.request_timeout artifact.collection
		lifecycle.close_marks_handle lifecycle.closed_handle_rejected policy.network_admission execute.cooperative_cancellation`)
	seen := map[string]bool{}
	for i, r := range Rules() {
		if i < len(seed) && (r.ID != seed[i] || !r.Required) {
			t.Errorf("rule %d is %s, want %s, required", i, r.ID, seed[i])
		}
		if seen[r.ID] || !slices.Contains([]string{SuiteSandbox, SuiteLease, SuiteHost}, r.Suite) || r.Meaning == "" || strings.ContainsAny(r.Meaning, "\n|") {
			t.Errorf("%+v", r)
		}
		seen[r.ID] = true
		if limit := strings.HasPrefix(r.ID, "limits."); r.Suite == SuiteSandbox && limit == r.Required {
			t.Errorf("%s: required %v", r.ID, r.Required)
		}
	}
}

// TestDetailsAreLines: whatever a command wrote.
func TestDetailsAreLines(t *testing.T) {
	for in, want := range map[string]string{"": "", "a\n\tb\xff": "a b?", strings.Repeat("é", 300): strings.Repeat("é", 200) + " ..."} {
		if got := oneLine(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}
