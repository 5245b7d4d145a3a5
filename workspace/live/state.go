package live

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// state is what live.state says about the directory.
type state struct {
	clean bool
	id    string // commit that the directory is equal to, or was on its way from
	seq   uint64 // of id
	to    string // commit it was on its way to
	boot  string // when this was written
}

func clean(info workspace.Info) state {
	return state{clean: true, id: info.Commit, seq: info.Seq, boot: bootID()}
}

func (s state) moving(to string) state {
	return state{id: s.id, to: to, boot: bootID()}
}

// sameBoot says whether the state was written since the machine started. If
// it was, a killed process has lost nothing that it had written.
func (s state) sameBoot() bool { return s.boot != "" && s.boot == bootID() }

// bootID changes with every start of the machine (random(4)); "" where there
// is no such thing.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

func (s state) String() string {
	if s.clean {
		return fmt.Sprintf("clean %s %d %s\n", s.id, s.seq, s.boot)
	}
	return fmt.Sprintf("moving %s>%s %s\n", s.id, s.to, s.boot)
}

// readState reads live.state; a missing or unreadable one is the zero state,
// which is not clean and of no boot.
func readState(root *os.Root) state {
	b, err := root.ReadFile(stateName)
	if err != nil {
		return state{}
	}
	return parseState(string(b))
}

func parseState(text string) state {
	w := strings.Split(strings.TrimSuffix(text, "\n"), " ")
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

// setState writes live.state. It is renamed into place, so a reader sees the
// old or the new one.
func (v *View) setState(s state) error {
	const tmp = stateName + ".new"
	if err := v.root.WriteFile(tmp, []byte(s.String()), 0o600); err != nil {
		return err
	}
	if err := v.root.Rename(tmp, stateName); err != nil {
		return err
	}
	v.state = s
	return nil
}
