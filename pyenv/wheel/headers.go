package wheel

import (
	"strings"
)

// header is one "Name: value" line.
type header struct {
	name  string // lower case
	value string // continuation lines are joined by "\n"
}

// maxHeaders bounds the lines of a header block.
const maxHeaders = 20_000

// parseHeaders reads the header block of a METADATA or WHEEL file, up to the
// first empty line; what follows is free text.
//
// The format is that of mail, as Python's email package reads it, and so any of
// CR, LF and CR LF ends a line: a header that only some readers see would be a
// dependency that only some resolvers see. What that package would pass over is
// refused.
func parseHeaders(file string, text []byte) ([]header, error) {
	s := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(text))
	var list []header
	for line := range strings.SplitSeq(s, "\n") {
		if line == "" {
			break
		}
		if len(list) >= maxHeaders {
			return nil, refuse(ErrWheelMetadata, file, "it has over %d header lines", maxHeaders)
		}
		if line[0] == ' ' || line[0] == '\t' {
			if len(list) == 0 {
				return nil, refuse(ErrWheelMetadata, file, "it begins with a continuation line")
			}
			list[len(list)-1].value += "\n" + line
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return nil, refuse(ErrWheelMetadata, file, "%s is no header line", quote(line))
		}
		list = append(list, header{strings.ToLower(name), strings.Trim(value, " \t")})
	}
	return list, nil
}

// one returns the value of a header that may be there at most once, on one line.
func one(file string, list []header, name string) (string, error) {
	values, err := all(file, list, name)
	switch {
	case err != nil || len(values) == 0:
		return "", err
	case len(values) > 1:
		return "", refuse(ErrWheelMetadata, file, "%s is there %d times", name, len(values))
	}
	return values[0], nil
}

// all returns the values of a header, each on one line.
func all(file string, list []header, name string) ([]string, error) {
	var values []string
	for _, h := range list {
		if h.name != strings.ToLower(name) {
			continue
		}
		if strings.Contains(h.value, "\n") {
			return nil, refuse(ErrWheelMetadata, file, "%s goes over several lines", name)
		}
		values = append(values, h.value)
	}
	return values, nil
}

// first is the first value, for headers that only inform; "" for none.
func first(list []header, name string) string {
	for _, h := range list {
		if h.name == strings.ToLower(name) {
			line, _, _ := strings.Cut(strings.ToValidUTF8(h.value, "�"), "\n")
			return line
		}
	}
	return ""
}
