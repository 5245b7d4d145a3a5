package tools

import (
	"bytes"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
)

// A tools/call that the MCP library cannot decode never reaches its tool, and is
// in the log like every other refused call. Its answer names no type of ours.
func TestUndecodableCallsAreRecorded(t *testing.T) {
	calls := []string{
		`"params":{"name":"read_file","arguments":{"path":"a","limit":1e400}}`,
		`"params":{"name":"write_file","arguments":{"path":"a","content":"x"},"_meta":5}`,
		`"params":{"name":"write_file","arguments":{"path":"a","content":"x"},"task":"x"}`,
		`"params":{"name":"write_file","arguments":{"path":"a","content":"x"},"_meta":{"progressToken":1e400}}`,
		`"params":[]`,
		`"params":null`,
	}
	d := newDisk(t)
	var in, out bytes.Buffer
	for i, c := range calls {
		in.WriteString(`{"jsonrpc":"2.0","id":` + string(rune('1'+i)) + `,"method":"tools/call",` + c + "}\n")
	}
	in.WriteString(`{"jsonrpc":"1.0","id":99,"method":"tools/call","params":{"name":"write_file","arguments":{"path":"a","content":"x"}}}` + "\n")
	if err := d.ServeStdio(t.Context(), &in, &out); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != len(calls)+1 {
		t.Errorf("%d answers to %d calls:\n%s", n, len(calls)+1, &out)
	}
	for _, leak := range []string{"Go ", "unmarshal", "float64", "struct"} {
		if strings.Contains(out.String(), leak) {
			t.Errorf("an answer says %q:\n%s", leak, &out)
		}
	}
	refused := 0
	for _, r := range d.records(audit.Query{}) {
		if r.Ev == audit.EvCallRefused {
			refused++
		} else if r.Tool != "" {
			t.Errorf("record %d is %s of %s", r.N, r.Ev, r.Tool)
		}
	}
	if refused != len(calls)+1 {
		t.Errorf("%d of %d calls are in the log", refused, len(calls)+1)
	}
}
