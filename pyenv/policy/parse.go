package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Parse reads a catalog that a person may have written: any order, any space, names in
// any spelling. Apart from that it is strict, for what is misspelled in it is a rule that
// does not hold: every key of the top and of caps has to be there, in its own spelling
// and once, no other one may be, and nothing may follow.
//
// Errors: ErrInvalid, with the key, or the line where there is none.
func Parse(b []byte) (Catalog, error) {
	switch {
	case len(b) > maxCatalog:
		return Catalog{}, invalid("", "%d bytes are over the limit of %d", len(b), maxCatalog)
	case !utf8.Valid(b):
		return Catalog{}, invalid("", "it is not text in UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	w := walker{text: b, tokens: d}
	if err := w.value("", catalogShape); err != nil {
		return Catalog{}, err
	}
	if len(bytes.TrimSpace(b[d.InputOffset():])) > 0 {
		return Catalog{}, w.refuse("", "something follows after its end")
	}
	var c Catalog
	if err := json.Unmarshal(b, &c); err != nil {
		return Catalog{}, invalid("", "it is not the JSON of a catalog") // the walker has let through what it should not
	}
	return c.normal()
}

// shape is the form of a JSON value: of an object when it has keys, of an array when it
// has an item, else of a text or a whole number.
type shape struct {
	keys     map[string]shape
	optional bool
	item     *shape
	number   bool
}

var (
	textShape    = shape{}
	maybeShape   = shape{optional: true}
	numberShape  = shape{number: true}
	catalogShape = shape{keys: map[string]shape{
		"schema": numberShape, "policy_rev": numberShape, "cooldown_days": numberShape,
		"startup_code": textShape, "index_hosts": {item: &shape{}},
		"allow": {item: &shape{keys: map[string]shape{"name": textShape, "spec": maybeShape}}},
		"deny":  {item: &shape{keys: map[string]shape{"name": textShape, "reason": maybeShape}}},
		"caps":  {keys: map[string]shape{"wheel_bytes": numberShape, "closure_bytes": numberShape, "files": numberShape}},
	}}
)

// walker compares a text with a shape. encoding/json alone would take a key in another
// case, or twice.
type walker struct {
	text   []byte
	tokens *json.Decoder
}

func (w *walker) value(path string, s shape) error {
	token, err := w.next()
	if err != nil {
		return err
	}
	switch {
	case s.keys != nil:
		if token != json.Delim('{') {
			return w.refuse(path, "it is not an object")
		}
		return w.object(path, s)
	case s.item != nil:
		if token != json.Delim('[') {
			return w.refuse(path, "it is not a list")
		}
		return w.list(path, *s.item)
	case s.number:
		number, ok := token.(json.Number)
		if _, err := strconv.ParseInt(number.String(), 10, 32<<(^uint(0)>>63)); !ok || err != nil {
			return w.refuse(path, "it is not a whole number, or too large")
		}
	default:
		if _, ok := token.(string); !ok {
			return w.refuse(path, "it is not a text")
		}
	}
	return nil
}

func (w *walker) object(path string, s shape) error {
	seen := map[string]bool{}
	for w.tokens.More() {
		token, err := w.next()
		if err != nil {
			return err
		}
		key, _ := token.(string) // the decoder takes nothing else here
		inner, known := s.keys[key]
		at := join(path, key)
		switch {
		case !known:
			return w.refuse(join(path, quote(key, 80)), "the key is not known")
		case seen[key]:
			return w.refuse(at, "the key is there twice")
		}
		seen[key] = true
		if err := w.value(at, inner); err != nil {
			return err
		}
	}
	if _, err := w.next(); err != nil {
		return err
	}
	for _, key := range sortedKeys(s.keys) {
		if !seen[key] && !s.keys[key].optional {
			return w.refuse(join(path, key), "it is missing")
		}
	}
	return nil
}

func (w *walker) list(path string, item shape) error {
	for i := 0; w.tokens.More(); i++ {
		if err := w.value(fmt.Sprintf("%s[%d]", path, i), item); err != nil {
			return err
		}
	}
	_, err := w.next()
	return err
}

func (w *walker) next() (json.Token, error) {
	token, err := w.tokens.Token()
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return nil, w.refuseAt(max(syntax.Offset, w.tokens.InputOffset()), "", "it is not JSON")
	}
	if err != nil {
		return nil, w.refuse("", "it is not complete")
	}
	return token, nil
}

func (w *walker) refuse(path, why string) error {
	return w.refuseAt(w.tokens.InputOffset(), path, why)
}

func (w *walker) refuseAt(offset int64, path, why string) error {
	line := 1 + bytes.Count(w.text[:min(offset, int64(len(w.text)))], []byte("\n"))
	return invalid(path, "line %d: %s", line, why)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func invalid(key, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if key != "" {
		text = key + ": " + text
	}
	return fmt.Errorf("%w: %s", ErrInvalid, text)
}
