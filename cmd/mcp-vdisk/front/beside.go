package front

import (
	"context"
	"errors"
	"io"
)

// ErrNoDaemon says that no daemon serves the state directory now. A front that has a
// session waits for the next one, which the session starts.
var ErrNoDaemon = errors.New("no daemon serves the state directory")

// Beside is a request that goes beside a session of the same front, to the daemon that is
// there: it starts none. What the daemon says is read from the connection.
func (a *Caller) Beside(r Request, open OpenMode) (*Frames, error) {
	conn, err := a.dialOurs(r)
	if err != nil {
		return nil, err
	}
	if conn == nil {
		return nil, ErrNoDaemon
	}
	return a.begin(conn, r, open)
}

// Ahead is Beside for a session that is about to begin: the daemon is started if there is
// none, and one of another build makes room.
func (a *Caller) Ahead(ctx context.Context, r Request, open OpenMode) (*Frames, error) {
	conn, err := a.Ensure(ctx, r, true)
	if err != nil {
		return nil, err
	}
	return a.begin(conn, r, open)
}

func (a *Caller) begin(conn *Frames, r Request, open OpenMode) (*Frames, error) {
	image, err := r.Image.Open(open)
	if err == nil && image != nil {
		defer image.Close()
		r.Image.New = isEmpty(image)
	}
	if err == nil {
		err = conn.SendRequest(r, image)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// AskBeside is Ask of the daemon that is there. Errors: [ErrNoDaemon], and those of Ask.
func (a *Caller) AskBeside(ctx context.Context, r Request, open OpenMode, stdin io.Reader, stdout io.Writer) error {
	conn, err := a.Beside(r, open)
	if err != nil {
		return err
	}
	return a.converse(ctx, conn, r, stdin, stdout)
}

// converse sends the input that follows a request, and passes on what is answered.
func (a *Caller) converse(ctx context.Context, conn *Frames, r Request, stdin io.Reader, stdout io.Writer) error {
	defer conn.Close()
	stop := context.AfterFunc(ctx, conn.interrupt)
	defer stop()
	if r.HasTools() {
		conn.sendPip(a.PipConfig()) // who does not take it says why
	}
	in := &input{Reader: stdin}
	if stdin != nil {
		go in.send(conn)
	}
	err := a.Receive(conn, stdout)
	if failed := in.failed(); failed != nil {
		return failed
	}
	return err
}

// ModeOf is how a session opens an image that is named by a path.
func ModeOf(s SessionFlags) OpenMode {
	if s.ReadOnly {
		return OpenRead
	}
	return OpenCreate
}
