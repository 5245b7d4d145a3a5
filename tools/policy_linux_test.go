package tools

import (
	"testing"
)

// TestNoDeleteInScripts: a script whose changes delete or empty something is
// not saved, as a whole.
func TestNoDeleteInScripts(t *testing.T) {
	d := setup{config: func(c *Config) { c.Policy = Policy{NoDelete: true} }}.scripted(t)
	d.write("a", "a")
	d.write("b", "b")
	d.write("dir/f", "f")
	d.ok("make_directory", args{"path": "bare"})
	before := d.tree()
	for name, source := range map[string]string{
		"remove": "rm a", "remove a directory": "rm -r dir", "empty": ": >a", "move": "mv a c", "move over another": "mv a b",
		"move a directory": "mv dir dir2", "file in place of a directory": "rm -r bare; echo x >bare", "directory in place of a file": "rm a; mkdir a",
		"link in place of a file": "ln -sf b a", "one of many": "for i in $(seq 99); do echo x >n$i; done; rm dir/f",
	} {
		d.run(name, func(t *testing.T) {
			text := d.fails(DeleteDisabled, "run_script", args{"language": "bash", "source": "echo out; echo new >new; " + source})
			wantText(t, text, "nothing was saved (exit 0): ", "stdout:\nout")
			d.fails(DeleteDisabled, "run_script", args{"language": "bash", "source": source + "; exit 1", "commit": "always"})
			wantText(t, d.script(args{"language": "bash", "source": source, "commit": "never"}).String(),
				"NOT SAVED (exit 0, ", "changed:\n", "could not have been saved either: DELETE_DISABLED")
			if d.tree() != before {
				t.Errorf("the disk changed to\n%s", d.tree())
			}
		})
	}
	wantText(t, d.bash("echo more >>a; echo other >b; echo x >n; rm -f none; echo t >tmp; rm tmp; chmod 600 dir/f; mkdir d; ln -s a l").String(), "SAVED")
	if d.content("a") != "amore\n" || d.content("b") != "other\n" {
		t.Errorf("the disk is\n%s", d.tree())
	}
}

// TestReadOnlyScripts: no script runs in a session that only reads.
func TestReadOnlyScripts(t *testing.T) {
	d := setup{config: func(c *Config) { c.Policy = Policy{ReadOnly: true} }}.scripted(t)
	for _, commit := range []string{"on_success", "never"} {
		d.refused(ReadOnly, "run_script", args{"language": "bash", "source": "echo x >x", "commit": commit})
	}
}
