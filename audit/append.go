package audit

import (
	"context"
	"fmt"
)

// Append adds a record and returns when it is on disk, safe from a crash of the
// process and of the host: for intents, refusals, decisions, and whatever must be
// on record before an effect.
//
// Every error wraps [ErrUnavailable] and the effect must not happen. When ctx
// ended while the record was being written, it may still appear in the log.
func (l *Log) Append(ctx context.Context, stream string, e Entry) (Receipt, error) {
	b, r, err := l.number(ctx, stream, e, false)
	if err != nil {
		return Receipt{}, err
	}
	if err := b.wait(ctx); err != nil {
		return Receipt{}, fmt.Errorf("record %d of stream %s: %w", r.N, stream, err)
	}
	return r, nil
}

// Note adds a record and returns when it is safe from a crash of the process; it
// is safe from a crash of the host at most 10 ms later: for outcomes and reads.
//
// It is numbered at once and written to the tail together with whatever was
// numbered before and is not on disk yet. Every error wraps [ErrUnavailable]; the
// record is then not in the log. ctx ends only the wait for a place in the queue;
// an outcome that must be told even after its caller hung up needs
// context.WithoutCancel.
func (l *Log) Note(ctx context.Context, stream string, e Entry) (Receipt, error) {
	_, r, err := l.number(ctx, stream, e, true)
	return r, err
}
