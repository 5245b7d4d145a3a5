package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A client that is not ours: the MCP Inspector of the protocol's makers, from npm,
// as a command line client. It is the version that the test was written against.
const inspectorPackage = "@modelcontextprotocol/inspector@2.12.0"

// inspector installs the client into a directory that goes with the test.
func inspector(t *testing.T) string {
	t.Helper()
	if quick() {
		t.Skip("the tests run for the second time, and the client is the same for every user")
	}
	for _, prog := range []string{"npm", "node"} {
		if _, err := exec.LookPath(prog); err != nil {
			t.Skipf("%s is not installed", prog)
		}
	}
	prefix := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "npm", "install", "--prefix", prefix, "--no-audit", "--no-fund", "--loglevel=error", inspectorPackage).CombinedOutput()
	if err != nil {
		t.Skipf("npm does not install %s: %v\n%s", inspectorPackage, err, out)
	}
	return filepath.Join(prefix, "node_modules", ".bin", "mcp-inspector")
}

func TestInspector(t *testing.T) {
	t.Parallel()
	bin := inspector(t)
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			t.Parallel()
			// The client passes only a few variables on, so this is the daemon's.
			i := inspected{t, bin, era, daemonState(t), t.TempDir()}
			var list struct{ Tools []struct{ Name string } }
			i.run(0, &list, "tools/list", "--strict")
			if len(list.Tools) != len(sevenTools) {
				t.Errorf("tools/list has %d tools", len(list.Tools))
			}
			for _, c := range []struct {
				tool, args string
				code       int // 5: the result is an error
				says       string
			}{
				{"write_file", `{"path":"dir/a.txt","content":"one\ntwo\n"}`, 0, "/workspace/dir/a.txt"},
				{"write_file", `{"path":"dir/a.txt","content":"2","old_text":"two","mode":"replace"}`, 0, "/workspace/dir/a.txt"},
				{"read_file", `{"path":"dir/a.txt","offset":2,"limit":1}`, 0, "2\n"},
				{"list_files", `{"recursive":true}`, 0, "/workspace/dir/a.txt"},
				{"make_directory", `{"path":"x/y"}`, 0, "/workspace/x/y"},
				{"run_script", `{"language":"bash","source":"wc -l dir/a.txt > count"}`, 0, "SAVED"},
				{"python_env", `{"action":"status"}`, 0, "Python"},
				{"python_env", `{"action":"request","packages":["numpy"],"reason":"to count"}`, 5, "NOT_READY: "},
				{"delete_file", `{"path":"dir","recursive":true}`, 0, "/workspace/dir"},
				{"read_file", `{"path":"../x"}`, 5, "PATH_ESCAPE: "},
				{"read_file", `{"path":"count","colour":"red"}`, 5, "INVALID_ARGUMENT: "},
			} {
				var r struct{ Content []struct{ Type, Text string } }
				i.run(c.code, &r, "tools/call", "--tool-name", c.tool, "--tool-args-json", c.args)
				if len(r.Content) == 0 || !strings.Contains(r.Content[0].Text, c.says) {
					t.Errorf("%s %s: %+v, want %q", c.tool, c.args, r.Content, c.says)
				}
			}
			healthy(t, i.state, "default")
			want := map[string]string{"legacy": "2025-", "modern": "2026-07-28"}[era]
			if log := viaDaemon(t, i.state, "audit", "query", "ev=call.read", "-o", "ndjson").stdout; !strings.Contains(log, `"proto":"`+want) {
				t.Errorf("the calls were not of this era:\n%s", log)
			}
		})
	}
}

// inspected is a server as the client sees it; each run starts one.
type inspected struct {
	t                     *testing.T
	bin, era, state, home string
}

func (i inspected) run(code int, v any, method string, args ...string) {
	i.t.Helper()
	cmd := exec.Command(i.bin, append([]string{"--cli", program, "serve", "--state", i.state, "--method", method, "--protocol-era", i.era}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+i.home)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		i.t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		i.t.Errorf("%s %v: exit code %d, want %d\n%s%s", method, args, got, code, out.Bytes(), errs.Bytes())
		return
	}
	if err := json.Unmarshal(out.Bytes(), v); err != nil {
		i.t.Errorf("%s %v: %s\n%s", method, args, err, out.Bytes())
	}
}
