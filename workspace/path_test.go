package workspace

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestClean(t *testing.T) {
	long := strings.Repeat("n", MaxName)
	deep := strings.TrimSuffix(strings.Repeat("d/", MaxDepth), "/")
	// The longest path: the mount, and components of 255 up to the limit.
	longest := strings.Repeat("/"+long, 15)
	longest += "/" + strings.Repeat("r", MaxPath-len(Mount)-len(longest)-1)
	for _, c := range []struct {
		name, in, want string // want as String shows it
		kind           error
	}{
		{"full path", "/workspace/a/b", "/workspace/a/b", nil},
		{"absolute", "/a/b", "/workspace/a/b", nil},
		{"relative", "a/b", "/workspace/a/b", nil},
		{"dot in front", "./a/b", "/workspace/a/b", nil},
		{"dots and slashes", "//a/./b//", "/workspace/a/b", nil},
		{"trailing slash", "/a.txt/", "/workspace/a.txt", nil},
		{"double slash alias", "//workspace//a", "/workspace/a", nil},
		{"alias behind a dot", "/./workspace/a", "/workspace/a", nil},
		{"relative workspace is a name", "workspace/a", "/workspace/workspace/a", nil},
		{"dot relative workspace is a name", "./workspace", "/workspace/workspace", nil},
		{"alias only once", "/workspace/workspace", "/workspace/workspace", nil},
		{"longer than the alias", "/workspaces/a", "/workspace/workspaces/a", nil},
		{"root by alias", "/workspace", "/workspace", nil},
		{"root by alias and slash", "/workspace/", "/workspace", nil},
		{"root slash", "/", "/workspace", nil},
		{"root dot", ".", "/workspace", nil},
		{"root dot slash", "./", "/workspace", nil},
		{"backslashes", `a\b`, "/workspace/a/b", nil},
		{"backslash alias", `\workspace\a`, "/workspace/a", nil},
		{"drive letter", `C:\Windows\x`, "/workspace/C:/Windows/x", nil},
		{"host path is a name", "/etc/passwd", "/workspace/etc/passwd", nil},
		{"url is a name", "file:///etc/x", "/workspace/file:/etc/x", nil},
		{"tilde", "~/x", "/workspace/~/x", nil},
		{"dots inside", "a..b/.../..c", "/workspace/a..b/.../..c", nil},
		{"spaces are kept", " a /b ", "/workspace/ a /b ", nil},
		{"decomposed is kept", "e\u0301", "/workspace/e\u0301", nil},
		{"cjk of 255 bytes", strings.Repeat("好", 85), "/workspace/" + strings.Repeat("好", 85), nil},
		{"control byte", "a\tb", `"/workspace/a\tb"`, nil},
		{"line forging", "a\u2028b", `"/workspace/a\u2028b"`, nil},
		{"right to left", "a\u202eb", `"/workspace/a\u202eb"`, nil},
		{"quoted control", `"/workspace/a\tb"`, `"/workspace/a\tb"`, nil},
		{"quoted backslash", `"/workspace/a\\b"`, `"/workspace/a\\b"`, nil},
		{"quoted bytes", `"/workspace/\xff"`, `"/workspace/\xff"`, nil},
		{"quoted plain", `"/a/b"`, "/workspace/a/b", nil},
		{"quoted relative", `"workspace"`, "/workspace/workspace", nil},
		{"a quote in front is a name", `"a`, `/workspace/"a`, nil},
		{"quotes inside are a name", `/"a"`, `/workspace/"a"`, nil},
		{"reserved further down", "a/.system", "/workspace/a/.system", nil},
		{"reserved as a beginning", ".systemx", "/workspace/.systemx", nil},
		{"reserved in capitals", ".SYSTEM", "/workspace/.SYSTEM", nil},
		{"longest name", long, "/workspace/" + long, nil},
		{"deepest", deep, "/workspace/" + deep, nil},
		{"longest", longest, "/workspace" + longest, nil},

		{"empty", "", "", ErrInvalidPath},
		{"blank", "   ", "", ErrInvalidPath},
		{"blank of tabs", "\t\n", "", ErrInvalidPath},
		{"NUL", "/a\x00b", "", ErrInvalidPath},
		{"not UTF-8", "a\xffb", "", ErrInvalidPath},
		{"surrogate", "a\xed\xa0\x80", "", ErrInvalidPath},
		{"quoted empty", `""`, "", ErrInvalidPath},
		{"quoted NUL", `"a\x00"`, "", ErrInvalidPath},
		{"badly quoted", `"a\qb"`, "", ErrInvalidPath},
		{"name too long", long + "n", "", ErrInvalidPath},
		{"name too long in runes", strings.Repeat("好", 86), "", ErrInvalidPath},
		{"too deep", deep + "/d", "", ErrInvalidPath},
		{"too long", longest + "r", "", ErrInvalidPath},
		{"escape", "../x", "", ErrPathEscape},
		{"escape alone", "..", "", ErrPathEscape},
		{"escape further down", "/a/../../x", "", ErrPathEscape},
		{"harmless escape", "/a/../b", "", ErrPathEscape},
		{"escape at the end", "a/..", "", ErrPathEscape},
		{"escape by backslash", `..\x`, "", ErrPathEscape},
		{"escape of the alias", "/workspace/../etc", "", ErrPathEscape},
		{"quoted escape", `"/workspace/../etc"`, "", ErrPathEscape},
		{"reserved", ".system", "", ErrReservedPath},
		{"reserved by alias", "/workspace/.system/wal", "", ErrReservedPath},
		{"reserved by slashes", "//.vectors//x", "", ErrReservedPath},
		{"reserved by backslash", `.logs\x`, "", ErrReservedPath},
		{"reserved vector file", "/.vector_disk.json", "", ErrReservedPath},
		{"reserved log file", "./.log_disk.json", "", ErrReservedPath},
		{"reserved quoted", `".\x73ystem"`, "", ErrReservedPath},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := Clean(c.in)
			if c.kind != nil {
				wantKind(t, err, c.kind)
				if len(err.Error()) > 400 {
					t.Errorf("an error of %d bytes", len(err.Error()))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if p.String() != c.want {
				t.Errorf("got %s, want %s", p, c.want)
			}
		})
	}
}

func TestFromBytes(t *testing.T) {
	for _, c := range []struct {
		name, in, want string
		kind           error
	}{
		{"root", "", "/workspace", nil},
		{"plain", "a/b", "/workspace/a/b", nil},
		{"a backslash is a byte of the name", `a\b`, `"/workspace/a\\b"`, nil},
		{"any bytes", "a\n\xff", `"/workspace/a\n\xff"`, nil},
		{"workspace is a name", "workspace", "/workspace/workspace", nil},
		{"absolute", "/a", "", ErrInvalidPath},
		{"empty component", "a//b", "", ErrInvalidPath},
		{"trailing slash", "a/", "", ErrInvalidPath},
		{"dot", "./a", "", ErrInvalidPath},
		{"NUL", "a\x00", "", ErrInvalidPath},
		{"escape", "a/../b", "", ErrPathEscape},
		{"reserved", ".system", "", ErrReservedPath},
		{"name too long", strings.Repeat("x", 256), "", ErrInvalidPath},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := FromBytes([]byte(c.in))
			if c.kind != nil {
				wantKind(t, err, c.kind)
				return
			}
			if err != nil || p.String() != c.want {
				t.Errorf("got %v, %v, want %s", p, err, c.want)
			}
			if back, err := Clean(p.String()); err != nil || back != p {
				t.Errorf("cleaning %s gives %v, %v", p, back, err)
			}
		})
	}
}

func TestPathMethods(t *testing.T) {
	p := must(Clean("/workspace/a/b c/d"))
	if p.Base() != "d" || p.Dir().String() != "/workspace/a/b c" || p.Depth() != 3 || p.Rel() != "a/b c/d" {
		t.Errorf("%q %v %d %q", p.Base(), p.Dir(), p.Depth(), p.Rel())
	}
	root := Path{}
	if !root.IsRoot() || root.Dir() != root || root.Base() != "" || root.Depth() != 0 || root.Components() != nil {
		t.Error("the root is not what it should be")
	}
	if top := must(Clean("x")); top.Dir() != root || top.Base() != "x" {
		t.Errorf("%v %q", top.Dir(), top.Base())
	}
	for _, bad := range []string{"", ".", "..", "a/b", "a\x00", strings.Repeat("x", 256)} {
		if _, err := p.Join(bad); err == nil {
			t.Errorf("joined %q", bad)
		}
	}
	if _, err := root.Join(".system"); !errors.Is(err, ErrReservedPath) {
		t.Errorf("joined a reserved name: %v", err)
	}
	if q, err := p.Join("e\\\xff"); err != nil || q.Base() != "e\\\xff" || q.Dir() != p || !q.isBelow(p) || p.isBelow(q) || p.isBelow(p) {
		t.Errorf("%v, %v", q, err)
	}
}

// What String shows, Clean reads back, and cleaning twice changes nothing.
func FuzzClean(f *testing.F) {
	for _, s := range []string{"a/b", "/workspace/a", `"/workspace/\xff\n"`, `C:\x`, "..", ".system/x", "\"a\"", "a\u202eb", `"`, `""`, "/\"a\"/", "workspace"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Clean(s)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || !utf8.ValidString(err.Error()) {
				t.Fatalf("%q: error %q", s, err)
			}
			return
		}
		shown := p.String()
		if !utf8.ValidString(shown) {
			t.Fatalf("%q is shown as invalid UTF-8 %q", s, shown)
		}
		if back, err := Clean(shown); err != nil || back != p {
			t.Fatalf("%q is shown as %q, which is %v, %v", s, shown, back, err)
		}
		if back, err := FromBytes([]byte(p.Rel())); err != nil || back != p {
			t.Fatalf("%q: FromBytes(%q) is %v, %v", s, p.Rel(), back, err)
		}
		if len(shown) <= MaxPath && p.Depth() > MaxDepth {
			t.Fatalf("%q is too deep", s)
		}
		if keyPath(treeKey(p)) != p {
			t.Fatalf("%q: its key is %q", s, treeKey(p))
		}
	})
}
