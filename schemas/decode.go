package schemas

import (
	"bytes"
	"encoding/json"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	maxDepth  = 16
	maxValues = 10_000
)

// decode reads one JSON object, strictly. Absent arguments and null are the empty object. Numbers become json.Number with
// the digits as given. The first fault in the order of the bytes ends it.
func decode(raw []byte) (map[string]any, *Fault) {
	if len(raw) == 0 {
		return map[string]any{}, nil
	}
	d := &decoder{raw: raw, dec: json.NewDecoder(bytes.NewReader(raw))}
	d.dec.UseNumber()
	v, fault := d.value("", 0)
	if fault != nil {
		return nil, fault
	}
	if _, err := d.dec.Token(); err != io.EOF {
		return nil, &Fault{"", "the arguments must be one JSON object, with nothing after it", KindSyntax}
	}
	switch v := v.(type) {
	case nil:
		return map[string]any{}, nil
	case map[string]any:
		return v, nil
	}
	return nil, &Fault{"", "the arguments must be a JSON object, not " + typeOf(v), KindType}
}

// decoder walks the tokens of encoding/json and looks at the bytes of each, because that package repairs silently what is
// refused here.
type decoder struct {
	raw    []byte
	dec    *json.Decoder
	values int
}

// value reads one value whose place in the arguments is path.
func (d *decoder) value(path string, depth int) (any, *Fault) {
	if d.values++; d.values > maxValues {
		return nil, &Fault{"", "the arguments hold more than 10,000 values", KindSyntax}
	}
	tok, fault := d.token(path)
	if fault != nil {
		return nil, fault
	}
	delim, ok := tok.(json.Delim)
	if !ok {
		return tok, nil
	}
	if depth == maxDepth {
		return nil, &Fault{"", "the arguments are nested deeper than 16 levels", KindSyntax}
	}
	if delim == '{' {
		return d.object(path, depth+1)
	}
	return d.array(path, depth+1)
}

func (d *decoder) object(path string, depth int) (any, *Fault) {
	object := map[string]any{}
	for d.dec.More() {
		tok, fault := d.token(path)
		if fault != nil {
			return nil, fault
		}
		key := tok.(string)
		at := argument(key)
		if path != "" {
			at = path + "." + at
		}
		if _, twice := object[key]; twice {
			return nil, &Fault{at, "is given twice", KindSyntax}
		}
		v, fault := d.value(at, depth)
		if fault != nil {
			return nil, fault
		}
		object[key] = v
	}
	_, fault := d.token(path)
	return object, fault
}

func (d *decoder) array(path string, depth int) (any, *Fault) {
	array := []any{}
	for d.dec.More() {
		v, fault := d.value(path+"["+strconv.Itoa(len(array))+"]", depth)
		if fault != nil {
			return nil, fault
		}
		array = append(array, v)
	}
	_, fault := d.token(path)
	return array, fault
}

// token reads the next token and checks the text in it.
func (d *decoder) token(path string) (json.Token, *Fault) {
	start := d.dec.InputOffset()
	tok, err := d.dec.Token()
	if err != nil {
		return nil, &Fault{"", d.syntax(start), KindSyntax}
	}
	if _, ok := tok.(string); ok {
		if message := checkText(d.raw[start:d.dec.InputOffset()]); message != "" {
			return nil, &Fault{path, message, KindEncoding}
		}
	}
	return tok, nil
}

// syntax says where the JSON went wrong, in our words: after the last good token.
func (d *decoder) syntax(start int64) string {
	rest := bytes.TrimLeft(d.raw[start:], " \t\r\n,:")
	if len(rest) == 0 {
		return "the arguments are not valid JSON: they end too early"
	}
	return "the arguments are not valid JSON near " + quote(string(rest[:min(len(rest), 20)]))
}

// checkText looks for what a JSON string may spell but text may not hold. literal is the string in its quotes, perhaps with
// separators before it.
func checkText(literal []byte) string {
	if !utf8.Valid(literal) {
		return "is not valid UTF-8"
	}
	for i := bytes.IndexByte(literal, '\\'); i >= 0 && i < len(literal); i++ {
		if literal[i] != '\\' {
			continue
		}
		i++
		if literal[i] != 'u' {
			continue
		}
		r := hex4(literal[i+1:])
		i += 4
		if !utf16.IsSurrogate(r) {
			continue
		}
		next := literal[i+1:]
		if len(next) < 6 || next[0] != '\\' || next[1] != 'u' || utf16.DecodeRune(r, hex4(next[2:])) == utf8.RuneError {
			return "holds half of a surrogate pair (\\u" + strconv.FormatInt(int64(r), 16) + "), which is no character"
		}
		i += 6
	}
	return ""
}

// hex4 reads the four digits of a \u escape that encoding/json has already accepted.
func hex4(b []byte) rune {
	n, _ := strconv.ParseUint(string(b[:4]), 16, 32)
	return rune(n)
}

// typeOf names a decoded value's JSON type in words, with its article.
func typeOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case string:
		return "a string"
	case json.Number:
		return "a number"
	case []any:
		return "an array"
	}
	return "an object"
}
