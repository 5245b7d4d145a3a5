package pyenv

import (
	"context"
	"fmt"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
)

// compare reads every file of what a run gets. Nothing of the result is kept for the next
// run: times and sizes of files can be set, so only their content tells.
//
// Errors: ErrChanged, with a sentence that has the id and no name of a file, for whoever
// changed it has chosen that.
func (e *Env) compare(ctx context.Context, s Setup) error {
	faults, err := python.Verify(ctx, e.o.Root, s.ID)
	if err != nil {
		return err
	}
	if len(faults) > 0 {
		return altered("the Python "+s.ID, faults)
	}
	root, err := e.store()
	if err != nil {
		return err
	}
	for _, id := range s.Layers {
		l, err := root.Layer(id)
		if err != nil {
			return err
		}
		faults, err := root.Verify(ctx, l)
		if err != nil {
			return err
		}
		if len(faults) > 0 {
			return altered("layer "+id, faults)
		}
	}
	return nil
}

func altered(what string, faults []Fault) *Error {
	differ := "one file of it differs"
	if n := len(faults); n > 1 {
		differ = fmt.Sprintf("%d files of it differ", n)
	}
	return &Error{Code: ErrChanged, Sentence: fmt.Sprintf("%s is not as it was made: %s, and the setting env.verify has no script run with it", what, differ),
		Hint: "mcp-vdisk env ensure --repair makes it again; mcp-vdisk env doctor names what differs", Detail: first(faults)}
}
