package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
)

// callersPip is the pip configuration of whoever started a session: where the packages
// come from that the session asks for. It arrives beside the request, may hold
// credentials, and is kept in memory, for as long as the session is, and by the
// environment, which goes on with what was asked when the session has ended.
type callersPip struct {
	config atomic.Pointer[resolve.Config]
	env    atomic.Pointer[pyenv.Env] // is told of it

	// What has arrived so far; of the one who receives.
	text []byte
	long bool
}

// Errors of a configuration that is not used. None shows anything of it.
var (
	errLongPip = errors.New("it is longer than 16 MiB")
	errNoPip   = errors.New("what arrived is no pip configuration")
)

// take takes a piece of a configuration; the empty one ends it. Each that is whole takes
// the place of the one before.
func (p *callersPip) take(piece []byte) error {
	switch {
	case len(piece) > 0 && (p.long || len(p.text)+len(piece) > maxPipConfig):
		p.text, p.long = nil, true
		return nil
	case len(piece) > 0:
		p.text = append(p.text, piece...)
		return nil
	}
	text, long := p.text, p.long
	p.text, p.long = nil, false
	if long {
		return errLongPip
	}
	c := new(resolve.Config)
	if len(text) == 0 || text[0] != '{' || json.Unmarshal(text, c) != nil {
		return errNoPip
	}
	p.set(c)
	return nil
}

// read takes the configuration of the caller, who is served by this very process.
func (p *callersPip) read(a *front.Caller) {
	if s := a.PipConfig(); s != nil {
		c := resolve.Config(*s)
		p.set(&c)
	}
}

func (p *callersPip) set(c *resolve.Config) {
	p.config.Store(c)
	p.pass()
}

// get is the configuration, nil while there is none.
func (p *callersPip) get() *resolve.Config { return p.config.Load() }

// tell tells an environment of the configuration that there is or will be.
func (p *callersPip) tell(env *pyenv.Env) {
	p.env.Store(env)
	p.pass()
}

// pass is called after each of the two was stored, so that the later one passes it on.
func (p *callersPip) pass() {
	if c, env := p.config.Load(), p.env.Load(); c != nil && env != nil {
		env.UsePip(*c)
	}
}

// takePip takes a piece of the caller's pip configuration, and tells the caller when it
// cannot be used. One that comes with another request is dropped.
func (b *back) takePip(piece []byte) {
	if !b.req.HasTools() {
		return
	}
	if err := b.pip.take(piece); err != nil {
		fmt.Fprintf(b.stderr, "mcp-vdisk: this session goes on without the pip configuration: %s\n", err)
	}
}

// inheritPip takes what a front has sent that is gone by now: this process took its
// place.
func (b *back) inheritPip(conn *front.Frames) {
	for b.req.HasTools() {
		typ, piece, err := conn.Read()
		if err != nil || typ != front.FramePip {
			return
		}
		if b.takePip(piece); len(piece) == 0 {
			return
		}
	}
}
