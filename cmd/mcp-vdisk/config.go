package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
)

func (a *app) configCmd() *cobra.Command {
	cmd := group(cobra.Command{
		Use:   "config",
		Short: "Show and set the limits of the state directory",
	})
	cmd.AddCommand(a.configShowCmd(), a.configGetCmd(), a.configSetCmd())
	return cmd
}

// config reads the configuration as it is in force.
func (a *app) config() (front.Request, map[string]string, error) {
	r, err := a.NewRequest("config.set", nil)
	if err != nil {
		return r, nil, err
	}
	_, values, err := parseSettings(r.Config, r.ConfigName)
	return r, values, err
}

func (a *app) configShowCmd() *cobra.Command {
	var defaults bool
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Show every setting; with --defaults, also what each means",
		Example: "  mcp-vdisk config show --defaults",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, values, err := a.config()
			if err != nil {
				return err
			}
			if a.json {
				return printJSON(a.Stdout, values)
			}
			for _, s := range table() {
				if defaults {
					fmt.Fprintf(a.Stdout, "# %s; %s; default %s\n%s = %s\n", s.doc, s.kind, s.literal(s.def), s.key, s.literal(s.def))
					continue
				}
				fmt.Fprintf(a.Stdout, "%s = %s\n", s.key, s.literal(values[s.key]))
			}
			return nil
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().BoolVar(&defaults, "defaults", false, "show the defaults and what each setting means, as a config.toml")
	return cmd
}

// literal is a value as TOML has it.
func (d setting) literal(v string) string {
	if d.kind == countKind {
		return v
	}
	return fmt.Sprintf("%q", v)
}

func (a *app) configGetCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "get KEY",
		Short:   "Print one setting",
		Example: "  mcp-vdisk config get script.timeout",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := find(args[0]); err != nil {
				return exit.Fail(exit.NotFound, "mcp-vdisk config show lists all", "%s", err)
			}
			_, values, err := a.config()
			if err == nil {
				fmt.Fprintln(a.Stdout, values[args[0]])
			}
			return err
		},
	}
}

type setArgs struct {
	Key, Value string
	Proof      proof
}

func (a *app) configSetCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set KEY VALUE",
		Short: "Change one setting; a running server takes it up when it starts again",
		Long: `set changes one line of config.toml in the state directory and says which file it
wrote. For root this is ` + front.RootConfig + `, which holds for every state
directory.`,
		Example: "  mcp-vdisk config set script.write_bytes 1GiB",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := find(args[0])
			if err != nil {
				return exit.Fail(exit.NotFound, "mcp-vdisk config show lists all", "%s", err)
			}
			_, shown, err := d.parse(args[1])
			if err != nil {
				return exit.BadUsage(fmt.Errorf("%s: %w", d.key, err))
			}
			return a.configSet(cmd.Context(), d, shown)
		},
	}
	a.tokenFlag(cmd)
	return cmd
}

// configSet writes the record of the change first, then the file.
func (a *app) configSet(ctx context.Context, d setting, value string) error {
	state, err := a.StateDir()
	if err != nil {
		return err
	}
	p, err := a.prove("set", fmt.Sprintf("This sets %s to %s in %s.", d.key, value, harmless(front.ConfigPath(state))))
	if err != nil {
		return err
	}
	r, err := a.NewRequest("config.set", setArgs{d.key, value, p})
	if err != nil {
		return err
	}
	r.Image = front.ImageRef{}
	text, err := setKey(r.Config, d, value)
	if err != nil {
		return err
	}
	if _, values, err := parseSettings(text, r.ConfigName); err != nil || values[d.key] != value {
		return exit.Fail(exit.Failed, "edit the file by hand", "%s is laid out in a way that cannot be changed safely", r.ConfigName)
	}
	if err := a.Ask(ctx, r, front.NoImage, nil, a.Stdout); err != nil {
		return err
	}
	if err := replaceFile(r.ConfigName, text); err != nil {
		return err
	}
	fmt.Fprintf(a.Stderr, "wrote %s\n", r.ConfigName)
	if conn, _, _ := a.Dial(r); conn != nil {
		conn.Close()
		fmt.Fprintf(a.Stderr, "the daemon goes on with what it started with; mcp-vdisk daemon restart takes the new settings up\n")
	}
	return nil
}

// setKey changes or adds one line of a config.toml and leaves the rest as the
// person wrote it.
func setKey(text string, d setting, value string) (string, error) {
	line := fmt.Sprintf("%s = %s", d.key, d.literal(value))
	re, err := regexp.Compile(`(?m)^[ \t]*` + regexp.QuoteMeta(d.key) + `[ \t]*=.*$`)
	if err != nil {
		return "", err
	}
	if re.MatchString(text) {
		return re.ReplaceAllLiteralString(text, line), nil
	}
	// Dotted keys go before any table header, or they would belong to it.
	return line + "\n" + text, nil
}

// replaceFile writes a file whole or not at all.
func replaceFile(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return exit.Fail(exit.Failed, "", "%s: %s", name, front.ErrText(err))
	}
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(name); err == nil {
		mode = info.Mode().Perm()
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".config-*")
	if err != nil {
		return exit.Fail(exit.Failed, "", "%s: %s", name, front.ErrText(err))
	}
	defer os.Remove(f.Name())
	_, err = io.WriteString(f, text)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return exit.Fail(exit.Failed, "", "%s: %s", name, front.ErrText(err))
	}
	return nil
}

func backConfigSet(ctx context.Context, b *back) error {
	var q setArgs
	if err := b.args(&q); err != nil {
		return err
	}
	about, err := b.proven(q.Proof, audit.Facts{"key": q.Key, "value": strings.TrimSpace(q.Value)})
	if err != nil {
		return err
	}
	return b.st.record(ctx, audit.StreamSystem, audit.Record{Ev: audit.EvConfigSet, Args: about})
}
