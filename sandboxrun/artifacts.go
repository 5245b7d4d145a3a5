package sandboxrun

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// artifacts reads the regular files that are declared, all when none is. Only
// real directories are entered, so that no link leads out of the tree, or gives
// a file a second name.
func (t *workTree) artifacts(ctx context.Context, declared []string, room int64) ([]Artifact, error) {
	root, err := t.root.OpenRoot(treeDir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	g := gatherer{ctx: ctx, root: root, declared: declared, room: room, list: []Artifact{}}
	if err := g.dir("."); err != nil {
		return nil, err
	}
	slices.SortFunc(g.list, func(a, b Artifact) int { return strings.Compare(a.Path, b.Path) })
	return g.list, nil
}

type gatherer struct {
	ctx      context.Context
	root     *os.Root
	declared []string
	room     int64
	list     []Artifact
}

func (g *gatherer) dir(name string) error {
	list, err := listDir(g.root, name)
	if err != nil {
		return err
	}
	for _, d := range list {
		if g.ctx.Err() != nil {
			return context.Cause(g.ctx)
		}
		at := path.Join(name, d.Name())
		switch {
		case d.IsDir() && (g.wanted(at) || g.leadsTo(at)):
			err = g.opened(at, d, 0o500, func() error { return g.dir(at) })
		case d.Type().IsRegular() && g.wanted(at):
			err = g.opened(at, d, 0o400, func() error { return g.file(at) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// opened calls f while the entry has the permissions that f needs.
func (g *gatherer) opened(at string, d fs.DirEntry, need fs.FileMode, f func() error) (err error) {
	info, err := d.Info()
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&need != need {
		if err := g.root.Chmod(at, mode|need); err != nil {
			return err
		}
		defer func() {
			if rerr := g.root.Chmod(at, mode); err == nil {
				err = rerr
			}
			if n := len(g.list); err == nil && n > 0 && g.list[n-1].Path == at {
				g.list[n-1].Mode = uint32(mode)
			}
		}()
	}
	return f()
}

// wanted reports whether a path is declared, by itself or by a directory above.
func (g *gatherer) wanted(at string) bool {
	for _, d := range g.declared {
		if at == d || strings.HasPrefix(at, d+"/") {
			return true
		}
	}
	return len(g.declared) == 0
}

// leadsTo reports whether something below a directory is declared.
func (g *gatherer) leadsTo(dir string) bool {
	for _, d := range g.declared {
		if strings.HasPrefix(d, dir+"/") {
			return true
		}
	}
	return false
}

func (g *gatherer) file(at string) error {
	f, info, err := openRegular(g.root, at)
	if err != nil {
		return err
	}
	defer f.Close()
	g.room -= info.Size()
	if g.room < 0 || len(g.list) == MaxArtifacts {
		return fmt.Errorf("%w: too many artifacts, or too large ones", ErrPolicy)
	}
	b := make([]byte, info.Size())
	if _, err := io.ReadFull(f, b); err != nil {
		return err
	}
	sum := sha256.Sum256(b)
	g.list = append(g.list, Artifact{
		Path: at, Size: info.Size(), Mode: uint32(info.Mode().Perm()), SHA256: hex.EncodeToString(sum[:]), Bytes: b,
	})
	return nil
}
