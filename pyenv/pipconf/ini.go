package pipconf

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// ini is a file as Python's RawConfigParser reads it, which is how pip does: keys in
// lower case, "=" or ":" between key and value, a deeper indented line goes on with the
// value before, "#" and ";" begin comments on lines of their own, [DEFAULT] counts in
// every section, and what is there twice is an error.
type ini map[string]map[string]string

// Why a file is not one. Nothing of its text is told: it may be a credential.
var errIni = errors.New("is no configuration file")

const defaultSection = "DEFAULT"

var (
	sectionForm = regexp.MustCompile(`^\[(.+)\]`)
	optionForm  = regexp.MustCompile(`^(.*?)\s*[=:]\s*(.*)$`)
)

func parseIni(text string) (ini, error) {
	p := iniParser{sections: map[string]map[string][]string{}}
	for n, l := range strings.Split(strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n"), "\n") {
		if err := p.line(l); err != nil {
			return nil, fmt.Errorf("%w: line %d %w", errIni, n+1, err)
		}
	}
	out := ini{}
	for name, keys := range p.sections {
		if name == defaultSection {
			continue
		}
		out[name] = map[string]string{}
		for _, from := range []map[string][]string{p.sections[defaultSection], keys} {
			for key, lines := range from {
				out[name][key] = strings.TrimRight(strings.Join(lines, "\n"), blanks)
			}
		}
	}
	return out, nil
}

type iniParser struct {
	sections map[string]map[string][]string
	section  map[string][]string // nil before the first
	option   string              // to which a line may be added, "" for none
	indent   int                 // of the line with the option
}

const blanks = " \t\n\r\f\v"

func (p *iniParser) line(l string) error {
	value := strings.Trim(l, blanks)
	switch {
	case value == "":
		if p.option != "" {
			p.section[p.option] = append(p.section[p.option], "")
		}
		return nil
	case value[0] == '#' || value[0] == ';':
		return nil
	}
	indent := len(l) - len(strings.TrimLeft(l, blanks))
	if p.option != "" && indent > p.indent {
		p.section[p.option] = append(p.section[p.option], value)
		return nil
	}
	p.indent = indent
	if m := sectionForm.FindStringSubmatch(value); m != nil {
		return p.enter(m[1])
	}
	m := optionForm.FindStringSubmatch(value)
	switch {
	case p.section == nil:
		return errors.New("is before the first section")
	case m == nil || m[1] == "":
		return errors.New("is neither a section nor a key with a value")
	}
	p.option = strings.ToLower(m[1])
	if _, twice := p.section[p.option]; twice {
		return errors.New("has a key that its section has already")
	}
	p.section[p.option] = []string{strings.Trim(m[2], blanks)}
	return nil
}

func (p *iniParser) enter(name string) error {
	if _, twice := p.sections[name]; twice && name != defaultSection {
		return errors.New("begins a section that was there before")
	}
	if p.sections[name] == nil {
		p.sections[name] = map[string][]string{}
	}
	p.section, p.option = p.sections[name], ""
	return nil
}
