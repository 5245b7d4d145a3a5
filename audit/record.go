package audit

import "time"

// Limits of a record, in bytes of its canonical line.
const (
	MaxRecord  = 16 << 10 // the line as a whole
	MaxFact    = 512      // one fact, in its JSON form; what is longer is cut
	MaxChanges = 12 << 10 // the list of changed paths of an outcome
	MaxInt     = 1<<53 - 1
)

// Version is the format of the records written now.
const Version = 1

// Record is one entry of a stream. The order of the fields is the order of the
// keys in the canonical line; an optional field that is empty is left out.
//
// The log itself sets V, N, Prev, T, Mono, Boot, Run, Argd and Body.
type Record struct {
	V      int       // format of the line
	N      uint64    // position in the stream, from 1
	Prev   string    // leaf hash of record N-1, hex; the genesis hash of the stream for N = 1
	T      time.Time // wall clock, UTC, in microseconds
	Mono   int64     // microseconds since boot
	Boot   string    // id of this boot of the host
	Run    string    // id of this run of the process
	Ev     Event     // what happened
	Call   string    // ULID of the call; an intent and its outcome share it
	Tool   string    // name of the tool, as asked for
	Act    string    // actor: who is behind the call
	Cli    string    // client, name/version
	Proto  string    // protocol version
	Rid    string    // JSON-RPC id of the request
	Img    string    // UUID of the image
	Args   Facts     // public facts of the arguments: never bodies, never source
	Argd   string    // HMAC-SHA256 of the raw arguments, keyed with the salt in the body, hex
	Src    string    // SHA-256 of the executed source, hex
	Cap    Facts     // what this caller may do
	Env    Facts     // interpreter, layers and locks in force
	Dec    string    // "allow" or "deny"
	Reason string    // why, in one plain sentence
	Err    string    // code of the error
	Out    *Out      // what came out
	Hb     string    // commit of the image before
	Ha     string    // commit of the image after
	Fence  uint64    // fencing token
	Dur    int64     // microseconds that the call took
	Red    int64     // how many redactions were made in the body
	Body   string    // SHA-256 of the prunable body, hex

	// Stream is where the record was read from. It is not part of the line;
	// the genesis hash ties the chain to it.
	Stream string
}

// Facts are small public values by name: string, bool, any integer, []string.
// Anything else is written as its text. Names are ASCII letters, digits, "_" and
// "-" (≤ 48 bytes), another name is replaced by "x-" and a digest. A value whose
// JSON form is over [MaxFact] bytes is cut, and two facts more say what it was:
// NAME.sha256 (of the whole value) and NAME.bytes, or NAME.items for a list.
type Facts map[string]any

// Out is what came out of a call.
type Out struct {
	OK     bool
	Code   string // error code
	Bytes  int64  // size of the result or of what was written
	Digest string // SHA-256 of the same, hex

	// Of scripts and other changes.
	Outcome       string // exited, timed_out, …
	Exit          *int   // exit code, when the process exited
	Changed       int64  // number of changed paths
	Changes       []ChangeFact
	ChangesDigest string // SHA-256 over the JSON form of every change and "\n", hex
}

// ChangeFact is one changed path.
type ChangeFact struct {
	Path       string
	PathSHA256 string // of the whole path when Path was cut; set by the log
	Kind       string // created, modified, deleted, touched, mode
	SHA256     string // of the new content, hex
}

// Entry is what a caller hands to the log.
type Entry struct {
	Record

	// RawArgs are the arguments as they came, byte for byte. Only their salted
	// digest is kept (Argd). nil: no digest and no body.
	RawArgs []byte

	// Changes are all changed paths. As many as fit stay in Out.Changes, in the
	// order given; Out.Changed and Out.ChangesDigest cover all.
	Changes []ChangeFact
}

// Receipt says where a record stands. A client that keeps it is a witness: the
// record can no longer be removed unnoticed.
type Receipt struct {
	Stream string `json:"stream"`
	N      uint64 `json:"n"`
	Leaf   string `json:"leaf"` // RFC 6962 leaf hash of the record's line, hex
}

// MarshalJSON gives the canonical line: for a record that came from the log the
// very bytes that were hashed. json.Marshal escapes < > & and U+2028 on top of
// that; an Encoder with SetEscapeHTML(false) does not.
func (r Record) MarshalJSON() ([]byte, error) { return r.append(nil), nil }

// UnmarshalJSON takes a canonical line only; see [Decode].
func (r *Record) UnmarshalJSON(line []byte) error {
	d, err := Decode(line)
	if err == nil {
		*r = d
	}
	return err
}
