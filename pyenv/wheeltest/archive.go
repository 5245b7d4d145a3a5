package wheeltest

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"hash/crc32"
	"strings"
)

// Archive is a zip file of which everything can be bent.
type Archive struct {
	Prefix  string // in front of the first entry; offsets count it
	Entries []*Entry
	Gap     string // between the last entry and the central directory
	Comment string
	Trailer string // behind the end of the archive
	Zip64   bool   // also writes the end records of zip64

	End func(*End) // changes the end record, at last
}

// Entry is one entry: its two headers and what lies between them.
type Entry struct {
	Local, Central Header
	Data           []byte // as it is in the file
	Descriptor     []byte // behind the data

	NoLocal bool // only the central header is written, with its Offset as it is
	Hidden  bool // only the local header is written
}

// Header is the fields of a local or central header.
type Header struct {
	MadeBy  uint16 // central only
	Version uint16
	Flags   uint16
	Method  uint16
	CRC     uint32
	Packed  uint32
	Size    uint32
	Name    string
	Extra   string
	Comment string // central only
	Disk    uint16 // central only
	Attr    uint32 // central only
	Offset  uint32 // central only; Bytes sets it if it is 0
}

// End is the end record.
type End struct {
	Disk, CentralDisk, Here, Total uint16
	Size, Offset                   uint32
}

// NewEntry is a file as build tools write it: deflated, unless it is empty.
func NewEntry(f File) *Entry {
	h := Header{MadeBy: 3<<8 | 20, Version: 20, Name: f.Name, Size: uint32(len(f.Body)), CRC: crc32.ChecksumIEEE([]byte(f.Body))}
	mode := f.Mode
	if strings.HasSuffix(f.Name, "/") {
		mode, h.Attr = orMode(mode, 0o40755), 0x10
	}
	data := []byte(f.Body)
	if h.Attr == 0 && f.Body != "" {
		data, h.Method = Deflate(f.Body), 8
	}
	for i := range len(f.Name) {
		if f.Name[i] >= 0x80 {
			h.Flags |= 0x800
		}
	}
	h.Attr |= orMode(mode, 0o100644) << 16
	h.Packed = uint32(len(data))
	return &Entry{Local: h, Central: h, Data: data}
}

func orMode(mode, otherwise uint32) uint32 {
	if mode == 0 {
		return otherwise
	}
	return mode
}

// Deflate compresses.
func Deflate(body string) []byte {
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.DefaultCompression)
	if err == nil {
		_, err = w.Write([]byte(body))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(err) // a buffer takes everything
	}
	return b.Bytes()
}

// Both changes both headers of an entry.
func (e *Entry) Both(change func(*Header)) {
	change(&e.Local)
	change(&e.Central)
}

// Stream makes the entry one whose sizes were not known when it was begun: they
// stand in a descriptor behind the data.
func (e *Entry) Stream() {
	e.Both(func(h *Header) { h.Flags |= 8 })
	c := e.Central
	e.Descriptor = append(binary.LittleEndian.AppendUint32(nil, 0x08074b50), words(c.CRC, c.Packed, c.Size)...)
	e.Local.CRC, e.Local.Packed, e.Local.Size = 0, 0, 0
}

// Find is the first entry of a name, nil if there is none.
func (a *Archive) Find(name string) *Entry {
	for _, e := range a.Entries {
		if e.Central.Name == name {
			return e
		}
	}
	return nil
}

// Bytes is the zip file.
func (a *Archive) Bytes() []byte {
	out := []byte(a.Prefix)
	var central []byte
	n := 0
	for _, e := range a.Entries {
		c := e.Central
		if c.Offset == 0 && !e.NoLocal {
			c.Offset = uint32(len(out))
		}
		if !e.NoLocal {
			out = e.appendLocal(out)
		}
		if !e.Hidden {
			central = c.appendCentral(central)
			n++
		}
	}
	out = append(out, a.Gap...)
	end := End{Here: uint16(n), Total: uint16(n), Size: uint32(len(central)), Offset: uint32(len(out))}
	out = append(out, central...)
	if a.Zip64 {
		out = appendEnd64(out, uint64(n), end)
		end.Here, end.Total, end.Size, end.Offset = 0xffff, 0xffff, 0xffffffff, 0xffffffff
	}
	if a.End != nil {
		a.End(&end)
	}
	out = append(out, "PK\x05\x06"...)
	out = append(out, halves(end.Disk, end.CentralDisk, end.Here, end.Total)...)
	out = append(out, words(end.Size, end.Offset)...)
	out = append(out, halves(uint16(len(a.Comment)))...)
	out = append(out, a.Comment...)
	return append(out, a.Trailer...)
}

func (e *Entry) appendLocal(out []byte) []byte {
	h := e.Local
	out = append(out, "PK\x03\x04"...)
	out = append(out, halves(h.Version, h.Flags, h.Method, 0, 0x21)...) // 1980-01-01
	out = append(out, words(h.CRC, h.Packed, h.Size)...)
	out = append(out, halves(uint16(len(h.Name)), uint16(len(h.Extra)))...)
	out = append(out, h.Name+h.Extra...)
	out = append(out, e.Data...)
	return append(out, e.Descriptor...)
}

func (h Header) appendCentral(out []byte) []byte {
	out = append(out, "PK\x01\x02"...)
	out = append(out, halves(h.MadeBy, h.Version, h.Flags, h.Method, 0, 0x21)...)
	out = append(out, words(h.CRC, h.Packed, h.Size)...)
	out = append(out, halves(uint16(len(h.Name)), uint16(len(h.Extra)), uint16(len(h.Comment)), h.Disk, 0)...)
	out = append(out, words(h.Attr, h.Offset)...)
	return append(out, h.Name+h.Extra+h.Comment...)
}

// appendEnd64 writes the end record of zip64 and its locator.
func appendEnd64(out []byte, n uint64, end End) []byte {
	at := uint64(len(out))
	out = append(out, "PK\x06\x06"...)
	out = binary.LittleEndian.AppendUint64(out, 44)
	out = append(out, halves(45, 45)...)
	out = append(out, words(0, 0)...)
	for _, v := range []uint64{n, n, uint64(end.Size), uint64(end.Offset)} {
		out = binary.LittleEndian.AppendUint64(out, v)
	}
	out = append(out, "PK\x06\x07"...)
	out = append(out, words(0)...)
	out = binary.LittleEndian.AppendUint64(out, at)
	return append(out, words(1)...)
}

func halves(list ...uint16) []byte {
	var b []byte
	for _, v := range list {
		b = binary.LittleEndian.AppendUint16(b, v)
	}
	return b
}

func words(list ...uint32) []byte {
	var b []byte
	for _, v := range list {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}
