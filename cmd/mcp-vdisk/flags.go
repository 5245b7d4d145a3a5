package main

import (
	"github.com/spf13/pflag"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
)

// everyFlag adds the flags of every command.
func (a *app) everyFlag(f *pflag.FlagSet) {
	f.StringVar(&a.State, "state", "", "state `DIR` (default: $MCP_VDISK_STATE, else ~/.local/share/mcp-vdisk, for root /var/lib/mcp-vdisk)")
	f.StringVar(&a.RunAs, "run-as", "", "`USER` or uid that root gives itself up to (never 0)")
	f.BoolVar(&a.NoDaemon, "no-daemon", false, "do the work in this process, which nobody else may share then (also $MCP_VDISK_NO_DAEMON=1)")
}

// imageFlag adds the flag of commands about one disk.
func (a *app) imageFlag(f *pflag.FlagSet) {
	f.StringVar(&a.Image, "image", front.DefaultImage, "`NAME` of a disk, or the path of a .vdisk file")
}

// jsonFlag adds the flag of commands that print facts.
func (a *app) jsonFlag(f *pflag.FlagSet) {
	f.BoolVar(&a.json, "json", false, "print facts as JSON")
}

// sessionFlags adds the flags of what an agent may do.
func sessionFlags(f *pflag.FlagSet, s *front.SessionFlags) {
	f.BoolVar(&s.ReadOnly, "read-only", false, "offer only read_file and list_files")
	f.BoolVar(&s.NoDelete, "no-delete", false, "let nothing be deleted or emptied")
	f.BoolVar(&s.Exclusive, "exclusive", false, "hold the disk for this session alone: others read, and cannot change it")
	f.StringSliceVar(&s.Tools, "tools", nil, "offer only these tools, separated by commas")
}

// checkGiven refuses flags that name nothing.
func checkGiven(f *pflag.FlagSet) error {
	for _, name := range []string{"state", "image", "run-as", "operator-token", "outbox", "inbox"} {
		if g := f.Lookup(name); g != nil && g.Changed {
			if err := front.CheckGiven(name, g.Value.String()); err != nil {
				return err
			}
		}
	}
	return nil
}
