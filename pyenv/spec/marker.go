package spec

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Marker is a condition on the environment, such as
// `python_version < "3.9" and extra == "test"`. The zero value always holds.
type Marker struct{ root *expression }

// expression is either one comparison, or a list joined by "or" of lists joined
// by "and".
type expression struct {
	anyOf       [][]*expression
	left, right operand
	op          string // of a comparison, "" otherwise
}

// operand is a variable or a text.
type operand struct {
	variable string // "" for a text
	text     string
}

// maxNesting bounds the depth of parentheses.
const maxNesting = 50

// ParseMarker reads a marker. Errors: ErrMarker.
func ParseMarker(s string) (Marker, error) {
	p := markerParser{rest: s}
	root, err := p.expression(0)
	if err != nil {
		return Marker{}, fmt.Errorf("%w: %s %w", ErrMarker, quote(s), err)
	}
	if p.blank(); p.rest != "" {
		return Marker{}, fmt.Errorf("%w: %s goes on after its end", ErrMarker, quote(s))
	}
	return Marker{root}, nil
}

// IsZero says whether there is no condition.
func (m Marker) IsZero() bool { return m.root == nil }

// Eval says whether the condition holds for a project asked for with these
// extras: it does when it holds for one of them or for none. Errors: ErrMarker
// when it compares what has no order.
func (m Marker) Eval(env Environment, extras []string) (bool, error) {
	if m.root == nil {
		return true, nil
	}
	for _, extra := range append([]string{""}, extras...) {
		holds, err := m.root.eval(env, NormalizeName(extra))
		if err != nil || holds {
			return holds, err
		}
	}
	return false, nil
}

func (e *expression) eval(env Environment, extra string) (bool, error) {
	if e.op != "" {
		return e.compare(env, extra)
	}
	for _, all := range e.anyOf {
		holds := true
		for _, part := range all {
			var err error
			if holds, err = part.eval(env, extra); err != nil {
				return false, err
			}
			if !holds {
				break
			}
		}
		if holds {
			return true, nil
		}
	}
	return false, nil
}

// compare compares as versions what are versions, and as texts the rest; texts
// have no order.
func (e *expression) compare(env Environment, extra string) (bool, error) {
	name := e.left.variable
	if name == "" {
		name = e.right.variable
	}
	left, right := e.left.value(env, extra), e.right.value(env, extra)
	if name == "extra" {
		left, right = NormalizeName(left), NormalizeName(right)
	}
	if versioned[name] {
		c, err := parseClause(e.op + right)
		if err == nil {
			v, err := ParseVersion(left)
			return err == nil && c.match(v), nil
		}
	}
	switch e.op {
	case "in":
		return strings.Contains(right, left), nil
	case "not in":
		return !strings.Contains(right, left), nil
	case "==", "<=", ">=":
		return left == right, nil
	case "!=":
		return left != right, nil
	case "<", ">":
		return false, nil
	}
	return false, fmt.Errorf("%w: %q has no meaning between %s and %s", ErrMarker, e.op, quote(left), quote(right))
}

func (o operand) value(env Environment, extra string) string {
	switch o.variable {
	case "":
		return o.text
	case "extra":
		return extra
	default:
		return env.get(o.variable)
	}
}

// markerParser reads from the front of rest.
type markerParser struct{ rest string }

var (
	wordForm = regexp.MustCompile(`^[a-z_.]+`)
	opForm   = regexp.MustCompile(`^(?:===|==|~=|!=|<=|>=|<|>)`)
)

func (p *markerParser) blank() { p.rest = skipBlank(p.rest) }

// word takes a word if it is the next one.
func (p *markerParser) word(w string) bool {
	p.blank()
	if wordForm.FindString(p.rest) != w {
		return false
	}
	p.rest = p.rest[len(w):]
	return true
}

// expression is and-lists joined by "or"; "and" binds closer.
func (p *markerParser) expression(depth int) (*expression, error) {
	if depth > maxNesting {
		return nil, errors.New("is nested too deep")
	}
	e := &expression{anyOf: [][]*expression{nil}}
	for {
		part, err := p.part(depth)
		if err != nil {
			return nil, err
		}
		last := len(e.anyOf) - 1
		e.anyOf[last] = append(e.anyOf[last], part)
		switch {
		case p.word("and"):
		case p.word("or"):
			e.anyOf = append(e.anyOf, nil)
		default:
			return e, nil
		}
	}
}

// part is an expression in parentheses or a comparison.
func (p *markerParser) part(depth int) (*expression, error) {
	p.blank()
	if inner, ok := strings.CutPrefix(p.rest, "("); ok {
		p.rest = inner
		e, err := p.expression(depth + 1)
		if err != nil {
			return nil, err
		}
		p.blank()
		if p.rest, ok = strings.CutPrefix(p.rest, ")"); !ok {
			return nil, errors.New("has a \"(\" without its \")\"")
		}
		return e, nil
	}
	return p.comparison()
}

func (p *markerParser) comparison() (*expression, error) {
	var e expression
	var err error
	if e.left, err = p.operand(); err != nil {
		return nil, err
	}
	if e.op, err = p.operator(); err != nil {
		return nil, err
	}
	if e.right, err = p.operand(); err != nil {
		return nil, err
	}
	if (e.left.variable == "") == (e.right.variable == "") {
		return nil, errors.New("must compare a variable with a text")
	}
	return &e, nil
}

func (p *markerParser) operator() (string, error) {
	p.blank()
	if op := opForm.FindString(p.rest); op != "" {
		p.rest = p.rest[len(op):]
		return op, nil
	}
	if p.word("in") {
		return "in", nil
	}
	if p.word("not") && p.rest != skipBlank(p.rest) && p.word("in") {
		return "not in", nil
	}
	return "", errors.New("has no operator where one must stand")
}

// operand is a known variable, or a text in single or double quotes without
// escapes.
func (p *markerParser) operand() (operand, error) {
	p.blank()
	if p.rest != "" && (p.rest[0] == '\'' || p.rest[0] == '"') {
		text, rest, ok := strings.Cut(p.rest[1:], p.rest[:1])
		if !ok || strings.ContainsAny(text, "\\\x00") {
			return operand{}, errors.New("has a text that is not closed or has an escape")
		}
		p.rest = rest
		return operand{text: text}, nil
	}
	word := wordForm.FindString(p.rest)
	name, ok := variables[word]
	if !ok {
		return operand{}, errors.New("has an unknown variable")
	}
	p.rest = p.rest[len(word):]
	return operand{variable: name}, nil
}
