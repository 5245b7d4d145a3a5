package front

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// harmless are the tools whose calls change nothing, with the arguments that such a
// call may have: each as it is written, or any value. Nil are any arguments.
var harmless = map[string]map[string][]string{
	"read_file":  nil,
	"list_files": nil,
	"python_env": {"action": {`"status"`, `"wait"`}, "request_id": nil, "timeout_s": nil},
	"run_script": {"job": nil, "output_offset": nil}, // waits for a job and shows it
}

// asks says whether a line is a tools/call that changes nothing, so that it may be
// made again. It reads strictly: a name that it does not know, that is spelt in
// another way or stands twice, makes it a call that changes something, whatever the
// daemon takes it for.
func asks(line []byte) bool {
	if len(line) >= longLine { // not known to be JSON, see isBroken
		return false
	}
	msg, ok := exactly(line, "jsonrpc", "id", "method", "params")
	if !ok || string(msg["method"]) != `"tools/call"` {
		return false
	}
	params, ok := exactly(msg["params"], "name", "arguments", "_meta")
	var name string
	if !ok || json.Unmarshal(params["name"], &name) != nil || string(params["name"]) != `"`+name+`"` {
		return false
	}
	want, known := harmless[name]
	if !known || want == nil {
		return known
	}
	args, ok := exactly(params["arguments"], slices.Collect(maps.Keys(want))...)
	for name, value := range args {
		ok = ok && (want[name] == nil || slices.Contains(want[name], string(value)))
	}
	return ok && len(args) > 0
}

// exactly gives the members of an object, unless there is one that is not among the
// names, as they are written, or is there twice.
func exactly(object []byte, names ...string) (found map[string][]byte, ok bool) {
	found = map[string][]byte{}
	ok = members(object, func(quoted, value []byte, _ int) bool {
		name := strings.Trim(string(quoted), `"`)
		_, twice := found[name]
		found[name] = value
		return !twice && slices.Contains(names, name)
	})
	return found, ok
}
