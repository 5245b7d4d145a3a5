package main

import (
	"archive/tar"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// inboxDir is the folder of the disk that an inbox is put into.
const inboxDir = "in"

// inboxArgs are those of a request about an inbox. Its step is one of open and close,
// which are recorded; offer, which asks where files go; put, after which their contents
// follow; and room, which asks how many bytes the disk has room for.
type inboxArgs struct {
	boxArgs
	Step  string
	Files []offer
}

// offer is a file of an inbox.
type offer struct {
	Name []byte `json:"name,omitempty"` // below the folder of the person
	Size int64  `json:"size,omitempty"` // bytes
	As   []byte `json:"as,omitempty"`   // below /workspace/in
	Sum  string `json:"sum,omitempty"`  // SHA-256 in hexadecimal; "" while the file is not read
	Had  string `json:"had,omitempty"`  // what the inbox put at As before

	Need   bool   `json:"need,omitempty"`   // the disk does not have it
	Before string `json:"before,omitempty"` // what it takes the place of; "" of nothing
	Why    string `json:"why,omitempty"`    // it cannot be there
	Full   bool   `json:"full,omitempty"`   // because it is larger than Room, the bytes left
	Room   int64  `json:"room,omitempty"`

	frees int64 // bytes: of what it takes the place of
}

// is says whether a file of the disk is this one or, while that is not read, may be.
func (o offer) is(sum string, size int64) bool {
	if o.Sum == "" {
		return sum != "" && sum != notFile && size == o.Size
	}
	return sum == o.Sum
}

func backInbox(ctx context.Context, b *back) error {
	var q inboxArgs
	if err := b.args(&q); err != nil {
		return err
	}
	if b.req.Session.ReadOnly {
		return exit.Fail(exit.Refused, "", "a session with --read-only has no inbox")
	}
	d, err := b.open(ctx, want{create: q.Step == "open"})
	if err != nil {
		return err
	}
	defer d.release()
	switch q.Step {
	case "open", "close":
		return b.st.record(ctx, d.info.UUID, audit.Record{Ev: audit.EvImageInbox, Img: d.info.UUID,
			Args: b.operator(audit.Facts{"step": q.Step, "path": workspace.Mount + "/" + inboxDir, "folder": q.Folder})})
	case "offer":
		return b.planInbox(d.image, q.Files)
	case "put":
		return b.putInbox(ctx, d, q)
	case "room":
		info, err := d.image.Info()
		if err != nil {
			return err
		}
		return b.printJSON(roomOf(info))
	}
	return exit.Fail(exit.Usage, "", "an inbox has no step %q", q.Step)
}

// roomOf is how many bytes a disk has room for. It is none when its quota was lowered to
// less than it has.
func roomOf(i workspace.Info) int64 { return max(0, i.QuotaBytes-i.Bytes) }

// planInbox answers where files go. One that the disk has is not needed; one that is
// another file there takes its place if the inbox put that, and else goes beside it. One
// for which there is no room beside those before it is refused by itself.
func (b *back) planInbox(im *workspace.Image, files []offer) error {
	if dir, err := workspace.FromBytes([]byte(inboxDir)); err != nil {
		return err
	} else if n, err := im.Lstat(dir); err == nil && n.Kind != workspace.KindDir {
		return exit.Fail(exit.Refused, "", "%s of the disk is not a directory", dir)
	}
	info, err := im.Info()
	if err != nil {
		return err
	}
	room := roomOf(info)
	plan, goes := make([]offer, len(files)), map[string]bool{}
	for i, o := range files {
		p, err := planOne(im, o, goes)
		switch {
		case errors.Is(err, workspace.ErrCorrupt):
			return err
		case err != nil:
			p = offer{Why: err.Error()}
		case p.Need && o.Size-p.frees > room:
			p = offer{Full: true, Room: room, Why: fmt.Sprintf("%s, and the disk has room for %s", showBytes(o.Size), showBytes(room+p.frees))}
		case p.Need:
			room -= o.Size - p.frees
		}
		goes[string(p.As)] = true
		plan[i] = p
	}
	return b.printJSON(plan)
}

// maxNumber is the highest number that a name gets beside another one.
const maxNumber = 99

func planOne(im *workspace.Image, o offer, goes map[string]bool) (offer, error) {
	if o.Had != "" {
		sum, size, err := inboxSum(im, o.As)
		switch {
		case err == nil && o.is(sum, size):
			return offer{As: o.As, Sum: o.Sum}, nil
		case err == nil && sum == o.Had && !goes[string(o.As)]:
			return offer{As: o.As, Sum: o.Sum, Need: true, Before: sum, frees: size}, nil
		}
	}
	for n := 1; n <= maxNumber; n++ {
		as := numbered(string(o.Name), n)
		if goes[as] {
			continue
		}
		sum, size, err := inboxSum(im, []byte(as))
		switch {
		case err != nil:
			return offer{}, err
		case sum == "":
			return offer{As: []byte(as), Sum: o.Sum, Need: true}, nil
		case o.is(sum, size):
			return offer{As: []byte(as), Sum: o.Sum}, nil
		}
	}
	return offer{}, fmt.Errorf("the disk has %d files with names like it", maxNumber)
}

// numbered is the n-th name for a file: "NAME (2).EXT".
func numbered(name string, n int) string {
	if n == 1 {
		return name
	}
	dir, base := path.Split(name)
	ext := path.Ext(base)
	if ext == base {
		ext = ""
	}
	number := fmt.Sprintf(" (%d)", n)
	stem := strings.TrimSuffix(base, ext)
	if room := workspace.MaxName - len(number) - len(ext); len(stem) > room {
		stem = stem[:max(room, 0)]
	}
	return dir + stem + number + ext
}

// notFile stands for the hash of what is no file.
const notFile = "-"

// inboxSum is what a file below /workspace/in holds, with its size: "" when nothing is
// there.
func inboxSum(im *workspace.Image, as []byte) (sum string, size int64, err error) {
	p, err := inboxPath(as)
	if err != nil {
		return "", 0, err
	}
	n, err := im.Lstat(p)
	switch {
	case errors.Is(err, workspace.ErrNotFound):
		return "", 0, nil
	case err != nil:
		return "", 0, err
	case n.Kind != workspace.KindFile:
		return notFile, 0, nil
	}
	return hex.EncodeToString(n.SHA256[:]), n.Size, nil
}

func inboxPath(as []byte) (workspace.Path, error) {
	return workspace.FromBytes(append([]byte(inboxDir+"/"), as...))
}

// putInbox makes one commit of the files. It is refused when one of the places is not as
// it was planned.
func (b *back) putInbox(ctx context.Context, d *disk, q inboxArgs) error {
	stage := d.image.Stage(ctx)
	defer stage.Discard()
	var names []string
	for _, o := range q.Files {
		names = append(names, strings.ToValidUTF8(string(o.As), "?"))
	}
	about := b.operator(audit.Facts{"path": workspace.Mount + "/" + inboxDir, "names": names, "from": "inbox", "folder": q.Folder})
	_, err := b.change(ctx, d, audit.EvImagePut, about, func() (workspace.Txn, error) {
		changes, err := unpackInbox(tar.NewReader(b.stdin), stage, q.Files)
		return workspace.Txn{Message: "inbox", Stage: stage, Changes: changes, Admit: func(effects []workspace.Effect) error {
			return asPlanned(effects, q.Files)
		}}, err
	})
	if err != nil {
		return err
	}
	return b.printJSON(q.Files)
}

// unpackInbox makes changes of the contents, which come under the numbers of the files,
// and notes of each that it is not needed any more. One that is not what was offered is
// left out.
func unpackInbox(t *tar.Reader, stage *workspace.Stage, files []offer) ([]workspace.Change, error) {
	var changes []workspace.Change
	for {
		h, err := t.Next()
		if err == io.EOF {
			return changes, nil
		}
		if err != nil {
			return nil, exit.Fail(exit.Busy, "nothing was copied", "the copy broke off: %s", err)
		}
		i, err := strconv.Atoi(h.Name)
		if err != nil || i < 0 || i >= len(files) || h.Typeflag != tar.TypeReg {
			return nil, fmt.Errorf("unexpected entry %q in the stream", h.Name)
		}
		p, err := inboxPath(files[i].As)
		if err != nil {
			return nil, err
		}
		c := workspace.Change{Op: workspace.OpPut, Path: p, Mode: uint32(h.Mode) & 0o777, ModTime: h.ModTime, Parents: true}
		if c.Content, err = stage.Add(t); err != nil {
			return nil, err
		}
		if hex.EncodeToString(c.Content.SHA256[:]) != files[i].Sum {
			continue
		}
		files[i].Need = false
		changes = append(changes, c)
	}
}

// asPlanned refuses a commit that would replace something else than was planned.
func asPlanned(effects []workspace.Effect, files []offer) error {
	planned := map[string]string{}
	for _, o := range files {
		planned[inboxDir+"/"+string(o.As)] = o.Before
	}
	for _, e := range effects {
		before, ours := planned[e.Path.Rel()]
		now := ""
		if e.Before != nil {
			now = hex.EncodeToString(e.Before.SHA256[:])
		}
		if ours && before != now {
			return exit.Fail(exit.Busy, "", "%s was changed meanwhile", e.Path)
		}
	}
	return nil
}
