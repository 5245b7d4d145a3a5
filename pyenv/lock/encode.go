package lock

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Encode returns the one form of a lock: JSON with sorted keys, indented by two
// spaces so that a change can be read as a diff, and a newline at its end. What
// has no order of its own (packages, requirements, names, flags) is sorted, times
// are UTC and whole seconds. It is idempotent: Encode of what Parse returns gives
// the same bytes.
//
// Errors: ErrInvalid.
func (l Lock) Encode() ([]byte, error) {
	l = l.inOrder()
	if err := l.check(); err != nil {
		return nil, err
	}
	return canonical(l, "  ")
}

// Parse reads what Encode wrote, and nothing else: an unknown or double key,
// another order or another space is no lock. Errors: ErrInvalid.
func Parse(b []byte) (Lock, error) {
	if len(b) > maxLock {
		return Lock{}, invalid("%d bytes are over the limit of %d", len(b), maxLock)
	}
	var l Lock
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return Lock{}, invalid("it is not the JSON of a lock")
	}
	again, err := l.Encode()
	if err != nil {
		return Lock{}, err
	}
	if !bytes.Equal(b, again) {
		return Lock{}, invalid("it is not in the form in which locks are written")
	}
	return l, nil
}

// maxLock is the size of the largest lock: some thousand packages.
const maxLock = 4 << 20

// inOrder returns a copy in which equal locks are equal.
func (l Lock) inOrder() Lock {
	l.Requested = set(l.Requested)
	l.Cutoff = second(l.Cutoff)
	l.Packages = slices.Clone(l.Packages)
	slices.SortFunc(l.Packages, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	for i := range l.Packages {
		p := &l.Packages[i]
		p.Uploaded = second(p.Uploaded)
		p.Requires, p.Tops, p.Flags = set(p.Requires), set(p.Tops), set(p.Flags)
	}
	return l
}

// set sorts a copy and drops doubles. It is never nil, so that it is written as [].
func set(list []string) []string {
	sorted := append([]string{}, list...)
	slices.Sort(sorted)
	return slices.Compact(sorted)
}

func second(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }

// canonical writes a value with the keys of every object sorted.
func canonical(v any, indent string) ([]byte, error) {
	plain, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(plain))
	d.UseNumber() // a float64 would round sizes
	var tree any
	if err := d.Decode(&tree); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out) // sorts the keys of maps
	e.SetEscapeHTML(false)     // "pandas>=2" stays readable
	e.SetIndent("", indent)
	if err := e.Encode(tree); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	return out.Bytes(), nil
}
