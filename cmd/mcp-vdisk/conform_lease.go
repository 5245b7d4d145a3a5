package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/conformance"
	"github.com/mcp-vdisk/mcp-vdisk/conformance/leaseproc"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// lease tries the provider of state directories on a store of its own: in a
// process that can be killed, with a clock that can be moved, and disks as what the
// tokens protect.
func (c *conformRun) lease(ctx context.Context) (rep conformance.Report, err error) {
	// Others that try something remove what was left of trials, and pass over what is
	// locked.
	dir, drop, err := sandboxrun.TempDir("", "mcp-vdisk-trial-")
	if err != nil {
		return rep, fmt.Errorf("a directory to try leases in: %w", err)
	}
	defer func() { _ = drop() }()
	s, err := leaseproc.Start(front.SelfPath(), dir)
	if err != nil {
		return rep, fmt.Errorf("start a provider of leases: %w", err)
	}
	defer s.Close()
	q := s.Case()
	q.Only, q.Progress = c.only, c.progress
	q.Resource = func(context.Context) (conformance.Resource, error) { return newLeasedDisk(dir) }
	return conformance.RunLease(ctx, s, q), nil
}

// openLeases opens the provider in its process.
func openLeases(dir string, o leaseproc.Options) (lease.Provider, func() error, error) {
	db, err := audit.OpenDB(filepath.Join(dir, "db"), nil)
	if err != nil {
		return nil, nil, err
	}
	p, err := lease.New(db, lease.Options{
		Clock: o.Clock, Evict: o.Evict, Record: o.Record,
		Commit: func(txn *badger.Txn) error { return o.Write(txn.Commit) },
	})
	return p, db.Close, err
}

// leasedDisk is a disk as what a lease protects. Its value is the target of a
// link, the shortest thing that has one.
type leasedDisk struct {
	im   *workspace.Image
	path string
	at   workspace.Path
}

func newLeasedDisk(dir string) (*leasedDisk, error) {
	at, err := workspace.Clean("value")
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, "*.vdisk")
	if err != nil {
		return nil, err
	}
	d := &leasedDisk{path: f.Name(), at: at}
	d.im, err = workspace.Create(d.path, workspace.CreateOptions{File: f})
	return d, err
}

func (d *leasedDisk) Write(ctx context.Context, m lease.Mark, value string) error {
	_, err := d.im.Commit(ctx, workspace.Txn{
		Fence:   workspace.Fence(m),
		Changes: []workspace.Change{{Op: workspace.OpSymlink, Path: d.at, Target: value, Replace: true}},
	})
	return err
}

func (d *leasedDisk) Value(context.Context) (string, error) {
	n, err := d.im.Lstat(d.at)
	return n.Target, err
}

func (d *leasedDisk) Reopen(context.Context) (err error) {
	if err := d.im.Close(); err != nil {
		return err
	}
	d.im, err = workspace.Open(d.path, workspace.OpenOptions{})
	return err
}

func (d *leasedDisk) Close() error { return d.im.Close() }
