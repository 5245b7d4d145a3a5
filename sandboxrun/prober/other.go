//go:build !linux || !(amd64 || arm64)

package prober

import (
	"errors"
	"os"
	"os/exec"
)

// Main returns at once: there is no prober for this system.
func Main() {}

// Names is empty: there is no prober for this system.
func Names() []string { return nil }

// Inherited is not for this system.
func Inherited(*os.File) (release func(), err error) { return nil, errors.ErrUnsupported }

// Terminal is not for this system.
type Terminal struct{}

// OpenTerminal returns errors.ErrUnsupported.
func OpenTerminal() (*Terminal, error) { return nil, errors.ErrUnsupported }

// Attach returns errors.ErrUnsupported.
func (*Terminal) Attach(*exec.Cmd) (release func(), err error) { return nil, errors.ErrUnsupported }

// Typed returns errors.ErrUnsupported.
func (*Terminal) Typed() (int, error) { return 0, errors.ErrUnsupported }

// Close does nothing.
func (*Terminal) Close() error { return nil }
