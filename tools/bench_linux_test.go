package tools

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// scriptSteps are the steps of a call of run_script, each with the mark at its
// end. They are all there is between the request and the reply.
var scriptSteps = []struct{ mark, step string }{
	{MarkChecked, "request, check"},
	{MarkIntended, "intent, durable"},
	{MarkPinned, "view of the disk"},
	{string(sandboxrun.MarkOrdered), "pipes, options"},
	{string(sandboxrun.MarkTaken), "stage takes orders"},
	{string(sandboxrun.MarkMounted), "overlay"},
	{string(sandboxrun.MarkForked), "start bubblewrap"},
	{string(sandboxrun.MarkReleased), "limits"},
	{markBegun, "bubblewrap, interpreter"},
	{string(sandboxrun.MarkEnded), "script"},
	{string(sandboxrun.MarkReaped), "reaping"},
	{string(sandboxrun.MarkRead), "changes"},
	{string(sandboxrun.MarkGone), "unmount"},
	{MarkRan, "group, pipes"},
	{MarkSettled, "commit"},
	{MarkConcluded, "outcome"},
	{markReplied, "reply"},
}

const (
	markBegun   = "begun"   // the script's first command
	markReplied = "replied" // the client has the answer
)

// TestScriptMarks: a call tells all of its marks, each once and in the order of
// scriptSteps; those of the script and the client are not the server's.
func TestScriptMarks(t *testing.T) {
	var got, want []string
	d := setup{config: func(c *Config) { c.Trace = func(mark string, _ time.Time) { got = append(got, mark) } }}.scripted(t)
	for _, s := range scriptSteps {
		if s.mark != markBegun && s.mark != markReplied {
			want = append(want, s.mark)
		}
	}
	d.bash(`echo >f`)
	if !slices.Equal(got, want) {
		t.Errorf("marks %q, want %q", got, want)
	}
}

// pause is how long the benchmark waits before each call, as an agent does: what
// the server does after an answer is over by then.
const pause = 20 * time.Millisecond

// BenchmarkScriptSteps measures a call of run_script over a pair of pipes, step by
// step, each between two moments that were noted where they happened. It reports
// the medians of the steps in µs, and of the whole. The script says when it began,
// and writes a file, so that there is something to commit.
func BenchmarkScriptSteps(b *testing.B) {
	for _, s := range []struct{ name, language, source string }{
		{"Bash", "bash", "echo $EPOCHREALTIME; echo $EPOCHREALTIME >f"},
		{"Python", "python", "import time; print(f'{time.time():.6f}', file=open('f', 'w')); print(open('f').read())"},
	} {
		b.Run(s.name, func(b *testing.B) { benchSteps(b, s.language, s.source) })
	}
}

func benchSteps(b *testing.B, language, source string) {
	marks := map[string]time.Time{}
	d := setup{config: func(c *Config) { c.Trace = func(mark string, at time.Time) { marks[mark] = at } }}.scripted(b)
	ask := serving(b, d)
	steps, whole := map[string][]time.Duration{}, []time.Duration(nil)
	ask(language, source) // the view and a stage are made
	for b.Loop() {
		<-time.After(pause)
		clear(marks)
		start := time.Now()
		printed := ask(language, source)
		marks[markReplied] = time.Now()
		marks[markBegun] = begun(b, printed, start)
		whole = append(whole, marks[markReplied].Sub(start))
		for _, s := range scriptSteps {
			at, told := marks[s.mark]
			if !told {
				b.Fatalf("the mark %q is missing", s.mark)
			}
			steps[s.step] = append(steps[s.step], at.Sub(start))
			start = at
		}
	}
	mid := func(times []time.Duration) float64 {
		slices.Sort(times)
		return float64(times[len(times)/2].Nanoseconds()) / 1e3
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(mid(whole), "whole-µs")
	for i, s := range scriptSteps {
		b.ReportMetric(mid(steps[s.step]), fmt.Sprintf("step%02d:%s", i+1, strings.ReplaceAll(s.step, " ", "_")))
	}
}

// begun is the time that the script printed, as one that can be compared with start.
func begun(b *testing.B, printed string, start time.Time) time.Time {
	µs, err := strconv.ParseInt(strings.Replace(printed, ".", "", 1), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return start.Add(time.UnixMicro(µs).Sub(start.Round(0)))
}

var clockTime = regexp.MustCompile(`\d{10}\.\d{6}`)

// serving serves d over pipes, and returns what calls run_script and returns the
// time that the script printed.
func serving(b *testing.B, d *disk) func(language, source string) string {
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { r.Close(); w.Close() })
		return r, w
	}
	toServer, in := pipe()
	fromServer, out := pipe()
	served := make(chan error, 1)
	go func() { served <- d.ServeStdio(context.Background(), toServer, out) }()
	b.Cleanup(func() {
		in.Close()
		if err := <-served; err != nil {
			b.Error(err)
		}
	})
	lines, id := bufio.NewReader(fromServer), 0
	return func(language, source string) string {
		id++
		message, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": map[string]any{
			"name": "run_script", "arguments": map[string]any{"language": language, "source": source},
		}})
		if err == nil {
			_, err = in.Write(append(message, '\n'))
		}
		if err != nil {
			b.Fatal(err)
		}
		line, err := lines.ReadString('\n')
		if err != nil || !strings.Contains(line, `"saved":true`) {
			b.Fatalf("%v: %s", err, line)
		}
		return clockTime.FindString(line)
	}
}
