package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/dgraph-io/badger/v4"
)

func roomy() error { return nil }

// A log that was dumped while records are added is loaded as it was when the dump began,
// and verifies; what keep leaves out is not there.
func TestDump(t *testing.T) {
	f := newFixture(t, Options{})
	ctx := context.Background()
	for i := range 300 {
		if _, err := f.log.Note(ctx, fmt.Sprint("stream", i%3), intentOf(name(i))); err != nil {
			t.Fatal(err)
		}
	}
	err := f.db.Update(func(txn *badger.Txn) error {
		return errors.Join(txn.Set([]byte("O|secret"), []byte("x")), txn.Set([]byte("zero"), nil))
	})
	if err = errors.Join(err, f.log.Sync(ctx)); err != nil {
		t.Fatal(err)
	}
	d := BeginDump(f.db, func(key []byte) bool { return !bytes.HasPrefix(key, []byte("O|")) })
	defer d.Close()
	for i := range 300 {
		if _, err := f.log.Append(ctx, "stream0", intentOf(name(1000+i))); err != nil {
			t.Fatal(err)
		}
	}
	size, err := d.Size()
	if err != nil {
		t.Fatal(err)
	}
	var dump bytes.Buffer
	if n, err := d.WriteTo(&dump); err != nil || n != size || int64(dump.Len()) != size {
		t.Fatalf("%d bytes were told, %d written, %d are there, %v", size, n, dump.Len(), err)
	}

	o := newFixture(t, Options{})
	o.close()
	o.dir = t.TempDir()
	if err := LoadDB(o.dir, &dump, roomy, nil); err != nil {
		t.Fatal(err)
	}
	o.open()
	for i := range 3 {
		stream := fmt.Sprint("stream", i)
		rep, err := o.log.Verify(ctx, stream)
		if err != nil || !rep.OK || rep.Records != 100 || len(rep.Dangling) != 100 {
			t.Errorf("%s: %+v, %v", stream, rep, err)
		}
	}
	err = o.db.View(func(txn *badger.Txn) error {
		if _, err := txn.Get([]byte("O|secret")); !errors.Is(err, badger.ErrKeyNotFound) {
			t.Errorf("what was left out is there: %v", err)
		}
		_, err := txn.Get([]byte("zero"))
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// What is no dump is refused, whatever it is.
func TestLoadOfNoDump(t *testing.T) {
	whole := dumpOf(t)
	for name, data := range map[string][]byte{
		"nothing":    nil,
		"other":      []byte("something else altogether"),
		"more":       append(bytes.Clone(whole), 0),
		"not rising": []byte(dumpMagic + "\x01\x01bx\x01\x01ax\x00\x00"),
		"twice":      []byte(dumpMagic + "\x01\x01ax\x01\x01ax\x00\x00"),
		"a long key": []byte(dumpMagic + "\xff\xff\x7f\x01"),
		"no length":  []byte(dumpMagic + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
		"no key":     []byte(dumpMagic + "\x00\x01x\x00\x00"),
		"inner key":  []byte(dumpMagic + "\x0b\x01!badger!txnx\x00\x00"),
	} {
		if err := LoadDB(t.TempDir(), bytes.NewReader(data), roomy, nil); err == nil {
			t.Errorf("%s: loaded", name)
		}
	}
	for n := 0; n < len(whole); n += max(len(whole)/40, 1) {
		if err := LoadDB(t.TempDir(), bytes.NewReader(whole[:n]), roomy, nil); !errors.Is(err, ErrDump) {
			t.Errorf("cut at %d of %d: %v", n, len(whole), err)
		}
	}
	full := errors.New("full")
	if err := LoadDB(t.TempDir(), bytes.NewReader(whole), func() error { return full }, nil); !errors.Is(err, full) {
		t.Errorf("without room: %v", err)
	}
}

func dumpOf(t *testing.T) []byte {
	t.Helper()
	f := newFixture(t, Options{})
	if _, err := f.log.Append(context.Background(), "s", intentOf("call")); err != nil {
		t.Fatal(err)
	}
	d := BeginDump(f.db, nil)
	defer d.Close()
	var b bytes.Buffer
	if _, err := d.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
