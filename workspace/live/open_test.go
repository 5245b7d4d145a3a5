package live

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Whatever lies in the directory of a view, it opens, and has one generation
// that is right after the next Pin.
func TestOpenAmongGarbage(t *testing.T) {
	clean := func(p *pair, n string) error { // a copy that says it is clean
		s := p.newest().state.String()
		return errors.Join(os.MkdirAll(filepath.Join(p.view.base, n, treeName, "wrong"), 0o700),
			os.WriteFile(filepath.Join(p.view.base, n, stateName), []byte(s), 0o600))
	}
	for name, make := range map[string]func(p *pair) error{
		"nothing": func(p *pair) error { return nil },
		"the layout of version 0.1": func(p *pair) error {
			return errors.Join(os.MkdirAll(p.view.base+"/tree/d", 0o755), os.WriteFile(p.view.base+"/tree/d/f", nil, 0o444),
				os.WriteFile(p.view.base+"/live.state", []byte(p.newest().state.String()), 0o600))
		},
		"files and links": func(p *pair) error {
			return errors.Join(os.WriteFile(p.view.base+"/x", nil, 0), os.WriteFile(p.view.base+"/77", nil, 0o600),
				os.Symlink("/", p.view.base+"/78"), os.Symlink(p.newest().name(), p.view.base+"/79"))
		},
		"closed directories": func(p *pair) error {
			return errors.Join(os.MkdirAll(p.view.base+"/80/tree/a/b", 0o755), os.Chmod(p.view.base+"/80/tree/a", 0), os.Chmod(p.view.base+"/80", 0))
		},
		"numbers that are none": func(p *pair) error {
			return errors.Join(clean(p, "00"), clean(p, "0"), clean(p, "-5"), clean(p, "+5"), clean(p, "0009"), clean(p, "18446744073709551615"),
				clean(p, "4611686018427387904"), clean(p, "99999999999999999999999"))
		},
		"no state": func(p *pair) error { return os.MkdirAll(p.view.base+"/81/tree", 0o700) },
		"a state that is a directory": func(p *pair) error {
			return os.MkdirAll(p.view.base+"/82/live.state/x", 0o700)
		},
		"a state that is a link": func(p *pair) error {
			return errors.Join(os.MkdirAll(p.view.base+"/83/tree", 0o700), os.Symlink("tree", p.view.base+"/83/live.state"))
		},
		"a state that says nothing": func(p *pair) error {
			return errors.Join(os.MkdirAll(p.view.base+"/84/tree", 0o700), os.WriteFile(p.view.base+"/84/live.state", []byte(strings.Repeat("\xff", 9999)), 0o600))
		},
		"older ones": func(p *pair) error {
			return errors.Join(clean(p, "1"), clean(p, "2"))
		},
		"one of another image": func(p *pair) error {
			s := p.newest().state
			s.id = strings.Repeat("ab", 32)
			return errors.Join(clean(p, "85"), os.WriteFile(p.view.base+"/85/live.state", []byte(s.String()), 0o600))
		},
		"half of a newer one": func(p *pair) error {
			s := p.newest().state.moving("x")
			return errors.Join(clean(p, "86"), os.WriteFile(p.view.base+"/86/live.state", []byte(s.String()), 0o600))
		},
		"only garbage": func(p *pair) error {
			return errors.Join(os.RemoveAll(filepath.Join(p.view.base, p.newest().name())), os.Mkdir(p.view.base+"/87", 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			for i := range 3 {
				g := p.pin(t)
				p.commit(t, file("d/f", fmt.Sprint(i)), file("closed/f", "x"), mode("closed", 0))
				p.pin(t).Release()
				g.Release()
			}
			if p.newest().n < 3 {
				t.Fatalf("generation %d", p.newest().n)
			}
			if err := make(p); err != nil {
				t.Fatal(err)
			}
			p.reopen(t)
			if n := entries(t, p.view.base); len(n) > 2 || !slices.Contains(n, lockName) {
				t.Errorf("after Open: %v", n)
			}
			p.sync(t)
			if n := entries(t, p.view.base); len(n) != 2 {
				t.Errorf("after Pin: %v", n)
			}
			p.commit(t, file("d/f", "later"))
			p.sync(t)
		})
	}
}

// What a process that was closed with scripts still running has left.
func TestGenerationsLeftPinned(t *testing.T) {
	p := newPair(t)
	var held []*Generation
	for i := range 3 {
		p.commit(t, file("f", fmt.Sprint(i)))
		held = append(held, p.pin(t))
	}
	if err := p.view.Close(); err != nil {
		t.Fatal(err)
	}
	for _, g := range held {
		sameTrees(t, treeAt(t, p.im, g.Seq()), hostTree(t, g.Dir()))
	}
	p.reopen(t)
	if n := p.generations(t); !slices.Equal(n, []string{"3"}) {
		t.Errorf("left: %v", n)
	}
	p.sync(t)
	for _, g := range held { // of the view that was closed
		g.Release()
	}
	p.sync(t)
}
