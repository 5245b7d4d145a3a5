package archive_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/archive"
)

// made is an archive of such headers; content fills files.
func made(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatalf("%q: %v", h.Name, err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.CopyN(w, zeros{}, h.Size); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	z.Write(b)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstded(t testing.TB, b []byte, o ...zstd.EOption) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil, o...)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	return z.EncodeAll(b, nil)
}

func file(name string) tar.Header { return tar.Header{Name: name, Size: 1, Mode: 0o644} }
func dir(name string) tar.Header  { return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755} }
func link(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
}
func hard(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}
}
func special(name string, flag byte) tar.Header { return tar.Header{Name: name, Typeflag: flag} }
func global(records map[string]string) tar.Header {
	return tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: records}
}

// unchanged says that an import left nothing on the disk.
func unchanged(t testing.TB, name string, im *workspace.Image) {
	t.Helper()
	info, err := im.Info()
	if err != nil || info.Seq != 1 || info.Entries != 0 {
		t.Errorf("%s: the disk was changed: %+v, %v", name, info, err)
	}
}

func TestHostile(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 256)
	for name, c := range map[string]struct {
		archive []byte
		kind    error
		says    string // all of these, separated by |
	}{
		"dot dot":            {made(t, file("a/../../b")), archive.ErrEntry, `"a/../../b"|..`},
		"dot dot folder":     {made(t, dir("../")), archive.ErrEntry, `"../"|..`},
		"absolute":           {made(t, file("/etc/passwd")), archive.ErrEntry, `"/etc/passwd"|root`},
		"long name":          {made(t, file(long)), archive.ErrEntry, `256|255`},
		"long path":          {made(t, file(strings.Repeat("a/", 100)+strings.Repeat(strings.Repeat("b", 200)+"/", 25)+"c")), archive.ErrEntry, "4096"},
		"deep":               {made(t, file(strings.Repeat("a/", 128)+"b")), archive.ErrEntry, "129|128"},
		"reserved":           {made(t, file("./.system/x")), archive.ErrEntry, "reserved"},
		"twice":              {made(t, file("a"), file("a")), archive.ErrEntry, `"a"|two entries`},
		"twice by ./":        {made(t, file("a"), file("./a")), archive.ErrEntry, `"./a"|two entries|/workspace/a`},
		"twice by //":        {made(t, file("a/b"), file("a//b")), archive.ErrEntry, "two entries"},
		"twice by /./":       {made(t, file("a/b"), file("a/././b")), archive.ErrEntry, "two entries"},
		"folder twice":       {made(t, dir("a/"), dir("a")), archive.ErrEntry, "two entries"},
		"file, folder":       {made(t, file("a"), dir("a/")), archive.ErrEntry, "two entries"},
		"folder, file":       {made(t, dir("a/"), file("a")), archive.ErrEntry, "two entries"},
		"folder, link":       {made(t, dir("a/"), link("a", "b")), archive.ErrEntry, "two entries"},
		"below a link":       {made(t, link("a", "/etc"), file("a/passwd")), archive.ErrEntry, `"a/passwd"|a link`},
		"below a link, deep": {made(t, link("a", "."), file("a/b/c/d")), archive.ErrEntry, "a link"},
		"below a file":       {made(t, file("a"), file("a/b")), archive.ErrEntry, "a file"},
		"below, then a link": {made(t, file("a/b"), link("a", "/etc")), archive.ErrEntry, "a link|below it"},
		"below, then a file": {made(t, file("a/b/c"), file("a")), archive.ErrEntry, "a file|below it"},
		"root is a file":     {made(t, file(".")), archive.ErrEntry, "folder"},
		"root is a link":     {made(t, link("./", "/")), archive.ErrEntry, "folder"},
		"link like a folder": {made(t, link("a/", "/")), archive.ErrEntry, "folder"},
		"link to a later":    {made(t, hard("a", "b"), file("b")), archive.ErrEntry, "hard link|before"},
		"link to nothing":    {made(t, hard("a", "/etc/passwd")), archive.ErrEntry, "hard link|/etc/passwd"},
		"link out":           {made(t, hard("a", "../b")), archive.ErrEntry, "hard link"},
		"link to a link":     {made(t, link("a", "/etc/passwd"), hard("b", "a")), archive.ErrEntry, "hard link"},
		"link to a folder":   {made(t, dir("a"), hard("b", "a")), archive.ErrEntry, "hard link"},
		"link to itself":     {made(t, hard("b", "b")), archive.ErrEntry, "hard link"},
		"target too long":    {made(t, link("a", strings.Repeat("t", 4096))), archive.ErrEntry, "4096|4095"},
		"no target":          {made(t, link("a", "")), archive.ErrEntry, "0"},
		"character device":   {made(t, special("tty", tar.TypeChar)), archive.ErrEntry, "device"},
		"block device":       {made(t, special("sda", tar.TypeBlock)), archive.ErrEntry, "device"},
		"FIFO":               {made(t, special("pipe", tar.TypeFifo)), archive.ErrEntry, "FIFO"},
		"unknown type":       {flagged(t, made(t, file("a")), 'Z'), archive.ErrEntry, "'Z'"},
		"global path":        {made(t, global(map[string]string{"path": "../x"}), file("a")), archive.ErrEntry, `"path"`},
		"global size":        {made(t, global(map[string]string{"size": "99"}), file("a")), archive.ErrEntry, `"size"`},
		"path by pax":        {made(t, tar.Header{Name: "../" + strings.Repeat("é", 120), Format: tar.FormatPAX}), archive.ErrEntry, ".."},
		"path by GNU":        {made(t, tar.Header{Name: "../" + strings.Repeat("b", 200), Format: tar.FormatGNU}), archive.ErrEntry, ".."},
		"over the bytes":     {made(t, tar.Header{Name: "big", Size: 5000}, tar.Header{Name: "bigger", Size: 6000}), archive.ErrTooLarge, `"bigger"|10000`},
		"bytes by links":     {made(t, tar.Header{Name: "big", Size: 4000}, hard("b", "big"), hard("c", "big")), archive.ErrTooLarge, `"c"|10000`},
		"over the entries":   {made(t, many(101)...), archive.ErrTooLarge, `100 entries`},
		"parents count":      {made(t, file(strings.Repeat("a/", 100)+"b")), archive.ErrTooLarge, `100 entries`},
		"2^62 bytes":         {sized(t, 1<<62), archive.ErrTooLarge, "4611686018427387904|10000"},
		"negative":           {sized(t, -1), archive.ErrFormat, "header"},
		"headers only":       {repeated(t, global(map[string]string{"comment": strings.Repeat("x", 900_000)}), 40), archive.ErrTooLarge, "headers"},
		"many headers":       {repeated(t, global(map[string]string{"comment": "x"}), 200), archive.ErrTooLarge, "entries"},
		"header of 2 MiB":    {append(flagged(t, sized(t, 2<<20), 'x'), make([]byte, 2<<20)...), archive.ErrTooLarge, "headers"},
		"empty":              {nil, archive.ErrFormat, "empty"},
		"text":               {[]byte(strings.Repeat("some text\n", 200)), archive.ErrFormat, "tar"},
		"zip":                {[]byte("PK\x03\x04" + strings.Repeat("\x00", 2000)), archive.ErrFormat, "zip"},
		"xz":                 {[]byte("\xfd7zXZ\x00" + strings.Repeat("\x00", 2000)), archive.ErrFormat, "xz"},
		"vdisk":              {[]byte(strings.Repeat("\x00", 16) + "\xed\xda\x0c\xed" + strings.Repeat("\x00", 5000)), archive.ErrFormat, "disk image"},
		"behind its end":     {append(made(t, file("a")), "more"...), archive.ErrDamaged, "follows"},
		"zeros without end":  {append(made(t, file("a")), make([]byte, 3<<20)...), archive.ErrTooLarge, "1 MiB"},
		"two archives":       {append(made(t, file("a")), made(t, file("b"))...), archive.ErrDamaged, "follows"},
		"no end":             {bytes.TrimRight(made(t, tar.Header{Name: "a", Typeflag: tar.TypeDir}), "\x00"), archive.ErrDamaged, "cut off"},
		"zstd bomb":          {zstded(t, make([]byte, 300<<20)), archive.ErrTooLarge, "1 MiB"},
		"gzip of text":       {gzipped(t, []byte("text")), archive.ErrDamaged, "cut off"},
		"zstd of nothing":    {zstded(t, []byte{}), nil, ""},
		"not zstd":           {append([]byte{0x28, 0xb5, 0x2f, 0xfd}, strings.Repeat("\xff", 1000)...), archive.ErrDamaged, "compressed form"},
		"window":             {windowed(), archive.ErrTooLarge, "window|32 MiB"},
		"wrong hash":         {made(t, tar.Header{Name: "a", Size: 1, PAXRecords: map[string]string{"MCPVDISK.sha256": strings.Repeat("0", 64)}}), archive.ErrDamaged, `"a"|SHA-256`},
		"states twice":       {made(t, global(states(0, 0)), global(states(0, 0))), archive.ErrFormat, "beginning"},
		"states late":        {made(t, file("a"), global(states(0, 0))), archive.ErrFormat, "beginning"},
		"states nonsense":    {made(t, global(map[string]string{"MCPVDISK.archive": "1"})), archive.ErrDamaged, "states"},
		"states another":     {made(t, global(map[string]string{"MCPVDISK.archive": "2"})), archive.ErrFormat, "version"},
		"states too much":    {made(t, global(states(1, 10001))), archive.ErrTooLarge, "10001|10000"},
		"states too many":    {made(t, global(states(101, 1))), archive.ErrTooLarge, "101|100"},
		"more than stated":   {made(t, global(states(1, 5)), file("a"), file("b")), archive.ErrDamaged, `"b"|1 entries`},
		"bytes not stated":   {made(t, global(states(2, 1)), file("a"), file("b")), archive.ErrDamaged, `"b"|1 bytes`},
		"less than stated":   {made(t, global(states(2, 1)), file("a")), archive.ErrDamaged, "2 entries"},
		"another digest":     {made(t, global(states(1, 1)), file("a")), archive.ErrDamaged, "digest"},
		"another order":      {made(t, global(states(2, 2)), file("b"), file("a")), archive.ErrDamaged, "order"},
	} {
		t.Run(name, func(t *testing.T) {
			im, _, err := take(t, bytes.NewReader(c.archive), archive.Limits{Bytes: 10_000, Entries: 100}, workspace.CreateOptions{})
			var e *archive.Error
			if !errors.As(err, &e) || c.kind != nil && e.Kind != c.kind {
				t.Fatalf("error is %v, want one that %v", err, c.kind)
			}
			for part := range strings.SplitSeq(c.says, "|") {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			unchanged(t, name, im)
		})
	}
}

func states(entries, n int) map[string]string {
	return map[string]string{"MCPVDISK.archive": "1", "MCPVDISK.version": "2", "MCPVDISK.entries": fmt.Sprint(entries), "MCPVDISK.bytes": fmt.Sprint(n), "MCPVDISK.content": strings.Repeat("ab", 32)}
}

func many(n int) (list []tar.Header) {
	for i := range n {
		list = append(list, tar.Header{Name: fmt.Sprint("f", i)})
	}
	return list
}

// repeated is an archive that begins with one header n times.
func repeated(t testing.TB, h tar.Header, n int) []byte {
	one := made(t, h)
	one = one[:len(one)-1024]
	return append(bytes.Repeat(one, n), make([]byte, 1024)...)
}

// rewritten changes the first header and mends its checksum.
func rewritten(b []byte, change func(header []byte)) []byte {
	change(b[:512])
	copy(b[148:156], "        ")
	sum := 0
	for _, c := range b[:512] {
		sum += int(c)
	}
	copy(b[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func flagged(t testing.TB, b []byte, flag byte) []byte {
	return rewritten(b, func(h []byte) { h[156] = flag })
}

// sized is an archive whose first entry says that it is so large, in base 256.
func sized(t testing.TB, n int64) []byte {
	return rewritten(made(t, tar.Header{Name: "a", Size: 100, Format: tar.FormatGNU}), func(h []byte) {
		field := h[124:136]
		for i := range field {
			field[i] = 0
			if n < 0 {
				field[i] = 0xff
			}
		}
		for i := range 8 {
			field[11-i] = byte(n >> (8 * i))
		}
		field[0] |= 0x80
	})
}

// windowed is the beginning of a zstd frame that asks for a window of 64 MiB
// (RFC 8878 §3.1.1.1.2: exponent 16).
func windowed() []byte {
	return append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 16 << 3}, make([]byte, 100)...)
}

// A bomb within the quota is stopped by its ratio, unless it says beforehand how large it
// is: then it was let in for that.
func TestRatio(t *testing.T) {
	t.Parallel()
	plain := made(t, tar.Header{Name: "zeros", Size: 200 << 20})
	for name, b := range map[string][]byte{"zstd": zstded(t, plain), "gzip": gzipped(t, plain)} {
		im, _, err := take(t, bytes.NewReader(b), archive.Limits{}, workspace.CreateOptions{})
		if !errors.Is(err, archive.ErrTooLarge) || !strings.Contains(fmt.Sprint(err), "1000 times") {
			t.Errorf("%s: %v", name, err)
		}
		unchanged(t, name, im)
	}
	if _, _, err := take(t, bytes.NewReader(plain), archive.Limits{}, workspace.CreateOptions{}); err != nil {
		t.Error("not compressed:", err)
	}
	im := newImage(t, workspace.CreateOptions{})
	stage := im.Stage(t.Context())
	defer stage.Discard()
	content, err := stage.Add(io.LimitReader(zeros{}, 200<<20))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := im.Commit(t.Context(), workspace.Txn{Stage: stage, Changes: []workspace.Change{{Op: workspace.OpPut, Path: raw(t, "zeros"), Content: content}}}); err != nil {
		t.Fatal(err)
	}
	b, stated := export(t, im, archive.ExportOptions{})
	back, _, err := take(t, bytes.NewReader(b), archive.Limits{}, workspace.CreateOptions{})
	if err != nil || digest(t, back) != stated.Content {
		t.Errorf("an archive of %d bytes of a disk of 200 MiB: %v", len(b), err)
	}
}

// What is taken in as something else than it was is counted.
func TestTakenIn(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_500_000_000, 5)
	b := made(t, dir("./"),
		global(map[string]string{"comment": "a commit of git"}),
		tar.Header{Name: "late/in", Size: 3, Mode: 0o4755, ModTime: at, Format: tar.FormatPAX},
		tar.Header{Name: "late", Typeflag: tar.TypeDir, Mode: 0o1700, ModTime: at, Format: tar.FormatPAX},
		hard("copy", "./late//in"),
		tar.Header{Name: "none", Mode: 0}, file("README"), file("Readme"), file("readme"), file("caf\u00e9"), file("cafe\u0301"),
		file("stra\u00dfe"), file("STRASSE"), dir("A"), file("a/x"),
	)
	im, rep, err := take(t, bytes.NewReader(b), archive.Limits{}, workspace.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Special != 2 || rep.Copied != 1 || rep.Entries != 14 || rep.Stated != nil || rep.ClashCount != 5 || rep.NFCCount != 1 {
		t.Errorf("%+v", rep)
	}
	got := fmt.Sprint(rep.Clashes, rep.NotNFC)
	for _, want := range []string{"[/workspace/A /workspace/a]", "README /workspace/readme]", "README /workspace/Readme]", "STRASSE /workspace/straße]", "[/workspace/cafe\u0301]"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s: no %s", got, want)
		}
	}
	for path, want := range map[string]uint32{"late": 0o700, "late/in": 0o755, "copy": 0o755, "none": 0} {
		n, err := im.Lstat(raw(t, path))
		if err != nil || n.Mode != want || path != "none" && !n.ModTime.Equal(at) {
			t.Errorf("%s: %+v, %v", path, n, err)
		}
	}
}

// Cut off anywhere, or with any one byte changed, an archive of ours is refused: nothing
// else is known of it than that it is damaged.
func TestCutOff(t *testing.T) {
	t.Parallel()
	im := newImage(t, workspace.CreateOptions{Label: "x"})
	fill(t, im, map[string]string{"a": "1", "b/": "", "b/c": strings.Repeat("text ", 300), "l": "->a", strings.Repeat("n", 150): "long"})
	packed, stated := export(t, im, archive.ExportOptions{})
	plain, flips := unzstd(t, packed), 0
	refused := func(what string, b []byte) {
		t.Helper()
		back := newImage(t, workspace.CreateOptions{})
		stage := back.Stage(t.Context())
		defer stage.Discard()
		if changes, _, err := archive.Import(t.Context(), bytes.NewReader(b), stage, archive.Limits{}); err == nil || changes != nil {
			t.Errorf("%s: %d changes, %v", what, len(changes), err)
		}
	}
	for n := range len(packed) {
		refused(fmt.Sprintf("first %d of %d bytes of zstd", n, len(packed)), packed[:n])
	}
	for n := 0; n < len(plain); n += 512 {
		refused(fmt.Sprintf("first %d of %d bytes", n, len(plain)), plain[:n])
		refused(fmt.Sprintf("first %d of %d bytes of gzip", n, len(plain)), gzipped(t, plain[:n]))
	}
	zipped := gzipped(t, plain)
	for n := 0; n < len(zipped); n += 7 {
		refused(fmt.Sprintf("first %d of %d bytes of gzip", n, len(zipped)), zipped[:n])
	}
	for n := range len(packed) {
		flipped := bytes.Clone(packed)
		flipped[n] ^= 0x10
		// Some bits mean nothing, such as those of a larger window.
		back, _, err := take(t, bytes.NewReader(flipped), archive.Limits{}, workspace.CreateOptions{})
		if err == nil && digest(t, back) != stated.Content {
			t.Errorf("byte %d of zstd flipped: another tree is let in", n)
		}
		if err != nil {
			unchanged(t, "flipped", back)
			flips++
		}
	}
	if flips < len(packed)*9/10 {
		t.Errorf("only %d of %d flipped bytes are noticed", flips, len(packed))
	}
}

// What GNU tar makes, sparse files in all its ways among it, is read.
func TestArchivesOfGNUTar(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("tar"); err != nil {
		t.Skip(err)
	}
	src := t.TempDir()
	script := `mkdir -p d/e && printf hello > d/f && ln d/f d/hard && ln -s f d/l && truncate -s 3M sparse && printf end >> sparse && printf x | dd of=sparse bs=1 seek=100000 conv=notrunc status=none && printf x > "$(printf 'n%.0s' $(seq 1 200))"`
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = src
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var first [32]byte
	for i, how := range []string{"--format=gnu", "--format=gnu -S", "--format=pax", "--format=pax -S --sparse-version=0.0", "--format=pax -S --sparse-version=0.1", "--format=pax -S --sparse-version=1.0", "--format=pax --zstd", "--format=oldgnu -z"} {
		out := filepath.Join(t.TempDir(), "a")
		cmd := exec.Command("sh", "-c", "tar --mtime=@1500000000 --sort=name "+how+` -cf "$1" .`, "sh", out)
		cmd.Dir = src
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Logf("skip tar %s: %v: %s", how, err, said)
			continue
		}
		b, err := exec.Command("cat", out).Output()
		if err != nil {
			t.Fatal(err)
		}
		im, rep, err := take(t, bytes.NewReader(b), archive.Limits{}, workspace.CreateOptions{})
		if err != nil || rep.Copied != 1 || rep.Bytes != 3<<20+3+5+5+1+1 {
			t.Errorf("tar %s: %+v, %v", how, rep, err)
			continue
		}
		if d := digest(t, im); i == 0 {
			first = d
		} else if d != first {
			t.Errorf("tar %s: another tree", how)
		}
	}
}

// An archive that ends because of its source fails as that did.
func TestSourceFails(t *testing.T) {
	t.Parallel()
	b := made(t, tar.Header{Name: "a", Size: 5000}, file("b"))
	for _, b := range [][]byte{b, gzipped(t, b), zstded(t, b)} {
		for n := 0; n < len(b); n += max(len(b)/7, 1) {
			_, _, err := take(t, io.MultiReader(bytes.NewReader(b[:n]), broken{}), archive.Limits{}, workspace.CreateOptions{})
			if !errors.Is(err, errFull) {
				t.Errorf("after %d of %d bytes: %v", n, len(b), err)
			}
		}
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errFull }

// FuzzImport: whatever comes, Import ends, and what it lets in makes a sound disk.
func FuzzImport(f *testing.F) {
	im := newImage(f, workspace.CreateOptions{Label: "x"})
	fill(f, im, map[string]string{"a": "1", "b/": "", "b/c": "text", "l": "->a"})
	ours, _ := export(f, im, archive.ExportOptions{})
	f.Add(ours)
	f.Add(unzstd(f, ours))
	for _, b := range [][]byte{
		made(f, file("a"), hard("b", "a"), link("c", "a"), dir("d/")), made(f, file("a/../b")), sized(f, 1<<62), sized(f, -1),
		made(f, tar.Header{Name: strings.Repeat("n", 200), Format: tar.FormatGNU}), made(f, special("tty", tar.TypeChar)),
		made(f, global(states(1, 1)), file("a")), made(f, global(map[string]string{"path": "x"}), file("a")), {},
	} {
		f.Add(b)
		f.Add(gzipped(f, b))
		f.Add(zstded(f, b))
	}
	disk := newImage(f, workspace.CreateOptions{})
	f.Fuzz(func(t *testing.T, b []byte) {
		stage := disk.Stage(t.Context())
		defer stage.Discard()
		changes, rep, err := archive.Import(t.Context(), bytes.NewReader(b), stage, archive.Limits{Bytes: 1 << 20, Entries: 50})
		if err != nil {
			if changes != nil {
				t.Error("changes and an error:", err)
			}
			return
		}
		done, err := disk.Commit(t.Context(), workspace.Txn{Stage: stage, Changes: changes, DryRun: true})
		if err != nil {
			t.Fatalf("what was let in cannot be committed: %v", err)
		}
		if int64(len(done.Effects)) != rep.Entries {
			t.Errorf("%d effects of %d entries", len(done.Effects), rep.Entries)
		}
	})
}
