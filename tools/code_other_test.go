//go:build !linux

package tools

import "testing"

var provokeOnLinux = map[Code]func(t *testing.T){
	SetupFailed: func(t *testing.T) { t.Skip("SKIP no sandbox on this system") },
	NoSpace:     func(t *testing.T) { t.Skip("SKIP needs a small file system, made by mount namespaces") },
}
