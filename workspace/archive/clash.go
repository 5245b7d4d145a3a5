package archive

import (
	"maps"
	"slices"
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// shownClashes is how many names of one sort a report lists.
const shownClashes = 100

// compare finds the names that a file system which does not tell capitals from small
// letters, or composed from decomposed letters, could not hold side by side: as those of
// Windows and macOS do, whole paths are folded by Unicode's full case folding and NFC.
func (r *Report) compare(kinds names) {
	first := map[string]string{} // of the paths that do not fold to themselves, by what they fold to
	fold := cases.Fold()
	for _, rel := range slices.Sorted(maps.Keys(kinds)) {
		if isPlain(rel) {
			continue // what it clashes with is not, and comes to it
		}
		if !norm.NFC.IsNormalString(rel) {
			r.notNFC(rel)
		}
		folded := norm.NFC.String(fold.String(norm.NFD.String(rel)))
		other, taken := first[folded]
		switch {
		case folded == rel:
		case taken:
			r.clash(other, rel)
		default:
			first[folded] = rel
			if kinds[folded] != 0 {
				r.clash(rel, folded)
			}
		}
	}
}

func (r *Report) notNFC(rel string) {
	r.NFCCount++
	if p, err := workspace.FromBytes([]byte(rel)); err == nil && len(r.NotNFC) < shownClashes {
		r.NotNFC = append(r.NotNFC, p)
	}
}

func (r *Report) clash(a, b string) {
	r.ClashCount++
	if len(r.Clashes) == shownClashes {
		return
	}
	var pair [2]workspace.Path
	for i, rel := range []string{a, b} {
		p, err := workspace.FromBytes([]byte(rel))
		if err != nil {
			return
		}
		pair[i] = p
	}
	r.Clashes = append(r.Clashes, pair)
}

// isPlain says whether a name folds to itself, the quick way.
func isPlain(s string) bool {
	return strings.IndexFunc(s, func(c rune) bool { return c >= 0x80 || c >= 'A' && c <= 'Z' }) < 0
}
