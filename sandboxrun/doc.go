// Package sandboxrun runs scripts in sandboxes.
package sandboxrun
