package conformance

import "slices"

// Rule is one promise that a suite tests.
type Rule struct {
	Suite string // "sandbox", "lease", "host"
	// ID never changes its meaning. The seed's ids come first, in its order.
	ID      string
	Meaning string // one line
	// Expected is what a probe has to see for the rule to pass; empty where the
	// Meaning says it.
	Expected string
	// Capability is the declaration that the promise comes from, by its name in
	// JSON; empty for what every implementation promises.
	Capability string
	// Required rules must pass: a skip of one is not OK.
	Required bool
}

// Rules returns every rule of every suite, in the order of reports.
func Rules() []Rule {
	var list []Rule
	for _, r := range backendRules() {
		list = append(list, r.Rule)
	}
	for _, r := range leaseRules() {
		list = append(list, r.Rule)
	}
	for _, r := range hostRules() {
		list = append(list, r.Rule)
	}
	return list
}

// meaning returns what a rule says, "" for an id that is not known.
func meaning(id string) string {
	all := Rules()
	i := slices.IndexFunc(all, func(r Rule) bool { return r.ID == id })
	if i < 0 {
		return ""
	}
	return all[i].Meaning
}

// SuiteLease is the name of the suite of RunLease.
const SuiteLease = "lease"
