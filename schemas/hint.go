package schemas

import "strings"

// synonyms are names that models know from other file and shell tools, each with what it is called here. The first that
// the tool has is the hint. They are never accepted in place of the real name: a call means what it says.
var synonyms = map[string][]string{
	"body":         {"content"},
	"cmd":          {"source"},
	"code":         {"source"},
	"command":      {"source"},
	"cwd":          {"path"},
	"data":         {"content", "stdin"},
	"dir":          {"path"},
	"directory":    {"path"},
	"file":         {"path"},
	"filename":     {"path"},
	"filepath":     {"path"},
	"filetext":     {"content"},
	"find":         {"old_text", "contains"},
	"folder":       {"path"},
	"force":        {"recursive"},
	"glob":         {"pattern"},
	"grep":         {"contains"},
	"head":         {"limit"},
	"id":           {"job", "request_id"},
	"input":        {"stdin"},
	"interpreter":  {"language"},
	"jobid":        {"job"},
	"lang":         {"language"},
	"length":       {"limit"},
	"lines":        {"limit"},
	"maxresults":   {"limit"},
	"name":         {"path"},
	"newstr":       {"content"},
	"newstring":    {"content"},
	"newtext":      {"content"},
	"oldstr":       {"old_text"},
	"oldstring":    {"old_text"},
	"package":      {"packages"},
	"query":        {"contains"},
	"regex":        {"contains"},
	"requirements": {"packages"},
	"script":       {"source"},
	"scriptpath":   {"path"},
	"search":       {"contains", "old_text"},
	"start":        {"offset"},
	"startline":    {"offset"},
	"target":       {"path"},
	"text":         {"content"},
	"timeout":      {"timeout_s"},
	"timeoutms":    {"timeout_s"},
	"version":      {"if_version", "at"},
	"viewrange":    {"offset"},
}

// nearest is the argument that an unknown key was probably meant to be, or "". Case, "_" and "-" do not count; then a known
// synonym wins, else the one name at the smallest edit distance, if that is at most a third of its length.
func (e *entry) nearest(key string) string {
	if len(key) > maxShown {
		return ""
	}
	plain := plainName(key)
	for _, name := range synonyms[plain] {
		if _, ok := e.props[name]; ok {
			return name
		}
	}
	best, at := "", 0
	for _, name := range e.names {
		d := distance(plain, plainName(name))
		if d <= len(name)/3 && (best == "" || d < at) {
			best, at = name, d
		}
	}
	return best
}

func plainName(s string) string {
	return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(s))
}

// distance is the number of bytes to insert, delete or change to make a into b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
