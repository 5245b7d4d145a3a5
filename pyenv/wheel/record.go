package wheel

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/csv"
	"hash"
	"io"
	"strconv"
	"strings"
)

// recorded is the row of RECORD for a file.
type recorded struct {
	listed    bool
	algorithm string // "" when there is no row, or one without hash
	sum       []byte
}

// newHash makes the hash of an algorithm that is strong enough, nil for others.
func newHash(algorithm string) hash.Hash {
	switch algorithm {
	case "sha256":
		return sha256.New()
	case "sha384":
		return sha512.New384()
	case "sha512":
		return sha512.New()
	}
	return nil
}

// readRecord reads RECORD and gives every file its hash. Every file must have a
// row, but for RECORD itself and its signatures, and every row a file.
func readRecord(text []byte, dir string, entries []*entry) error {
	files := make(map[string]*entry, len(entries))
	for _, e := range entries {
		if !e.dir {
			files[e.name] = e
		}
	}
	rows := csv.NewReader(bytes.NewReader(text))
	rows.FieldsPerRecord, rows.ReuseRecord = 3, true
	for {
		row, err := rows.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return refuse(ErrRecordInvalid, dir+"RECORD", "it is not a table of three columns")
		}
		e := files[row[0]]
		switch {
		case e == nil:
			return refuse(ErrRecordExtra, row[0], "RECORD lists it, and it is not in the wheel")
		case e.hash.listed:
			return refuse(ErrRecordInvalid, row[0], "RECORD lists it twice")
		}
		e.hash.listed = true
		if signature(dir, e.name) {
			continue
		}
		if err := e.setHash(row[1], row[2]); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if !e.dir && !e.hash.listed && !signature(dir, e.name) {
			return refuse(ErrRecordMissing, e.name, "RECORD does not list it")
		}
	}
	return nil
}

// signature says whether a file cannot be in RECORD with its hash.
func signature(dir, name string) bool {
	rest, ok := strings.CutPrefix(name, dir)
	return ok && (rest == "RECORD" || rest == "RECORD.jws" || rest == "RECORD.p7s")
}

// setHash reads "sha256=<base64>" and the size of a row.
func (e *entry) setHash(digest, size string) error {
	algorithm, text, _ := strings.Cut(digest, "=")
	h := newHash(algorithm)
	if h == nil {
		return refuse(ErrRecordWeak, e.name, "RECORD has no SHA-256, SHA-384 or SHA-512 of it")
	}
	sum, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(sum) != h.Size() {
		return refuse(ErrRecordInvalid, e.name, "RECORD has a %s of it that cannot be read", algorithm)
	}
	n, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return refuse(ErrRecordInvalid, e.name, "RECORD does not have its size")
	}
	if n != e.size {
		return refuse(ErrRecordMismatch, e.name, "it has %d bytes, RECORD says %d", e.size, n)
	}
	e.hash.algorithm, e.hash.sum = algorithm, sum
	return nil
}
