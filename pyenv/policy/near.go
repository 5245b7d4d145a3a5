package policy

import (
	"fmt"
	"slices"
)

// near warns of a name that is not on the list but could be mistaken for one that is,
// or for one of the base; "" if it could not.
func (j *judgement) near(name string) string {
	if j.Distribution != nil {
		if project := j.Distribution(name); project != "" && project != name {
			sentence := fmt.Sprintf("the module %s comes in %s, which is another package than %s", show(name), show(project), show(name))
			if _, ok := j.base[project]; ok {
				sentence += ", and is in the base already"
			}
			return sentence
		}
	}
	var found []string
	for _, known := range j.known() {
		if known != name && alike(name, known) {
			found = append(found, show(known))
		}
	}
	if len(found) == 0 {
		return ""
	}
	return fmt.Sprintf("the name %s is almost %s: look whether it is what was meant", show(name), few(found, 3))
}

// known are the names of the list and of the base, sorted.
func (j *judgement) known() []string {
	list := sortedKeys(j.base)
	for _, e := range j.Catalog.Allow {
		list = append(list, e.Name)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// alike says whether one or two slips of the finger lead from one name to the other.
// Short names are close to each other by chance, so they have less room.
func alike(a, b string) bool {
	most := 0
	switch n := min(len(a), len(b)); {
	case n >= 8:
		most = 2
	case n >= 4:
		most = 1
	}
	return most > 0 && distance(a, b, most) <= most
}

// distance is the number of letters to insert, remove, change or swap with the next one
// (optimal string alignment), or more than most if it is more than that.
func distance(a, b string, most int) int {
	if len(a)-len(b) > most || len(b)-len(a) > most {
		return most + 1
	}
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)} // two before, one before, this
	for k := range rows[1] {
		rows[1][k] = k
	}
	for i := 1; i <= len(a); i++ {
		before2, before, row := rows[0], rows[1], rows[2]
		row[0] = i
		for k := 1; k <= len(b); k++ {
			change := 1
			if a[i-1] == b[k-1] {
				change = 0
			}
			row[k] = min(before[k]+1, row[k-1]+1, before[k-1]+change)
			if i > 1 && k > 1 && a[i-1] == b[k-2] && a[i-2] == b[k-1] {
				row[k] = min(row[k], before2[k-2]+1)
			}
		}
		rows = [3][]int{before, row, before2}
	}
	return rows[1][len(b)]
}
