package workspace

import (
	"fmt"
	"testing"
)

func TestResolve(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	mustDo(t, im,
		put("d/f", "x"), put("d/sub/g", "y"), put("f", "z"),
		link("to-file", "d/f"), link("to-dir", "d"), link("d/up", "../f"), link("d/sub/abs", "/workspace/d/f"),
		link("abs-odd", "//workspace/./d//f"), link("twice", "to-file"), link("chain/x", "../to-dir/sub"),
		link("self", "self"), link("ping", "pong"), link("pong", "ping"),
		link("out", "/etc/passwd"), link("out-root", "/"), link("climb", "../x"), link("climb-late", "d/../../x"),
		link("climb-abs", "/workspace/../etc"), link("to-root", "/workspace"), link("dot", "."),
		link("reserved", ".system/wal"), link("reserved-abs", "/workspace/.logs"),
		link("dangling", "nowhere"), link("dangling-dir", "nowhere/x"), link("through-file", "f/x"), link("through-file-up", "f/../d"),
	)
	prev := "d/f"
	for i := range MaxSymlinks + 1 {
		name := fmt.Sprintf("hop%02d", i)
		mustDo(t, im, link(name, prev))
		prev = name
	}
	for _, c := range []struct {
		in, want string
		kind     error
		parent   string // of ResolveParent; "" for an error
	}{
		{"/", "/workspace", nil, "/workspace"},
		{"f", "/workspace/f", nil, "/workspace/f"},
		{"to-file", "/workspace/d/f", nil, "/workspace/to-file"},
		{"to-dir", "/workspace/d", nil, "/workspace/to-dir"},
		{"to-dir/f", "/workspace/d/f", nil, "/workspace/d/f"},
		{"to-dir/up", "/workspace/f", nil, "/workspace/d/up"},
		{"to-dir/sub/abs", "/workspace/d/f", nil, "/workspace/d/sub/abs"},
		{"abs-odd", "/workspace/d/f", nil, "/workspace/abs-odd"},
		{"twice", "/workspace/d/f", nil, "/workspace/twice"},
		{"chain/x/g", "/workspace/d/sub/g", nil, "/workspace/d/sub/g"},
		{"to-root", "/workspace", nil, "/workspace/to-root"},
		{"to-root/to-root/f", "/workspace/f", nil, "/workspace/f"},
		{"dot/dot/f", "/workspace/f", nil, "/workspace/f"},
		{"hop39", "/workspace/d/f", nil, "/workspace/hop39"},
		{"hop40", "", ErrSymlinkLoop, "/workspace/hop40"},
		{"self", "", ErrSymlinkLoop, "/workspace/self"},
		{"ping/x", "", ErrSymlinkLoop, ""},
		{"out", "", ErrPathEscape, "/workspace/out"},
		{"out/x", "", ErrPathEscape, ""},
		{"out-root", "", ErrPathEscape, "/workspace/out-root"},
		{"climb", "", ErrPathEscape, "/workspace/climb"},
		{"climb-late", "", ErrPathEscape, "/workspace/climb-late"},
		{"climb-abs/passwd", "", ErrPathEscape, ""},
		{"reserved", "", ErrReservedPath, "/workspace/reserved"},
		{"reserved-abs/x", "", ErrReservedPath, ""},
		{"to-root/x", "", ErrNotFound, "/workspace/x"},
		{"x", "", ErrNotFound, "/workspace/x"},
		{"x/y/z", "", ErrNotFound, "/workspace/x/y/z"},
		{"to-dir/x/y", "", ErrNotFound, "/workspace/d/x/y"},
		{"dangling", "", ErrNotFound, "/workspace/dangling"},
		{"dangling/x", "", ErrNotFound, "/workspace/nowhere/x"},
		{"dangling-dir/y", "", ErrNotFound, "/workspace/nowhere/x/y"},
		{"f/x", "", ErrNotDirectory, ""},
		{"to-file/x", "", ErrNotDirectory, ""},
		{"through-file", "", ErrNotDirectory, "/workspace/through-file"},
		{"through-file-up/f", "", ErrNotDirectory, ""},
	} {
		t.Run(c.in, func(t *testing.T) {
			got, _, err := im.Resolve(mustPath(t, c.in))
			if c.kind != nil {
				wantKind(t, err, c.kind)
			} else if err != nil || got.String() != c.want {
				t.Errorf("%v, %v", got, err)
			}
			got, err = im.ResolveParent(mustPath(t, c.in))
			if c.parent == "" {
				if err == nil {
					t.Errorf("parent: %v", got)
				}
			} else if err != nil || got.String() != c.parent {
				t.Errorf("parent: %v, %v", got, err)
			}
		})
	}
}

// A link to "/to-root/.system" must not open what the plain path does not.
func TestReservedBehindLinks(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	mustDo(t, im, link("to-root", "."))
	_, _, err := im.Resolve(mustPath(t, "to-root/.system"))
	wantKind(t, err, ErrReservedPath)
	_, err = im.ResolveParent(mustPath(t, "to-root/.system"))
	wantKind(t, err, ErrReservedPath)
	_, err = im.Open(mustPath(t, "to-root/.logs/x"))
	wantKind(t, err, ErrReservedPath)
}
