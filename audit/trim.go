package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
)

// What a caller gives is trimmed before it becomes a record, so that no content
// can make an append fail. The limits are in bytes of the JSON form and add up
// to less than MaxRecord with the list of changes left out; that list gets what
// remains, at most MaxChanges.
const (
	maxName     = 64
	maxLabel    = 128
	maxActor    = 256
	maxArgs     = 3 << 10
	maxPolicy   = 1 << 10 // each of cap and env
	maxFactName = 48
	ellipsis    = "…"
)

// trimmed is the record without its place, ready to be numbered.
func (e *Entry) trimmed() Record {
	r := e.Record
	cuts := Facts{}
	for _, f := range []struct {
		name  string
		value *string
		limit int
	}{
		{".call", &r.Call, maxName}, {".tool", &r.Tool, maxLabel}, {".act", &r.Act, maxActor},
		{".cli", &r.Cli, maxActor}, {".proto", &r.Proto, maxName}, {".rid", &r.Rid, maxLabel},
		{".img", &r.Img, maxName}, {".src", &r.Src, maxName}, {".dec", &r.Dec, maxName},
		{".reason", &r.Reason, MaxFact}, {".err", &r.Err, maxName},
		{".hb", &r.Hb, maxLabel}, {".ha", &r.Ha, maxLabel},
	} {
		*f.value = cutInto(cuts, f.name, *f.value, f.limit)
	}
	r.Ev = Event(cutInto(cuts, ".ev", string(r.Ev), maxName))
	if r.Out != nil || len(e.allChanges()) > 0 {
		r.Out = trimOut(cuts, r.Out)
	}
	r.Args = trimFacts(r.Args, maxArgs)
	if len(cuts) > 0 {
		maps.Copy(cuts, r.Args) // the names of cuts begin with a dot, no fact of a caller does
		r.Args = cuts
	}
	r.Cap = trimFacts(r.Cap, maxPolicy)
	r.Env = trimFacts(r.Env, maxPolicy)
	r.Argd, r.Body = "", ""
	return r
}

// allChanges is the whole list, wherever the caller put it.
func (e *Entry) allChanges() []ChangeFact {
	if e.Changes == nil && e.Out != nil {
		return e.Out.Changes
	}
	return e.Changes
}

// trimOut leaves the list of changes out; see trimChanges.
func trimOut(cuts Facts, o *Out) *Out {
	if o == nil {
		return &Out{}
	}
	t := *o
	t.Changes = nil
	t.Code = cutInto(cuts, ".out.code", t.Code, maxName)
	t.Digest = cutInto(cuts, ".out.digest", t.Digest, maxLabel)
	t.Outcome = cutInto(cuts, ".out.outcome", t.Outcome, maxName)
	t.ChangesDigest = cutInto(cuts, ".out.changes_digest", t.ChangesDigest, maxLabel)
	return &t
}

// trimChanges keeps as many changes as fit in limit bytes of JSON and digests
// all of them.
func trimChanges(all []ChangeFact, limit int) (kept []ChangeFact, digest string) {
	h := sha256.New()
	size, full := len(`,"changes":[]`), false
	var line []byte
	for _, c := range all {
		line = append(c.append(line[:0]), '\n')
		h.Write(line)
		if full {
			continue
		}
		c = trimChange(c)
		line = c.append(line[:0])
		if size += len(line) + 1; size > limit {
			full = true
			continue
		}
		kept = append(kept, c)
	}
	return kept, hex.EncodeToString(h.Sum(nil))
}

func trimChange(c ChangeFact) ChangeFact {
	if cut, ok := cutString(c.Path, MaxFact); ok {
		c.Path, c.PathSHA256 = cut, digestOf(c.Path)
	}
	c.Kind, _ = cutString(c.Kind, maxName)
	c.SHA256, _ = cutString(c.SHA256, maxLabel)
	return c
}

// trimFacts cuts every fact to MaxFact and all together to limit. What is left
// out for the second reason is counted in ".left_out", and ".sha256" is the
// digest of the whole object.
func trimFacts(in Facts, limit int) Facts {
	if len(in) == 0 {
		return nil
	}
	if in.fit(limit) {
		return in
	}
	all := make(Facts, len(in))
	for _, name := range sortedNames(nil, in) {
		if in[name] == nil {
			continue
		}
		trimFact(all, factName(name), plain(in[name]))
	}
	if len(all) == 0 {
		return nil
	}
	whole := appendFacts(nil, all)
	if len(whole) <= limit {
		return all
	}
	return keepFirst(all, whole, limit)
}

// fit tells that nothing has to be trimmed: the usual case, and the quick one.
func (f Facts) fit(limit int) bool {
	size := len(`{}`)
	for name, value := range f {
		n := len(`-9007199254740991`)
		switch v := value.(type) {
		case string:
			n = quotedLen(v, MaxFact)
		case bool:
		case int:
			if int64(v) > MaxInt || int64(v) < -MaxInt {
				return false
			}
		case int64:
			if v > MaxInt || v < -MaxInt {
				return false
			}
		case []string:
			n = len(`[]`)
			for _, s := range v {
				n += quotedLen(s, MaxFact) + len(`"",`)
			}
		default:
			return false
		}
		if n > MaxFact || !plainFactName(name) {
			return false
		}
		size += n + len(name) + len(`"":"",`)
	}
	return size <= limit
}

func keepFirst(all Facts, whole []byte, limit int) Facts {
	kept, left := Facts{}, 0
	size := len(`{".left_out":65536,".sha256":""}`) + 2*sha256.Size
	for _, name := range sortedNames(nil, all) {
		n := len(name) + len(`"":,`) + len(appendValue(nil, all[name]))
		if size+n > limit {
			left++
			continue
		}
		size += n
		kept[name] = all[name]
	}
	kept[".left_out"] = int64(left)
	kept[".sha256"] = digestOf(string(whole))
	return kept
}

func trimFact(to Facts, name string, value any) {
	switch v := value.(type) {
	case string:
		to[name] = cutInto(to, name, v, MaxFact)
	case []string:
		to[name] = cutList(to, name, v)
	default:
		to[name] = v
	}
}

// plainFactName allows no dot: that is the log's own, so that a fact can never be
// taken for the digest of another.
func plainFactName(name string) bool {
	ok := name != "" && len(name) <= maxFactName
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
	}
	return ok
}

func factName(name string) string {
	if plainFactName(name) {
		return name
	}
	return "x-" + digestOf(name)[:16]
}

// cutInto returns s, cut when it is over limit, and notes then in facts what the
// whole was.
func cutInto(facts Facts, name, s string, limit int) string {
	cut, ok := cutString(s, limit)
	if ok {
		facts[name+".bytes"] = int64(len(s))
		facts[name+".sha256"] = digestOf(s)
	}
	return cut
}

// cutString cuts s on a rune border so that its JSON form with the ellipsis is
// at most limit bytes.
func cutString(s string, limit int) (string, bool) {
	if quotedLen(s, limit) <= limit {
		return s, false
	}
	n, end := 0, 0
	for end < len(s) {
		w, size := quotedRune(s[end:])
		if n+w > limit-len(ellipsis) {
			break
		}
		n += w
		end += size
	}
	return s[:end] + ellipsis, true
}

// cutList keeps the first elements of a list whose JSON form is over MaxFact.
func cutList(facts Facts, name string, list []string) []string {
	kept, size := []string{}, len(`[]`)
	for _, s := range list {
		if size += quotedLen(s, MaxFact) + len(`"",`); size > MaxFact {
			break
		}
		kept = append(kept, s)
	}
	if len(kept) == len(list) {
		return kept
	}
	if len(kept) == 0 {
		first, _ := cutString(list[0], MaxFact-len(`[""]`))
		kept = append(kept, first)
	}
	facts[name+".items"] = int64(len(list))
	facts[name+".sha256"] = digestOf(string(appendStrings(nil, list)))
	return kept
}

func digestOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
