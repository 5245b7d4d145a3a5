package resolve

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pipconf"
)

// ReadConfig reads the pip configuration of whoever calls it, see pipconf.Read, and
// refuses what pip could not use.
//
// The warnings are whole sentences for a person, as is the error (ErrBadConfig): they may
// name files, and hold no value of them.
func ReadConfig(environ []string, home string) (Config, []string, error) {
	s, warnings, err := pipconf.Read(environ, home)
	if err != nil {
		return Config{}, nil, fail(ErrBadConfig, "%s", err)
	}
	c := Config(s)
	if err := c.check(); err != nil {
		return Config{}, nil, err
	}
	if n := c.Indexes(); n > 1 {
		warnings = append(warnings, fmt.Sprintf("pip is configured with %d places of packages (index, extra-index-url, find-links): it takes the newest version from any of them, also when it is not whose you think", n))
	}
	return c, warnings, nil
}

// reason is the bare reason of an error of the file system.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
