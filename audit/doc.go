// Package audit is the tamper-evident log.
package audit
