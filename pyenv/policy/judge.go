package policy

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

// Input is a solution and what is around it. Lock and Now have to be given, and Catalog.
type Input struct {
	Lock      lock.Lock          // of kind X: what is new; of kind Iso: all that the workspace will have
	Requested []spec.Requirement // what this request asks for
	Base      []lock.Package     // of the base that the workspace has
	Held      []lock.Package     // of the x layers that it has besides
	Replaces  []Change           // pins of the base that an isolated layer moves; those that show in Lock and Base need not be told

	// Wheels are the contents of wheels, by SHA-256: of Lock once they were fetched, of
	// Base and Held as their manifests tell them.
	Wheels map[string]WheelFacts

	Upload  bool      // a wheel of the workspace is part of the request
	Indexes int       // that the resolver could ask
	Now     time.Time // a server's clock, and so perhaps a wrong one

	// Distribution says which project a module comes in ("docx": "python-docx"), "" for
	// none; nil knows none.
	Distribution func(module string) string

	Catalog Catalog
}

// Change is one package in another version.
type Change struct {
	Name string `json:"name"` // normalised
	From string `json:"from"`
	To   string `json:"to"`
}

// WheelFacts is what a wheel holds.
type WheelFacts struct {
	Size    int64    // of the file, bytes
	Tops    []Top    // what it adds to the import path
	Paths   []string // files of the layer that it unpacks to
	Disk    int64    // bytes of these
	Startup []string // lines of code that it would run at every start
	Scripts []string // commands
	Native  bool     // it has machine code
}

// Top is a name that a wheel adds to the import path, as package wheel tells it.
type Top struct {
	Name    string
	Package bool // it is a module or has an __init__: a directory of this name elsewhere is hidden by it
}

// Verdict is who may say yes, and why.
type Verdict struct {
	Tier     Tier // the worst of the findings; Auto if there are none
	Findings []Finding
}

// Finding is one reason not to install without asking.
type Finding struct {
	Rule     string `json:"rule"`
	Package  string `json:"package,omitempty"` // normalised name, "" if it is about all
	Sentence string `json:"sentence"`          // complete, without a full stop; may be shown to anybody
	Tier     Tier   `json:"tier"`
}

// The rules, see the package's documentation; worst first.
const (
	DeniedName      = "denied_name"
	Upload          = "upload"
	StartupCode     = "startup_code"
	NearName        = "near_name"
	NotListed       = "not_listed"
	Cooldown        = "cooldown"
	Yanked          = "yanked"
	Override        = "override"
	ImportCollision = "import_collision"
	IndexHost       = "index_host"
	SeveralIndexes  = "several_indexes"
	SizeWheel       = "size_wheel"
	SizeClosure     = "size_closure"
)

var ruleOrder = []string{
	DeniedName, Upload, StartupCode, NearName, NotListed, Cooldown, Yanked, Override, ImportCollision,
	IndexHost, SeveralIndexes, SizeWheel, SizeClosure,
}

// Judge applies the catalog to every package of the lock. The findings are sorted:
// worst first, then by package.
//
// What cannot be judged yet is not held against a lock: a size that the index does not
// tell, and the rules that need Wheels. So whoever installs without asking has to ask
// again when the wheels are there.
func Judge(in Input) Verdict {
	j := newJudgement(in)
	for _, rule := range []func(){
		j.denied, j.upload, j.listed, j.cooldown, j.yanked, j.override, j.startup, j.collision, j.origin, j.sizes,
	} {
		rule()
	}
	return verdict(j.findings)
}

// FromRefusal is the verdict on a request without a solution, or with one that breaks a
// rule that nobody can lift: code and sentence are those of packages resolve, store and
// wheel. What may go another way (a conflict with the base in a layer of its own, a
// cooldown without a cutoff) has to be tried by the caller first; what is no fault of the
// request (no index, no sandbox) is no refusal.
func FromRefusal(code, sentence string) Verdict {
	sentence, _ = clip(clean(sentence), maxSentence)
	return verdict([]Finding{{Rule: show(code), Sentence: sentence, Tier: Reject}})
}

const maxSentence = 2000 // characters

func verdict(findings []Finding) Verdict {
	slices.SortFunc(findings, func(a, b Finding) int {
		return cmp.Or(
			-cmp.Compare(a.Tier.rank(), b.Tier.rank()),
			cmp.Compare(slices.Index(ruleOrder, a.Rule), slices.Index(ruleOrder, b.Rule)),
			strings.Compare(a.Package, b.Package), strings.Compare(a.Sentence, b.Sentence),
		)
	})
	v := Verdict{Tier: Auto, Findings: slices.Compact(findings)}
	if len(v.Findings) > 0 {
		v.Tier = v.Findings[0].Tier
	}
	return v
}

// judgement is one run of Judge.
type judgement struct {
	Input
	all      []lock.Package          // of the lock, by name
	fresh    []lock.Package          // those that the workspace does not have
	base     map[string]lock.Package // by name
	held     map[string]lock.Package
	allow    map[string]Entry
	needs    needs
	findings []Finding
}

func newJudgement(in Input) *judgement {
	j := &judgement{Input: in, base: byName(in.Base), held: byName(in.Held), allow: map[string]Entry{}, needs: needsOf(in)}
	for _, e := range in.Catalog.Allow {
		j.allow[e.Name] = e
	}
	j.all = slices.Clone(in.Lock.Packages)
	slices.SortStableFunc(j.all, func(a, b lock.Package) int { return strings.Compare(a.Name, b.Name) })
	for _, p := range j.all {
		if !same(p, j.base[p.Name]) && !same(p, j.held[p.Name]) {
			j.fresh = append(j.fresh, p)
		}
	}
	return j
}

// same says whether the workspace has this very wheel.
func same(p, has lock.Package) bool {
	return p.SHA256 != "" && p.SHA256 == has.SHA256 && p.Name == has.Name && p.Version == has.Version
}

func byName(list []lock.Package) map[string]lock.Package {
	m := make(map[string]lock.Package, len(list))
	for _, p := range list {
		m[p.Name] = p
	}
	return m
}

func (j *judgement) find(rule, pkg string, tier Tier, sentence string) {
	j.findings = append(j.findings, Finding{Rule: rule, Package: pkg, Sentence: sentence, Tier: tier})
}

func (j *judgement) ask(rule, pkg, sentence string) { j.find(rule, pkg, Ask, sentence) }

func label(p lock.Package) string { return show(p.Name) + " " + show(p.Version) }

// uploaded and imported are what lock.Package.Index is for wheels that no index had.
const (
	uploaded = "upload"
	imported = "import"
)

// isUpload says whether a wheel comes from the workspace.
func isUpload(p lock.Package) bool { return p.Index == uploaded || slices.Contains(p.Flags, uploaded) }
