package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// boxConfig is how the sandbox of a state directory is made.
func boxConfig(state string, set settings) sandboxrun.Config {
	return sandboxrun.Config{Scratch: filepath.Join(state, "scratch"), Disk: set.scratch == "disk", AllowUnixSockets: set.unixSockets}
}

// trialBox is the sandbox that scripts get, for verbs that try it without opening
// the state. It keeps on disk what it cannot keep in memory where a script's
// changes would be: in the state directory, if that is there and ours, else in a
// temporary one. drop removes what it made.
func (b *back) trialBox(ctx context.Context) (box *sandboxrun.Runner, drop func(), err error) {
	cfg, drop := boxConfig(b.req.State, b.set), func() {}
	if !canMakeRuns(cfg.Scratch) {
		dir, remove, err := sandboxrun.TempDir("", "mcp-vdisk-trial-")
		if err != nil {
			return nil, nil, fmt.Errorf("a directory to try scripts in: %w", err)
		}
		cfg.Scratch, drop = dir, func() { _ = remove() }
	}
	if box, err = sandboxrun.New(ctx, cfg); err != nil {
		drop()
		return nil, nil, err
	}
	return box, drop, nil
}

// canMakeRuns tells whether a scratch directory is there and can be used. What
// it makes has the name of what a Runner makes and removes.
func canMakeRuns(scratch string) bool {
	dir, err := os.MkdirTemp(scratch, "run-")
	return err == nil && os.Remove(dir) == nil
}
