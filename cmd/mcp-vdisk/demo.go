package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

//go:embed demo/readings.csv
var demoData string

//go:embed demo/chart.py
var demoScript string

// demoChart is the file that the demo leaves in the current folder.
const demoChart = "mcp-vdisk-demo.svg"

func (a *app) demoCmd() *cobra.Command {
	var keep, packages bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the whole thing in ten seconds, on a disk of its own",
		Long: `demo starts a server as an editor would, speaks MCP to it, and shows what an agent
can do, what it is refused, and what the log says of it. It uses a state directory of
its own, but the Python packages of yours, if env ensure made them. It leaves
` + demoChart + ` in the current folder, with packages ` + demoReport + ` too. Exit code 1
if anything is not as it should be.`,
		Example: "  mcp-vdisk demo",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := os.MkdirTemp("", "mcp-vdisk-demo-")
			if err != nil {
				return err
			}
			if !keep {
				defer os.RemoveAll(dir)
			}
			d := &demo{app: a, state: filepath.Join(dir, "state"), bold: isTerminal(a.Stdout)}
			if packages {
				d.ensure(cmd.Context())
			}
			d.share()
			// The directory is passed through by the user that root becomes.
			if err := os.Chmod(dir, 0o711); err != nil {
				return err
			}
			return d.run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the state directory")
	cmd.Flags().BoolVar(&packages, "packages", false, "first run env ensure in your own state directory, for at most three minutes")
	return cmd
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// demo is one run of the demonstration.
type demo struct {
	*app
	state string
	envs  string // the environment root of the caller's own state directory, "" when it has none
	bold  bool
	mcp   *client.Client
	steps int
	base  bool     // scripts have the base layer
	wrong []string // what was not as it should be
}

func (d *demo) run(ctx context.Context) error {
	d.say("mcp-vdisk gives an AI agent a disk of its own. What follows is a real session over MCP.\n")
	scripts, err := d.talk(ctx)
	if err != nil {
		return exit.Fail(exit.Failed, "", "demo: %s", err)
	}
	if err := d.afterwards(ctx, scripts); err != nil {
		return exit.Fail(exit.Failed, "", "demo: %s", err)
	}
	if len(d.wrong) > 0 {
		return exit.Fail(exit.Failed, "mcp-vdisk doctor may tell why", "demo: not as it should be: %s", strings.Join(d.wrong, "; "))
	}
	if !scripts {
		d.say("\nThe file part works here. Scripts do not; `mcp-vdisk doctor` (above) says what to do.\n")
		return nil
	}
	d.say("\nAll as it should be. To give your own agent a disk: the README has the few lines for Claude and Cursor.\n")
	return nil
}

// talk is the session: it connects, works, and hangs up.
func (d *demo) talk(ctx context.Context) (scripts bool, err error) {
	d.step("An agent connects, as Claude or Cursor would: mcp-vdisk serve")
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	var stderr bytes.Buffer
	var env []string
	if d.envs != "" {
		env = []string{"MCP_VDISK_ENVS=" + d.envs}
	}
	d.mcp, err = client.NewStdioMCPClientWithOptions(self, env, d.flags("serve"), transport.WithCommandStderrWriter(&stderr))
	if err != nil {
		return false, err
	}
	defer func() {
		if cerr := d.mcp.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("the server ended with %w: %s", cerr, stderr.String())
		}
	}()
	if scripts, err = d.connect(ctx); err != nil {
		return false, fmt.Errorf("%w %s", err, stderr.String())
	}
	d.work(ctx, scripts)
	d.refusals(ctx, scripts)
	if scripts {
		d.report(ctx)
	}
	return scripts, nil
}

func (d *demo) flags(args ...string) []string {
	flags := []string{"--state", d.state}
	if d.RunAs != "" {
		flags = append(flags, "--run-as", d.RunAs)
	}
	return append(args, flags...)
}

func (d *demo) connect(ctx context.Context) (scripts bool, err error) {
	init := mcp.InitializeRequest{}
	init.Params.ProtocolVersion = mcp.LATEST_LEGACY_PROTOCOL_VERSION
	init.Params.ClientInfo = mcp.Implementation{Name: "mcp-vdisk-demo", Version: version}
	hello, err := d.mcp.Initialize(ctx, init)
	if err != nil {
		return false, err
	}
	list, err := d.mcp.ListTools(ctx, mcp.ListToolsRequest{})
	if err != nil {
		return false, err
	}
	scripts = true
	var names []string
	for _, t := range list.Tools {
		names = append(names, t.Name)
		if strings.HasPrefix(t.Description, "UNAVAILABLE") {
			scripts = false
		}
	}
	d.out("%s, MCP %s; tools: %s", hello.ServerInfo.Name, hello.ProtocolVersion, strings.Join(names, " "))
	d.expect(len(names) == 7, "seven tools")
	return scripts, nil
}

func (d *demo) work(ctx context.Context, scripts bool) {
	d.step("It writes a data set and a script")
	d.call(ctx, "write_file", args{"path": "readings.csv", "content": demoData}, "created", true)
	d.call(ctx, "write_file", args{"path": "chart.py", "content": demoScript}, "created", true)
	if scripts {
		d.step("It runs the script in a sandbox. Exit 0 saves what it made, as one commit")
		d.call(ctx, "run_script", args{"language": "python", "path": "chart.py"}, "SAVED", true)
	}
	d.step("It reads back and lists")
	path := "readings.csv"
	if scripts {
		path = "out/rainfall.svg"
	}
	d.call(ctx, "read_file", args{"path": path, "limit": 3}, "of ", true)
	d.call(ctx, "list_files", args{"recursive": true}, "readings.csv", true)
}

func (d *demo) refusals(ctx context.Context, scripts bool) {
	d.step("It tries what it may not, and is refused with a reason")
	d.call(ctx, "write_file", args{"path": "../x", "content": "out"}, "PATH_ESCAPE", false)
	d.call(ctx, "write_file", args{"path": ".system/x", "content": "in"}, "RESERVED_PATH", false)
	if !scripts {
		return
	}
	d.call(ctx, "run_script", args{"language": "python",
		"source": "import socket\nsocket.create_connection((\"192.0.2.1\", 80), 5)\n"}, "Network is unreachable", true)
	d.step("A script that fails leaves the disk as it was")
	d.call(ctx, "run_script", args{"language": "bash", "source": "rm -r out && echo gone && exit 1\n"}, "NOT SAVED", true)
	d.call(ctx, "list_files", args{"path": "out"}, "rainfall.svg", true)
}

// afterwards is what the person beside the agent does.
func (d *demo) afterwards(ctx context.Context, scripts bool) error {
	d.step("You read the log: every call is in it, the refused ones too")
	query, err := d.command(ctx, "audit", "query")
	if err != nil {
		return err
	}
	for _, want := range []string{"PATH_ESCAPE", "RESERVED_PATH", "call.intent", "call.outcome", "call.refused"} {
		d.expect(strings.Contains(query, want), "the log shows "+want)
	}
	d.step("You check that nobody edited it")
	if _, err := d.command(ctx, "audit", "verify"); err != nil {
		return err
	}
	if !scripts {
		_, err := d.command(ctx, "doctor")
		var f *exit.Failure
		if errors.As(err, &f) {
			return nil // scripts do not work: that is what it says
		}
		return err
	}
	d.step("You take the chart out of the disk")
	if _, err := d.command(ctx, "image", "get", "--force", "/workspace/out/rainfall.svg", demoChart); err != nil {
		return err
	}
	svg, err := os.ReadFile(demoChart)
	d.expect(err == nil && bytes.HasPrefix(svg, []byte("<svg")) && bytes.HasSuffix(bytes.TrimSpace(svg), []byte("</svg>")), demoChart+" is a whole chart")
	return d.takeReport(ctx)
}

// command runs a command of this program on the demo's state and shows it.
func (d *demo) command(ctx context.Context, words ...string) (string, error) {
	d.say("   $ mcp-vdisk %s\n", strings.Join(words, " "))
	var out, errs bytes.Buffer
	sub := newApp(strings.NewReader(""), &out, &errs)
	sub.Envs = d.envs
	cmd := sub.command()
	cmd.SetArgs(d.flags(words...))
	err := cmd.ExecuteContext(ctx)
	d.indent(out.String() + errs.String())
	if err != nil {
		err = fmt.Errorf("mcp-vdisk %s: %w", strings.Join(words, " "), err)
	}
	return out.String(), err
}

type args map[string]any

// call makes a tool call, shows it, and checks that its text holds want and
// that it succeeded or was refused as it should.
func (d *demo) call(ctx context.Context, tool string, a args, want string, ok bool) *mcp.CallToolResult {
	d.say("   → %s %s\n", tool, shownArgs(a))
	req := mcp.CallToolRequest{}
	req.Params.Name, req.Params.Arguments = tool, map[string]any(a)
	res, err := d.mcp.CallTool(ctx, req)
	if err != nil {
		d.expect(false, fmt.Sprintf("%s answered %s", tool, err))
		return nil
	}
	var text []string
	for _, c := range res.Content {
		if t, isText := c.(mcp.TextContent); isText {
			text = append(text, t.Text)
		}
	}
	d.indent(forReading(strings.Join(text, "\n")))
	d.expect(res.IsError == !ok && strings.Contains(strings.Join(text, "\n"), want), fmt.Sprintf("%s says %q", tool, want))
	return res
}

func shownArgs(a args) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	short := args{}
	for k, v := range a {
		if s, isText := v.(string); isText && len(s) > 90 {
			v = s[:30] + "… (" + fmt.Sprint(len(s)) + " bytes)"
		}
		short[k] = v
	}
	if err := e.Encode(short); err != nil {
		return err.Error()
	}
	return strings.TrimSpace(b.String())
}

var longDigest = regexp.MustCompile(`\b([0-9a-f]{8})[0-9a-f]{56}\b`)

// forReading shortens what a person does not read: long lines, long digests,
// the middle of a traceback.
func forReading(text string) string {
	text = longDigest.ReplaceAllString(text, "$1…")
	var out []string
	for l := range strings.Lines(text) {
		l = strings.TrimRight(l, "\n")
		if strings.HasPrefix(l, "  File ") || strings.HasPrefix(l, "    ") && strings.Contains(text, "Traceback") {
			continue
		}
		if r := []rune(l); len(r) > 110 {
			l = string(r[:110]) + "…"
		}
		out = append(out, l)
	}
	return strings.Join(out, "\n")
}

func (d *demo) expect(ok bool, what string) {
	if !ok {
		d.wrong = append(d.wrong, what)
		d.out("✗ expected: %s", what)
	}
}

func (d *demo) step(title string) {
	d.steps++
	line := fmt.Sprintf("%d. %s", d.steps, title)
	if d.bold {
		line = "\x1b[1m" + line + "\x1b[0m"
	}
	d.say("\n%s\n", line)
}

func (d *demo) say(format string, a ...any) { fmt.Fprintf(d.Stdout, format, a...) }

func (d *demo) out(format string, a ...any) { d.indent(fmt.Sprintf(format, a...)) }

func (d *demo) indent(text string) {
	for l := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		fmt.Fprintf(d.Stdout, "     %s", l)
	}
}
