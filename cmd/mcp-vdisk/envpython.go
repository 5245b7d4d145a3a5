package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

type pythonArgs struct {
	Archive *upload // follows the request
	SHA256  string
	JSON    bool
}

func (a *app) envPythonCmd() *cobra.Command {
	var q pythonArgs
	var archive string
	cmd := &cobra.Command{
		Use:   "python",
		Short: "Make the interpreter of scripts, and show it",
		Long: `python makes the interpreter that the settings lead to, unless it is there, and shows
what it is. With --archive it takes an archive of python-build-standalone into the
environment root and makes one of that; the setting env.python_sha256 then names it
for scripts.`,
		Example: "  mcp-vdisk env python\n  mcp-vdisk env python --archive ./cpython-3.12-install_only.tar.gz --sha256 5acfa3…",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q.JSON = a.json
			if !cmd.Flags().Changed("archive") {
				if q.SHA256 != "" {
					return exit.Fail(exit.Usage, "", "--sha256 goes with --archive")
				}
				return a.askLong(cmd.Context(), "env.python", q, nil, a.Stdout)
			}
			if err := q.check(archive); err != nil {
				return err
			}
			f, u, err := openUpload(archive, maxArchive)
			if err != nil {
				return err
			}
			defer f.Close()
			q.Archive = &u
			return a.askLong(cmd.Context(), "env.python", q, u.send(f), a.Stdout)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().StringVar(&archive, "archive", "", "`FILE` of python-build-standalone, .tar.gz or .tar.zst")
	cmd.Flags().StringVar(&q.SHA256, "sha256", "", "`HEX` that the archive must have, from whoever published it")
	return cmd
}

func (q *pythonArgs) check(archive string) error {
	if err := front.CheckGiven("archive", archive); err != nil {
		return err
	}
	if archiveKind(archive) == "" {
		return exit.Fail(exit.Usage, "", "%s is neither a .tar.gz nor a .tar.zst", archive)
	}
	if q.SHA256 = strings.ToLower(q.SHA256); !lock.ValidSHA256(q.SHA256) {
		return exit.Fail(exit.Usage, "whoever publishes the archive publishes its hash", "--sha256 must be 64 hexadecimal digits, is %q", q.SHA256)
	}
	return nil
}

// Archives that were taken are kept below the environment root by their hash, as a
// damaged interpreter is made anew from them.
const archiveDir = "archives"

func archiveKind(name string) string {
	for _, kind := range []string{".tar.gz", ".tar.zst"} {
		if strings.HasSuffix(name, kind) {
			return kind
		}
	}
	return ""
}

// keptArchive is where an archive of a hash is kept. Whoever opens one that is not
// there is told so.
func keptArchive(root, sum string) string {
	path := filepath.Join(root, archiveDir, sum)
	if _, err := os.Lstat(path + ".tar.zst"); err == nil {
		return path + ".tar.zst"
	}
	return path + ".tar.gz"
}

// pythonFacts is what `env python --json` tells.
type pythonFacts struct {
	ID      string `json:"id"`
	Version string `json:"version"`
	Target  string `json:"target"` // of wheels that fit
	Kind    string `json:"kind"`   // "prefix", "standalone" or "system"
	From    string `json:"from"`
	SHA256  string `json:"sha256,omitempty"` // of the archive
	Why     string `json:"why,omitempty"`    // why nothing better was chosen
	Chosen  bool   `json:"chosen"`           // the settings lead to it
}

func backEnvPython(ctx context.Context, b *back) error {
	var q pythonArgs
	if err := b.args(&q); err != nil {
		return err
	}
	about := audit.Facts{}
	if q.Archive != nil {
		about["archive"], about["sha256"] = q.Archive.Name, q.SHA256
	}
	var it *python.Interpreter
	err := b.recorded(ctx, audit.EvEnvPython, about, func() ([]audit.Facts, error) {
		var err error
		if it, err = b.makePython(ctx, q); err != nil {
			return nil, err
		}
		return []audit.Facts{{"python": it.ID, "version": it.Facts.Full, "kind": it.Source.Kind, "from": it.Source.From}}, nil
	})
	if err != nil {
		return b.envFailure(ctx, err)
	}
	f := pythonFacts{it.ID, it.Facts.Full, it.Facts.Target.String(), it.Source.Kind, it.Source.From, it.Source.SHA256, it.Source.Why, q.Archive == nil || b.hub.set.env.sha256 == q.SHA256 && b.hub.set.env.python == ""}
	if q.JSON {
		return b.printJSON(f)
	}
	b.printf("python    %s  %s\nfrom      %s: %s\nfits      %s\nid        %s\n", f.Version, f.Kind, f.Kind, harmless(f.From), f.Target, f.ID)
	if f.Why != "" {
		b.printf("note      %s\n", harmless(f.Why))
	}
	if !f.Chosen {
		b.printf("scripts get it after: mcp-vdisk config set env.python_sha256 %s, and mcp-vdisk env ensure\n", f.SHA256)
	}
	return nil
}

// makePython makes the interpreter, if it is not there.
func (b *back) makePython(ctx context.Context, q pythonArgs) (*python.Interpreter, error) {
	root, err := store.Open(b.envs())
	if err != nil {
		return nil, err
	}
	defer root.Close()
	box, _, err := b.hub.sandbox(ctx)
	if err != nil {
		return nil, err
	}
	o := b.hub.envOptions(box)
	if q.Archive != nil {
		if o.Prefix, err = b.takeArchive(q); err != nil {
			return nil, err
		}
		o.SHA256 = q.SHA256
	}
	from := python.Options{Prefix: o.Prefix}
	if o.SHA256 != "" {
		from = python.Options{Archive: o.Prefix, SHA256: o.SHA256}
	}
	it, err := python.Make(ctx, root.Dir(), from, box)
	if err != nil && q.Archive != nil && q.SHA256 != b.hub.set.env.sha256 {
		err = errors.Join(err, os.Remove(o.Prefix)) // it is good for nothing
	}
	return it, err
}

// takeArchive keeps an archive under its hash, if it has it.
func (b *back) takeArchive(q pythonArgs) (string, error) {
	if err := q.check(q.Archive.Name); err != nil {
		return "", err
	}
	from, err := b.receive(*q.Archive, maxArchive)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(b.envs(), archiveDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	name := filepath.Join(dir, q.SHA256+archiveKind(q.Archive.Name))
	if _, err := os.Lstat(name); err == nil {
		_, err = io.Copy(io.Discard, from)
		return name, err // what is there was compared, and is compared again by who uses it
	}
	tmp, err := os.CreateTemp(dir, ".tmp-*")
	if err != nil {
		return "", err
	}
	defer os.Remove(tmp.Name()) // gone, once it was renamed
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(tmp, h), from)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return "", err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != q.SHA256 {
		return "", exit.Fail(exit.Failed, "it is another archive, or only a part of it", "hash_mismatch: %s has the SHA-256 %s, not %s", q.Archive.Name, got, q.SHA256)
	}
	if err := os.Rename(tmp.Name(), name); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return name, hostos.SyncDir(dir)
}
