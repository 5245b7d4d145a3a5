package tools

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/schemas"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// good are arguments with which each tool works.
var good = map[string]args{
	"write_file": {"path": "a", "content": "x"}, "read_file": {"path": "a"}, "list_files": {}, "make_directory": {"path": "d"},
	"delete_file": {"path": "a"}, "run_script": {"language": "bash", "source": "true"}, "python_env": {"action": "status"},
}

// TestPolicies: what each policy lists and refuses, with which code.
func TestPolicies(t *testing.T) {
	all := schemas.Names()
	for _, c := range []struct {
		name   string
		policy Policy
		listed []string
		code   Code // of the others
	}{
		{"everything", Policy{}, all, ""},
		{"read-only", Policy{ReadOnly: true}, []string{"read_file", "list_files"}, ReadOnly},
		{"no delete", Policy{NoDelete: true}, slices.DeleteFunc(slices.Clone(all), func(n string) bool { return n == "delete_file" }), DeleteDisabled},
		{"two tools", Policy{Tools: []string{"read_file", "write_file"}}, []string{"write_file", "read_file"}, NotAllowed},
		{"read-only wins", Policy{ReadOnly: true, NoDelete: true, Tools: []string{"write_file", "read_file"}}, []string{"read_file"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := withPolicy(t, c.policy, files("a")...)
			before := d.tree()
			var listed []string
			for _, name := range all {
				if c.policy.Listed(name) {
					listed = append(listed, name)
					continue
				}
				code := c.code
				switch { // the narrowest reason
				case code != "":
				case name == "list_files":
					code = NotAllowed
				default:
					code = ReadOnly
				}
				d.refused(code, name, good[name])
				// What is wrong as well is told first: it is no secret.
				d.refused(InvalidArgument, name, args{"nonsense": 1})
			}
			if !slices.Equal(listed, c.listed) {
				t.Errorf("listed %v, want %v", listed, c.listed)
			}
			if d.tree() != before {
				t.Errorf("the disk changed to\n%s", d.tree())
			}
		})
	}
}

// TestPolicyInLog: every record says what the session was allowed.
func TestPolicyInLog(t *testing.T) {
	d := withPolicy(t, Policy{NoDelete: true, Tools: []string{"write_file", "delete_file"}})
	d.write("a", "a")
	d.refused(DeleteDisabled, "delete_file", args{"path": "a"})
	for _, r := range d.records(audit.Query{}) {
		if len(r.Cap["limits"].(string)) != 64 {
			t.Errorf("record %d: %v", r.N, r.Cap)
		}
		if r.Cap["no_delete"] != true || r.Cap["read_only"] != false || r.Cap["role"] != "agent" || !slices.Equal(r.Cap["tools"].([]string), []string{"write_file"}) {
			t.Errorf("record %d: %v", r.N, r.Cap)
		}
	}
}

// TestNoDelete: nothing goes away and nothing is emptied; all else is allowed.
func TestNoDelete(t *testing.T) {
	d := withPolicy(t, Policy{NoDelete: true}, link("link", "a"))
	d.write("a", "body")
	d.write("empty", "")
	before := d.tree()
	d.fails(DeleteDisabled, "write_file", args{"path": "a", "content": ""})
	d.fails(DeleteDisabled, "write_file", args{"path": "link", "content": ""})
	d.fails(DeleteDisabled, "write_file", args{"path": "a", "content": "", "mode": "replace", "old_text": "body"})
	if d.tree() != before {
		t.Errorf("the disk changed to\n%s", d.tree())
	}
	d.write("a", "b")
	d.write("empty", "")
	d.write("new", "")
	d.ok("write_file", args{"path": "a", "content": "", "mode": "append"})
	d.ok("write_file", args{"path": "a", "content": "c", "mode": "replace", "old_text": "b"})
	d.ok("make_directory", args{"path": "d"})
	if got := d.content("a"); got != "c" {
		t.Errorf("the file holds %q", got)
	}
}

// TestReadOnlyBelow: a disk that is open for reading refuses changes also when
// the policy does not.
func TestReadOnlyBelow(t *testing.T) {
	d := newDisk(t)
	d.write("a", "a")
	d.reopen(setup{}, workspace.OpenOptions{ReadOnly: true})
	for tool, a := range map[string]args{
		"write_file": {"path": "a", "content": "b"}, "make_directory": {"path": "d"}, "delete_file": {"path": "a"},
	} {
		d.fails(ReadOnly, tool, a)
	}
	d.fails(ReadOnly, "write_file", args{"path": "b", "content": strings.Repeat("large ", 100_000)})
	if got := d.read("a"); got != "a" {
		t.Errorf("the file holds %q", got)
	}
	_, err := d.im.Commit(t.Context(), workspace.Txn{Changes: files("b")})
	if !errors.Is(err, workspace.ErrReadOnly) {
		t.Errorf("the image: %v", err)
	}
}
