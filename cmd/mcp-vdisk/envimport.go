package main

import (
	"context"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
)

type importArgs struct {
	Wheels []upload // one after the other on the stream
	Base   bool
	JSON   bool
}

// maxImports is how many wheels one command takes: its request has to name them.
const maxImports = 500

func (a *app) envImportCmd() *cobra.Command {
	var q importArgs
	cmd := &cobra.Command{
		Use:   "import WHEEL…",
		Short: "Take wheels of this computer into the environment root",
		Long: `import checks wheels as those of an index are checked, and keeps them. env ensure then
need not fetch them. With --base they also become part of the base layer, which the
next env ensure builds: this is how packages of your own get to scripts.`,
		Example: "  mcp-vdisk env import ./wheels/*.whl\n  mcp-vdisk env import --base ./house_style-1.2-py3-none-any.whl",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > maxImports {
				return exit.Fail(exit.Usage, "", "%d wheels are named, and at most %d are taken at once", len(args), maxImports)
			}
			var parts []io.Reader
			for _, name := range args {
				f, u, err := openWheel(name)
				if err != nil {
					return err
				}
				defer f.Close()
				q.Wheels, parts = append(q.Wheels, u), append(parts, u.send(f))
			}
			q.JSON = a.json
			return a.askLong(cmd.Context(), "env.import", q, io.MultiReader(parts...), a.Stdout)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().BoolVar(&q.Base, "base", false, "make them part of the base layer")
	return cmd
}

type removeArgs struct {
	Names []string
}

func (a *app) envRemoveCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "remove NAME…",
		Short:   "Take packages that were imported with --base out of the next base layer",
		Long:    `remove takes packages out of what the next env ensure builds. Scripts have them until then.`,
		Example: "  mcp-vdisk env remove house-style",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.askLong(cmd.Context(), "env.remove", removeArgs{args}, nil, a.Stdout)
		},
	}
}

func backEnvRemove(ctx context.Context, b *back) error {
	var q removeArgs
	if err := b.args(&q); err != nil {
		return err
	}
	env, drop, err := b.environment(ctx, nil)
	if err != nil {
		return err
	}
	defer drop()
	err = b.recorded(ctx, audit.EvEnvRemove, audit.Facts{"packages": q.Names}, func() ([]audit.Facts, error) {
		return nil, env.Remove(ctx, q.Names...)
	})
	if err != nil {
		return b.envFailure(ctx, err)
	}
	b.printf("mcp-vdisk env ensure builds a base layer without %s\n", map[bool]string{true: "it", false: "them"}[len(q.Names) == 1])
	return nil
}

func openWheel(name string) (*os.File, upload, error) {
	if err := front.CheckGiven("WHEEL", name); err != nil {
		return nil, upload{}, exit.Fail(exit.Usage, "", "the name of a wheel is empty")
	}
	if !strings.HasSuffix(name, ".whl") {
		return nil, upload{}, exit.Fail(exit.Usage, "only wheels are taken: building anything else would run it", "%s is not named as a wheel, NAME-VERSION-TAGS.whl", name)
	}
	return openUpload(name, maxWheel)
}

// importFacts is what `env import --json` tells of each wheel.
type importFacts struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	File    string   `json:"file"`
	SHA256  string   `json:"sha256"`
	Base    bool     `json:"base"`
	Notes   []string `json:"notes"`
}

func backEnvImport(ctx context.Context, b *back) error {
	var q importArgs
	if err := b.args(&q); err != nil {
		return err
	}
	if len(q.Wheels) == 0 || len(q.Wheels) > maxImports {
		return exit.Fail(exit.Usage, "", "%d wheels are announced, and 1 to %d are taken", len(q.Wheels), maxImports)
	}
	env, drop, err := b.environment(ctx, nil)
	if err != nil {
		return err
	}
	defer drop()
	list := []importFacts{}
	for _, u := range q.Wheels {
		f, err := b.importWheel(ctx, env, u, q.Base)
		if err != nil {
			return err
		}
		list = append(list, f)
		if !q.JSON {
			b.printf("imported  %s %s  %s\n", safe(f.Name), safe(f.Version), f.SHA256)
			for _, n := range f.Notes {
				b.printf("note      %s\n", harmless(n))
			}
		}
	}
	if q.JSON {
		return b.printJSON(list)
	}
	if q.Base {
		b.printf("mcp-vdisk env ensure builds a base layer with %s\n", map[bool]string{true: "it", false: "them"}[len(list) == 1])
	}
	return nil
}

func (b *back) importWheel(ctx context.Context, env *pyenv.Env, u upload, base bool) (f importFacts, err error) {
	from, err := b.receive(u, maxWheel)
	if err != nil {
		return f, err
	}
	err = b.recorded(ctx, audit.EvEnvImport, audit.Facts{"file": u.Name, "bytes": u.Size, "for_base": base}, func() ([]audit.Facts, error) {
		done, err := env.Import(ctx, u.Name, from, base)
		if err != nil {
			return nil, err
		}
		f = importFacts{done.Name, done.Version, done.File, done.SHA256, done.Base, append([]string{}, done.Notes...)}
		return []audit.Facts{{"wheel-" + done.Name: done.Name + " " + done.Version + " " + done.SHA256, "for_base": done.Base}}, nil
	})
	return f, b.envFailure(ctx, err)
}
