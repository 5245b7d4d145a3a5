package leaseproc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// question is a call, as a line.
type question struct {
	Op      string // acquire renew release guard last info · advance step suspend interrupt · close
	Request lease.Request
	Grant   lease.Grant
	D       time.Duration
	Stored  bool
	Socket  string // of the server, for a client's process
}

// answer is also what is asked within a call, and answered there.
type answer struct {
	Grant lease.Grant
	Lease lease.Lease
	Info  lease.Info
	Token uint64
	Kind  string
	Text  string

	Op, Name string
	Value    []byte
	Absent   bool
}

var (
	errAborted     = errors.New("the caller has ended the transaction")
	errInterrupted = errors.New("the write was interrupted")
)

// kinds are the errors that keep what they are on the way.
var kinds = map[string]error{
	"conflict": lease.ErrConflict, "invalid": lease.ErrInvalid, "unavailable": lease.ErrUnavailable,
	"canceled": context.Canceled, "aborted": errAborted,
}

func (a *answer) fail(err error) {
	if err == nil {
		return
	}
	a.Kind, a.Text = "other", err.Error()
	for name, kind := range kinds {
		if errors.Is(err, kind) {
			a.Kind = name
		}
	}
}

func (a *answer) err() error {
	switch kind := kinds[a.Kind]; {
	case a.Kind == "":
		return nil
	case kind == nil:
		return errors.New(a.Text)
	default:
		return fmt.Errorf("%w: %s", kind, a.Text)
	}
}

// line is a connection that carries lines of JSON.
type line struct {
	net.Conn
	in  *json.Decoder
	out *json.Encoder
}

func newLine(c net.Conn) line { return line{c, json.NewDecoder(c), json.NewEncoder(c)} }
