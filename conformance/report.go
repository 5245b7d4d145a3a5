package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// Report is what a suite found out about one implementation: a finding for each
// rule that it was asked to run, in the order of Rules.
type Report struct {
	Suite   string // "sandbox", "host"
	Subject string // the name that the implementation gives itself
	// Capabilities is what a backend declared; nil in other suites.
	Capabilities *sandboxrun.Capabilities
	Findings     []Finding
}

// Finding is what came of one rule.
type Finding struct {
	Rule     string
	Required bool // a skip of it is not OK
	Status   Status
	Reason   Reason // of a skip
	Detail   string // one line: what was expected and what was seen; empty when passed
	// Expected and Observed are set by a suite that compares what a probe saw
	// with a fixed expectation: names of errnos, or words.
	Expected, Observed string
	Took               time.Duration // wall time
}

// Status says how a rule ended.
type Status string

const (
	Passed  Status = "passed"
	Failed  Status = "failed"  // the implementation breaks the rule
	Weak    Status = "weak"    // it holds as far as this host lets it; Detail says what is missing
	Skipped Status = "skipped" // see Reason
	Broken  Status = "error"   // the rule could not be tried: a control failed, a call panicked or hung
)

// Reason says why a rule was skipped.
type Reason string

const (
	Undeclared      Reason = "undeclared"       // the implementation does not promise it
	UnsupportedHere Reason = "unsupported_here" // this host cannot show it
)

// Summary counts findings by status.
type Summary struct {
	Passed  int `json:"passed"`
	Failed  int `json:"failed"`
	Weak    int `json:"weak"`
	Skipped int `json:"skipped"`
	Error   int `json:"error"`
}

// Summary counts the findings.
func (r Report) Summary() Summary {
	var s Summary
	for _, f := range r.Findings {
		switch f.Status {
		case Passed:
			s.Passed++
		case Failed:
			s.Failed++
		case Weak:
			s.Weak++
		case Skipped:
			s.Skipped++
		default:
			s.Error++
		}
	}
	return s
}

// OK reports whether there are findings, nothing failed or broke, and no
// required rule was skipped. What is weak is said, and is no failure.
func (r Report) OK() bool {
	for _, f := range r.Findings {
		if f.Status != Passed && f.Status != Weak && (f.Status != Skipped || f.Required) {
			return false
		}
	}
	return len(r.Findings) > 0
}

// MarshalJSON writes the report for machines. The names of its fields, the ids
// of rules and their order do not change; fields and rules may be added.
func (r Report) MarshalJSON() ([]byte, error) {
	type finding struct {
		Rule     string `json:"rule"`
		Required bool   `json:"required"`
		Status   Status `json:"status"`
		Reason   Reason `json:"reason,omitempty"`
		Detail   string `json:"detail,omitempty"`
		Expected string `json:"expected,omitempty"`
		Observed string `json:"observed,omitempty"`
		TookMS   int64  `json:"took_ms"`
	}
	list := make([]finding, len(r.Findings))
	for i, f := range r.Findings {
		list[i] = finding{f.Rule, f.Required, f.Status, f.Reason, f.Detail, f.Expected, f.Observed, f.Took.Milliseconds()}
	}
	return json.Marshal(struct {
		Suite        string                   `json:"suite"`
		Subject      string                   `json:"subject"`
		OK           bool                     `json:"ok"`
		Summary      Summary                  `json:"summary"`
		Capabilities *sandboxrun.Capabilities `json:"capabilities,omitempty"`
		Findings     []finding                `json:"findings"`
	}{r.Suite, r.Subject, r.OK(), r.Summary(), r.Capabilities, list})
}

// WriteTable writes the report for people: a line for each rule, and the counts.
func (r Report) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, f := range r.Findings {
		fmt.Fprintf(t, "%s\t%s\t%s\n", strings.ToUpper(string(f.Status)), f.Rule, f.note())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	s, verdict := r.Summary(), "not OK"
	if r.OK() {
		verdict = "OK"
	}
	_, err := fmt.Fprintf(w, "%s %s: %d passed, %d failed, %d weak, %d skipped, %d errors: %s\n",
		r.Suite, r.Subject, s.Passed, s.Failed, s.Weak, s.Skipped, s.Error, verdict)
	return err
}

// note is the last column: why a rule has not passed, or what it says.
func (f Finding) note() string {
	switch {
	case f.Status == Passed && f.Observed != "":
		return meaning(f.Rule) + ": " + f.Observed
	case f.Status == Passed:
		return meaning(f.Rule)
	case f.Reason == "":
		return f.Detail
	case f.Required:
		return fmt.Sprintf("%s, but required: %s", f.Reason, f.Detail)
	}
	return fmt.Sprintf("%s: %s", f.Reason, f.Detail)
}
