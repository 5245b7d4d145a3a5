package main

import (
	"context"
	"io"
)

// whileWanted is a writer that ends with a context.
type whileWanted struct {
	ctx context.Context
	w   io.Writer
}

func (w whileWanted) Write(p []byte) (int, error) {
	if w.ctx.Err() != nil {
		return 0, context.Cause(w.ctx)
	}
	return w.w.Write(p)
}

// untilDone is a reader that ends with a context.
type untilDone struct {
	ctx context.Context
	r   io.Reader
}

func (r untilDone) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}
