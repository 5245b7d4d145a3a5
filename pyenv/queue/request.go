package queue

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/oklog/ulid/v2"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

// Request is what a workspace asked for, and what became of it. The texts that came
// with it (reason, client, names) are a stranger's and are kept as they came.
type Request struct {
	ID        string   `json:"id"`
	Workspace string   `json:"workspace"`
	Specs     []string `json:"specs,omitempty"` // in their normal form, sorted, once each
	Wheel     *Upload  `json:"wheel,omitempty"`
	Reason    string   `json:"reason,omitempty"`
	Session   string   `json:"session,omitempty"`
	Client    string   `json:"client,omitempty"` // what the client calls itself
	Call      string   `json:"call,omitempty"`   // the tool call, as the log names it

	State   State `json:"state"`
	Attempt int   `json:"attempt"` // 1 for the first since the last durable point

	Auto     bool      `json:"auto,omitempty"`  // the approval was an automatic one; kept by the queue
	Lock     string    `json:"lock,omitempty"`  // id of the solution
	Layer    string    `json:"layer,omitempty"` // id of what is built from it
	Iso      bool      `json:"iso,omitempty"`   // the layer takes the place of the base
	Findings []Finding `json:"findings,omitempty"`
	Notes    []string  `json:"notes,omitempty"` // sentences of the resolver
	Decision *Decision `json:"decision,omitempty"`
	Failure  *Failure  `json:"failure,omitempty"`

	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`
	Expires time.Time `json:"expires,omitzero"` // while it is pending_approval
}

// Upload is a wheel of the workspace that a request brings along.
type Upload struct {
	File   string `json:"file"`
	SHA256 string `json:"sha256"` // 64 hexadecimal digits
	Path   string `json:"path"`   // in the workspace
}

// Finding is one reason why a request is not approved by itself.
type Finding struct {
	Rule     string `json:"rule"`
	Package  string `json:"package,omitempty"`
	Sentence string `json:"sentence"`
	Tier     string `json:"tier"`
}

// Decision is an answer to a request. It is for one lock.
type Decision struct {
	Approve bool      `json:"approve"`
	By      string    `json:"by"` // "operator uid 1000 at /dev/pts/3", "catalog rev 3"
	How     string    `json:"how,omitempty"`
	Note    string    `json:"note,omitempty"`
	At      time.Time `json:"at"` // the time of the move that brings it, unless it is set
	Lock    string    `json:"lock,omitempty"`
}

// Failure says why nothing came of a request.
type Failure struct {
	Code     string    `json:"code"`
	Sentence string    `json:"sentence"`
	Hint     string    `json:"hint,omitempty"`
	Blocking *Blocking `json:"blocking,omitempty"`
}

// Blocking is the distribution that is in the way.
type Blocking struct {
	Name     string `json:"name"`
	Version  string `json:"version,omitempty"`
	PinnedBy string `json:"pinned_by,omitempty"`
	NeededBy string `json:"needed_by,omitempty"`
	Wanted   string `json:"wanted,omitempty"`
}

// Limits of a request; more is ErrInvalid.
const (
	MaxRecord = 240 << 10 // bytes of the whole record

	maxText     = 4096 // bytes of a reason, a note, a sentence, a hint, a path
	maxName     = 1024 // bytes of any other text
	maxFindings = 4000
	maxNotes    = 100
)

// check refuses what must not be in the database. It knows nothing of the rules by
// which a request is changed, see settle.
func (r *Request) check() error {
	switch {
	case !validID(r.ID):
		return invalid("the request has no id")
	case !validWorkspace(r.Workspace):
		return invalid("the workspace has no valid name")
	case !r.State.known():
		return invalid("state %q is not known", r.State)
	case r.Attempt < 1 || r.Attempt > MaxAttempts:
		return invalid("attempt %d is not from 1 to %d", r.Attempt, MaxAttempts)
	case len(r.Specs) == 0 && r.Wheel == nil:
		return invalid("the request asks for nothing")
	case len(r.Specs) > spec.MaxRequests || !slices.IsSorted(r.Specs):
		return invalid("the packages are too many or not sorted")
	case r.Lock != "" && !lock.ValidID(r.Lock):
		return invalid("%q is not the id of a lock", r.Lock)
	case r.Layer != "" && !lock.ValidLayerID(r.Layer):
		return invalid("%q is not the id of a layer", r.Layer)
	case r.Created.IsZero() || r.Updated.IsZero():
		return invalid("the request has no time")
	case len(r.Notes) > maxNotes:
		return invalid("%d notes are over the limit of %d", len(r.Notes), maxNotes)
	case len(r.Findings) > maxFindings:
		return invalid("%d findings are over the limit of %d", len(r.Findings), maxFindings)
	}
	return r.checkParts()
}

func (r *Request) checkParts() error {
	long := append([]string{r.Reason}, r.Notes...)
	short := append([]string{r.Session, r.Client, r.Call}, r.Specs...)
	if w := r.Wheel; w != nil {
		if w.File == "" || w.Path == "" || !validHash(w.SHA256) {
			return invalid("the wheel has no name, no path or no hash")
		}
		long, short = append(long, w.Path), append(short, w.File)
	}
	for _, f := range r.Findings {
		if f.Rule == "" || f.Tier == "" {
			return invalid("a finding has no rule or no tier")
		}
		long, short = append(long, f.Sentence), append(short, f.Rule, f.Package, f.Tier)
	}
	if d := r.Decision; d != nil {
		if d.By == "" || d.At.IsZero() || d.Lock != "" && !lock.ValidID(d.Lock) {
			return invalid("a decision says by whom, when and about which lock")
		}
		long, short = append(long, d.Note), append(short, d.By, d.How)
	}
	if f := r.Failure; f != nil {
		if f.Code == "" || f.Sentence == "" {
			return invalid("a failure has a code and a sentence")
		}
		long, short = append(long, f.Sentence, f.Hint), append(short, f.Code)
		if b := f.Blocking; b != nil {
			short = append(short, b.Name, b.Version, b.PinnedBy, b.NeededBy, b.Wanted)
		}
	}
	if err := checkTexts(maxText, long); err != nil {
		return err
	}
	return checkTexts(maxName, short)
}

// checkTexts refuses long ones, and those that JSON would change.
func checkTexts(most int, texts []string) error {
	for _, s := range texts {
		if len(s) > most {
			return invalid("a text of %d bytes is over the limit of %d", len(s), most)
		}
		if !utf8.ValidString(s) {
			return invalid("a text is not UTF-8")
		}
	}
	return nil
}

// validID says whether a text is an id as they are given out.
func validID(s string) bool {
	u, err := ulid.ParseStrict(s)
	return err == nil && u.String() == s // lower case would be another key
}

// validWorkspace allows what cannot be taken for another part of a key.
func validWorkspace(s string) bool {
	const most = 64
	return s != "" && len(s) <= most && !strings.ContainsFunc(s, func(r rune) bool {
		alnum := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		return !alnum && r != '-' && r != '_' && r != '.'
	})
}

// validHash says whether a text is a SHA-256, in lower case.
func validHash(s string) bool {
	const digits = 64
	return len(s) == digits && strings.Trim(s, "0123456789abcdef") == ""
}
