package pyenv

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// catalogFile is where the catalog is, at the top of the root.
const catalogFile = "catalog.json"

// maxCatalog is how large it may be, in bytes.
const maxCatalog = 4 << 20

// Catalog is what the operator has decided in advance: catalog.json of the root, or
// policy.Default where there is none. A person may edit the file.
//
// Errors: *Error, of code bad_catalog; then nothing is approved without asking, nor at all.
func (e *Env) Catalog() (policy.Catalog, error) {
	root, err := e.store()
	if err != nil {
		return policy.Catalog{}, tell(context.Background(), err)
	}
	c, _, err := readCatalog(root.Dir())
	return c, err
}

func readCatalog(dir string) (c policy.Catalog, text []byte, err error) {
	bad := func(why string, err error) error {
		e := &Error{Code: ErrCatalog, Sentence: "catalog.json of the environments cannot be used: " + why, Hint: "mend it, or put another in its place: mcp-vdisk env catalog set FILE; mcp-vdisk env catalog --defaults --json prints the one that came with the program", cause: err}
		if err != nil {
			e.Detail = err.Error()
		}
		return e
	}
	f, err := os.OpenFile(filepath.Join(dir, catalogFile), os.O_RDONLY|hostos.NonBlock, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return policy.Default(), nil, nil
	}
	if err != nil {
		return c, nil, bad("it cannot be opened", err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() || st.Size() > maxCatalog {
		return c, nil, bad("it is no file, or too large for one", err)
	}
	if text, err = io.ReadAll(io.LimitReader(f, maxCatalog)); err != nil {
		return c, nil, bad("it cannot be read", err)
	}
	if c, err = policy.Parse(text); err != nil {
		return policy.Catalog{}, nil, bad(harmless(strings.TrimPrefix(err.Error(), policy.ErrInvalid.Error()+": ")), err)
	}
	return c, text, nil
}

// SetCatalog replaces the catalog by what change makes of it, durably and in one step.
// What is the same leaves the file as it is. One that cannot be read is the zero Catalog
// to change, which can put another in its place and nothing else. Requests that wait are
// judged anew when they are approved.
//
// Errors: *Error, of code bad_catalog; those of change, and policy.ErrInvalid; the cause
// of ctx, wrapped.
func (e *Env) SetCatalog(ctx context.Context, change func(policy.Catalog) (policy.Catalog, error)) (policy.Catalog, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return policy.Catalog{}, tell(context.Background(), err)
	}
	defer leave()
	unlock, err := e.claimCatalog(ctx)
	if err != nil {
		return policy.Catalog{}, tell(ctx, err)
	}
	defer unlock()
	c, before, damaged := readCatalog(e.o.Root)
	if c, err = change(c); err != nil {
		return c, cmp.Or(damaged, err)
	}
	text, err := c.Encode()
	switch {
	case err != nil && damaged != nil:
		return c, damaged
	case err != nil || bytes.Equal(text, before):
		return c, err
	}
	return c, tell(ctx, writeFile(e.o.Root, catalogFile, text))
}

// claimCatalog waits until nobody else changes the catalog. Who builds layers of
// workspaces is not waited for.
func (e *Env) claimCatalog(ctx context.Context) (unlock func(), err error) {
	leave, err := e.share(ctx, func() {})
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(e.o.Root, catalogFile+".lock"), os.O_RDWR|os.O_CREATE|hostos.NonBlock, 0o600)
	if err == nil {
		if err = hostos.Lock(ctx, f, true); err != nil {
			f.Close()
		}
	}
	if err != nil {
		leave()
		return nil, err
	}
	return func() { f.Close(); leave() }, nil
}
