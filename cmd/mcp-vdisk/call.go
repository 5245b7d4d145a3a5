package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/schemas"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
)

type callRequest struct {
	Tool  string `json:"tool"`
	JSON  bool   `json:"json"`
	Actor string `json:"actor"`
}

func (a *app) callCmd() *cobra.Command {
	var s front.SessionFlags
	cmd := &cobra.Command{
		Use:   "call TOOL JSON|-",
		Short: "Call one tool and print its result",
		Long:  "call runs one tool as an agent would and prints its text. The arguments are a JSON object, or - to read it from standard input. A script is waited for until its end. Exit code 5 when the tool answers an error, 6 when an exclusive session is in its way.",
		Example: `  mcp-vdisk call write_file '{"path":"a.txt","content":"hello\n"}'
  mcp-vdisk call run_script '{"language":"bash","source":"wc -c a.txt"}'
  echo '{"path":"a.txt"}' | mcp-vdisk call read_file -`,
		Args:      cobra.ExactArgs(2),
		ValidArgs: schemas.Names(),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := a.NewRequest("call", callRequest{Tool: args[0], JSON: a.json, Actor: operator()})
			if err != nil {
				return err
			}
			r.Session = s
			r.Long = args[0] == "python_env" && asksPackages(args[1]) // which goes on after the call
			var in io.Reader = strings.NewReader(args[1])
			if args[1] == "-" {
				in = a.Stdin
			}
			mode := front.OpenCreate
			if s.ReadOnly {
				mode = front.OpenRead
			}
			return a.Ask(cmd.Context(), r, mode, in, a.Stdout)
		},
	}
	a.imageFlag(cmd.Flags())
	a.jsonFlag(cmd.Flags())
	sessionFlags(cmd.Flags(), &s)
	return cmd
}

// asksPackages says that the arguments of python_env ask for packages, or may.
func asksPackages(text string) bool {
	var a struct {
		Action string `json:"action"`
	}
	return text == "-" || json.Unmarshal([]byte(text), &a) == nil && a.Action == "request"
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
		return exit.Fail(exit.Failed, "", "read the arguments: %s", err)
	} else if err != nil {
		return err // interrupted
	}
	if len(raw) > tools.MaxMessage {
		return exit.Fail(exit.Usage, "", "the arguments are longer than %d bytes", tools.MaxMessage)
	}
	// The person waits, and has no later call that could ask for the rest.
	limits := b.set.limits
	limits.Answer = -1
	s, err := b.openSession(ctx, limits)
	if err != nil {
		return err
	}
	ctx = tools.WithCaller(ctx, tools.Caller{Actor: q.Actor, Client: "mcp-vdisk " + version, Protocol: "call", Session: fmt.Sprintf("call-%d", b.peer.PID)})
	r := s.tools.Call(ctx, q.Tool, raw)
	if err := errors.Join(b.printResult(r, q.JSON), s.close(ctx)); err != nil {
		return err
	}
	switch {
	case r.OK():
		return nil
	case ctx.Err() != nil:
		return &exit.Failure{Code: exit.Interrupted}
	case r.Err.Code == tools.LeaseHeld: // as other commands that would change the disk
		return &exit.Failure{Code: exit.Busy}
	}
	return &exit.Failure{Code: exit.Tool}
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
