package front

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pipconf"
)

// HasTools says that the verb gives somebody the tools of a disk. The caller's pip
// configuration goes with such a request: packages that are asked for come from there.
func (r Request) HasTools() bool { return r.Verb == "serve" || r.Verb == "call" }

// PipConfig is the caller's pip configuration, with all that is secret in it; nil when it
// cannot be read, which the caller is told once and which keeps no session from beginning.
// What else there is to be said about it `env ensure` says: most sessions ask for nothing.
// For root, too, it is the caller's, and not that of the user that the back runs as.
func (a *Caller) PipConfig() *pipconf.Settings {
	home, _ := os.UserHomeDir() // without one the files below it are not read
	c, _, err := pipconf.Read(os.Environ(), home)
	if err == nil {
		return &c
	}
	if !a.pipTold {
		fmt.Fprintf(a.Stderr, "mcp-vdisk: this session goes on without the pip configuration: %s\nhint: it matters only when packages are asked for; "+
			"pip config debug shows where it comes from, and a session that begins when it is mended has it\n", err)
	}
	a.pipTold = true
	return nil
}

// mayAsk says whether packages may be asked for by a line, or soon after it. Handshakes and
// the like are passed on first: a client waits for their answers.
func mayAsk(line []byte) bool {
	e := envelopeOf(bytes.TrimSpace(line))
	return e.id == nil || e.method == "tools/call"
}

// pipPiece is how much of a configuration is sent at once.
const pipPiece = 16 << 10

// pieces sends what is written in frames that take no memory of their own: the front is a
// small process, and a certificate is larger than all else that it sends.
type pieces struct {
	f   *Frames
	buf []byte
}

func (p *pieces) Write(b []byte) (int, error) {
	for sent := 0; sent < len(b); {
		n := min(len(b)-sent, pipPiece)
		p.buf = appendFrame(p.buf[:0], FramePip, b[sent:sent+n])
		if err := p.f.send(p.buf); err != nil {
			return sent, err
		}
		sent += n
	}
	return len(b), nil
}

// sendPip sends a pip configuration, or nothing when there is none. Certificates, which
// may be large, are encoded on the way.
func (f *Frames) sendPip(c *pipconf.Settings) error {
	if c == nil {
		return nil
	}
	plain := *c
	plain.Cert, plain.ClientCert = nil, nil
	rest, err := json.Marshal(plain)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(&pieces{f: f}, pipPiece)
	between := "{" // the last write tells of all that fail
	for _, cert := range []struct {
		name string
		pem  []byte
	}{{"cert", c.Cert}, {"client_cert", c.ClientCert}} {
		if cert.pem == nil {
			continue
		}
		fmt.Fprintf(w, "%s%q:\"", between, cert.name)
		e := base64.NewEncoder(base64.StdEncoding, w)
		e.Write(cert.pem)
		e.Close()
		w.WriteByte('"')
		between = ","
	}
	if between == "," && string(rest) == "{}" {
		between = ""
	}
	w.WriteString(between)
	w.Write(rest[1:])
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Write(FramePip, nil)
}
