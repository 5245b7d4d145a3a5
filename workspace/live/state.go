package live

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// state is what live.state says about a tree.
type state struct {
	clean bool
	id    string // commit that the tree is equal to, or was on its way from
	seq   uint64 // of id
	to    string // commit it was on its way to
	boot  string // the start of the machine since which all that is in it was written or compared
}

func clean(info workspace.Info) state {
	return state{clean: true, id: info.Commit, seq: info.Seq, boot: bootID()}
}

// moving keeps the boot: a comparison after a restart that does not come to its
// end has to be as thorough the next time.
func (s state) moving(to string) state {
	if s.boot == "" {
		s.boot = unknownBoot
	}
	return state{id: s.id, to: to, boot: s.boot}
}

// sameBoot says whether the state is of this start of the machine. If it is, a
// killed process has lost nothing that it had written.
func (s state) sameBoot() bool { return s.boot != unknownBoot && s.boot == bootID() }

const unknownBoot = "unknown"

// bootID changes with every start of the machine (random(4)).
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return unknownBoot
	}
	return string(bytes.TrimSpace(b))
}

func (s state) String() string {
	if s.clean {
		return fmt.Sprintf("clean %s %d %s", s.id, s.seq, s.boot)
	}
	return fmt.Sprintf("moving %s>%s %s", s.id, s.to, s.boot)
}

// stateSize is the length of live.state: one record, padded, so that it can be
// written in place by one write(2), which a signal does not cut.
const stateSize = 256

// readState reads live.state; a missing or unreadable one is the zero state,
// which is not clean and of no boot.
func readState(f *os.File) state {
	b := make([]byte, stateSize)
	n, _ := f.ReadAt(b, 0)
	return parseState(string(b[:n]))
}

func parseState(text string) state {
	w := strings.Split(strings.TrimRight(text, " \n"), " ")
	switch {
	case len(w) == 4 && w[0] == "clean":
		seq, err := strconv.ParseUint(w[2], 10, 64)
		if err != nil || seq == 0 {
			return state{}
		}
		return state{clean: true, id: w[1], seq: seq, boot: w[3]}
	case len(w) == 3 && w[0] == "moving":
		from, to, _ := strings.Cut(w[1], ">")
		return state{id: from, to: to, boot: w[2]}
	}
	return state{}
}
