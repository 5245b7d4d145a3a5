package wheel

import (
	"fmt"
	"strconv"
	"strings"
)

// Error says which rule a wheel breaks, where, and how. Its text is one line of
// "code: path: sentence", holds nothing of the host, and shows what came from
// the wheel in quotes.
type Error struct {
	Code   Code
	Path   string // entry of the wheel, "" for the wheel as a whole
	Detail string
}

// Code is a kind of failure; test for one with errors.Is.
type Code string

// The codes. They are stable: approvals, logs and agents go by them.
const (
	ErrHashMismatch    Code = "hash_mismatch"    // the file is not the one that was locked
	ErrZipDamaged      Code = "zip_damaged"      // not a zip file, or cut off, or its data is broken
	ErrZipAmbiguous    Code = "zip_ambiguous"    // two readers might see two different archives
	ErrZipPath         Code = "zip_path"         // a name that leads out, or is no plain relative path
	ErrZipDuplicate    Code = "zip_duplicate"    // two entries would be one file
	ErrZipType         Code = "zip_type"         // neither a regular file nor a directory
	ErrZipBomb         Code = "zip_bomb"         // more entries or bytes than allowed or stated
	ErrRecordAbsent    Code = "record_absent"    // there is no RECORD
	ErrRecordInvalid   Code = "record_invalid"   // RECORD cannot be read
	ErrRecordMissing   Code = "record_missing"   // a file that RECORD does not list
	ErrRecordExtra     Code = "record_extra"     // RECORD lists a file that is not there
	ErrRecordMismatch  Code = "record_mismatch"  // a file's hash or size is not that of RECORD
	ErrRecordWeak      Code = "record_weak"      // a hash that is missing or too weak
	ErrWheelMetadata   Code = "wheel_metadata"   // the wheel contradicts itself or the format
	ErrDirectURL       Code = "direct_url"       // it needs something by URL
	ErrStdlibShadow    Code = "stdlib_shadow"    // it brings a module of Python itself
	ErrPthPath         Code = "pth_path"         // a .pth line leads out of the layer
	ErrImportCollision Code = "import_collision" // a file is already there, from another wheel
)

// StartupCode is the code of a wheel that would run code at every start of
// Python. It is no failure: Wheel.Startup tells it, and somebody has to approve.
const StartupCode Code = "startup_code"

// Error is the code.
func (c Code) Error() string { return string(c) }

// Error is "code: path: sentence".
func (e *Error) Error() string {
	parts := []string{string(e.Code)}
	if e.Path != "" {
		parts = append(parts, quote(e.Path))
	}
	if e.Detail != "" {
		parts = append(parts, e.Detail)
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the code.
func (e *Error) Unwrap() error { return e.Code }

func refuse(code Code, path, format string, args ...any) error {
	return &Error{Code: code, Path: path, Detail: fmt.Sprintf(format, args...)}
}

// quote shows a stranger's text, cut to 120 bytes.
func quote(s string) string {
	const most = 120
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.Quote(s)
}
