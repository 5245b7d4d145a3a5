package front

import (
	"fmt"
	"strings"
	"testing"
)

// Only a call that is known to change nothing is made again, and any doubt is enough.
func TestAsks(t *testing.T) {
	call := func(params string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`
	}
	for line, want := range map[string]bool{
		call(`{"name":"read_file","arguments":{"path":"a"}}`):                                         true,
		call(`{"arguments":{"path":"a","x":[{"name":"write_file"}]},"name":"read_file"}`):             true,
		call(`{"name":"read_file"}`):                                                                  true,
		call(` { "name" : "list_files" , "_meta" : {"progressToken":1} } `):                           true,
		call(`{"name":"python_env","arguments":{"action":"status"}}`):                                 true,
		call(`{"name":"python_env","arguments":{"action":"wait","request_id":"r","timeout_s":5}}`):    true,
		call(`{"name":"run_script","arguments":{"job":"01J"}}`):                                       true,
		call(`{"name":"run_script","arguments":{"job":"01J","output_offset":7}}`):                     true,
		`{"method":"tools/call","params":{"name":"read_file"},"id":"x"}`:                              true,
		call(`{"name":"write_file","arguments":{"path":"a","content":"x"}}`):                          false,
		call(`{"name":"delete_file","arguments":{"path":"a"}}`):                                       false,
		call(`{"name":"make_directory","arguments":{"path":"a"}}`):                                    false,
		call(`{"name":"python_env","arguments":{"action":"request","packages":["a"]}}`):               false,
		call(`{"name":"python_env","arguments":{"action":"status","action":"request"}}`):              false,
		call(`{"name":"python_env","arguments":{"action":"status","packages":["a"]}}`):                false,
		call(`{"name":"python_env","arguments":{"action":"\u0073tatus"}}`):                            false,
		call(`{"name":"python_env"}`):                                                                 false,
		call(`{"name":"run_script","arguments":{"job":"01J","cancel":true}}`):                         false,
		call(`{"name":"run_script","arguments":{"job":"01J","cancel":false}}`):                        false,
		call(`{"name":"run_script","arguments":{"job":"01J","commit":"always"}}`):                     false,
		call(`{"name":"run_script","arguments":{"job":"01J","Commit":"always"}}`):                     false,
		call(`{"name":"run_script","arguments":{"language":"bash","source":"x"}}`):                    false,
		call(`{"name":"run_script","arguments":{}}`):                                                  false,
		call(`{"name":"run_script","arguments":"job"}`):                                               false,
		call(`{"name":"run_script","arguments":null}`):                                                false,
		call(`{"name":"read_file","name":"write_file"}`):                                              false,
		call(`{"name":"write_file","name":"read_file"}`):                                              false,
		call(`{"name":"read_file","Name":"write_file"}`):                                              false,
		call(`{"Name":"read_file"}`):                                                                  false,
		call(`{"n\u0061me":"read_file"}`):                                                             false,
		call(`{"name":"read\u005ffile"}`):                                                             false,
		call(`{"name":"READ_FILE"}`):                                                                  false,
		call(`{"name":["read_file"]}`):                                                                false,
		call(`{"name":"read_file","task":{}}`):                                                        false,
		call(`["read_file"]`):                                                                         false,
		call(`null`):                                                                                  false,
		`{"id":1,"method":"tools/call"}`:                                                              false,
		`{"id":1,"method":"tools/call","params":{"name":"read_file"},"params":{"name":"write_file"}}`: false,
		`{"id":1,"method":"tools/call","params":{"name":"read_file"},"PARAMS":{"name":"write_file"}}`: false,
		`{"id":1,"method":"tools\/call","params":{"name":"read_file"}}`:                               false,
		`{"id":1,"method":"tools/list","params":{"name":"read_file"}}`:                                false,
		call(`{"name":"read_file","arguments":{"path":"` + strings.Repeat("a", longLine) + `"}}`):     false,
		call(`{"name":"read_file","arguments":{"path":"` + strings.Repeat("a", longLine-200) + `"}}`): true,
		``: false, `"`: false, `{`: false, `{"`: false, `{"a"`: false, `[]`: false, `{"id":1`: false,
	} {
		if got := asks([]byte(line)); got != want {
			t.Errorf("%.200s: %v", line, got)
		}
	}
}

// What a client asks without reading the answers is not kept for ever.
func TestKeptLinesAreBounded(t *testing.T) {
	var p pending
	line := func(i int) []byte {
		return fmt.Appendf(nil, `{"id":%d,"method":"tools/list","params":{"x":"%s"}}`, i, strings.Repeat("x", 1<<20))
	}
	for i := range 10 {
		p.say(line(i))
	}
	if len(p.open) != 10 || p.kept > maxKept+1<<20+100 {
		t.Errorf("%d requests, %d bytes", len(p.open), p.kept)
	}
	if lost := p.lost(); len(lost) != 6 || len(p.repeat()) != 4 {
		t.Errorf("lost are %q", lost)
	}
	for i := range 10 {
		p.answered(fmt.Sprint(i))
	}
	if p.kept != 0 || len(p.open) != 0 {
		t.Errorf("%d bytes of %d requests", p.kept, len(p.open))
	}
	p.say(line(1))
	p.takeBack(line(1))
	p.all()
	if p.kept != 0 {
		t.Errorf("%d bytes of none", p.kept)
	}
}
