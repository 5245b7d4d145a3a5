package main

import (
	"os"
	"sync"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// logFile is the daemon's own log: a file that is moved aside when it has grown.
// What the runtime writes of a crash goes there too.
type logFile struct {
	name string
	mu   sync.Mutex
	f    *os.File
	size int64
}

// maxLog is the size in bytes at which a log is moved to NAME.1, over the one
// before.
const maxLog = 10 << 20

func openLogFile(name string) (*logFile, error) {
	l := &logFile{name: name}
	if err := l.open(); err != nil {
		return nil, exit.Fail(exit.State, "", "open %s: %s", name, front.ErrText(err))
	}
	return l, nil
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	if l.f != nil {
		l.f.Close()
	}
	l.f, l.size = f, info.Size()
	return hostos.TakeStderr(f)
}

func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size+int64(len(p)) > maxLog && os.Rename(l.name, l.name+".1") == nil {
		_ = l.open() // or goes on in the old one
	}
	n, err := l.f.Write(p)
	l.size += int64(n)
	return n, err
}

func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Close()
}
