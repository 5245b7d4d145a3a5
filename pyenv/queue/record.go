package queue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// schema is the form of the records. One that is added to, too, gets another number.
const schema = 1

// record is how a value is kept.
type record[T any] struct {
	Schema int `json:"schema"`
	Value  T   `json:"value"`
}

// checked is what a value can say about itself.
type checked[T any] interface {
	*T
	check() error
}

// encode returns the bytes of a value, of which decode makes an equal one.
// Errors: ErrInvalid.
func encode[T any, P checked[T]](v T) ([]byte, error) {
	if err := P(&v).check(); err != nil {
		return nil, err
	}
	b, err := json.Marshal(record[T]{schema, v})
	if err != nil {
		return nil, invalid("%v", err)
	}
	if len(b) > MaxRecord {
		return nil, invalid("a record of %d bytes is over the limit of %d", len(b), MaxRecord)
	}
	return b, nil
}

// decode reads what encode wrote, and nothing else. Errors: ErrUnreadable.
func decode[T any, P checked[T]](b []byte) (v T, err error) {
	if len(b) > MaxRecord {
		return v, unreadable("it has %d bytes", len(b))
	}
	var form struct {
		Schema int `json:"schema"`
	}
	if err := json.Unmarshal(b, &form); err != nil {
		return v, unreadable("it is damaged")
	}
	if form.Schema != schema {
		return v, unreadable("it has form %d, and this program reads form %d", form.Schema, schema)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var r record[T]
	if err := d.Decode(&r); err != nil {
		return v, unreadable("it is damaged, or another version of this program wrote it")
	}
	again, err := encode[T, P](r.Value)
	if err != nil {
		return v, unreadable("it is damaged: %v", err)
	}
	if !bytes.Equal(again, b) {
		return v, unreadable("it is not in the form in which records are written")
	}
	return r.Value, nil
}

func unreadable(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnreadable, fmt.Sprintf(format, args...))
}

// about says which record an error is about.
func about(key string, err error) error {
	if errors.Is(err, ErrUnreadable) {
		return fmt.Errorf("%s: %w", key, err)
	}
	return err
}
