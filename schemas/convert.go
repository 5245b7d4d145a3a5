package schemas

import (
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// convert drops members that are null, and writes values that can mean only one thing in the type the schema wants. What is
// no integer, or one that no int64 holds, is a fault here already; a stand-in of the same sort goes on to the judge, which
// would otherwise expand 1e999999999 digit by digit.
func (e *entry) convert(args map[string]any) []Fault {
	var faults []Fault
	for name, v := range args {
		switch {
		case v == nil:
			delete(args, name)
		case e.props[name].Type == "boolean":
			if s, ok := v.(string); ok && (s == "true" || s == "false") {
				args[name] = s == "true"
			}
		case e.props[name].Type == "integer":
			literal, ok := integerLiteral(v)
			if !ok {
				continue
			}
			n, size := parseInteger(literal)
			if size != fits {
				faults = append(faults, e.props[name].misfit(name, literal, size))
			}
			args[name] = n
		}
	}
	return faults
}

var wholeNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)

// integerLiteral finds the number to read: a JSON number, or a string that is a whole number as JSON writes it, no more.
func integerLiteral(v any) (string, bool) {
	switch v := v.(type) {
	case json.Number:
		return v.String(), true
	case string:
		return v, wholeNumber.MatchString(v)
	}
	return "", false
}

// size says how a number relates to the integers that an int64 holds.
type size byte

const (
	fits size = iota
	fraction
	tooLarge
	tooSmall
)

// parseInteger reads a JSON number exactly, in time proportional to its length whatever its exponent says: 2.0 and 20e-1
// are 2. What does not fit comes back as a number of the same size: 0.5 or the end of the int64 range.
func parseInteger(literal string) (json.Number, size) {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(literal), "e")
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, decimals, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+decimals, "0")
	significant := strings.TrimRight(digits, "0")
	if significant == "" {
		return "0", fits
	}
	// Atoi answers the nearest int when the exponent is out of range, and 0 when there is none. The bound keeps sums exact.
	power, _ := strconv.Atoi(exponent)
	power = min(max(power, -1<<40), 1<<40) - len(decimals) + len(digits) - len(significant)
	if power < 0 {
		return "0.5", fraction
	}
	sign := ""
	if negative {
		sign = "-"
	}
	if len(significant)+power <= len("9223372036854775807") {
		n, err := strconv.ParseInt(sign+significant+strings.Repeat("0", power), 10, 64)
		if err == nil {
			return json.Number(strconv.FormatInt(n, 10)), fits
		}
	}
	if negative {
		return json.Number(strconv.FormatInt(math.MinInt64, 10)), tooSmall
	}
	return json.Number(strconv.FormatInt(math.MaxInt64, 10)), tooLarge
}

// misfit is the fault of a number that parseInteger had to replace.
func (p property) misfit(name, literal string, s size) Fault {
	switch s {
	case tooLarge:
		most := p.Maximum
		if most == "" {
			most = json.Number(strconv.FormatInt(math.MaxInt64, 10))
		}
		return Fault{name, "must be at most " + most.String() + ", is " + cut(literal), KindRange}
	case tooSmall:
		least := p.Minimum
		if least == "" {
			least = json.Number(strconv.FormatInt(math.MinInt64, 10))
		}
		return Fault{name, "must be at least " + least.String() + ", is " + cut(literal), KindRange}
	}
	return Fault{name, "must be a whole number, not " + cut(literal), KindType}
}
