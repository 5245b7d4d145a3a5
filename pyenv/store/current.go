package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
)

// Current is what a new workspace gets.
type Current struct {
	Layer  string `json:"layer"`  // id of the base layer
	Lock   string `json:"lock"`   // id of its lock
	Python string `json:"python"` // id of the interpreter
}

const currentFile = "current"

// Current tells what is current. Errors: ErrNotFound when nothing is, ErrTampered
// when the file is not one that SetCurrent wrote.
func (r *Root) Current() (Current, error) {
	b, err := r.read(currentFile, 4096)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Current{}, refuse(ErrNotFound, "", "there is no base layer yet").suggest("run mcp-vdisk env ensure")
	case err != nil:
		return Current{}, fmt.Errorf("read what is current: %w", err)
	}
	var c Current
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if d.Decode(&c) != nil || c.check() != nil {
		return Current{}, refuse(ErrTampered, "", "what names the current base layer was changed").suggest("run mcp-vdisk env ensure")
	}
	return c, nil
}

// SetCurrent replaces what is current, durably and in one step. Workspaces that
// are bound to another layer keep it. Errors: ErrNotFound when the layer or the
// lock is not there, ErrDiskFull; those of Layer, Lock and the file system.
func (r *Root) SetCurrent(c Current) error {
	if err := c.check(); err != nil {
		return err
	}
	if _, err := r.Layer(c.Layer); err != nil {
		return err
	}
	if _, err := r.Lock(c.Lock); err != nil {
		return err
	}
	b, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("set what is current: %w", err)
	}
	r.touch(layersDir + "/" + c.Layer)
	err = r.put(currentFile, 0o600, func(w io.Writer) error {
		_, err := w.Write(append(b, '\n'))
		return err
	})
	if err != nil {
		return full(fmt.Errorf("set what is current: %w", err))
	}
	return nil
}

func (c Current) check() error {
	python := c.Python != "" && fs.ValidPath(c.Python) && !strings.ContainsAny(c.Python, "/\\") && c.Python[0] != '.' && len(c.Python) < 256
	if !lock.ValidLayerID(c.Layer) || !strings.HasPrefix(c.Layer, string(lock.Base)+"-") || !lock.ValidID(c.Lock) || !python {
		return refuse(ErrNotFound, "", "that does not name a base layer, a lock and an interpreter")
	}
	return nil
}
