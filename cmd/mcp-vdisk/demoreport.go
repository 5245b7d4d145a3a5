package main

import (
	"archive/zip"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
)

//go:embed demo/report.md
var demoText string

//go:embed demo/report.py
var demoMaker string

// demoReport is what the demo leaves besides, when there are packages to make it.
const demoReport = "mcp-vdisk-demo.docx"

// demoPatience is how long the demo waits for packages.
const demoPatience = 3 * time.Minute

// ensure gets the packages into the caller's own environment root. The demo goes on
// without them.
func (d *demo) ensure(ctx context.Context) {
	d.say("First the packages that scripts can import, once for all disks: mcp-vdisk env ensure\n\n")
	ctx, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	sub := newApp(strings.NewReader(""), d.Stdout, d.Stderr)
	sub.State, sub.RunAs, sub.NoDaemon, sub.Envs = d.State, d.RunAs, d.NoDaemon, d.Envs
	started := !sub.hasDaemon()
	cmd := sub.command()
	cmd.SetArgs([]string{"env", "ensure"})
	err := cmd.ExecuteContext(ctx)
	if started {
		if _, err := sub.stopDaemon(context.WithoutCancel(ctx), front.StopArgs{}); err != nil {
			fmt.Fprintf(d.Stderr, "mcp-vdisk: %s\n", err)
		}
	}
	var f *exit.Failure
	switch {
	case err == nil:
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		d.say("They were not there within %s. The demo goes on without them; mcp-vdisk env ensure goes on where this ended.\n", demoPatience)
	case errors.As(err, &f) && f.Hint != "":
		d.say("They could not be got: %s\nhint: %s\nThe demo goes on without them.\n", f.Text, f.Hint)
	default:
		d.say("They could not be got: %s\nThe demo goes on without them.\n", err)
	}
	d.say("\n")
}

// hasDaemon says whether a daemon serves the state directory.
func (a *app) hasDaemon() bool {
	r, err := a.NewRequest("env.status", nil)
	if err != nil {
		return false
	}
	conn, _, err := a.Dial(r)
	if conn != nil {
		conn.Close()
	}
	return conn != nil || err != nil
}

// share lets the demo's state directory use the environment root of the caller's, if
// that is there and can be found out, and run as its owner, who alone can read it.
func (d *demo) share() {
	r, err := d.NewRequest("env.status", nil)
	if err != nil {
		return
	}
	set, _, err := parseSettings(r.Config, r.ConfigName)
	if err != nil {
		return
	}
	root := envRoot(r, set)
	info, err := os.Stat(root)
	if err != nil {
		return
	}
	d.envs = root
	if owner := front.OwnerOf(info); os.Geteuid() == 0 && d.RunAs == "" && owner > 0 {
		d.RunAs = fmt.Sprint(owner)
	}
}

// report makes a document with the packages of the base layer, if it is there.
func (d *demo) report(ctx context.Context) {
	d.step("It asks which packages a script can import")
	d.base = hasBase(d.call(ctx, "python_env", args{"action": "status"}, "Python", true))
	if !d.base {
		d.say("   With packages it could make Word, PowerPoint, Excel and PDF files: mcp-vdisk env ensure gets them.\n")
		return
	}
	d.step("It turns Markdown into a Word document with a chart")
	d.call(ctx, "write_file", args{"path": "report.md", "content": demoText}, "created", true)
	d.call(ctx, "write_file", args{"path": "report.py", "content": demoMaker}, "created", true)
	d.call(ctx, "run_script", args{"language": "python", "path": "report.py"}, "SAVED", true)
}

// hasBase reads that from the answer of python_env.
func hasBase(status *mcp.CallToolResult) bool {
	if status == nil || status.Meta == nil {
		return false
	}
	facts, ok := status.Meta.AdditionalFields[tools.MetaResult].(map[string]any)
	return ok && facts["base_ready"] == true
}

// takeReport takes the document out of the disk and tells what it is made of.
func (d *demo) takeReport(ctx context.Context) error {
	if !d.base {
		return nil
	}
	d.step("You take the document out of the disk")
	if _, err := d.command(ctx, "image", "get", "--force", "/workspace/out/report.docx", demoReport); err != nil {
		return err
	}
	parts, err := zip.OpenReader(demoReport)
	if err != nil {
		return err
	}
	defer parts.Close()
	var names []string
	for _, f := range parts.File {
		names = append(names, f.Name)
	}
	picture := slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "word/media/") })
	d.expect(slices.Contains(names, "word/document.xml") && picture, demoReport+" has a text and a picture")
	d.out("parts: %s", strings.Join(names, " "))
	return nil
}
