package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
)

func (a *app) auditCmd() *cobra.Command {
	cmd := group(cobra.Command{
		Use:   "audit",
		Short: "Ask the audit log what was done and refused, and check it",
	})
	a.imageFlag(cmd.PersistentFlags())
	cmd.AddCommand(a.auditQueryCmd(), a.auditVerifyCmd())
	return cmd
}

type queryArgs struct {
	Since, Until time.Time
	Match        map[string][]string
	PathGlob     string
	From, To     uint64
	Limit        int
	Reverse      bool
	Output       string
	All          bool
}

func (a *app) auditQueryCmd() *cobra.Command {
	var q queryArgs
	var since, until, seq string
	var fields [4]string
	names := [4]string{"tool", "decision", "call", "actor"}
	columns := [4]string{"tool", "dec", "call", "act"}
	cmd := &cobra.Command{
		Use:   "query [FIELD=VALUE…]",
		Short: "Show records of the log",
		Long: `query shows the records of a disk's log, oldest first. FIELD is a field of the
record, such as ev, tool, dec, err, call or act; the same field twice means either,
different fields mean both.`,
		Example: `  mcp-vdisk audit query dec=deny
  mcp-vdisk audit query --tool run_script --since "2h ago" -o ndjson`,
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Match = map[string][]string{}
			for i, v := range fields {
				if v != "" {
					q.Match[columns[i]] = append(q.Match[columns[i]], v)
				}
			}
			for _, arg := range args {
				k, v, ok := strings.Cut(arg, "=")
				if !ok || k == "" {
					return exit.Fail(exit.Usage, "", "%q is not FIELD=VALUE", arg)
				}
				q.Match[k] = append(q.Match[k], v)
			}
			var err error
			if q.Since, err = parseTime(since, time.Now()); err != nil {
				return exit.BadUsage(fmt.Errorf("--since: %w", err))
			}
			if q.Until, err = parseTime(until, time.Now()); err != nil {
				return exit.BadUsage(fmt.Errorf("--until: %w", err))
			}
			if q.From, q.To, err = parseRange(seq); err != nil {
				return exit.BadUsage(fmt.Errorf("--seq: %w", err))
			}
			if a.json {
				q.Output = "json"
			}
			if !slices.Contains([]string{"table", "json", "ndjson", "raw"}, q.Output) {
				return exit.Fail(exit.Usage, "", "-o: must be table, json, ndjson or raw, is %q", q.Output)
			}
			return a.simple(cmd, "audit.query", q, a.auditMode(q.All))
		},
	}
	a.jsonFlag(cmd.Flags())
	f := cmd.Flags()
	for i, name := range names {
		f.StringVar(&fields[i], name, "", "only records with this "+name)
	}
	f.StringVar(&since, "since", "", "from this `TIME` on: RFC 3339, or \"2h ago\"")
	f.StringVar(&until, "until", "", "up to this `TIME`")
	f.StringVar(&seq, "seq", "", "records `A..B` by number")
	f.StringVar(&q.PathGlob, "path", "", "only records about a path that matches `GLOB`")
	f.IntVarP(&q.Limit, "lines", "n", 0, "at most `N` records, the newest")
	f.BoolVarP(&q.Reverse, "reverse", "r", false, "newest first")
	f.StringVarP(&q.Output, "output", "o", "table", "`FORMAT`: table, json, ndjson, raw (the bytes that are hashed)")
	f.BoolVar(&q.All, "all", false, "the logs of every disk of the state directory")
	return cmd
}

func (a *app) auditMode(all bool) front.OpenMode {
	if all {
		return front.NoImage
	}
	return front.OpenRead
}

// parseTime reads RFC 3339, a date, or a duration before now.
func parseTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if ago, ok := strings.CutSuffix(s, " ago"); ok {
		d, err := time.ParseDuration(strings.ReplaceAll(ago, " ", ""))
		if err != nil {
			return time.Time{}, fmt.Errorf("%q is not a duration such as \"2h ago\"", s)
		}
		return now.Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	if t, err := time.ParseInLocation(time.DateOnly, s, time.Local); err == nil {
		return t, nil
	}
	return time.Time{}, fmt.Errorf("%q is not a time: give RFC 3339, a date, or \"2h ago\"", s)
}

// parseRange reads "A..B", where either may be missing.
func parseRange(s string) (from, to uint64, err error) {
	if s == "" {
		return 0, 0, nil
	}
	a, b, ok := strings.Cut(s, "..")
	if a != "" {
		if from, err = strconv.ParseUint(a, 10, 53); err != nil {
			return 0, 0, fmt.Errorf("%q is not a range such as 10..20", s)
		}
	}
	if b != "" {
		if to, err = strconv.ParseUint(b, 10, 53); err != nil {
			return 0, 0, fmt.Errorf("%q is not a range such as 10..20", s)
		}
	}
	if !ok {
		to = from
	}
	return from, to, nil
}

// logStream is the stream of the request's disk, or all.
func (b *back) logStream(ctx context.Context) (string, error) {
	if b.req.Image == (front.ImageRef{}) {
		return "", nil
	}
	d, err := b.open(ctx, want{readOnly: true, unsettled: true})
	if err != nil {
		return "", err
	}
	return d.info.UUID, d.release()
}

func backQuery(ctx context.Context, b *back) error {
	var q queryArgs
	if err := b.args(&q); err != nil {
		return err
	}
	stream, err := b.logStream(ctx)
	if err != nil {
		return err
	}
	print, end := b.printer(q.Output)
	err = b.st.log.Query(ctx, audit.Query{
		Stream: stream, Since: q.Since, Until: q.Until, Match: q.Match, PathGlob: q.PathGlob,
		From: q.From, To: q.To, Limit: q.Limit, Reverse: q.Reverse, Newest: q.Limit > 0,
	}, print)
	if errors.Is(err, audit.ErrQuery) {
		return exit.BadUsage(err)
	}
	return cmp.Or(err, end())
}

// printer returns what prints a record, and what ends the output.
func (b *back) printer(format string) (func([]byte, audit.Record) error, func() error) {
	none := func() error { return nil }
	switch format {
	case "raw", "ndjson":
		return func(raw []byte, _ audit.Record) error {
			_, err := b.stdout.Write(append(raw[:len(raw):len(raw)], '\n'))
			return err
		}, none
	case "json":
		list := []json.RawMessage{}
		return func(raw []byte, _ audit.Record) error {
			list = append(list, append(json.RawMessage(nil), raw...))
			return nil
		}, func() error { return b.printJSON(list) }
	}
	runs := map[string]bool{}
	for _, j := range b.running() {
		runs[j.ID] = true
	}
	b.printf("%6s  %-23s  %-12s  %-14s  %-18s  %s\n", "N", "TIME", "EVENT", "TOOL", "RESULT", "ABOUT")
	return func(_ []byte, r audit.Record) error {
		result := resultOf(r)
		if r.Ev == audit.EvCallIntent && runs[r.Call] {
			result = "running"
		}
		b.printf("%s\n", tableRow(r, result))
		return nil
	}, none
}

func tableRow(r audit.Record, result string) string {
	return fmt.Sprintf("%6d  %-23s  %-12s  %-14s  %-18s  %s", r.N, r.T.Local().Format("2006-01-02 15:04:05.000"),
		safe(string(r.Ev)), safe(r.Tool), safe(result), safe(aboutOf(r)))
}

// resultOf is one word for what came of it; a refusal stands out.
func resultOf(r audit.Record) string {
	switch {
	case r.Dec == "deny":
		return "✗ " + r.Err
	case r.Err != "":
		return "! " + r.Err
	case r.Out != nil && r.Out.Outcome != "" && r.Out.Exit != nil:
		return fmt.Sprintf("%s %d", r.Out.Outcome, *r.Out.Exit)
	case r.Out != nil && r.Out.Outcome != "":
		return r.Out.Outcome
	case r.Out != nil && r.Out.OK:
		return "ok"
	case r.Out != nil && r.Out.Code == "":
		return "failed"
	case r.Out != nil:
		return r.Out.Code
	}
	return ""
}

func aboutOf(r audit.Record) string {
	var parts []string
	for _, k := range []string{"step", "path", "language", "job", "revision", "paths", "name", "image", "key", "names", "packages", "action", "client", "why", "base", "lock", "file", "archive", "from", "folder"} {
		if v, ok := r.Args[k]; ok {
			parts = append(parts, fmt.Sprint(v))
		}
	}
	if r.Ev == audit.EvRecover {
		parts = append(parts, r.Reason)
	}
	if r.Out != nil && r.Out.Changed > 0 {
		parts = append(parts, fmt.Sprintf("%d changed", r.Out.Changed))
	}
	refused := r.Dec == "deny" || r.Out != nil && !r.Out.OK && r.Ev != audit.EvRecover
	if r.Reason != "" && refused {
		parts = append(parts, r.Reason)
	}
	return strings.Join(parts, "  ")
}

// safe makes text of the log harmless to a terminal, one line long, and short
// enough for a table.
func safe(s string) string {
	const most = 100
	if r := []rune(s); len(r) > most {
		return harmless(string(r[:most])) + "…"
	}
	return harmless(s)
}

// harmless makes text harmless to a terminal and one line long.
func harmless(s string) string {
	var b strings.Builder
	for _, c := range s {
		if c == '\t' || !unicode.IsPrint(c) && c != ' ' {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(c), "'"))
			continue
		}
		b.WriteRune(c)
	}
	return b.String()
}

type verifyArgs struct {
	All, JSON bool
}

// Exit codes of `audit verify`.
const (
	verifyIntact     = 0
	verifyTampered   = 20
	verifyUnreadable = 24
	verifyDangling   = 25
)

func (a *app) auditVerifyCmd() *cobra.Command {
	var q verifyArgs
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check that nobody edited the log",
		Long: `verify reads every record and checks its number, its hash and its link to the
record before. Exit code 0 intact, 20 tampered or gone, 24 unreadable, 25 a call without an outcome.`,
		Example: "  mcp-vdisk audit verify --all",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q.JSON = a.json
			return a.simple(cmd, "audit.verify", q, a.auditMode(q.All))
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().BoolVar(&q.All, "all", false, "the logs of every disk of the state directory")
	return cmd
}

func backVerify(ctx context.Context, b *back) error {
	var q verifyArgs
	if err := b.args(&q); err != nil {
		return err
	}
	stream, err := b.logStream(ctx)
	if err != nil {
		return verifyHint(asFailure(ctx, err))
	}
	streams := []string{stream}
	if stream == "" {
		if streams, err = b.st.log.Streams(); err != nil {
			return exit.Fail(verifyUnreadable, "", "%s", err)
		}
	}
	var reports []audit.Report
	code := verifyIntact
	for _, s := range streams {
		r, err := b.st.log.Verify(ctx, s)
		if err != nil {
			return exit.Fail(verifyUnreadable, "", "%s: %s", s, err)
		}
		if r, err = b.withoutRunning(s, r); err != nil {
			return exit.Fail(verifyUnreadable, "", "%s: %s", s, err)
		}
		if r.OK && r.Last == 0 {
			r.OK, r.Reason = false, reasonEmpty
		}
		reports = append(reports, r)
		code = worse(code, r)
	}
	if q.JSON {
		err = b.printJSON(reports)
	} else {
		b.printReports(reports)
	}
	if err == nil && code != verifyIntact {
		err = &exit.Failure{Code: code}
	}
	return err
}

// withoutRunning takes the calls that are at work in this very process off the
// list of those that have no outcome.
func (b *back) withoutRunning(stream string, r audit.Report) (audit.Report, error) {
	if len(r.Dangling) == 0 || !b.hub.shared {
		return r, nil
	}
	open, err := b.st.log.Dangling(stream)
	if err != nil {
		return r, err
	}
	for _, rec := range open {
		if rec.Run == b.st.run {
			r.Dangling = slices.DeleteFunc(r.Dangling, func(id string) bool { return id == rec.Call })
		}
	}
	// What has got its outcome meanwhile is not on the second list.
	r.Dangling = slices.DeleteFunc(r.Dangling, func(id string) bool {
		return !slices.ContainsFunc(open, func(rec audit.Record) bool { return rec.Call == id })
	})
	return r, nil
}

// reasonEmpty is why a log without a record is not intact: the first use of a
// disk writes one.
const reasonEmpty = "no records; a disk that was used here has some, so its log is gone"

// verifyHint tells what still can be checked when the disk is damaged, so that
// its log is not found.
func verifyHint(f *exit.Failure) *exit.Failure {
	if f.Code == exit.Verify || f.Code == exit.State {
		f.Hint = "mcp-vdisk audit verify --all checks every log without opening a disk"
	}
	return f
}

func worse(code int, r audit.Report) int {
	switch {
	case !r.OK:
		return verifyTampered
	case code == verifyIntact && len(r.Dangling) > 0:
		return verifyDangling
	}
	return code
}

func (b *back) printReports(reports []audit.Report) {
	var notChecked []string
	for _, r := range reports {
		switch {
		case r.Reason == reasonEmpty:
			b.printf("EMPTY     %s: %s\n", r.Stream, r.Reason)
		case !r.OK:
			b.printf("TAMPERED  %s: record %d: %s\n          expected %s\n          found    %s\n", r.Stream, r.BadN, safe(r.Reason), safe(r.Want), safe(r.Got))
		case len(r.Dangling) > 0:
			b.printf("DANGLING  %s: %d records intact, %d calls without an outcome: %s\n", r.Stream, r.Records, len(r.Dangling), strings.Join(r.Dangling, " "))
		default:
			b.printf("intact    %s: %d records, every hash and link checked\n", r.Stream, r.Records)
		}
		for _, n := range r.NotChecked {
			if !slices.Contains(notChecked, n) {
				notChecked = append(notChecked, n)
			}
		}
	}
	for _, n := range notChecked {
		b.printf("not checked: %s\n", n)
	}
}
