//go:build linux

package prober

// archCalls are the probes that only this architecture has: none.
func archCalls() map[string]func() error { return nil }
