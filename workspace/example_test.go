package workspace_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// A file is written, changed under a precondition, and read in its older
// version.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	im, err := workspace.Create(filepath.Join(dir, "my.vdisk"), workspace.CreateOptions{})
	if err != nil {
		panic(err)
	}
	defer im.Close()

	notes, err := workspace.Clean("/workspace/docs/notes.txt")
	if err != nil {
		panic(err)
	}
	write := func(text string, conditions ...workspace.Precondition) (workspace.Commit, error) {
		ctx := context.Background()
		stage := im.Stage(ctx)
		defer stage.Discard()
		content, err := stage.Add(strings.NewReader(text))
		if err != nil {
			return workspace.Commit{}, err
		}
		return im.Commit(ctx, workspace.Txn{
			Stage:         stage,
			Changes:       []workspace.Change{{Op: workspace.OpPut, Path: notes, Content: content, Parents: true}},
			Preconditions: conditions,
		})
	}

	first, err := write("hello\n")
	fmt.Println(len(first.Effects), "paths changed,", err)
	second, err := write("hello again\n", workspace.Precondition{Path: notes, Version: first.Seq})
	fmt.Println(len(second.Effects), "path changed,", err)
	_, err = write("too late\n", workspace.Precondition{Path: notes, Version: first.Seq})
	fmt.Println(errors.Is(err, workspace.ErrVersionConflict), "-", err)

	old, err := im.OpenNode(notes, *second.Effects[0].Before)
	if err != nil {
		panic(err)
	}
	text, err := io.ReadAll(old.Reader())
	fmt.Printf("%q %v\n", text, err)
	// Output:
	// 2 paths changed, <nil>
	// 1 path changed, <nil>
	// true - /workspace/docs/notes.txt was changed by someone else meanwhile: it is v3, v2 was expected
	// "hello\n" <nil>
}
