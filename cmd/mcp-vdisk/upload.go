package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"unicode/utf8"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
)

// upload is a file of the caller that a command needs. The front opens it, with the
// caller's rights, and its bytes follow the request; the back never sees the path.
type upload struct {
	Name string // the last element of its path
	Size int64
}

// Limits of uploads, in bytes.
const (
	maxWheel   = 512 << 20
	maxArchive = 1 << 30 // of a Python
)

// Codes of files that are not taken, as those of package pyenv are.
const (
	codeNoFile  pyenv.Code = "not_found" // there is no such file
	codeBadFile pyenv.Code = "bad_file"  // it cannot be read, is no regular file, or is empty
	codeSize    pyenv.Code = "size"      // it is too large
)

// openUpload opens a file of the caller.
func openUpload(path string, most int64) (*os.File, upload, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // the writer of a pipe is not waited for
	if err != nil {
		status, code := exit.Failed, codeBadFile
		if errors.Is(err, os.ErrNotExist) {
			status, code = exit.NotFound, codeNoFile
		}
		return nil, upload{}, exit.Fail(status, "", "%s: open %s: %s", code, path, front.ErrText(err))
	}
	info, err := f.Stat()
	u := upload{Name: filepath.Base(path)}
	switch {
	case err != nil || !info.Mode().IsRegular():
		err = exit.Fail(exit.Failed, "", "%s: %s is not a regular file", codeBadFile, path)
	case info.Size() == 0:
		err = exit.Fail(exit.Failed, "was it fetched, or copied, to its end?", "%s: %s is empty", codeBadFile, path)
	case info.Size() > most:
		err = exit.Fail(exit.Failed, "", "%s: %s has %s, and at most %s are taken", codeSize, path, showBytes(info.Size()), showSize(most))
	case !utf8.ValidString(u.Name):
		err = exit.Fail(exit.Usage, "rename it", "the name %q is not valid UTF-8, and requests travel as JSON", u.Name)
	}
	if err != nil {
		f.Close()
		return nil, upload{}, err
	}
	u.Size = info.Size()
	return f, u, nil
}

// send is the file as it follows a request: as many bytes as were told. What it has
// more of, because it grows, is cut; one that shrank is cut off, and the back knows.
func (u upload) send(f io.Reader) io.Reader {
	return &exactly{r: f, left: u.Size, short: errors.New(u.Name + " became shorter while it was read")}
}

// receive is the file in the back.
func (b *back) receive(u upload, most int64) (io.Reader, error) {
	if u.Size <= 0 || u.Size > most || u.Name != filepath.Base(u.Name) {
		return nil, exit.Fail(exit.Usage, "", "a file of %d bytes is announced, and at most %d are taken", u.Size, most)
	}
	return &exactly{r: b.stdin, left: u.Size, short: io.ErrUnexpectedEOF}, nil
}

// exactly reads as many bytes, and fails when there are fewer.
type exactly struct {
	r     io.Reader
	left  int64
	short error
}

func (e *exactly) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	if err == io.EOF && e.left > 0 {
		return n, e.short
	}
	if e.left == 0 {
		err = nil // the end follows
	}
	return n, err
}
