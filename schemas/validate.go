package schemas

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// Validate decides whether raw, the arguments of a call as they came, fit the tool, and returns them normalised: one JSON
// object with sorted keys, null members dropped, numbers exact. Absent arguments (no bytes, or null) are the empty object.
//
// The error is *[Invalid] when the arguments do not fit and wraps [ErrUnknownTool] when there is no such tool. Rules that
// need more than one argument ("source or path"), the disk, or a limit the operator can change are the tools' own.
//
// Time and memory are proportional to len(raw); the caller bounds that. Validate has no effect and is safe for concurrent
// use.
func Validate(name string, raw []byte) (json.RawMessage, error) {
	e, ok := table()[name]
	if !ok {
		return nil, fmt.Errorf("%w %s", ErrUnknownTool, quote(name))
	}
	args, fault := decode(raw)
	if fault != nil {
		return nil, invalid(name, *fault)
	}
	faults := e.convert(args)
	found := len(faults)
	for _, c := range e.judge.complaints(args) {
		for _, f := range e.explain(args, c) {
			// What convert had to replace, it has said better.
			if !slices.ContainsFunc(faults[:found], func(g Fault) bool { return g.Path == f.Path }) {
				faults = append(faults, f)
			}
		}
	}
	if len(faults) > 0 {
		return nil, invalid(name, faults...)
	}
	return encode(args)
}

// encode writes validated arguments. It does not escape <, > and &, so that what is logged reads as what was sent.
func encode(args map[string]any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(args); err != nil {
		return nil, fmt.Errorf("encode arguments: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
