package wheel

import (
	"fmt"
	"regexp"
	"strings"
)

// Script is a command that a wheel brings.
type Script struct {
	Name   string // of the file in bin
	Module string // of an entry point; "" for a file of the wheel itself
	Attr   string // what of the module is called, "main" or "app.run"
}

const entryPointsFile = "entry_points.txt"

var (
	scriptName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
	// objectRef is "package.module:attribute.method", perhaps with extras, which
	// mean nothing any more.
	objectRef = regexp.MustCompile(`^([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*:\s*([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*(?:\[[^\]]*\])?$`)
)

// parseEntryPoints reads entry_points.txt (an INI file by the specification of
// entry points) and returns the commands: the groups console_scripts and
// gui_scripts. The other groups are for those that look for plugins.
//
// Errors: ErrWheelMetadata.
func parseEntryPoints(text []byte) ([]Script, error) {
	s := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(text))
	var list []Script
	seen := map[string]bool{}
	group := ""
	for line := range strings.SplitSeq(s, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		if inner, ok := strings.CutPrefix(line, "["); ok {
			if group, ok = strings.CutSuffix(inner, "]"); !ok {
				return nil, refuse(ErrWheelMetadata, entryPointsFile, "%s is no group", quote(line))
			}
			continue
		}
		if group != "console_scripts" && group != "gui_scripts" {
			continue
		}
		script, err := parseScript(line)
		if err != nil {
			return nil, err
		}
		if seen[script.Name] {
			return nil, refuse(ErrWheelMetadata, entryPointsFile, "the command %s is there twice", quote(script.Name))
		}
		seen[script.Name] = true
		list = append(list, script)
	}
	return list, nil
}

// parseScript reads "name = module:attribute". The name becomes a file name and
// the rest becomes code, so neither may be anything else.
func parseScript(line string) (Script, error) {
	name, ref, ok := strings.Cut(line, "=")
	name, ref = strings.TrimSpace(name), strings.TrimSpace(ref)
	m := objectRef.FindStringSubmatch(ref)
	switch {
	case !ok || !scriptName.MatchString(name) || len(name) > 100:
		return Script{}, refuse(ErrWheelMetadata, entryPointsFile, "%s does not begin with the name of a command", quote(line))
	case m == nil:
		return Script{}, refuse(ErrWheelMetadata, entryPointsFile, "%s does not name a function of a module", quote(line))
	}
	return Script{Name: name, Module: m[1], Attr: m[2]}, nil
}

// launcher is the file that starts an entry point.
func (s Script) launcher(interpreter string) []byte {
	top, _, _ := strings.Cut(s.Attr, ".")
	return fmt.Appendf(nil, `#!%s
import sys

from %s import %s

if __name__ == "__main__":
    sys.exit(%s())
`, interpreter, s.Module, top, s.Attr)
}
