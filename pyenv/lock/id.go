package lock

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"
)

// ID names the lock: the first 16 hexadecimal digits of the SHA-256 of Encode.
// An approval is for an ID, so for all that the lock says. Errors: ErrInvalid.
func (l Lock) ID() (string, error) {
	b, err := l.Encode()
	if err != nil {
		return "", err
	}
	return short(b), nil
}

// LayerID names the layer that the lock describes, "base-9f3c41d07a5be216". It
// covers what decides on the layer's bytes and nothing else: kind, interpreter,
// platform, the rules of unpacking and of bytecode, and every wheel. Where a wheel
// came from, who asked and over which base is not part of it, so that one layer
// serves all workspaces, also after another base gave the same solution.
// Errors: ErrInvalid.
func (l Lock) LayerID() (string, error) {
	l = l.inOrder()
	if err := l.check(); err != nil {
		return "", err
	}
	key := LayerKey{Kind: l.Kind, Python: l.Python}
	for _, p := range l.Packages {
		key.Wheels = append(key.Wheels, Wheel{p.Name, p.Version, p.File, p.SHA256})
	}
	return key.ID()
}

// What a layer's bytes depend on besides its wheels. A change of these makes new
// layers of old locks.
const (
	RulesRev = 1                // of how wheels are unpacked
	Bytecode = "unchecked-hash" // of PEP 552
)

// LayerKey is what the id of a layer is made of.
type LayerKey struct {
	Kind   Kind
	Python Python
	Wheels []Wheel
}

// Wheel is one file of a layer.
type Wheel struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	File    string `json:"file"`
	SHA256  string `json:"sha256"`
}

// ID is the id of the layer. It does not depend on the order of the wheels, and
// checks nothing.
func (k LayerKey) ID() (string, error) {
	wheels := slices.Clone(k.Wheels)
	slices.SortFunc(wheels, func(a, b Wheel) int { return strings.Compare(a.Name, b.Name) })
	b, err := canonical(map[string]any{
		"schema": schema, "kind": k.Kind, "python": k.Python,
		"rules": RulesRev, "bytecode": Bytecode, "wheels": wheels,
	}, "")
	if err != nil {
		return "", err
	}
	return string(k.Kind) + "-" + short(b), nil
}

func short(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

var (
	layerForm = regexp.MustCompile(`^(base|x|iso)-[0-9a-f]{16}$`)
	idForm    = regexp.MustCompile(`^[0-9a-f]{16}$`)
	hashForm  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// ValidID says whether a text has the form of a lock's ID.
func ValidID(s string) bool { return idForm.MatchString(s) }

// ValidLayerID says whether a text has the form of a LayerID.
func ValidLayerID(s string) bool { return layerForm.MatchString(s) }

// ValidSHA256 says whether a text is a SHA-256 as locks write it.
func ValidSHA256(s string) bool { return hashForm.MatchString(s) }
