package tools

import (
	"errors"
	"slices"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

// envCodes are codes of environments that are kinds of failure of a tool as well.
var envCodes = map[string]Code{
	"not_found": NotFound, "denied_name": NotAllowed, "size": TooLarge, "disk_full": NoSpace,
	"sandbox_unavailable": SandboxUnavailable, "in_use": Busy,
}

// hostFaults are codes of what only the person who runs the server can change.
var hostFaults = []string{
	"bad_catalog", "bad_config", "bad_lock", "bytecode", "changed", "failed", "hash_mismatch", "index_unreachable",
	"layer_tampered", "lock_tampered", "missing_wheel", "no_python", "no_root", "probe", "python_mismatch",
	"resolver_failed", "resolver_timeout", "resolver_unavailable", "unsafe_root",
}

// envCode is the code of a tool for one of environments.
func envCode(code string, otherwise Code) Code {
	if c, ok := envCodes[code]; ok {
		return c
	}
	return otherwise
}

// envRefusal is the answer to a request that was not taken, or that there is not.
func envRefusal(err error) (Result, error) {
	var e *pyenv.Error
	switch {
	case errors.Is(err, audit.ErrUnavailable): // wrapped in whatever could not be done without it
	case errors.Is(err, spec.ErrBadSpec):
		return Result{}, badSpec("", err)
	case errors.Is(err, queue.ErrNotFound):
		return Result{}, &Error{Code: NotFound, Rule: "env.not_found", Sentence: "there is no such request", Hint: `python_env {"action":"status"} lists the open ones; those that ended long ago are forgotten`}
	case errors.Is(err, queue.ErrFull):
		return Result{}, &Error{Code: Busy, Rule: "env.full", Sentence: "too many requests for packages are open, so this one was not made", Hint: `go on without, and tell the person, whom "mcp-vdisk env requests" shows what waits; python_env {"action":"status"} lists those of this workspace`, cause: err}
	case errors.Is(err, queue.ErrUnavailable), errors.Is(err, queue.ErrUnreadable):
		return Result{}, &Error{Code: Internal, Rule: "env.queue_unavailable", Sentence: "requests for packages cannot be read or stored now", Hint: "go on without, and tell the person: the cause is in mcp-vdisk's own messages on standard error", cause: err}
	case errors.As(err, &e):
		return environmentResult(e), nil
	}
	return Result{}, err
}

// environmentResult is the answer for an error of environments.
func environmentResult(e *pyenv.Error) Result {
	if own := notReady(e.Code); own != nil {
		return errorResult(own)
	}
	return fitted(func(room int) Result {
		shown := environmentError(e, room)
		facts := map[string]any{}
		var lines []string
		suggestions := []string{}
		blocking := blockingFacts(queue.Blocking(e.Blocking), room)
		if blocking != nil {
			facts["blocking"] = blocking
			lines = append(lines, "blocking: "+blockingLine(blocking))
		}
		if hint := plainLine(e.Hint, room); hint != "" {
			suggestions = append(suggestions, hint)
		}
		for _, s := range e.Suggestions[:min(len(e.Suggestions), maxFindings)] {
			if s = plainLine(s, room); !slices.Contains(suggestions, s) {
				suggestions = append(suggestions, s)
				lines = append(lines, "suggestion: "+s)
			}
		}
		facts["suggestions"] = suggestions
		r := errorResult(shown, lines...)
		r.Facts = facts
		return r
	})
}

// environmentError is an error of environments as one of a tool. What it hints at is for
// the person when the fault is the host's.
func environmentError(e *pyenv.Error, room int) *Error {
	host := slices.Contains(hostFaults, string(e.Code))
	code := InvalidArgument
	if host {
		code = NotReady
	}
	shown := &Error{
		Code: envCode(string(e.Code), code), Rule: envRule(string(e.Code)),
		Sentence: plainLine(e.Sentence, room), Hint: plainLine(e.Hint, room), cause: e,
	}
	if shown.Code == NoSpace || shown.Code == SandboxUnavailable {
		host = true
	}
	switch {
	case host && shown.Hint != "":
		shown.Hint = "go on without, and tell the person: " + shown.Hint
	case host:
		shown.Hint = "go on without, and tell the person, whom mcp-vdisk env doctor shows more"
	case shown.Hint == "":
		shown.Hint = "go on without, or ask for something else"
	}
	return shown
}

// noBase says what to do on a host without packages.
const noBase = `no packages are installed on this host; the person who runs this server can get some for documents, tables, PDF and charts: "mcp-vdisk env ensure"`

// notReady is the refusal of requests on a host where none can be fulfilled; nil for
// another code.
func notReady(code pyenv.Code) *Error {
	switch code {
	case pyenv.ErrNoBase:
		return &Error{
			Code: NotReady, Rule: "env.no_base", Sentence: "this host has no package layers, so nothing can be installed",
			Hint: `use the standard library, or tell the person to run "mcp-vdisk env ensure", which gets packages for documents, tables, PDF and charts`,
		}
	case pyenv.ErrNoQueue:
		return &Error{
			Code: NotReady, Rule: "env.operator_only", Sentence: "packages can be added by the person who runs this server only",
			Hint: `use what is there, which python_env {"action":"status"} lists, or tell the person which package is missing: "mcp-vdisk env import --base FILE.whl" and then "mcp-vdisk env ensure" add one`,
		}
	}
	return nil
}
