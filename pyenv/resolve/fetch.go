package resolve

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// A batch is what one pip fetches. More than that would be faster by the half second
// that each takes to start; less, and a person sees more often how far it is.
const (
	batchFiles = 10
	batchBytes = 24 << 20
	// assumed is the size of a file of which none is known.
	assumed = 64 << 20
	// slowest is the rate, in bytes per second, that a download must have.
	slowest = 256 << 10
)

// Fetch gets the files of locked packages and hands each to into, open at its start,
// in any order. The file has no name and is closed when into returns. By then its
// SHA-256 is that of the package: nobody gets any other bytes. An error of into ends
// it and is returned, wrapped.
//
// Packages must be of an index or of a directory of links; their order is no matter.
// Fetched again are all: whoever has some leaves them out.
//
// Errors: as Resolve; ErrHashMismatch names the package in Blocking.
func (p *Pip) Fetch(ctx context.Context, list []lock.Package, c Config, into func(lock.Package, *os.File) error) error {
	for _, l := range list {
		v, err := spec.ParseVersion(l.Version)
		if err != nil || v.String() != l.Version || !spec.ValidName(l.Name) || !isSHA256(l.SHA256) {
			return fail(ErrResolverFailed, "a locked package has no valid name, version or SHA-256")
		}
	}
	for batch := range batches(list) {
		if err := p.fetch(ctx, batch, c, into); err != nil {
			return err
		}
	}
	return nil
}

// batches cuts a list into what one pip fetches.
func batches(list []lock.Package) func(yield func([]lock.Package) bool) {
	return func(yield func([]lock.Package) bool) {
		for len(list) > 0 {
			n, sum := 1, sizeOf(list[0])
			for n < len(list) && n < batchFiles && sum+sizeOf(list[n]) <= batchBytes {
				sum += sizeOf(list[n])
				n++
			}
			if !yield(list[:n]) {
				return
			}
			list = list[n:]
		}
	}
}

func sizeOf(l lock.Package) int64 {
	if l.Size > 0 {
		return l.Size
	}
	return assumed
}

// delivery takes the files of one batch.
type delivery struct {
	pip     *Pip
	missing []lock.Package
	into    func(lock.Package, *os.File) error
}

func (p *Pip) fetch(ctx context.Context, batch []lock.Package, c Config, into func(lock.Package, *os.File) error) error {
	var lines strings.Builder
	sum := int64(0)
	for _, l := range batch {
		fmt.Fprintf(&lines, "%s==%s --hash=sha256:%s\n", l.Name, l.Version, l.SHA256)
		sum += sizeOf(l)
	}
	d := delivery{pip: p, missing: slices.Clone(batch), into: into}
	timeout := resolveTime + time.Duration(sum/slowest)*time.Second
	res, err := p.run(ctx, job{
		script: runPath, config: c, timeout: timeout, space: 3*sum + 64<<20, // pip has a file twice for a moment
		args: common("download", "--no-deps", "--require-hashes", "-d", "/out/wheels", "-r", "/run/vdisk/requirements.txt"),
		data: []sandboxrun.Data{{Path: "/run/vdisk/requirements.txt", Bytes: []byte(lines.String())}},
		out:  d.take,
	})
	if err == nil {
		if err = ended(res, "fetch "+listNames(names(batch)), timeout); err == nil && (res.ExitCode != 0 || len(d.missing) > 0) {
			err = d.explain(ctx, res, c)
		}
	}
	if e, ok := err.(*Error); ok && e.Detail == "" {
		e.Detail = c.tail(slices.Concat(res.Stdout.Text, []byte("\n"), res.Stderr.Text))
	}
	return err
}

func names(list []lock.Package) []string {
	var n []string
	for _, l := range list {
		n = append(n, l.Name)
	}
	return n
}

// take copies a file that pip has left and hands it on if it is one of the batch.
func (d *delivery) take(name string, _ int64, body io.Reader) error {
	if path.Dir(name) != "wheels" || !strings.HasSuffix(name, ".whl") {
		return nil
	}
	f, err := d.pip.tempFile()
	if err != nil {
		return handed{err}
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(io.MultiWriter(f, h), body); err != nil {
		return handed{err}
	}
	sum := hex.EncodeToString(h.Sum(nil))
	at := slices.IndexFunc(d.missing, func(l lock.Package) bool { return strings.EqualFold(l.SHA256, sum) })
	if at < 0 {
		return nil // told as missing, or as another's
	}
	l := d.missing[at]
	d.missing = slices.Delete(d.missing, at, at+1)
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return handed{err}
	}
	if err := d.into(l, f); err != nil {
		return handed{err}
	}
	return nil
}

// handed is an error of the disk or of into, as it goes through the jail.
type handed struct{ err error }

func (h handed) Error() string { return h.err.Error() }
func (h handed) Unwrap() error { return h.err }

// explain says why files are missing. What pip tells in the same words, whatever the
// cause, the sources are asked for.
func (d *delivery) explain(ctx context.Context, res sandboxrun.JailResult, c Config) error {
	said := clean(string(res.Stderr.Text))
	switch {
	case strings.Contains(said, "DO NOT MATCH THE HASHES"):
		return hashMismatch(said)
	case nothingFor().MatchString(said) || noMatching().MatchString(said):
		return d.gone(ctx, said, c)
	case res.ExitCode == 0:
		l := d.missing[0]
		e := fail(ErrHashMismatch, "pip delivered other bytes for %s %s than those that are locked; nothing of them was kept", l.Name, l.Version)
		e.Blocking = Blocking{Name: l.Name, Version: l.Version}
		return e
	case slices.ContainsFunc(network, func(w string) bool { return strings.Contains(said, w) }):
		return d.pip.whyNot(ctx, c, names(d.missing), said)
	}
	return fail(ErrResolverFailed, "pip failed to fetch %s in a way that is not known here", listNames(names(d.missing)))
}

// gone: pip has found no file of a locked version. That is so, too, when an index does
// not answer, or something else answers in its place.
func (d *delivery) gone(ctx context.Context, said string, c Config) error {
	l := d.missing[0]
	if m := noMatching().FindStringSubmatch(said); m != nil {
		if q, err := spec.ParseRequirement(m[1]); err == nil {
			at := slices.IndexFunc(d.missing, func(l lock.Package) bool { return l.Name == q.Name })
			l = d.missing[max(at, 0)]
		}
	}
	if strings.Contains(said, "is not a trusted or secure host") {
		if e := insecure(c); e != nil {
			return e
		}
	}
	found, err := d.pip.ask(ctx, c, []string{l.Name}, nil)
	if err != nil {
		return err
	}
	sources := found.Projects[l.Name]
	e := unreachable(l.Name, sources)
	if e == nil {
		e = notFound(l.Name, sources)
		if slices.ContainsFunc(sources, func(s source) bool { return len(s.Files) > 0 }) {
			e.Sentence, e.Suggestions = fmt.Sprintf("the package index has %s, but not version %s, which is locked", l.Name, l.Version), nil
		}
	}
	e.Blocking = Blocking{Name: l.Name, Version: l.Version}
	return e
}
