package resolve

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// Request is what is to be resolved.
type Request struct {
	Specs  []spec.Requirement  // by spec.ParseRequests
	Pins   map[string]string   // name to version of what is there: no other version of it will do
	PinsOf func(string) string // who pins a name, for Blocking.PinnedBy; nil: "base"
	Cutoff time.Time           // nothing uploaded at or after this time is looked at; zero: anything
	Sure   bool                // the names are no guesses: an index without one of them is the wrong index
	Config Config
}

// Resolution is one solution: all that Specs need, what is there already included.
type Resolution struct {
	Packages []lock.Package // sorted by name
	Notes    []string       // sentences for who decides: what was passed over, what is not known
	Resolver string         // "pip/26.2.1"
}

// Limits of a request.
const (
	maxSpecs = 100
	maxPins  = 1000
)

// Resolve finds a solution, and downloads no wheel that an index tells the metadata of.
// It takes at most 180 seconds, and some for what it asks besides.
//
// Errors: an *Error of any code but bad_spec's; the cause of ctx, wrapped.
func (p *Pip) Resolve(ctx context.Context, q Request) (Resolution, error) {
	if err := q.check(); err != nil {
		return Resolution{}, err
	}
	a := attempt{pip: p, q: q}
	if p.Lacks != "" {
		a.note("%s", p.Lacks)
	}
	if !q.Cutoff.IsZero() && !p.atLeast("26.0") {
		a.note("pip %s cannot leave out what was uploaded lately; look at the times.", p.Version)
		a.q.Cutoff = time.Time{}
	}
	report, err := a.pipInstall(ctx)
	if a.noTimes {
		a.note("The index does not tell when files were uploaded, so nothing was left out for being new.")
		a.q.Cutoff = time.Time{}
		report, err = a.pipInstall(ctx)
	}
	if err != nil {
		return Resolution{}, err
	}
	packages, err := a.accept(ctx, report)
	if err != nil {
		return Resolution{}, err
	}
	return Resolution{Packages: packages, Notes: a.notes, Resolver: p.Name()}, nil
}

func (q Request) check() error {
	if len(q.Specs) == 0 || len(q.Specs) > maxSpecs || len(q.Pins) > maxPins {
		return fail(ErrResolverFailed, "a request has 1 to %d packages and at most %d pins", maxSpecs, maxPins)
	}
	for _, s := range q.Specs {
		// Whoever has made it, what goes to pip is what ParseRequest would take.
		if _, err := spec.ParseRequest(s.String()); err != nil || !s.Marker.IsZero() || s.URL != "" {
			return fail(ErrDirectURL, "a request names packages of the index and versions, nothing else")
		}
	}
	for name, version := range q.Pins {
		if v, err := spec.ParseVersion(version); err != nil || spec.NormalizeName(name) != name || !spec.ValidName(name) || strings.TrimSpace(v.String()) == "" {
			return fail(ErrResolverFailed, "a pin is no name with a version")
		}
	}
	return nil
}

// attempt is one run of Resolve.
type attempt struct {
	pip     *Pip
	q       Request
	notes   []string
	noTimes bool // the index lacks what Cutoff needs
}

func (a *attempt) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(a.notes, n) {
		a.notes = append(a.notes, n)
	}
}

// pipInstall lets pip find a solution and returns its report.
func (a *attempt) pipInstall(ctx context.Context) ([]byte, error) {
	a.noTimes = false
	args := common("install", "--dry-run", "--ignore-installed", "--report", "/out/report.json", "-c", "/run/vdisk/constraints.txt")
	if !a.q.Cutoff.IsZero() {
		args = append(args, "--uploaded-prior-to", a.q.Cutoff.UTC().Format(time.RFC3339))
	}
	args = append(args, "--")
	for _, s := range a.q.Specs {
		args = append(args, s.String())
	}
	var pins strings.Builder
	for _, name := range slices.Sorted(maps.Keys(a.q.Pins)) {
		fmt.Fprintf(&pins, "%s==%s\n", name, a.q.Pins[name])
	}
	var report []byte
	res, err := a.pip.run(ctx, job{
		script: runPath, args: args, config: a.q.Config, timeout: a.pip.limit(), space: 512 << 20,
		data: []sandboxrun.Data{{Path: "/run/vdisk/constraints.txt", Bytes: []byte(pins.String())}},
		out:  keep("report.json", &report),
	})
	if err != nil {
		return nil, err
	}
	if err := ended(res, "find a solution", a.pip.limit()); err != nil {
		return nil, a.withDetail(err, res)
	}
	if res.ExitCode == 0 && report != nil {
		return report, nil
	}
	a.noTimes = !a.q.Cutoff.IsZero() && strings.Contains(string(res.Stderr.Text), "does not provide upload-time metadata")
	if a.noTimes {
		return nil, nil
	}
	return nil, a.withDetail(a.explain(ctx, res), res)
}

// withDetail adds the end of what pip said.
func (a *attempt) withDetail(err error, res sandboxrun.JailResult) error {
	if e, ok := err.(*Error); ok && e.Detail == "" {
		e.Detail = a.q.Config.tail(slices.Concat(res.Stdout.Text, []byte("\n"), res.Stderr.Text))
	}
	return err
}
