package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dgraph-io/badger/v4"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
)

// Binding is what the scripts of a workspace see.
type Binding struct {
	Workspace string   `json:"workspace"`
	Rev       int      `json:"rev"`              // 1 for the first, 0 if there never was one
	Python    string   `json:"python,omitempty"` // id of the interpreter
	Base      string   `json:"base,omitempty"`   // id of a layer
	Iso       string   `json:"iso,omitempty"`    // id of the layer in the place of the base
	Layers    []string `json:"layers,omitempty"` // ids of x layers, in the order of import
	Locks     []string `json:"locks,omitempty"`
	Requests  []string `json:"requests,omitempty"` // ids of what led to it
	Startup   []string `json:"startup,omitempty"`  // ids of layers whose startup code a person has approved
}

// maxBound is how many layers, locks or requests a binding names.
const maxBound = 1000

// Bind binds a workspace to what b names, if its binding is still of revision rev, 0 if
// there is none. The new one has the revision after that; Workspace and Rev of b are
// not looked at. It is durable when Bind returns.
//
// Errors: ErrConflict, ErrInvalid, ErrUnreadable, ErrUnavailable; the cause of ctx,
// wrapped.
func (q *Queue) Bind(ctx context.Context, ws string, rev int, b Binding) error {
	return q.update(ctx, func(txn *badger.Txn) error { return bind(txn, ws, rev, b) })
}

func bind(txn *badger.Txn, ws string, rev int, b Binding) error {
	old, err := readBinding(txn, ws)
	if err != nil {
		return err
	}
	if old.Rev != rev {
		return fmt.Errorf("%w: the binding has revision %d, not %d", ErrConflict, old.Rev, rev)
	}
	b.Workspace, b.Rev = ws, rev+1
	value, err := encode(b)
	if err != nil {
		return err
	}
	return stored(txn.Set([]byte(bindKey(ws)), value))
}

// Binding returns what a workspace is bound to; its Rev is 0 when it never was.
// Errors: ErrInvalid, ErrUnreadable, ErrUnavailable.
func (q *Queue) Binding(ws string) (b Binding, err error) {
	err = q.view(func(txn *badger.Txn) error {
		b, err = readBinding(txn, ws)
		return err
	})
	return b, err
}

// Bindings returns those of all workspaces, or an error: whoever removes what is not
// bound must know all of them. Errors: ErrUnreadable, ErrUnavailable.
func (q *Queue) Bindings() (list []Binding, err error) {
	err = q.view(func(txn *badger.Txn) error {
		for _, ws := range keysBelow(txn, bindPrefix, 0) {
			if !validWorkspace(ws) {
				return about(bindKey(ws), unreadable("it is that of no workspace"))
			}
			b, err := readBinding(txn, ws)
			if err != nil {
				return err
			}
			list = append(list, b)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

func readBinding(txn *badger.Txn, ws string) (Binding, error) {
	if !validWorkspace(ws) {
		return Binding{}, invalid("the workspace has no valid name")
	}
	value, err := read(txn, bindKey(ws))
	if err != nil {
		return Binding{}, err
	}
	if value == nil {
		return Binding{Workspace: ws}, nil
	}
	b, err := decode[Binding](value)
	if err == nil && b.Workspace != ws {
		err = unreadable("it is that of another workspace")
	}
	if err != nil {
		return Binding{}, about(bindKey(ws), err)
	}
	return b, nil
}

func (b *Binding) check() error {
	switch {
	case !validWorkspace(b.Workspace):
		return invalid("the workspace has no valid name")
	case b.Rev < 1:
		return invalid("revision %d is none", b.Rev)
	case b.Base != "" && !isLayer("base", b.Base):
		return invalid("%q is not the id of a base layer", b.Base)
	case b.Iso != "" && !isLayer("iso", b.Iso):
		return invalid("%q is not the id of an isolated layer", b.Iso)
	}
	err := errors.Join(
		checkIDs("x layers", b.Layers, func(s string) bool { return isLayer("x", s) }),
		checkIDs("locks", b.Locks, lock.ValidID),
		checkIDs("requests", b.Requests, validID),
		checkIDs("layers with startup code", b.Startup, lock.ValidLayerID),
	)
	if err != nil {
		return err
	}
	return checkTexts(maxName, []string{b.Python})
}

func isLayer(kind, id string) bool {
	return lock.ValidLayerID(id) && strings.HasPrefix(id, kind+"-")
}

func checkIDs(what string, ids []string, valid func(string) bool) error {
	if len(ids) > maxBound {
		return invalid("%d %s are over the limit of %d", len(ids), what, maxBound)
	}
	for i, id := range ids {
		if !valid(id) || slices.Contains(ids[:i], id) {
			return invalid("%q among the %s is no id or is there twice", id, what)
		}
	}
	return nil
}
