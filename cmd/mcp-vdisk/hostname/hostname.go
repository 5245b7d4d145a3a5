package hostname

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"
	"syscall"
	"unicode/utf8"
)

// Escape gives a name of the disk, one component in raw bytes, a form that the host can
// hold. A name that it can hold as it is stays so.
//
// What it cannot hold is written as "%" and two hexadecimal digits for each byte (RFC
// 3986 §2.1). Where anything is written so, a "%" that two such digits or a "~" follow is
// "%25": no two names have one form. A form that is too long is cut, and "%~" and 16
// digits of the name's SHA-256 stand before its extension.
func Escape(component string, r Rules) string {
	if component == "." || component == ".." {
		return strings.ReplaceAll(component, ".", "%2E")
	}
	var b strings.Builder
	for i := 0; i < len(component); {
		c, size := utf8.DecodeRuneInString(component[i:])
		if r.cannot(component, i, c, size) {
			for j := range size {
				fmt.Fprintf(&b, "%%%02X", component[i+j])
			}
		} else {
			b.WriteString(component[i : i+size])
		}
		i += size
	}
	if host := b.String(); r.Max == 0 || len(host) <= r.Max {
		return host
	}
	return Mark(b.String(), component, r.Max)
}

// Rules say what the names of a host cannot hold. The zero value lets everything be.
type Rules struct {
	Reserved string // characters
	Control  bool   // bytes below 0x20, and 0x7F
	UTF8     bool   // what is not UTF-8
	Trailing bool   // a dot or a space at the end
	Devices  bool   // names of devices, such as CON and com1.txt
	Max      int    // bytes of a name; 0 for no limit
	Folds    bool   // names that differ in case only are one; Escape does not look at it
}

// Max is how many bytes a name has at most, by any system's rules: 255 bytes on
// Linux and APFS, 255 units of UTF-16 on NTFS, which are no fewer bytes.
const Max = 255

// RulesOf are those of an operating system's own file systems, named as by
// runtime.GOOS. Linux holds any byte, macOS what is UTF-8 and has no ":" (the Finder's
// "/"), Windows what its "Naming Files, Paths, and Namespaces" lists.
func RulesOf(goos string) Rules {
	switch goos {
	case "windows":
		return Rules{Reserved: `<>:"|?*\`, Control: true, UTF8: true, Trailing: true, Devices: true, Max: Max}
	case "darwin", "ios":
		return Rules{Reserved: ":", UTF8: true, Max: Max}
	}
	return Rules{Max: Max}
}

// RulesIn are those of the file system of a folder: it is tried with a file of a name
// that most hold, which is removed again. What cannot be tried has the rules of the
// operating system.
func RulesIn(dir *os.Root) Rules {
	rules := RulesOf(runtime.GOOS)
	plain := ".mcp-vdisk-" + strings.ToLower(rand.Text()[:12])
	try := func(name string) error {
		f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			f.Close()
		}
		return err
	}
	if try(plain) != nil {
		return rules
	}
	_, err := dir.Lstat(strings.ToUpper(plain))
	folds := err == nil
	dir.Remove(plain)
	if odd := plain + `:"` + "\xff"; !rules.escapes() {
		if err := try(odd); Refused(err) {
			rules = Strict()
		} else if err == nil {
			dir.Remove(odd)
		}
	}
	rules.Folds = folds
	return rules
}

// Refused says that a file system cannot hold a name.
func Refused(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EILSEQ) || errors.Is(err, syscall.ENAMETOOLONG)
}

// Strict are rules that hold for a foreign file system, such as vfat below Linux or one
// that encrypts names (eCryptfs takes 143 bytes).
func Strict() Rules {
	r := RulesOf("windows")
	r.Max = 140
	return r
}

// cannot says whether the character at i has to be escaped.
func (r Rules) cannot(name string, i int, c rune, size int) bool {
	last := i+size == len(name)
	switch {
	case c == utf8.RuneError && size == 1:
		return r.UTF8
	case c == 0 || c == '/':
		return true // nowhere; the disk has none
	case c == '%':
		return r.escapes() && (isHex(name[i+1:]) || strings.HasPrefix(name[i+1:], "~"))
	case strings.ContainsRune(r.Reserved, c):
		return true
	case c < 0x20 || c == 0x7f:
		return r.Control
	case last && (c == '.' || c == ' '):
		return r.Trailing
	}
	return i == 0 && r.Devices && isDevice(name)
}

func (r Rules) escapes() bool {
	return r.Reserved != "" || r.Control || r.UTF8 || r.Trailing || r.Devices
}

func isHex(s string) bool {
	if len(s) < 2 {
		return false
	}
	_, err := hex.DecodeString(s[:2])
	return err == nil
}

// isDevice says whether Windows takes a name for a device, which it does whatever the
// extension.
func isDevice(name string) bool {
	stem, _, _ := strings.Cut(name, ".")
	stem = strings.ToUpper(strings.TrimRight(stem, " "))
	switch stem {
	case "CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$":
		return true
	}
	port, ok := strings.CutPrefix(stem, "COM")
	if !ok {
		port, ok = strings.CutPrefix(stem, "LPT")
	}
	return ok && utf8.RuneCountInString(port) == 1 && strings.ContainsAny(port, "0123456789¹²³")
}

// Mark tells a name apart from another one that the host does not: by digits of the
// hash of what it was, before its extension.
func Mark(host, was string, most int) string {
	sum := sha256.Sum256([]byte(was))
	return insert(host, "%~"+hex.EncodeToString(sum[:8]), most)
}

// Beside is the n-th name for what is not to take the place of a file: "NAME (2).EXT".
func Beside(host string, n, most int) string { return insert(host, fmt.Sprintf(" (%d)", n), most) }

// insert puts a text before the extension of a name, and cuts the name to at most so
// many bytes, not within a character or an escape.
func insert(host, text string, most int) string {
	const longest = 16 // of what is taken for an extension
	ext := path.Ext(host)
	if len(ext) > longest || ext == host {
		ext = ""
	}
	stem := strings.TrimSuffix(host, ext)
	if room := most - len(text) - len(ext); most > 0 && len(stem) > room {
		stem = stem[:max(room, 0)]
		for i := 1; i <= 2 && i <= len(stem); i++ {
			if stem[len(stem)-i] == '%' {
				stem = stem[:len(stem)-i]
				break
			}
		}
		for stem != "" {
			if c, size := utf8.DecodeLastRuneInString(stem); c != utf8.RuneError || size != 1 || !utf8.ValidString(host) {
				break
			}
			stem = stem[:len(stem)-1]
		}
	}
	return stem + text + ext
}
