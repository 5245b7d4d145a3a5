package workspace

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// guard runs fn so that damage under bbolt's memory map does not end the
// process: a fault of the map (the file was cut short, the disk fails) and a
// panic that bbolt itself raises over a page that makes no sense come back as
// ErrCorrupt. Every other panic is a bug of ours and goes on.
//
// What it cannot catch is a branch page that leads back to itself: the stack
// overflow ends a Go process. Open looks for such pages before bbolt does, see
// survey, and refuses the file. What is left is a file that someone else writes
// to while it is open, against the lock.
func guard(op string, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		p := recover()
		switch {
		case p == nil:
		case mapFault(p) || raisedByBolt():
			err = imageError(op, ErrCorrupt, "its file cannot be read as a database")
		default:
			panic(p)
		}
	}()
	return fn()
}

// mapFault says whether a panic value is a fault at an address, as
// debug.SetPanicOnFault promises it. A nil dereference carries no address.
func mapFault(p any) bool {
	_, ok := p.(interface {
		runtime.Error
		Addr() uintptr
	})
	return ok
}

// raisedByBolt looks, from within a deferred function, whether the innermost
// function below the panic that is not the runtime's belongs to bbolt.
func raisedByBolt() bool {
	pc := make([]uintptr, 64)
	frames := runtime.CallersFrames(pc[:runtime.Callers(1, pc)])
	panicking := false
	for {
		f, more := frames.Next()
		switch {
		case f.Function == "runtime.gopanic":
			panicking = true
		case panicking && !strings.HasPrefix(f.Function, "runtime."):
			return strings.HasPrefix(f.Function, "go.etcd.io/bbolt")
		}
		if !more {
			return false
		}
	}
}
