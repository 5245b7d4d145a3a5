package pyenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
)

// supply gets what layers are made of: the pip that finds packages, and their wheels.
// The caller has the ensure lock, shared or alone.
type supply struct {
	e      *Env
	root   *store.Root
	it     *python.Interpreter
	config resolve.Config
	tell   func(Progress)
	note   func(format string, args ...any)

	pip *resolve.Pip
}

// tool finds the pip to use, and fetches the pinned one if need be.
func (s *supply) tool(ctx context.Context) (err error) {
	if s.pip != nil {
		return nil
	}
	s.tell(Progress{Step: StepTool, Text: "looking for pip"})
	dir := s.root.Dir()
	s.pip, err = resolve.InstallTool(ctx, dir, s.e.o.PipWheel, s.config, s.e.o.Box, s.it)
	// An index that does not have the pinned pip may have all else. One that does not
	// answer, or cannot be asked, is told by who asks it next.
	if s.e.o.PipWheel == "" && (errors.Is(err, resolve.ErrNotFound) || errors.Is(err, resolve.ErrIndexUnreachable) || errors.Is(err, resolve.ErrBadConfig)) {
		var other error
		if s.pip, other = resolve.FindTool(ctx, dir, s.e.o.Box, s.it); other != nil {
			return errors.Join(err, other)
		}
		s.note("The index does not have the pinned pip; %s of this host was used.", s.pip.Name())
		err = nil
	}
	if err == nil {
		s.pip.Temp = filepath.Join(dir, "jobs")
	}
	return err
}

// fetch gets the wheels of a lock that are not in the wheelhouse: how many, and how
// many bytes.
func (s *supply) fetch(ctx context.Context, l lock.Lock) (n int, size int64, err error) {
	missing, sum := s.missing(l)
	if len(missing) == 0 {
		return 0, 0, nil
	}
	for _, p := range missing { // no index has them
		if p.Index == imported || p.Index == uploaded {
			return 0, 0, lost(p)
		}
	}
	if err := s.tool(ctx); err != nil {
		return 0, 0, err
	}
	p := Progress{Step: StepFetch, Total: sum, Text: fmt.Sprintf("fetching %d wheels", len(missing))}
	s.tell(p)
	err = s.pip.Fetch(ctx, missing, s.config, func(l lock.Package, f *os.File) error {
		if err := s.root.AddWheel(ctx, f, l.SHA256, l.Size); err != nil {
			return err
		}
		st, err := f.Stat()
		if err != nil {
			return err
		}
		n++
		size += st.Size()
		p.Package, p.Done = l.Name, size
		p.Text = fmt.Sprintf("fetched %s, %d of %d wheels", l.Name, n, len(missing))
		s.tell(p)
		return nil
	})
	return n, size, err
}

func (s *supply) missing(l lock.Lock) (list []lock.Package, sum int64) {
	for _, p := range l.Packages {
		if !s.root.HasWheel(p.SHA256) {
			list = append(list, p)
			sum += p.Size
		}
	}
	return list, sum
}

// Values of lock.Package.Index for wheels that no index has.
const (
	imported = "import" // an operator's, for the base
	uploaded = "upload" // of a workspace
)

// lost says that a wheel which no index has is not in the wheelhouse any more.
func lost(p lock.Package) *Error {
	e := &Error{Code: "missing_wheel", Blocking: resolve.Blocking{Name: p.Name, Version: p.Version}}
	e.Sentence = fmt.Sprintf("%s %s was imported for the base, and its wheel is not there any more", p.Name, p.Version)
	e.Hint = "import it again with mcp-vdisk env import --base"
	if p.Index == uploaded {
		e.Sentence = fmt.Sprintf("%s %s came as a wheel of the disk, which is not kept any more", p.Name, p.Version)
		e.Hint = "ask for it with the wheel again"
	}
	return e
}

// offer adds wheels of the wheelhouse to where pip finds packages: a directory with
// them under their own names, which drop removes.
func (s *supply) offer(ctx context.Context, own []lock.Package) (c resolve.Config, drop func(), err error) {
	c = s.config
	if len(own) == 0 {
		return c, func() {}, nil
	}
	dir, err := os.MkdirTemp(filepath.Join(s.root.Dir(), "jobs"), "links-")
	if err != nil {
		return c, nil, err
	}
	drop = func() { _ = os.RemoveAll(dir) } // else GC does
	for _, x := range own {
		if err := s.copyWheel(x, filepath.Join(dir, x.File)); err != nil {
			drop()
			return c, nil, err
		}
		if ctx.Err() != nil {
			drop()
			return c, nil, context.Cause(ctx)
		}
	}
	c.FindLinks = append(slices.Clone(c.FindLinks), dir)
	return c, drop, nil
}

func (s *supply) copyWheel(p lock.Package, path string) (err error) {
	from, err := s.root.OpenWheel(p.SHA256)
	if err != nil {
		e := lost(p)
		e.cause = err
		return e
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// insist sees to it that a solution has the very files that were offered, and says of
// them what is known of them.
func insist(l *lock.Lock, own []lock.Package) error {
	for _, x := range own {
		at := slices.IndexFunc(l.Packages, func(p lock.Package) bool { return p.Name == x.Name })
		if at < 0 || !strings.EqualFold(l.Packages[at].SHA256, x.SHA256) {
			from := "was imported"
			if x.Index == uploaded {
				from = "lies on the disk"
			}
			return &Error{
				Code: "hash_mismatch", Sentence: fmt.Sprintf("the index has another file of %s %s than the one that %s", x.Name, x.Version, from),
				Hint: "give your package another version", Blocking: resolve.Blocking{Name: x.Name, Version: x.Version},
			}
		}
		l.Packages[at] = x
	}
	return nil
}
