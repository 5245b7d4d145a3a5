package schemas

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// explain turns one complaint of the judge into faults: the judge names the keyword, the words are made here from the
// schema and the arguments.
func (e *entry) explain(args map[string]any, c complaint) []Fault {
	switch c.keyword {
	case "required":
		return e.missing(args)
	case "additionalProperties":
		return e.unknown(args)
	}
	path, p, v := e.locate(args, c.at)
	switch c.keyword {
	case "type":
		return []Fault{{path, "must be " + p.wanted() + ", not " + p.given(v), KindType}}
	case "enum":
		s, _ := v.(string)
		return []Fault{{path, "must be one of " + words(p.Enum) + ", not " + quote(s), KindEnum}}
	case "minimum":
		return []Fault{{path, fmt.Sprintf("must be at least %s, is %v", p.Minimum, v), KindRange}}
	case "maximum":
		return []Fault{{path, fmt.Sprintf("must be at most %s, is %v", p.Maximum, v), KindRange}}
	case "maxItems":
		items, _ := v.([]any)
		return []Fault{{path, fmt.Sprintf("must have at most %d items, has %d", p.limit.Items, len(items)), KindRange}}
	case "maxLength":
		s, _ := v.(string)
		return []Fault{{path, fmt.Sprintf("must have at most %d characters, has %d", p.limit.Characters, utf8.RuneCountInString(s)), KindRange}}
	}
	return []Fault{{path, "does not fit the tool's schema", KindType}}
}

func (e *entry) missing(args map[string]any) []Fault {
	var faults []Fault
	for _, name := range e.required {
		if _, ok := args[name]; !ok {
			faults = append(faults, Fault{name, "is missing", KindMissing})
		}
	}
	return faults
}

func (e *entry) unknown(args map[string]any) []Fault {
	var faults []Fault
	for key := range args {
		if _, ok := e.props[key]; ok {
			continue
		}
		message := "is not an argument of " + e.def.Name
		if near := e.nearest(key); near != "" {
			message += " (did you mean " + near + "?)"
		}
		message += "; its arguments are " + strings.Join(e.names, ", ")
		faults = append(faults, Fault{argument(key), message, KindUnknown})
	}
	return faults
}

// locate finds the value that keys and indices lead to. Schemas are flat, so it is an argument or an item of one.
func (e *entry) locate(args map[string]any, at []string) (string, property, any) {
	if len(at) == 0 {
		return argument(""), property{}, nil
	}
	name := at[0]
	p, v := e.props[name], args[name]
	items, _ := v.([]any)
	if len(at) != 2 || p.Items == nil {
		return argument(name), p, v
	}
	i, err := strconv.Atoi(at[1])
	if err != nil || i < 0 || i >= len(items) {
		return argument(name), p, v
	}
	item := *p.Items
	item.limit = limit{Characters: p.limit.Characters}
	return argument(name) + "[" + at[1] + "]", item, items[i]
}

// wanted says the type of a property in words.
func (p property) wanted() string {
	switch p.Type {
	case "string":
		return "a string"
	case "boolean":
		return "true or false"
	case "integer":
		return "a whole number"
	}
	return "an array of strings"
}

// given says what came instead. Text where true, false or a number was wanted is shown, as it may be nearly right.
func (p property) given(v any) string {
	if s, ok := v.(string); ok && (p.Type == "boolean" || p.Type == "integer") {
		return quote(s)
	}
	if n, ok := v.(json.Number); ok && p.Type == "boolean" {
		return cut(n.String())
	}
	return typeOf(v)
}

func words(list []string) string {
	quoted := slices.Clone(list)
	for i, w := range quoted {
		quoted[i] = strconv.Quote(w)
	}
	return strings.Join(quoted, ", ")
}
