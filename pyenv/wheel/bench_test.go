package wheel_test

import (
	"bytes"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
)

// BenchmarkOpen is a wheel of 1,000 files.
func BenchmarkOpen(b *testing.B) {
	w := with()
	for i := range 1000 {
		w.Files = append(w.Files, wheeltest.File{Name: "demo/" + string(rune('a'+i%26)) + "/m" + string(rune('0'+i/260)) + string(rune('0'+i/26%10)) + ".py"})
	}
	data := w.Bytes()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := wheel.Open(bytes.NewReader(data), int64(len(data)), w.FileName(), wheel.Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkVerify is 16 MiB of one file, inflated and hashed.
func BenchmarkVerify(b *testing.B) {
	w := with(wheeltest.File{Name: "demo/big", Body: noise(16 << 20)})
	data := w.Bytes()
	opened, err := wheel.Open(bytes.NewReader(data), int64(len(data)), w.FileName(), wheel.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(16 << 20)
	for b.Loop() {
		if err := opened.Verify(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
