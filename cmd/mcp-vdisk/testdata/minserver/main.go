// Command minserver is what `make bench` compares reads with: the least that an
// MCP server on the same library can do. It reads plain files and lists plain
// directories of the host, without validation, log or sandbox.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

func main() {
	s := server.NewMCPServer("minserver", "1")
	path := mcp.WithString("path", mcp.Required())
	s.AddTool(mcp.NewTool("read_file", path), func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		data, err := os.ReadFile(r.GetString("path", ""))
		if err != nil {
			return mcp.NewToolResultError(err.Error()), nil
		}
		return mcp.NewToolResultText(string(data)), nil
	})
	s.AddTool(mcp.NewTool("list_directory", path), func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		entries, err := os.ReadDir(r.GetString("path", ""))
		if err != nil {
			return mcp.NewToolResultError(err.Error()), nil
		}
		var b strings.Builder
		for _, e := range entries {
			fmt.Fprintf(&b, "%v %s\n", e.IsDir(), e.Name())
		}
		return mcp.NewToolResultText(b.String()), nil
	})
	if err := server.ServeStdio(s); err != nil {
		log.Fatal(err)
	}
}
