package hostbox

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
)

// kept is what the manifest says of one entry: how it was written.
type kept struct {
	Name   string      `json:"name"` // on the disk; as text gives it
	As     string      `json:"as"`   // its last component here; as text gives it
	Kind   Kind        `json:"kind"`
	SHA256 string      `json:"sha256,omitempty"`
	Next   string      `json:"next,omitempty"` // what is being written now
	Size   int64       `json:"size,omitempty"`
	Mode   fs.FileMode `json:"mode,omitempty"`
	MTime  int64       `json:"mtime,omitempty"` // nanoseconds since 1970, as the host has it
	Time   int64       `json:"time,omitempty"`  // as the disk has it
	Target string      `json:"target,omitempty"`
}

// head is the manifest without its entries.
type head struct {
	Format  int             `json:"format"`
	Disk    string          `json:"disk"`
	Entries json.RawMessage `json:"entries"`
}

const (
	manifestFormat = 1
	maxManifest    = 64 << 20 // bytes
)

// load reads the manifest. A folder without one has to be empty.
func (m *Mirror) load() error {
	f, err := m.root.OpenFile(manifest, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return m.mustBeEmpty()
	}
	if err != nil {
		return m.unreadable(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return m.unreadable(errors.New("it is not a regular file"))
	}
	var h head
	var list []kept
	if err := json.NewDecoder(io.LimitReader(f, maxManifest)).Decode(&h); err != nil {
		return m.unreadable(err)
	}
	if h.Format != manifestFormat || h.Disk == "" {
		return m.unreadable(fmt.Errorf("its format is %d, and this program reads %d", h.Format, manifestFormat))
	}
	if err := json.Unmarshal(h.Entries, &list); err != nil {
		return m.unreadable(err)
	}
	for _, k := range list {
		name, as := raw(k.Name), raw(k.As)
		if name == "" || name != path.Clean("/" + name)[1:] || !isComponent(as) || k.Kind != KindFile && k.Kind != KindDir && k.Kind != KindLink {
			return m.unreadable(fmt.Errorf("it has an entry %q as %q", name, as))
		}
		k.Name, k.As, k.Target = name, as, raw(k.Target)
		m.held[name] = &k
	}
	m.disk, m.saved = h.Disk, true
	return nil
}

func isComponent(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\x00")
}

func (m *Mirror) unreadable(err error) error {
	return exit.Fail(exit.Refused, "choose another folder", "outbox: %s cannot be read: %s", m.dir+"/"+manifest, front.ErrText(err))
}

// mustBeEmpty refuses a folder that holds what no Mirror wrote.
func (m *Mirror) mustBeEmpty() error {
	f, err := m.root.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		names, err := f.Readdirnames(100)
		for _, name := range names {
			if !strings.HasPrefix(name, tempPrefix) {
				return exit.Fail(exit.Refused, "name an empty folder, or one that is not there yet", "outbox: %s holds other things already, such as %s", m.dir, shown(name))
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return exit.Fail(exit.Refused, "choose another folder", "outbox: %s: %s", m.dir, front.ErrText(err))
		}
	}
}

// save writes the manifest anew, whole or not at all, if it is not as it should be.
func (m *Mirror) save() error {
	if !m.dirty {
		return nil
	}
	f, tmp, err := create(m.root, 0o600)
	if err != nil {
		return err
	}
	defer m.root.Remove(tmp)
	w := bufio.NewWriter(f)
	fmt.Fprintf(w, "{\"format\":%d,\"disk\":%q,\"entries\":[", manifestFormat, m.disk)
	comma := ""
	for _, name := range slices.Sorted(maps.Keys(m.held)) {
		k := m.held[name]
		line := *k
		line.Name, line.As, line.Target = text(k.Name), text(k.As), text(k.Target)
		b, err := json.Marshal(line)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\n%s", comma, b)
		comma = ","
	}
	w.WriteString("\n]}\n")
	if err := errors.Join(w.Flush(), f.Close()); err != nil {
		return err
	}
	if err := m.root.Rename(tmp, manifest); err != nil {
		return err
	}
	m.saved, m.dirty = true, false
	return nil
}

// intend notes that a file is about to be written.
func (m *Mirror) intend(it Item) {
	k := m.held[it.Name]
	if k == nil {
		k = &kept{Name: it.Name, Kind: it.Kind}
		m.keep(k, m.hostName(it.Name, m.rules))
	}
	k.Next, m.dirty = sumOf(&it), true
}

// unintend notes that it was not.
func (m *Mirror) unintend(name string) {
	k := m.held[name]
	if k == nil {
		return
	}
	if k.Next, m.dirty = "", true; k.SHA256 == "" {
		m.forget(name)
	}
}

// keep notes where an entry is.
func (m *Mirror) keep(k *kept, as string) {
	m.forget(k.Name)
	k.As, m.dirty = as, true
	m.held[k.Name] = k
	m.places[m.place(k.Name, as)] = k.Name
}

func (m *Mirror) forget(name string) {
	if k := m.held[name]; k != nil {
		m.dirty = true
		delete(m.held, name)
		if at := m.place(name, k.As); m.places[at] == name {
			delete(m.places, at)
		}
	}
}

func sumOf(it *Item) string {
	if it.Kind != KindFile {
		return ""
	}
	return hex.EncodeToString(it.SHA256[:])
}

// text is a name in JSON, which has only UTF-8: another one, or one that begins with a
// quote, is in Go's quoted form.
func text(s string) string {
	if utf8.ValidString(s) && !strings.HasPrefix(s, `"`) {
		return s
	}
	return strconv.Quote(s)
}

func raw(s string) string {
	if strings.HasPrefix(s, `"`) {
		if name, err := strconv.Unquote(s); err == nil {
			return name
		}
	}
	return s
}
