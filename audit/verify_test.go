package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4"
)

func get(t *badger.Txn, key []byte) ([]byte, error) {
	item, err := t.Get(key)
	if err != nil {
		return nil, err
	}
	return item.ValueCopy(nil)
}

// edit changes the bytes of a value.
func edit(key []byte, from, to string) func(*badger.Txn) error {
	return func(t *badger.Txn) error {
		value, err := get(t, key)
		if err != nil {
			return err
		}
		changed := bytes.Replace(value, []byte(from), []byte(to), 1)
		if bytes.Equal(changed, value) {
			return errors.New("nothing to edit")
		}
		return t.Set(key, changed)
	}
}

func setHead(n uint64, leaf string, settled uint64) func(*badger.Txn) error {
	return func(t *badger.Txn) error {
		h, err := json.Marshal(head{n, leaf, settled})
		if err != nil {
			return err
		}
		return t.Set(headKey(disk), h)
	}
}

// forged is a record that follows the one given, as only the log could write it.
func forged(t *badger.Txn, after uint64) (line []byte, err error) {
	before, err := get(t, recordKey(disk, after))
	if err != nil {
		return nil, err
	}
	r, err := Decode(before)
	if err != nil {
		return nil, err
	}
	r.N, r.Prev, r.Body, r.Argd = after+1, leafOf(before).String(), "", ""
	return r.append(nil), nil
}

func TestVerifyNamesTheFirstBadRecord(t *testing.T) {
	cases := map[string]struct {
		tamper func(*badger.Txn) error
		n      uint64
		reason string
	}{
		"a value edited":      {edit(recordKey(disk, 4), "write_file", "write_fire"), 4, ReasonHash},
		"the first edited":    {edit(recordKey(disk, 1), `"allow"`, `"admit"`), 1, ReasonHash},
		"the last edited":     {edit(recordKey(disk, 10), `"allow"`, `"admit"`), 10, ReasonHash},
		"no longer canonical": {edit(recordKey(disk, 4), `"tool"`, ` "tool"`), 4, ReasonContent},
		"prev edited":         {edit(recordKey(disk, 5), `"prev":"`, `"prev":"0`), 5, ReasonContent},
		"prev in upper case": {func(t *badger.Txn) error {
			line, err := get(t, recordKey(disk, 5))
			if err != nil {
				return err
			}
			i := bytes.Index(line, []byte(`"prev":"`)) + len(`"prev":"`)
			copy(line[i:], bytes.ToUpper(line[i:i+64]))
			return t.Set(recordKey(disk, 5), line)
		}, 5, ReasonContent},
		"dropped":           {func(t *badger.Txn) error { return t.Delete(recordKey(disk, 6)) }, 6, ReasonMissing},
		"the first dropped": {func(t *badger.Txn) error { return t.Delete(recordKey(disk, 1)) }, 1, ReasonMissing},
		"the last dropped":  {func(t *badger.Txn) error { return t.Delete(recordKey(disk, 10)) }, 10, ReasonMissing},
		"dropped and closed up": {func(t *badger.Txn) error {
			for n := uint64(6); n < 10; n++ {
				line, err := get(t, recordKey(disk, n+1))
				if err == nil {
					err = t.Set(recordKey(disk, n), line)
				}
				if err != nil {
					return err
				}
			}
			return t.Delete(recordKey(disk, 10))
		}, 6, ReasonNumber},
		"reordered": {func(t *badger.Txn) error {
			a, err := get(t, recordKey(disk, 3))
			if err != nil {
				return err
			}
			b, err := get(t, recordKey(disk, 4))
			if err != nil {
				return err
			}
			return errors.Join(t.Set(recordKey(disk, 3), b), t.Set(recordKey(disk, 4), a))
		}, 3, ReasonNumber},
		"replaced by a forged one that follows": {func(t *badger.Txn) error {
			line, err := forged(t, 6)
			if err != nil {
				return err
			}
			return errors.Join(t.Set(recordKey(disk, 7), line), t.Delete(bodyKey(disk, 7)))
		}, 7, ReasonHash},
		"inserted at the end": {func(t *badger.Txn) error {
			line, err := forged(t, 10)
			if err != nil {
				return err
			}
			return t.Set(recordKey(disk, 11), line)
		}, 11, ReasonExtra},
		"inserted before the first": {func(t *badger.Txn) error { return t.Set(recordKey(disk, 0), []byte("{}")) }, 0, ReasonExtra},
		"a row that is no record":   {func(t *badger.Txn) error { return t.Set(append(streamPrefix(recordPrefix, disk), 'x'), nil) }, 0, ReasonExtra},
		"taken from another stream": {func(t *badger.Txn) error {
			line, err := get(t, recordKey("other", 1))
			if err != nil {
				return err
			}
			return t.Set(recordKey(disk, 1), line)
		}, 1, ReasonHash},
		"head moved back": {func(t *badger.Txn) error {
			line, err := get(t, recordKey(disk, 8))
			if err != nil {
				return err
			}
			return setHead(8, leafOf(line).String(), 8)(t)
		}, 9, ReasonExtra},
		"head moved on":           {setHead(12, strings.Repeat("0", 64), 10), 11, ReasonMissing},
		"head with another hash":  {setHead(10, strings.Repeat("0", 64), 10), 10, ReasonHash},
		"head that hides a call":  {edit(headKey(disk), `"settled":8`, `"settled":9`), 9, ReasonHead},
		"head dropped":            {func(t *badger.Txn) error { return t.Delete(headKey(disk)) }, 1, ReasonExtra},
		"body edited":             {edit(bodyKey(disk, 5), `{"salt":"`, `{"salt":"0`), 5, ReasonBody},
		"body without a record's": {func(t *badger.Txn) error { return t.Set(bodyKey(disk, 4), []byte("{}")) }, 4, ReasonBody},
		"two edited, first is told": {func(t *badger.Txn) error {
			return errors.Join(edit(recordKey(disk, 8), "write_file", "write_fire")(t), edit(recordKey(disk, 2), "write_file", "write_fire")(t))
		}, 2, ReasonHash},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Options{})
			for _, call := range []string{"a", "b", "c", "d"} {
				f.call(disk, call)
			}
			f.append(disk, intentOf("open")) // 9
			f.append(disk, Entry{Record: Record{Ev: EvFsck, Tool: "write_file", Dec: "allow"}})
			f.append("other", intentOf("x"))
			f.intact(disk, 10)
			f.tamper(c.tamper)
			r := f.verify(disk)
			if r.OK || r.Reason != c.reason || r.BadN != c.n {
				t.Fatalf("want %s at %d, got %+v", c.reason, c.n, r)
			}
			if r.Want == r.Got || r.Want == "" && c.reason != ReasonBody {
				t.Errorf("want %q, got %q say nothing", r.Want, r.Got)
			}
			f.intact("other", 1)
		})
	}
}

func TestVerifySaysWhatItDidNotCheck(t *testing.T) {
	f := newFixture(t, Options{})
	f.call(disk, "a")
	r := f.verify(disk)
	if !r.OK || r.First != 1 || r.Last != 2 || r.Bodies != 1 || len(r.NotChecked) != 3 {
		t.Errorf("%+v", r)
	}
	f.tamper(func(t *badger.Txn) error { return t.Delete(bodyKey(disk, 1)) })
	r = f.verify(disk)
	if !r.OK || r.Bodies != 0 || !slices.Contains(r.NotChecked, "1 bodies that are no longer there") {
		t.Errorf("%+v", r)
	}
	if r = f.verify("nobody"); !r.OK || r.Records != 0 || r.First != 0 {
		t.Errorf("%+v", r)
	}
}

func TestVerifyEndsWithItsContext(t *testing.T) {
	f := newFixture(t, Options{})
	f.call(disk, "a")
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("enough")
	cancel(cause)
	if _, err := f.log.Verify(ctx, disk); !errors.Is(err, cause) {
		t.Errorf("error %v", err)
	}
	err := f.log.Query(ctx, Query{}, func([]byte, Record) error { return nil })
	if !errors.Is(err, cause) {
		t.Errorf("error %v", err)
	}
}

// The seams between segments are checked, and a call may be open across them.
func TestVerifyOverSegments(t *testing.T) {
	f := newFixture(t, Options{})
	const records = 2*segmentSize + 100
	f.append(disk, intentOf("across"))
	for i := 1; i < records-1; i++ {
		f.note(disk, Entry{Record: Record{Ev: EvCallRead, Call: name(i)}})
	}
	f.append(disk, outcomeOf("across"))
	f.intact(disk, records)
	if r := f.verify(disk); r.Dangling != nil {
		t.Errorf("dangling %v", r.Dangling)
	}
	for _, n := range []uint64{segmentSize, segmentSize + 1, 2 * segmentSize, 2*segmentSize + 1} {
		f.tamper(edit(recordKey(disk, n), `"call.read"`, `"call.lead"`))
		if r := f.verify(disk); r.BadN != n || r.Reason != ReasonHash {
			t.Errorf("edited %d, got %+v", n, r)
		}
		f.tamper(edit(recordKey(disk, n), `"call.lead"`, `"call.read"`))
	}
	f.tamper(func(t *badger.Txn) error { return t.Delete(recordKey(disk, segmentSize+1)) })
	if r := f.verify(disk); r.BadN != segmentSize+1 || r.Reason != ReasonMissing {
		t.Errorf("%+v", r)
	}
}

func TestAHeadThatCannotBeReadStopsTheStart(t *testing.T) {
	f := newFixture(t, Options{})
	f.call(disk, "a")
	for name, value := range map[string]string{"no JSON": "nonsense", "no hash": `{"n":2,"leaf":"xy","settled":2}`} {
		t.Run(name, func(t *testing.T) {
			if f.log != nil {
				f.log.Close()
				f.log = nil
			}
			if err := f.db.Update(func(t *badger.Txn) error { return t.Set(headKey(disk), []byte(value)) }); err != nil {
				t.Fatal(err)
			}
			if _, err := New(f.db, f.tailPath(), Options{}); !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), disk) {
				t.Errorf("error %v", err)
			}
		})
	}
}
