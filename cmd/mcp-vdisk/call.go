package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/schemas"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
)

type callRequest struct {
	Tool  string `json:"tool"`
	JSON  bool   `json:"json"`
	Actor string `json:"actor"`
}

func (a *app) callCmd() *cobra.Command {
	var s sessionFlags
	cmd := &cobra.Command{
		Use:   "call TOOL JSON|-",
		Short: "Call one tool and print its result",
		Long:  "call runs one tool as an agent would and prints its text. The arguments are a JSON object, or - to read it from standard input. A script is waited for until its end. Exit code 5 when the tool answers an error.",
		Example: `  mcp-vdisk call write_file '{"path":"a.txt","content":"hello\n"}'
  mcp-vdisk call run_script '{"language":"bash","source":"wc -c a.txt"}'
  echo '{"path":"a.txt"}' | mcp-vdisk call read_file -`,
		Args:      cobra.ExactArgs(2),
		ValidArgs: schemas.Names(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := s.check(); err != nil {
				return err
			}
			r, err := a.newRequest("call", callRequest{Tool: args[0], JSON: a.json, Actor: operator()})
			if err != nil {
				return err
			}
			s.GetArgs = r.Session.GetArgs
			r.Session = s
			var in io.Reader = strings.NewReader(args[1])
			if args[1] == "-" {
				in = a.stdin
			}
			mode := openCreate
			if s.ReadOnly {
				mode = openRead
			}
			return a.ask(cmd.Context(), r, mode, in, a.stdout)
		},
	}
	a.imageFlag(cmd)
	a.jsonFlag(cmd)
	s.register(cmd)
	return cmd
}

// operator names the person at the terminal, for the log.
func operator() string {
	if u, err := user.Current(); err == nil {
		return "operator:" + u.Username
	}
	return fmt.Sprintf("operator:uid %d", os.Getuid())
}

func backCall(ctx context.Context, b *back) error {
	var q callRequest
	if err := b.args(&q); err != nil {
		return err
	}
	raw, err := io.ReadAll(io.LimitReader(b.stdin, tools.MaxMessage+1))
	if err != nil && ctx.Err() == nil {
		return fail(exitFailed, "", "read the arguments: %s", err)
	} else if err != nil {
		return err // interrupted
	}
	if len(raw) > tools.MaxMessage {
		return fail(exitUsage, "", "the arguments are longer than %d bytes", tools.MaxMessage)
	}
	// There is no later call that could ask for the rest.
	b.set.limits.Answer = -1
	d, err := b.openTools(ctx)
	if err != nil {
		return err
	}
	ctx = tools.WithCaller(ctx, tools.Caller{Actor: q.Actor, Client: "mcp-vdisk " + version, Protocol: "call"})
	r := d.tools.Call(ctx, q.Tool, raw)
	if err := errors.Join(b.printResult(r, q.JSON), d.Close()); err != nil {
		return err
	}
	switch {
	case r.OK():
		return nil
	case ctx.Err() != nil:
		return &failure{Code: exitInterrupted}
	}
	return &failure{Code: exitTool}
}

func (b *back) printResult(r tools.Result, asJSON bool) error {
	if asJSON {
		return b.printJSON(r.MCP())
	}
	text := r.String()
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	_, err := io.WriteString(b.stdout, text)
	return err
}
