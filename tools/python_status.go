package tools

import (
	"context"
	"fmt"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// tellPython tells what a script that starts now gets, and what was asked for.
func (t *Tools) tellPython(ctx context.Context) (Result, error) {
	st, err := t.cfg.Python.Status(ctx, t.streamName)
	if err != nil {
		return Result{}, err
	}
	return textResult(statusFacts(st), statusLines(st)...), nil
}

func statusFacts(st pyenv.Status) map[string]any {
	requests := []map[string]any{}
	for _, r := range st.Requests {
		a := requestAnswer{r: r, room: maxAsked}
		requests = append(requests, map[string]any{"request_id": r.ID, "state": string(r.State), "asked": a.cut(a.specs())})
	}
	return map[string]any{
		"python": st.Python, "version": st.Version, "kind": st.Kind, "base": st.Base, "base_ready": st.BaseReady, "iso": st.Iso,
		"packages": named(st.Packages), "layers": st.Layers, "requests": requests, "building": st.Building, "reason": st.Reason,
	}
}

// named are packages as "name version".
func named(packages []pyenv.Package) []string { return shownPackages(packages, nil) }

// The room in a status, which stays below 4 kB: for the names of packages, and for what
// one request asks for. Requests come first, since they are few and cannot be seen in
// another way.
const (
	maxPackages = 2800
	maxStatus   = 3900
	maxAsked    = 80
)

func statusLines(st pyenv.Status) []string {
	var lines []string
	switch {
	case st.Python == "":
		lines = append(lines, "Python: none ("+st.Reason+")")
	default:
		lines = append(lines, fmt.Sprintf("Python %s at %s", st.Version, st.Python))
	}
	if st.Degraded != "" {
		lines = append(lines, "note: "+st.Degraded)
	}
	at := len(lines) // of the packages, which take the room that is left
	if st.Iso != "" {
		lines = append(lines, "note: "+st.Iso+" is this workspace's own, in the place of the base")
	}
	if !st.BaseReady && st.Building == "" {
		lines = append(lines, noBase)
	}
	if st.Python != "" && st.Reason != "" {
		lines = append(lines, "note: "+st.Reason)
	}
	if st.Building != "" {
		lines = append(lines, "being built: "+st.Building)
	}
	lines = append(lines, requestLines(st.Requests)...)
	rest := append(packageLines(st, min(maxPackages, maxStatus-len(strings.Join(lines, "\n")))), lines[at:]...)
	return append(lines[:at:at], rest...)
}

// packageLines tell of packages in some room, and of the layers that they are in.
func packageLines(st pyenv.Status, room int) []string {
	switch {
	case st.BaseReady:
		layers := "layers: " + strings.Join(st.Layers, ", ")
		head := "packages, besides the standard library: "
		return []string{head + packageLine(named(st.Packages), room-len(head)-len(layers)), layers}
	case st.Kind == "host":
		return []string{"packages: the standard library, and what the host has installed", "layers: none"}
	}
	return []string{"packages: the standard library only", "layers: none"}
}

// requestLines tell of the open requests of a workspace.
func requestLines(list []queue.Request) (lines []string) {
	for _, r := range list {
		a := requestAnswer{r: r, room: maxAsked}
		lines = append(lines, fmt.Sprintf("open request %s: %s: %s", r.ID, r.State, a.asked()))
	}
	return lines
}

// packageLine lists packages, and counts those for which there is no room.
func packageLine(list []string, room int) string {
	for i, p := range list {
		if room -= len(p) + 2; room < 0 && i > 0 {
			return fmt.Sprintf("%s and %d more", strings.Join(list[:i], ", "), len(list)-i)
		}
	}
	return strings.Join(list, ", ")
}
