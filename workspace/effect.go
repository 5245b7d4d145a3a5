package workspace

// EffectKind says what happened to a path.
type EffectKind byte

const (
	Created  EffectKind = 'C'
	Modified EffectKind = 'M' // another content, target or kind
	Deleted  EffectKind = 'D'
	Mode     EffectKind = 'P' // other permission bits, same content
	Touched  EffectKind = 'T' // another time, nothing else
)

// String is the word for it in results and in the log.
func (k EffectKind) String() string {
	switch k {
	case Created:
		return "created"
	case Modified:
		return "modified"
	case Deleted:
		return "deleted"
	case Mode:
		return "mode changed"
	case Touched:
		return "touched"
	}
	return "changed"
}

// Effect is what a commit did, or would do, to one path. Removing a directory
// has one effect for each path in it. Before is nil for what was created,
// After for what was deleted.
type Effect struct {
	Path          Path
	What          EffectKind
	Before, After *Node
}

// newEffect compares a path before and after. ok is false when nothing but
// the version differs.
func newEffect(p Path, before, after *Node) (e Effect, ok bool) {
	e = Effect{Path: p, Before: before, After: after}
	switch {
	case before == nil && after == nil:
		return e, false
	case before == nil:
		e.What = Created
	case after == nil:
		e.What = Deleted
	case !before.sameContent(after):
		e.What = Modified
	case before.Mode != after.Mode:
		e.What = Mode
	case !before.ModTime.Equal(after.ModTime):
		e.What = Touched
	default:
		return e, false
	}
	return e, true
}

// cost is how much an effect adds to the totals of the tree.
func (e *Effect) cost() (bytes, entries int64) {
	if e.Before != nil {
		bytes, entries = bytes-e.Before.Size, entries-1
	}
	if e.After != nil {
		bytes, entries = bytes+e.After.Size, entries+1
	}
	return bytes, entries
}
