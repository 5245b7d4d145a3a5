package tools

import (
	"context"
	"testing"
)

// However many scripts wait, a file tool that comes after them is next when the
// one that runs has ended.
func TestFileToolsPassWaitingScripts(t *testing.T) {
	g := newGate()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	running, err := g.script(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		go func() {
			if done, err := g.script(ctx); err == nil {
				done()
			}
		}()
	}
	file := make(chan func())
	go func() {
		done, err := g.file(ctx)
		if err != nil {
			t.Error(err)
			done = func() {}
		}
		file <- done
	}()
	select {
	case <-file:
		t.Fatal("a file tool ran beside a script")
	default:
	}
	running()
	(<-file)()
}

// A script that gives up waiting leaves its turn to the next.
func TestGivenUpTurn(t *testing.T) {
	g := newGate()
	file, err := g.file(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := g.script(gone); err == nil {
		t.Fatal("a script ran beside a file tool")
	}
	file()
	done, err := g.script(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	done()
}
