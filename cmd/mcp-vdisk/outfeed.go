package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/hostbox"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// The two halves of an outbox talk about a folder of the disk, /workspace/out. The front
// asks in lines of JSON (boxAsk) on its standard input; the back answers in messages
// (boxTold), and gives contents as its standard output, each between two messages. The
// front decides what it takes, and when: a slow one keeps nobody waiting.

// boxAsk is what the front of an outbox asks for.
type boxAsk struct {
	Next bool      `json:"next,omitempty"` // what is new, as soon as something is
	Poke bool      `json:"poke,omitempty"` // answer Next now
	Wait int64     `json:"wait,omitempty"` // with Next: milliseconds, 0 for ever
	Take []boxWant `json:"take,omitempty"` // contents
}

// boxWant is a content that the front takes.
type boxWant struct {
	Name []byte `json:"name"`
	Sum  string `json:"sum"` // SHA-256 in hexadecimal
}

// boxTold is what the back says of the folder.
type boxTold struct {
	Disk  string     `json:"disk,omitempty"`  // its uuid; in the first message
	Whole bool       `json:"whole,omitempty"` // nothing but what follows is in the folder
	Items []boxEntry `json:"items,omitempty"`
	Note  string     `json:"note,omitempty"` // for the person

	File []byte `json:"file,omitempty"` // a content follows, of this name
	Data []byte `json:"data,omitempty"` // with File and End: the content, which is short
	End  bool   `json:"end,omitempty"`  // of that content
	Fail string `json:"fail,omitempty"` // with End: it is not whole

	Done bool `json:"done,omitempty"` // that was all
}

// boxEntry is a path below the folder. One without a kind is there no more.
type boxEntry struct {
	Name   []byte       `json:"n"`
	Kind   hostbox.Kind `json:"k,omitempty"`
	Mode   uint32       `json:"m,omitempty"`
	Time   int64        `json:"t,omitempty"` // nanoseconds since 1970
	Size   int64        `json:"s,omitempty"`
	Sum    string       `json:"h,omitempty"`
	Target []byte       `json:"l,omitempty"`
}

func (e boxEntry) item() (*hostbox.Item, error) {
	if e.Kind == "" {
		return nil, nil
	}
	it := &hostbox.Item{Name: string(e.Name), Kind: e.Kind, Mode: fs.FileMode(e.Mode) & 0o777, ModTime: time.Unix(0, e.Time), Size: e.Size, Target: string(e.Target)}
	if e.Kind == hostbox.KindFile {
		if n, err := hex.Decode(it.SHA256[:], []byte(e.Sum)); err != nil || n != len(it.SHA256) {
			return nil, fmt.Errorf("a hash of %q is none", e.Name)
		}
	}
	return it, nil
}

// outboxDir is the folder of the disk that an outbox mirrors, outboxEntries how much of
// it at most.
const (
	outboxDir     = "out"
	outboxEntries = 50_000
)

// boxArgs are those of the requests about an outbox or an inbox.
type boxArgs struct {
	Folder string // of the person, for the log
}

// outfeed is the back of an outbox.
type outfeed struct {
	b    *back
	d    *disk
	dir  workspace.Path
	asks <-chan boxAsk
	seq  uint64 // what was told is of this commit or a later one
	told bool
}

func backOutbox(ctx context.Context, b *back) error {
	var q boxArgs
	if err := b.args(&q); err != nil {
		return err
	}
	d, err := b.open(ctx, want{readOnly: b.req.Session.ReadOnly, create: !b.req.Session.ReadOnly})
	if err != nil {
		return err
	}
	defer d.release()
	dir, err := workspace.FromBytes([]byte(outboxDir))
	if err != nil {
		return err
	}
	f := &outfeed{b: b, d: d, dir: dir, asks: b.receiveAsks(ctx)}
	about := func(step string) audit.Facts {
		return b.operator(audit.Facts{"step": step, "path": dir.String(), "folder": q.Folder})
	}
	if err := f.record(ctx, about("open")); err != nil {
		return err
	}
	err = f.serve(ctx)
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		err = nil
	}
	return cmp.Or(err, f.record(context.WithoutCancel(ctx), about("close")))
}

// receiveAsks gives what the front asks. The channel is closed when it asks no more.
func (b *back) receiveAsks(ctx context.Context) <-chan boxAsk {
	asks := make(chan boxAsk)
	go func() {
		defer close(asks)
		for lines := json.NewDecoder(b.stdin); ; {
			var a boxAsk
			if lines.Decode(&a) != nil {
				return
			}
			select {
			case asks <- a:
			case <-ctx.Done():
				return
			}
		}
	}()
	return asks
}

func (f *outfeed) record(ctx context.Context, about audit.Facts) error {
	info, err := f.d.image.Info()
	if err != nil {
		return err
	}
	return f.b.st.record(ctx, info.UUID, audit.Record{Ev: audit.EvImageOutbox, Img: info.UUID, Args: about, Hb: info.Commit, Ha: info.Commit})
}

func (f *outfeed) say(m boxTold) error {
	payload, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return f.b.conn.Write(front.FrameBox, payload)
}

func (f *outfeed) serve(ctx context.Context) error {
	if err := f.say(boxTold{Disk: f.d.info.UUID}); err != nil {
		return err
	}
	for {
		a, err := f.ask(ctx, nil)
		switch {
		case err != nil:
			return err
		case a.Next:
			err = f.next(ctx, time.Duration(a.Wait)*time.Millisecond)
		case len(a.Take) > 0:
			err = f.take(ctx, a.Take)
		}
		if err != nil {
			return err
		}
	}
}

// errLater says that the front has asked nothing, and something else came first.
var errLater = errors.New("nothing was asked")

// ask waits for what the front asks, until other.
func (f *outfeed) ask(ctx context.Context, other <-chan struct{}) (boxAsk, error) {
	select {
	case a, ok := <-f.asks:
		if !ok {
			return a, io.EOF
		}
		return a, nil
	case <-ctx.Done():
		return boxAsk{}, context.Cause(ctx)
	case <-other:
		return boxAsk{}, errLater
	}
}

// next tells what is new, and waits for it if nothing is.
func (f *outfeed) next(ctx context.Context, wait time.Duration) error {
	over, cancel := ctx, func() {}
	if wait > 0 {
		over, cancel = context.WithTimeout(ctx, wait)
	}
	defer cancel()
	for {
		changed := f.d.image.Changed()
		news, err := f.tell(ctx)
		if err != nil {
			return err
		}
		if news || over.Err() != nil {
			return f.say(boxTold{Done: true})
		}
		_, err = f.ask(over, changed)
		switch {
		case err == nil: // poked
			return f.say(boxTold{Done: true})
		case ctx.Err() != nil, errors.Is(err, io.EOF):
			return err
		}
	}
}

// tell says what is different since it did so last, and whether there was anything.
func (f *outfeed) tell(ctx context.Context) (news bool, err error) {
	info, err := f.d.image.Info()
	if err != nil || f.told && info.Seq == f.seq {
		return false, err
	}
	if !f.told {
		err = f.tellWhole(ctx)
		f.told, f.seq = err == nil, info.Seq
		return true, err
	}
	touched, ok, err := f.touched(ctx, info.Seq)
	if err != nil {
		return false, err
	}
	if !ok {
		err = f.tellWhole(ctx)
	} else if len(touched) > 0 {
		err = f.tellSome(touched)
	}
	f.seq = info.Seq
	return !ok || len(touched) > 0, err
}

// touched are the paths below the folder that commits changed since. ok is false when
// they are not known: the history was cut, the folder itself is another, or there are too
// many.
func (f *outfeed) touched(ctx context.Context, to uint64) (paths map[workspace.Path]bool, ok bool, err error) {
	paths = map[workspace.Path]bool{}
	for seq := f.seq; seq < to; {
		if ctx.Err() != nil {
			return nil, false, context.Cause(ctx)
		}
		commits, err := f.d.image.Log(seq, 1)
		if err != nil {
			return nil, false, err
		}
		if len(commits) == 0 || commits[0].Seq != seq+1 {
			return nil, false, nil
		}
		seq = commits[0].Seq
		for _, e := range commits[0].Effects {
			if e.Path == f.dir {
				return nil, false, nil
			}
			if strings.HasPrefix(e.Path.Rel(), outboxDir+"/") {
				paths[e.Path] = true
			}
		}
		if len(paths) > outboxEntries {
			return nil, false, nil
		}
	}
	return paths, true, nil
}

// tellSome tells what is at some paths now.
func (f *outfeed) tellSome(paths map[workspace.Path]bool) error {
	list := boxList{f: f}
	for p := range paths {
		n, err := f.d.image.Lstat(p)
		switch {
		case errors.Is(err, workspace.ErrNotFound), errors.Is(err, workspace.ErrNotDirectory):
			err = list.add(boxEntry{Name: f.below(p)})
		case err == nil:
			err = list.add(f.entry(workspace.Entry{Path: p, Node: n}))
		}
		if err != nil {
			return err
		}
	}
	return list.flush()
}

// tellWhole tells everything in the folder.
func (f *outfeed) tellWhole(ctx context.Context) error {
	first := boxTold{Whole: true}
	n, err := f.d.image.Lstat(f.dir)
	switch {
	case errors.Is(err, workspace.ErrNotFound):
		return f.say(first)
	case err != nil:
		return err
	case n.Kind != workspace.KindDir:
		first.Note = f.dir.String() + " is not a directory; to the outbox it is empty"
		return f.say(first)
	}
	if err := f.say(first); err != nil {
		return err
	}
	list, count := boxList{f: f}, 0
	err = f.d.image.Walk(ctx, f.dir, func(e workspace.Entry) error {
		if count++; count > outboxEntries {
			return errors.Join(f.say(boxTold{Note: fmt.Sprintf("%s has more than %d entries; the rest is left out", f.dir, outboxEntries)}), fs.SkipAll)
		}
		return list.add(f.entry(e))
	})
	if errors.Is(err, workspace.ErrNotFound) || errors.Is(err, workspace.ErrNotDirectory) {
		err = nil // it went meanwhile, by a commit that is told next
	}
	return cmp.Or(err, list.flush())
}

func (f *outfeed) below(p workspace.Path) []byte {
	return []byte(strings.TrimPrefix(p.Rel(), outboxDir+"/"))
}

func (f *outfeed) entry(e workspace.Entry) boxEntry {
	n := e.Node
	b := boxEntry{Name: f.below(e.Path), Mode: n.Mode, Time: n.ModTime.UnixNano()}
	switch n.Kind {
	case workspace.KindDir:
		b.Kind = hostbox.KindDir
	case workspace.KindSymlink:
		b.Kind, b.Target = hostbox.KindLink, []byte(n.Target)
	default:
		b.Kind, b.Size, b.Sum = hostbox.KindFile, n.Size, hex.EncodeToString(n.SHA256[:])
	}
	return b
}

// boxList gathers entries to messages.
type boxList struct {
	f     *outfeed
	items []boxEntry
	size  int
}

func (l *boxList) add(e boxEntry) error {
	const message = 64 << 10 // bytes, about
	l.items = append(l.items, e)
	if l.size += 2*(len(e.Name)+len(e.Target)) + 200; l.size < message {
		return nil
	}
	return l.flush()
}

func (l *boxList) flush() error {
	if len(l.items) == 0 {
		return nil
	}
	err := l.f.say(boxTold{Items: l.items})
	l.items, l.size = nil, 0
	return err
}

// take gives contents, as far as they still are what the front was told. That they leave
// the disk is recorded first.
func (f *outfeed) take(ctx context.Context, list []boxWant) error {
	type content struct {
		name []byte
		path workspace.Path
		node workspace.Node
	}
	var contents []content
	var bytes int64
	var names []string
	for _, w := range list {
		p, err := workspace.FromBytes([]byte(outboxDir + "/" + string(w.Name)))
		if err != nil {
			return err
		}
		n, err := f.d.image.Lstat(p)
		if err != nil || n.Kind != workspace.KindFile || hex.EncodeToString(n.SHA256[:]) != w.Sum {
			continue
		}
		contents = append(contents, content{w.Name, p, n})
		bytes += n.Size
		names = append(names, p.String())
	}
	if len(contents) > 0 {
		info, err := f.d.image.Info()
		if err == nil {
			err = f.record(ctx, f.b.operator(audit.Facts{"step": "deliver", "names": names, "files": int64(len(names)), "bytes": bytes, "version": versionText(info.Seq)}))
		}
		if err != nil {
			return err
		}
	}
	for _, c := range contents {
		if err := f.give(c.name, c.path, c.node); err != nil {
			return err
		}
	}
	return f.say(boxTold{Done: true})
}

// shortContent is a content, in bytes, that goes within a message.
const shortContent = 32 << 10

// give sends a content. One that cannot be read is told as such.
func (f *outfeed) give(name []byte, p workspace.Path, n workspace.Node) error {
	file, err := f.d.image.OpenNode(p, n)
	if err == nil && n.Size <= shortContent {
		var data []byte
		if data, err = io.ReadAll(file.Reader()); err == nil {
			return f.say(boxTold{File: name, Data: data, End: true})
		}
	}
	if err := f.say(boxTold{File: name}); err != nil {
		return err
	}
	if err == nil {
		out := &failing{w: f.b.stdout}
		if _, err = io.Copy(out, file.Reader()); out.err != nil {
			return out.err
		}
	}
	end := boxTold{End: true}
	if err != nil {
		end.Fail = asFailure(context.Background(), err).Text
	}
	return f.say(end)
}

// failing keeps the error of a writer apart from that of a reader.
type failing struct {
	w   io.Writer
	err error
}

func (w *failing) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	w.err = err
	return n, err
}
