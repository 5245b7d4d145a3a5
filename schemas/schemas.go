package schemas

import (
	_ "embed"
	"encoding/json"
	"errors"
	"slices"
)

// ErrUnknownTool is wrapped by [Validate] when no tool has the name. MCP answers it with JSON-RPC error -32602.
var ErrUnknownTool = errors.New("unknown tool")

//go:embed instructions.md
var instructions string

// Instructions is the text a client gets when it connects, in both protocol eras. Clients cut it at 2,048 characters.
func Instructions() string { return instructions }

// Annotations are the hints of the MCP specification (2025-11-25, server/tools). All four are always sent, because the
// values a client assumes for a missing one are the worst case.
type Annotations struct {
	Title       string `json:"title"`
	ReadOnly    bool   `json:"readOnlyHint"`
	Destructive bool   `json:"destructiveHint"`
	Idempotent  bool   `json:"idempotentHint"`
	OpenWorld   bool   `json:"openWorldHint"`
}

// Def is one tool as a client sees it, and whether it can change anything.
type Def struct {
	Name        string
	Description string
	Schema      json.RawMessage // JSON Schema of the arguments, compact, properties in the order of the file
	Annotations Annotations
	Mutates     bool // false: a read-only server still offers the tool
}

// Names lists the tools in their fixed order.
func Names() []string {
	return slices.Clone(order)
}

// Defs lists the tools' definitions in their fixed order. The caller owns the result.
func Defs() []Def {
	defs := make([]Def, 0, len(order))
	for _, name := range order {
		def, _ := Tool(name)
		defs = append(defs, def)
	}
	return defs
}

// Tool finds a tool by its exact name. The caller owns the result.
func Tool(name string) (Def, bool) {
	e, ok := table()[name]
	if !ok {
		return Def{}, false
	}
	def := e.def
	def.Schema = slices.Clone(def.Schema)
	return def, true
}
