package tools

import (
	"encoding/json"
	"slices"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/schemas"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// Policy is what the person allowed a session when it was started. No argument
// of a tool and no file on the disk widens it. The zero value allows all.
type Policy struct {
	ReadOnly bool     // only read_file and list_files; and a look at scripts of other sessions
	NoDelete bool     // nothing that is on the disk goes away or is emptied
	Tools    []string // when not empty, only these tools
}

// readOnlyTools are what a read-only session is offered.
var readOnlyTools = []string{"read_file", "list_files"}

// Listed tells whether the session is shown the tool at all.
func (p Policy) Listed(tool string) bool { return p.check(tool) == nil }

// check refuses a tool that the policy does not allow, with the narrowest
// reason.
func (p Policy) check(tool string) *Error {
	switch {
	case p.ReadOnly && !slices.Contains(readOnlyTools, tool):
		return refuse(ReadOnly, "only read_file and list_files work in this session; its person can start one that writes", "%s is not available: this session is read-only", tool)
	case p.NoDelete && tool == "delete_file":
		return refuse(DeleteDisabled, "leave the file where it is; its person can start a session that deletes", "delete_file is not available: deleting is switched off in this session")
	case len(p.Tools) > 0 && !slices.Contains(p.Tools, tool):
		return refuse(NotAllowed, "use the tools that this session lists", "%s is not offered in this session", tool)
	}
	return nil
}

// checkCall is check for a call with these arguments, which are valid. A session
// that only reads may look at the scripts of others, though it is not offered
// run_script.
func (p Policy) checkCall(tool string, args json.RawMessage) *Error {
	var a scriptArgs
	if !p.ReadOnly || tool != "run_script" || json.Unmarshal(args, &a) != nil || a.Job == nil {
		return p.check(tool)
	}
	if a.Cancel || a.Commit != "" {
		return refuse(ReadOnly, `{"job":…} alone shows the script; a session that writes can stop it, or save what it left`,
			"this session is read-only: it may look at a script, and neither stop it nor save what it left")
	}
	p.ReadOnly = false
	return p.check(tool)
}

// admit refuses changes that would remove or empty something although deleting
// is switched off. It is asked inside the transaction, so it sees exactly what
// would change.
func (p Policy) admit(effects []workspace.Effect) error {
	if !p.NoDelete {
		return nil
	}
	for _, e := range effects {
		if e.Before == nil {
			continue
		}
		gone := e.After == nil || e.After.Kind != e.Before.Kind
		if gone || e.Before.Size > 0 && e.After.Size == 0 {
			return refuse(DeleteDisabled, "leave it where it is, or write to another name", "this would delete or empty %s, and deleting is switched off in this session", e.Path)
		}
	}
	return nil
}

// facts describe the policy in the audit log.
func (p Policy) facts() audit.Facts {
	f := audit.Facts{"read_only": p.ReadOnly, "no_delete": p.NoDelete, "role": "agent"}
	var allowed []string
	for _, name := range schemas.Names() {
		if p.Listed(name) {
			allowed = append(allowed, name)
		}
	}
	f["tools"] = allowed
	return f
}
