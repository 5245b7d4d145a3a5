package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// FontCache is the directory of a layer with what belongs into MPLCONFIGDIR, if the
// layer has matplotlib. Matplotlib takes such a file only from a directory that it
// can write to, and would look at all fonts again in every run.
const FontCache = cacheDir + "/matplotlib"

// fontList is the name of the file, with the version of its format.
var fontList = regexp.MustCompile(`^fontlist-v[0-9A-Za-z.+]{1,40}\.json$`)

// IsFontList says whether a file in FontCache is what matplotlib looks for.
func IsFontList(name string) bool { return fontList.MatchString(name) }

// Limits of the font cache.
const (
	fontTime  = 2 * time.Minute
	fontBytes = 32 << 20
)

// fonts lets matplotlib find the fonts of this host, as they are seen in the
// sandbox, and keeps its list. A matplotlib that does not work has none: whether a
// package can be imported is for others to find out.
func (w *builder) fonts(ctx context.Context) error {
	if !slices.ContainsFunc(w.wheels, func(o *opened) bool { return o.Name == "matplotlib" }) {
		return nil
	}
	w.stage(StageFonts)
	var name string
	var list []byte
	res, err := w.Box.Run(ctx, w.fontRun(), func(c sandboxrun.Change) (err error) {
		base := path.Base(string(c.Path))
		if c.Kind == sandboxrun.File && IsFontList(base) && name == "" && c.Size <= fontBytes {
			name = base
			list, err = io.ReadAll(c.Body)
		}
		return err // other files of its configuration are made anew in no time
	})
	switch {
	case err != nil:
		return fmt.Errorf("font cache: %w", err)
	case res.Outcome != sandboxrun.Exited || res.ExitCode != 0 || name == "" || !json.Valid(list):
		w.layer.Cache.Note = fmt.Sprintf("matplotlib made no font cache: %s, exit code %d", res.Outcome, res.ExitCode)
		return nil
	}
	return w.keepFonts(name, list)
}

// fontRun is matplotlib at the place where the layer will be, in an empty
// workspace.
func (w *builder) fontRun() sandboxrun.Run {
	binds := []sandboxrun.Bind{{Source: w.Python.Dir, Target: python.Prefix}, {Source: w.hostDir(), Target: w.target()}}
	paths := []string{w.target() + "/" + wheel.SitePackages}
	for _, l := range w.Over {
		binds = append(binds, sandboxrun.Bind{Source: l.Dir, Target: l.Target()})
		paths = append(paths, l.Target()+"/"+wheel.SitePackages)
	}
	code := "import sys; sys.path += sys.argv[1:]; import matplotlib.font_manager"
	return sandboxrun.Run{
		Argv:   append([]string{python.Executable, "-I", "-S", "-B", "-c", code}, paths...),
		Env:    []string{"MPLCONFIGDIR=/workspace", "MPLBACKEND=Agg"},
		Binds:  binds,
		Limits: sandboxrun.Limits{Timeout: fontTime, WriteBytes: fontBytes, WriteFiles: 1000, MemoryBytes: compileMemory},
	}
}

// keepFonts puts the list into the layer, outside of what equal builds have in
// common.
func (w *builder) keepFonts(name string, list []byte) error {
	for _, dir := range []string{cacheDir, FontCache} {
		if err := w.tree.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err := w.tree.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	p := FontCache + "/" + name
	sum := sha256.Sum256(list)
	w.layer.Cache.Files = []wheel.Installed{{Path: p, Size: int64(len(list)), SHA256: hex.EncodeToString(sum[:])}}
	return writeFile(w.tree, p, list)
}
