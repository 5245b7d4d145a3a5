package audit

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A process that is killed while it opens the database may leave files of size
// zero, which Badger itself does not open again.
func TestFilesThatAKilledProcessJustMade(t *testing.T) {
	f := newFixture(t, Options{})
	want := f.append("s", Entry{Record: Record{Ev: EvCallRead}})
	f.close()
	for _, name := range []string{"00001.mem", "00002.mem", "00009.mem", "000002.vlog", "000017.vlog"} {
		file, err := os.OpenFile(filepath.Join(f.dir, name), os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
	f.open()
	got, err := f.log.Verify(t.Context(), "s")
	if err != nil || !got.OK || got.Records != 1 || want.N != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestAnOpenDatabaseKeepsItsFiles(t *testing.T) {
	f := newFixture(t, Options{})
	name := filepath.Join(f.dir, "00999.mem")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := removeUnborn(f.dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(name); err != nil {
		t.Errorf("a file of an open database was removed: %v", err)
	}
}
