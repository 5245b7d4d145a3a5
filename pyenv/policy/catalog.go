package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

// Catalog is what an operator has decided in advance. Make one with Default or Parse;
// the zero value allows nothing.
type Catalog struct {
	Schema       int      `json:"schema"`     // 1
	Rev          int      `json:"policy_rev"` // raised by every change, part of locks and memos
	Allow        []Entry  `json:"allow"`      // sorted by name
	Deny         []Denied `json:"deny"`       // sorted by name; wins over Allow
	Caps         Caps     `json:"caps"`
	CooldownDays int      `json:"cooldown_days"` // 0: none, and unknown ages are no matter
	IndexHosts   []string `json:"index_hosts"`   // hosts that wheels may come from, "find-links" for a directory; none: any
	StartupCode  string   `json:"startup_code"`  // StartupAsk or StartupReject
}

// Entry is a project that is installed without asking.
type Entry struct {
	Name string `json:"name"`           // normalised
	Spec string `json:"spec,omitempty"` // versions that are, ">=2,<4"; "" is every release
}

// Denied is a project that is never installed.
type Denied struct {
	Name   string `json:"name"`
	Reason string `json:"reason,omitempty"` // for the person who asks
}

// Caps are the sizes from which on a person is asked.
type Caps struct {
	WheelBytes   int64 `json:"wheel_bytes"`   // of one wheel file
	ClosureBytes int64 `json:"closure_bytes"` // of all wheel files of a lock that are new
	Files        int   `json:"files"`         // that these unpack to
}

// The values of Catalog.StartupCode.
const (
	StartupAsk    = "ask"
	StartupReject = "reject"
)

// Limits of a catalog.
const (
	catalogSchema = 1
	maxCatalog    = 1 << 20 // bytes
	maxRev        = 1<<31 - 1
	maxBytes      = 1 << 40 // of a cap
	maxFiles      = 10_000_000
	maxDays       = 3650
	maxReason     = 500 // bytes
)

var (
	// ErrInvalid is a catalog that breaks a rule. The error's text says which, and where.
	ErrInvalid = errors.New("bad_catalog")
	// ErrDenied is a name that cannot be allowed, for it is denied.
	ErrDenied = errors.New("denied_name")
)

var hostForm = regexp.MustCompile(`^(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?$`)

// Encode returns the one form of a catalog: indented JSON with its keys in order, names
// and conditions in their normal form, lists sorted. Parse gives the same catalog back.
// Errors: ErrInvalid.
func (c Catalog) Encode() ([]byte, error) {
	c, err := c.normal()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false) // ">=2" stays readable
	e.SetIndent("", "  ")
	if err := e.Encode(c); err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	if out.Len() > maxCatalog {
		return nil, invalid("", "%d bytes are over the limit of %d", out.Len(), maxCatalog)
	}
	return out.Bytes(), nil
}

// AllowName returns the catalog with a project on its list, in versions that fulfil
// specifiers ("" is every release), and Rev raised by one. It takes the place of what
// the list said of the project. When it said the same, the catalog is returned as it is.
//
// Errors: ErrDenied; ErrInvalid for what is no name or no condition.
func (c Catalog) AllowName(name, specifiers string) (Catalog, error) {
	e, err := Entry{name, specifiers}.normal("allow")
	if err != nil {
		return Catalog{}, err
	}
	if _, ok := c.denied(e.Name); ok {
		return Catalog{}, fmt.Errorf("%w: the catalog denies %s; take it off that list first", ErrDenied, e.Name)
	}
	if slices.Contains(c.Allow, e) {
		return c, nil
	}
	c.Allow = slices.DeleteFunc(slices.Clone(c.Allow), func(o Entry) bool { return o.Name == e.Name })
	c.Allow = append(c.Allow, e)
	c.Rev++
	return c.normal()
}

// DenyName returns the catalog with a project on the list of what is never installed, for
// a reason ("" is none), and Rev raised by one. It is off the other list then. When the
// catalog said the same, it is returned as it is.
//
// Errors: ErrInvalid for what is no name, and for a reason that is not one line of
// printable text of at most 500 bytes.
func (c Catalog) DenyName(name, reason string) (Catalog, error) {
	d, err := Denied{name, reason}.normal("deny")
	if err != nil {
		return Catalog{}, err
	}
	if slices.Contains(c.Deny, d) && !c.allows(d.Name) {
		return c, nil
	}
	c = c.without(d.Name)
	c.Deny = append(c.Deny, d)
	c.Rev++
	return c.normal()
}

// RemoveName returns the catalog with a project on neither list, so that a person is
// asked about it, and Rev raised by one. When it was on none, the catalog is returned as
// it is. Errors: ErrInvalid for what is no name.
func (c Catalog) RemoveName(name string) (Catalog, error) {
	name, err := normalName("name", name)
	if err != nil {
		return Catalog{}, err
	}
	if _, denied := c.denied(name); !denied && !c.allows(name) {
		return c, nil
	}
	c = c.without(name)
	c.Rev++
	return c.normal()
}

// ParseEntry reads what is to be allowed as it is written in a request, "pandas>=2,<4".
// Errors: ErrInvalid; extras are no matter of the catalog, and refused.
func ParseEntry(s string) (Entry, error) {
	r, err := spec.ParseRequest(s)
	switch {
	case err != nil:
		return Entry{}, invalid("", "%s is not the name of a package with its versions, such as pandas>=2,<4", quote(s, 80))
	case len(r.Extras) > 0:
		return Entry{}, invalid("", "%s names extras; the list is about the package", quote(s, 80))
	}
	return Entry{r.Name, r.Specifiers.String()}, nil
}

// normal returns a checked copy in which equal catalogs are equal. Its errors name the
// key.
func (c Catalog) normal() (Catalog, error) {
	allow, deny, hosts := c.Allow, c.Deny, c.IndexHosts
	c.Allow, c.Deny, c.IndexHosts = []Entry{}, []Denied{}, []string{}
	for i, e := range allow {
		e, err := e.normal(fmt.Sprintf("allow[%d]", i))
		if err != nil {
			return Catalog{}, err
		}
		c.Allow = append(c.Allow, e)
	}
	for i, d := range deny {
		d, err := d.normal(fmt.Sprintf("deny[%d]", i))
		if err != nil {
			return Catalog{}, err
		}
		c.Deny = append(c.Deny, d)
	}
	for i, h := range hosts {
		h = strings.ToLower(h)
		if !hostForm.MatchString(h) {
			return Catalog{}, invalid(fmt.Sprintf("index_hosts[%d]", i), "%s is not a host, such as files.example or files.example:8443", quote(h, 80))
		}
		c.IndexHosts = append(c.IndexHosts, h)
	}
	if err := c.checkNumbers(); err != nil {
		return Catalog{}, err
	}
	if err := c.sortLists(); err != nil {
		return Catalog{}, err
	}
	return c, nil
}

// sortLists sorts them in place, and refuses what is there twice.
func (c Catalog) sortLists() error {
	slices.SortFunc(c.Allow, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Deny, func(a, b Denied) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(c.IndexHosts)
	for i := 1; i < len(c.Allow); i++ {
		if c.Allow[i].Name == c.Allow[i-1].Name {
			return invalid("allow", "%s is there twice", c.Allow[i].Name)
		}
	}
	for i := 1; i < len(c.Deny); i++ {
		if c.Deny[i].Name == c.Deny[i-1].Name {
			return invalid("deny", "%s is there twice", c.Deny[i].Name)
		}
	}
	for i := 1; i < len(c.IndexHosts); i++ {
		if c.IndexHosts[i] == c.IndexHosts[i-1] {
			return invalid("index_hosts", "%s is there twice", c.IndexHosts[i])
		}
	}
	return nil
}

func (c Catalog) checkNumbers() error {
	within := func(key string, n, least, most int64) error {
		if n < least || n > most {
			return invalid(key, "%d is not between %d and %d", n, least, most)
		}
		return nil
	}
	if c.StartupCode != StartupAsk && c.StartupCode != StartupReject {
		return invalid("startup_code", "%s is neither %q nor %q", quote(c.StartupCode, 80), StartupAsk, StartupReject)
	}
	if c.Schema != catalogSchema {
		return invalid("schema", "%d is not known; this program knows %d", c.Schema, catalogSchema)
	}
	for _, err := range []error{
		within("policy_rev", int64(c.Rev), 0, maxRev),
		within("caps.wheel_bytes", c.Caps.WheelBytes, 1, maxBytes),
		within("caps.closure_bytes", c.Caps.ClosureBytes, 1, maxBytes),
		within("caps.files", int64(c.Caps.Files), 1, maxFiles),
		within("cooldown_days", int64(c.CooldownDays), 0, maxDays),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

func (e Entry) normal(key string) (Entry, error) {
	name, err := normalName(key, e.Name)
	if err != nil {
		return Entry{}, err
	}
	set, err := spec.ParseSpecifiers(e.Spec)
	if err != nil {
		return Entry{}, invalid(key+".spec", "%s is no version condition, such as >=1.0,<2", quote(e.Spec, 80))
	}
	return Entry{name, set.String()}, nil
}

func (d Denied) normal(key string) (Denied, error) {
	name, err := normalName(key, d.Name)
	switch {
	case err != nil:
		return Denied{}, err
	case len(d.Reason) > maxReason:
		return Denied{}, invalid(key+".reason", "%d bytes are over the limit of %d", len(d.Reason), maxReason)
	case d.Reason != clean(d.Reason):
		return Denied{}, invalid(key+".reason", "it is not one line of printable text")
	}
	return Denied{name, d.Reason}, nil
}

func normalName(key, name string) (string, error) {
	if !spec.ValidName(name) {
		return "", invalid(key+".name", "%s is not the name of a package", quote(name, 80))
	}
	return spec.NormalizeName(name), nil
}

// without returns the catalog with a project on neither list. It shares no list with c.
func (c Catalog) without(name string) Catalog {
	c.Allow = slices.DeleteFunc(slices.Clone(c.Allow), func(e Entry) bool { return spec.NormalizeName(e.Name) == name })
	c.Deny = slices.DeleteFunc(slices.Clone(c.Deny), func(d Denied) bool { return spec.NormalizeName(d.Name) == name })
	return c
}

// allows says whether a project is on the list of what is installed without asking.
func (c Catalog) allows(name string) bool {
	return slices.ContainsFunc(c.Allow, func(e Entry) bool { return spec.NormalizeName(e.Name) == name })
}

// denied says whether a project is on the other list.
func (c Catalog) denied(name string) (Denied, bool) {
	i := slices.IndexFunc(c.Deny, func(d Denied) bool { return spec.NormalizeName(d.Name) == name })
	if i < 0 {
		return Denied{}, false
	}
	return c.Deny[i], true
}
