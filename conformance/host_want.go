package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// want is what a probe has to see.
type want struct {
	text  string
	judge func(got string) (s Status, detail string)
}

// is passes on one of the values, in the words of the prober.
func is(values ...string) want {
	return want{strings.Join(values, " or "), func(got string) (Status, string) {
		if slices.Contains(values, got) {
			return Passed, ""
		}
		return Failed, ""
	}}
}

// nothing passes when nothing was found.
func nothing() want {
	w := is("")
	w.text = "nothing"
	return w
}

// orWeak is the same, but what would fail is only weak, for a reason that no
// setting of ours changes.
func (w want) orWeak(reason string) want {
	return want{w.text, func(got string) (Status, string) {
		if s, detail := w.judge(got); s != Failed {
			return s, detail
		}
		return Weak, reason
	}}
}

// orWeakOn is the same, but one value is only weak.
func (w want) orWeakOn(value, reason string) want {
	weak := w.orWeak(reason)
	return want{w.text, func(got string) (Status, string) {
		if got == value {
			return weak.judge(got)
		}
		return w.judge(got)
	}}
}

// The ways in which a call is refused. Which one it is matters to programs, not
// to safety: a rule that names one expects just it.
var (
	refused  = is("EPERM", "ENOSYS", "EACCES")
	noFile   = is("ENOENT", "EACCES")
	noSocket = is("EAFNOSUPPORT", "EPERM", "EACCES", "ESOCKTNOSUPPORT", "EPROTONOSUPPORT")
)

// atMost passes on a number up to n.
func atMost(n int) want {
	return want{fmt.Sprintf("at most %d", n), func(got string) (Status, string) {
		if v, err := strconv.Atoi(got); err == nil && v > 0 && v <= n {
			return Passed, ""
		}
		return Failed, ""
	}}
}

// limitedTo passes on a resource limit, soft and hard, that is not above n.
func limitedTo(n uint64) want {
	return want{fmt.Sprintf("at most %d", n), func(got string) (Status, string) {
		soft, hard, _ := strings.Cut(got, "/")
		for _, text := range []string{soft, hard} {
			if v, err := strconv.ParseUint(text, 10, 64); err != nil || v > n {
				return Failed, ""
			}
		}
		return Passed, ""
	}}
}

// between passes when something was done as often as that and then refused with
// the errno.
func between(least, most int, errno string) want {
	return want{fmt.Sprintf("%s after %d to %d", errno, least, most), func(got string) (Status, string) {
		count, why, _ := strings.Cut(got, " ")
		if v, err := strconv.Atoi(count); err == nil && v >= least && v <= most && why == errno {
			return Passed, ""
		}
		return Failed, ""
	}}
}
