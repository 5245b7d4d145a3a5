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
)

func (a *app) configCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show and set the limits of the state directory",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.configShowCmd(), a.configGetCmd(), a.configSetCmd())
	return cmd
}

// config reads the configuration as it is in force.
func (a *app) config() (request, map[string]string, error) {
	r, err := a.newRequest("config.set", nil)
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
				return printJSON(a.stdout, values)
			}
			for _, s := range table() {
				if defaults {
					fmt.Fprintf(a.stdout, "# %s; %s; default %s\n%s = %s\n", s.doc, s.kind, s.literal(s.def), s.key, s.literal(s.def))
					continue
				}
				fmt.Fprintf(a.stdout, "%s = %s\n", s.key, s.literal(values[s.key]))
			}
			return nil
		},
	}
	a.jsonFlag(cmd)
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
				return fail(exitNotFound, "mcp-vdisk config show lists all", "%s", err)
			}
			_, values, err := a.config()
			if err == nil {
				fmt.Fprintln(a.stdout, values[args[0]])
			}
			return err
		},
	}
}

type setArgs struct{ Key, Value string }

func (a *app) configSetCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "set KEY VALUE",
		Short: "Change one setting; a running server takes it up when it starts again",
		Long: `set changes one line of config.toml in the state directory and says which file it
wrote. For root this is ` + rootConfig + `, which holds for every state
directory.`,
		Example: "  mcp-vdisk config set script.write_bytes 1GiB",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := find(args[0])
			if err != nil {
				return fail(exitNotFound, "mcp-vdisk config show lists all", "%s", err)
			}
			_, shown, err := d.parse(args[1])
			if err != nil {
				return usage(fmt.Errorf("%s: %w", d.key, err))
			}
			return a.configSet(cmd.Context(), d, shown)
		},
	}
}

// configSet writes the record of the change first, then the file.
func (a *app) configSet(ctx context.Context, d setting, value string) error {
	r, err := a.newRequest("config.set", setArgs{d.key, value})
	if err != nil {
		return err
	}
	r.Image = imageRef{}
	text, err := setKey(r.Config, d, value)
	if err != nil {
		return err
	}
	if _, values, err := parseSettings(text, r.ConfigName); err != nil || values[d.key] != value {
		return fail(exitFailed, "edit the file by hand", "%s is laid out in a way that cannot be changed safely", r.ConfigName)
	}
	if err := a.ask(ctx, r, noImage, nil, a.stdout); err != nil {
		return err
	}
	if err := replaceFile(r.ConfigName, text); err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "wrote %s\n", r.ConfigName)
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
		return fail(exitFailed, "", "%s: %s", name, errText(err))
	}
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(name); err == nil {
		mode = info.Mode().Perm()
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".config-*")
	if err != nil {
		return fail(exitFailed, "", "%s: %s", name, errText(err))
	}
	defer os.Remove(f.Name())
	_, err = io.WriteString(f, text)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return fail(exitFailed, "", "%s: %s", name, errText(err))
	}
	return nil
}

func backConfigSet(ctx context.Context, b *back) error {
	var q setArgs
	if err := b.args(&q); err != nil {
		return err
	}
	return b.st.record(ctx, audit.StreamSystem, audit.Record{Ev: audit.EvConfigSet, Args: audit.Facts{"key": q.Key, "value": strings.TrimSpace(q.Value)}})
}
