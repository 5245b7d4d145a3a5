package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/hostbox"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/hostcopy"
)

// Times of an inbox. It is looked at instead of waited for (inotify(7)): that works on
// any file system, and finds what was put there before.
const (
	inboxEvery = 500 * time.Millisecond // at least ten times what a look takes
	inboxRetry = 3 * time.Second        // after a failure, doubled up to boxRetryMax
)

// Limits of one import, which is one commit.
const (
	importFiles = 500
	importNames = 40_000  // bytes
	importLarge = 8 << 20 // bytes: a larger file is an import of its own, after the others
)

// inbox is the front of one.
type inbox struct {
	a     *app
	r     front.Request
	dir   string
	watch *hostbox.Watch
	put   map[string]offer // by name: what it put where, in this session
	told  map[string]bool

	room  int64     // bytes: of the disk, when files were left out because it had no more
	asked time.Time // when it was asked whether it has more by now
}

// openInbox begins to look into the folder.
func (a *app) openInbox(ctx context.Context, s front.SessionFlags, dir string) (end func(), err error) {
	in := &inbox{a: a, dir: dir, put: map[string]offer{}, told: map[string]bool{}, room: math.MaxInt64}
	if in.watch, err = hostbox.OpenWatch(dir, a.Stderr); err != nil {
		return nil, exit.Fail(exit.NotFound, "make the folder first", "inbox: %s: %s", dir, front.ErrText(err))
	}
	if in.r, err = a.NewRequest("box.in", nil); err == nil {
		in.r.Session = s
		err = in.open(ctx)
	}
	if err != nil {
		in.watch.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		in.run(ctx)
	}()
	return func() {
		cancel()
		<-done
		in.ask(context.Background(), inboxArgs{Step: "close"}, nil, nil)
		in.watch.Close()
	}, nil
}

// open tells the daemon, which is started if there is none.
func (in *inbox) open(ctx context.Context) error {
	r, err := in.request(inboxArgs{Step: "open"})
	if err != nil {
		return err
	}
	conn, err := in.a.Ahead(ctx, r, front.OpenCreate)
	if err != nil {
		return err
	}
	defer conn.Close()
	return in.a.Receive(conn, io.Discard)
}

func (in *inbox) request(q inboxArgs) (front.Request, error) {
	q.Folder = strings.ToValidUTF8(in.dir, "?")
	args, err := json.Marshal(q)
	r := in.r
	r.Args = args
	return r, err
}

func (in *inbox) ask(ctx context.Context, q inboxArgs, stdin io.Reader, answer any) error {
	r, err := in.request(q)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := in.a.AskBeside(ctx, r, front.OpenCreate, stdin, &out); err != nil || answer == nil {
		return err
	}
	return json.Unmarshal(out.Bytes(), answer)
}

// run looks until the session ends.
func (in *inbox) run(ctx context.Context) {
	retry := inboxRetry
	for pause := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		began := time.Now()
		in.again(ctx, began)
		found, err := in.watch.Look(began)
		pause = max(inboxEvery, 10*time.Since(began))
		if err == nil {
			err = in.takeInTurn(ctx, began, found)
		}
		switch {
		case err == nil:
			clear(in.told)
			retry = inboxRetry
		case errors.Is(err, front.ErrNoDaemon) || ctx.Err() != nil:
		default:
			in.failed(err)
			pause, retry = retry, min(2*retry, boxRetryMax)
		}
	}
}

// again sees to it that files which had no room are looked at again once there is more.
func (in *inbox) again(ctx context.Context, now time.Time) {
	if !in.watch.Left() || now.Sub(in.asked) < inboxRetry {
		return
	}
	in.asked = now
	var room int64
	if in.ask(ctx, inboxArgs{Step: "room"}, nil, &room) == nil && room > in.room {
		in.room = math.MaxInt64
		in.watch.Retry()
	}
}

// takeInTurn takes files that a look found, the smallest first. When large ones have
// taken a while it leaves the rest to the next look, which may find small ones.
func (in *inbox) takeInTurn(ctx context.Context, looked time.Time, found []hostbox.Found) (err error) {
	slices.SortFunc(found, func(a, b hostbox.Found) int {
		return cmp.Or(cmp.Compare(a.Size, b.Size), strings.Compare(a.Name, b.Name))
	})
	for len(found) > 0 {
		n := importable(found)
		failed := in.take(ctx, found[:n])
		if failed != nil && !ofFiles(failed) {
			return failed
		}
		err = cmp.Or(err, failed)
		if found = found[n:]; failed == nil && len(found) > 0 && found[0].Size > importLarge && time.Since(looked) > inboxEvery {
			return err
		}
	}
	return err
}

// importable is how many of the files, which are in the order of their sizes, go in one
// commit.
func importable(found []hostbox.Found) int {
	size := 0
	for i, f := range found {
		if size += len(f.Name) + 64; i == importFiles || i > 0 && (size > importNames || f.Size > importLarge) {
			return i
		}
	}
	return len(found)
}

// ofFiles says whether a failure may be one of the files that were to be put, so that
// others may still be.
func ofFiles(err error) bool {
	var f *exit.Failure
	return errors.As(err, &f) && f.Code == exit.Failed
}

// failed tells a failure once, until something succeeds.
func (in *inbox) failed(err error) {
	if text := err.Error(); !in.told[text] {
		in.told[text] = true
		fmt.Fprintf(in.a.Stderr, "mcp-vdisk: inbox: %s; tried again\n", harmless(text))
	}
}

// take puts files into the disk as one commit or, when that is too much for it, one by
// one, so that a file which has no room does not keep out the others.
func (in *inbox) take(ctx context.Context, found []hostbox.Found) error {
	err := in.takeAll(ctx, found)
	if len(found) == 1 || !ofFiles(err) {
		return err
	}
	err = nil
	for i := range found {
		if one := in.takeAll(ctx, found[i:i+1]); one != nil && err == nil {
			err = one
		}
	}
	return err
}

func (in *inbox) takeAll(ctx context.Context, found []hostbox.Found) error {
	found, err := in.fitting(ctx, found)
	if err != nil {
		return err
	}
	var offers []offer
	var files []hostbox.Found
	for _, f := range found {
		sum, err := in.watch.Sum(f)
		switch {
		case errors.Is(err, hostbox.ErrChanging): // it comes again
			continue
		case err != nil:
			in.watch.Tell(f.Name, "cannot be read: "+front.ErrText(err))
			continue
		}
		o := in.offerOf(f)
		o.Sum = hex.EncodeToString(sum[:])
		offers, files = append(offers, o), append(files, f)
	}
	if len(offers) == 0 {
		return nil
	}
	plan, err := in.plan(ctx, offers)
	if err != nil {
		return err
	}
	return in.send(ctx, plan, files)
}

// fitting are those of the files that the disk has room for by their sizes, so that none
// is read in vain.
func (in *inbox) fitting(ctx context.Context, found []hostbox.Found) (fit []hostbox.Found, err error) {
	var offers []offer
	for _, f := range found {
		offers = append(offers, in.offerOf(f))
	}
	plan, err := in.plan(ctx, offers)
	for i, o := range plan {
		if o.Why != "" {
			in.leave(found[i], o)
		} else {
			fit = append(fit, found[i])
		}
	}
	return fit, err
}

// offerOf is a file without its hash.
func (in *inbox) offerOf(f hostbox.Found) offer {
	was := in.put[f.Name]
	return offer{Name: []byte(f.Name), Size: f.Size, As: was.As, Had: was.Sum}
}

func (in *inbox) plan(ctx context.Context, offers []offer) (plan []offer, err error) {
	err = in.ask(ctx, inboxArgs{Step: "offer", Files: offers}, nil, &plan)
	if err == nil && len(plan) != len(offers) {
		err = errors.New("the daemon answered something else")
	}
	if err != nil {
		return nil, err
	}
	return plan, nil
}

// leave leaves a file out, until it changes or, when that is why, the disk has room.
func (in *inbox) leave(f hostbox.Found, o offer) {
	why := "is left out: " + o.Why
	if !o.Full {
		in.watch.Tell(f.Name, why)
		in.watch.Taken(f)
		return
	}
	in.room = min(in.room, o.Room)
	in.watch.Leave(f, why)
}

// send puts what the disk needs of the files.
func (in *inbox) send(ctx context.Context, plan []offer, files []hostbox.Found) error {
	var needed []offer
	var from []hostbox.Found
	for i, o := range plan {
		switch {
		case o.Why != "":
			in.leave(files[i], o)
		case !o.Need:
			in.placed(files[i], o)
		default:
			needed, from = append(needed, o), append(from, files[i])
		}
	}
	if len(needed) == 0 {
		return nil
	}
	pr, pw := io.Pipe()
	defer pr.Close()
	go func() { pw.CloseWithError(in.pack(pw, from)) }()
	var done []offer
	if err := in.ask(ctx, inboxArgs{Step: "put", Files: needed}, pr, &done); err != nil {
		return err
	}
	for i, o := range done {
		if i < len(from) && !o.Need { // else it changed on the way
			in.placed(from[i], o)
		}
	}
	return nil
}

// placed notes where a file is on the disk.
func (in *inbox) placed(f hostbox.Found, o offer) {
	in.put[f.Name] = offer{As: o.As, Sum: o.Sum}
	in.watch.Taken(f)
	if string(o.As) != f.Name {
		in.watch.Tell(f.Name, "is "+fmt.Sprintf("%q", o.As)+" in /workspace/in: the disk has another file of its name")
	}
}

// pack writes the files as tar, each under its number. One that cannot be read as it was
// found is left out.
func (in *inbox) pack(w io.Writer, files []hostbox.Found) error {
	t := tar.NewWriter(w)
	for i, f := range files {
		file, err := in.watch.Open(f)
		if err != nil {
			continue
		}
		h := hostcopy.Header(&tar.Header{Typeflag: tar.TypeReg, Name: strconv.Itoa(i), Size: f.Size, Mode: int64(f.Mode), ModTime: f.ModTime})
		if err = t.WriteHeader(h); err == nil {
			_, err = io.CopyN(t, file, f.Size)
		}
		file.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return t.Close()
}
