package schemas_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/schemas"
)

// FuzzValidate holds what the package promises of any bytes: no panic, faults fit to be shown, and accepted arguments that
// are a JSON object, mean what a plain JSON decoder reads, and validate again to the same bytes.
func FuzzValidate(f *testing.F) {
	for _, seed := range []string{
		``, `null`, `{}`, `[]`, `"x"`, `5`, `true`, `{"path":"a"}`, `{"path":"a","content":"b"}{}`, `{"path":"a",}`, `{"path" "a"}`,
		`{"path":null}`, `{"path":"\ud800"}`, `{"path":"\ud83d\ude00"}`, `{"path":"\\ud800"}`, "{\"path\":\"\xff\"}", `{"limit":"12","recursive":"true"}`,
		`{"limit":1e999999999}`, `{"limit":2.50e1}`, `{"limit":-0.0}`, `{"limit":012}`, `{"path":"a","path":"b"}`, `{"args":["a"],"language":"bash"}`,
		`{"action":"wait","timeout_s":50,"request_id":"x"}`, `[[[[[[[[[[[[[[[[[[[[`, `{"a":{"a":{"a":{"a":{"a":{"a":`, "\ufeff{}", `{"path":"a"} x`,
		`{"path":"a","byte_offset":9223372036854775808}`, `{"":1}`, `{"mode":"replace","old_text":"x","replace_all":false,"path":"a","content":""}`,
	} {
		for i := range schemas.Names() {
			f.Add(byte(i), []byte(seed))
		}
	}
	f.Fuzz(func(t *testing.T, tool byte, raw []byte) {
		names := schemas.Names()
		name := names[int(tool)%len(names)]
		got, err := schemas.Validate(name, raw)
		if err != nil {
			checkInvalid(t, err)
			return
		}
		if len(raw) > 0 && !json.Valid(raw) {
			t.Fatalf("%s took %q, which is not JSON", name, raw)
		}
		again, err := schemas.Validate(name, got)
		if err != nil || !bytes.Equal(got, again) {
			t.Fatalf("%q became %q, then %q, %v", raw, got, again, err)
		}
		checkSame(t, raw, got)
	})
}

func checkInvalid(t *testing.T, err error) {
	t.Helper()
	var invalid *schemas.Invalid
	if !errors.As(err, &invalid) || len(invalid.Faults) == 0 || len(invalid.Faults) > 20 {
		t.Fatalf("error is %#v", err)
	}
	checkText(t, err.Error())
	for _, f := range invalid.Faults {
		checkText(t, f.String())
		if f.Kind == 0 {
			t.Errorf("%v has no kind", f)
		}
	}
	if !slices.IsSortedFunc(invalid.Faults, func(a, b schemas.Fault) int {
		return bytes.Compare([]byte(a.Path+"\x00"+a.Message), []byte(b.Path+"\x00"+b.Message))
	}) {
		t.Errorf("faults are not sorted: %v", invalid.Faults)
	}
}

// checkSame compares texts and arrays, which are never converted, with what encoding/json reads in the original.
func checkSame(t *testing.T, raw, got []byte) {
	t.Helper()
	var before, after map[string]any
	if len(raw) > 0 {
		decode(t, raw, &before)
	}
	decode(t, got, &after)
	for key, v := range before {
		switch v.(type) {
		case nil:
			if _, kept := after[key]; kept {
				t.Errorf("%s was null and is now %v", key, after[key])
			}
			continue
		case string:
			if _, kept := after[key].(string); !kept {
				continue // "true" or "12", converted
			}
		}
		if !reflect.DeepEqual(v, after[key]) {
			t.Errorf("%s was %v and is now %v", key, v, after[key])
		}
	}
	if len(after) > len(before) {
		t.Errorf("members appeared: %s", got)
	}
}
