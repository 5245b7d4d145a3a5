package tools

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
	"github.com/mcp-vdisk/mcp-vdisk/schemas"
)

// sentences are all sentences that describe the tools and their arguments, each
// with what shows that it is true. An argument's begins with its name.
var sentences = map[string]map[string]func(d *disk){
	"write_file": {
		"Writes a file on the virtual disk /workspace (not the user's computer).": func(d *disk) {
			wantText(d.t, d.write("/workspace/a", "x"), "/workspace/a v2")
			wantText(d.t, d.write("/home/me/a", "x"), "not on the user's computer")
		},
		"Makes missing parents; all or nothing.": func(d *disk) {
			d.write("p/q/r", "old")
			d.fails(NoMatch, "write_file", args{"path": "p/q/r", "content": "x", "mode": "replace", "old_text": "none"})
			d.fails(NotADirectory, "write_file", args{"path": "p/q/r/new/f", "content": "x"})
			if d.content("p/q/r") != "old" {
				d.t.Error(d.tree())
			}
		},
		"mode: overwrite (default); create refuses an existing path; append; replace swaps old_text, which must match once (or replace_all), for content and changes no other byte.": func(d *disk) {
			d.write("a", "first")
			d.write("a", "one two two\r\nthree")
			d.fails(AlreadyExists, "write_file", args{"path": "a", "content": "x", "mode": "create"})
			d.fails(AmbiguousMatch, "write_file", args{"path": "a", "content": "x", "mode": "replace", "old_text": "two"})
			d.ok("write_file", args{"path": "a", "content": "1", "mode": "replace", "old_text": "one"})
			d.ok("write_file", args{"path": "a", "content": "2", "mode": "replace", "old_text": "two", "replace_all": true})
			d.ok("write_file", args{"path": "a", "content": "!", "mode": "append"})
			if got := d.content("a"); got != "1 2 2\r\nthree!" {
				d.t.Errorf("%q", got)
			}
		},
		"At most 4 MiB per call by default.": func(d *disk) {
			d.write("a", strings.Repeat("x", 4<<20))
			d.refused(TooLarge, "write_file", args{"path": "a", "content": strings.Repeat("x", 4<<20+1)})
		},
		"path: E.g. /workspace/src/a.py": func(d *disk) { d.write("/workspace/src/a.py", "x") },
		"encoding: Default utf-8":        func(d *disk) { d.write("a", "eA=="); wantText(d.t, d.read("a"), "eA==") },
		"if_version: Only if still at this version, e.g. v17": func(d *disk) {
			d.write("a", "x")
			d.ok("write_file", args{"path": "a", "content": "y", "if_version": "v2"})
			d.fails(VersionConflict, "write_file", args{"path": "a", "content": "z", "if_version": "v2"})
		},
	},
	"read_file": {
		"Reads a file in /workspace.": func(d *disk) { d.write("a", "text"); wantText(d.t, d.read("/workspace/a"), "text") },
		"Text comes as stored, by default 2000 lines and at most 40,000 characters; a last block tells lines shown, total, version and how to go on.": func(d *disk) {
			text := strings.Repeat("\tx \r\n", 3000)
			d.write("a", text)
			r := d.call("read_file", args{"path": "a"})
			if r.Blocks[0].Text != text[:5*2000] {
				d.t.Errorf("%.50q", r.Blocks[0].Text)
			}
			wantText(d.t, r.Blocks[1].Text, "lines 1-2000 of 3000", "v2", `"offset": 2001`)
			d.write("a", strings.Repeat("x", 99_999))
			if n := len(d.read("a")); n != 40_000 {
				d.t.Errorf("%d characters", n)
			}
		},
		"PNG, JPEG, GIF and WebP come as images.": func(d *disk) { // the kinds in TestPictures
			d.putBytes("a", []byte("GIF89a\x01\x00\x01\x00\x00\x00\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x00;"))
			if r := d.call("read_file", args{"path": "a"}); r.Blocks[0].MIME != "image/gif" {
				d.t.Error(r)
			}
		},
		"Other data that is not UTF-8 is BINARY_FILE unless encoding is base64 or utf-8.": func(d *disk) {
			d.putBytes("a", []byte{0xff, 'x'})
			d.fails(BinaryFile, "read_file", args{"path": "a"})
			wantText(d.t, d.ok("read_file", args{"path": "a", "encoding": "base64"}), b64("\xffx"))
			wantText(d.t, d.ok("read_file", args{"path": "a", "encoding": "utf-8"}), "�x")
		},
		"offset: First line, from 1": func(d *disk) {
			d.write("a", "1\n2\n")
			wantText(d.t, d.ok("read_file", args{"path": "a", "offset": 1}), "1\n2\n")
			wantText(d.t, d.ok("read_file", args{"path": "a", "offset": 2}), "lines 2-2 of 2")
		},
		"byte_offset: Page by bytes instead, from 0": func(d *disk) {
			d.write("a", "abc")
			wantText(d.t, d.ok("read_file", args{"path": "a", "byte_offset": 0}), "bytes 0-2 of 3")
		},
		"encoding: Default auto; utf-8 shows bad bytes as U+FFFD": func(d *disk) {
			d.putBytes("a", []byte("a\xff"))
			wantText(d.t, d.ok("read_file", args{"path": "a", "encoding": "utf-8"}), "a\ufffd")
			d.fails(BinaryFile, "read_file", args{"path": "a", "encoding": "auto"})
		},
		"at: Older version, e.g. v12": func(d *disk) {
			d.write("a", "old")
			d.write("a", "new")
			wantText(d.t, d.ok("read_file", args{"path": "a", "at": "v2"}), "old", "v2 as it was at v2")
		},
	},
	"list_files": {
		"Lists a directory in /workspace, sorted, one line per entry: type, size, name.": func(d *disk) {
			d.commit(files("b", "a", "d/x")...)
			wantText(d.t, d.ok("list_files", nil), "file         0  /workspace/a\nfile         0  /workspace/b\ndir          -  /workspace/d/")
		},
		"Tells how many did not fit and the cursor to go on.": func(d *disk) {
			d.commit(files("a", "b", "c")...)
			wantText(d.t, d.ok("list_files", args{"limit": 1}), "2 more", "cursor")
		},
		"path: Default /workspace": func(d *disk) { d.write("a", ""); wantText(d.t, d.ok("list_files", nil), "/workspace/a") },
		"recursive: Breadth first": func(d *disk) {
			d.commit(files("a/x", "b")...)
			if got := fmt.Sprint(names(d.ok("list_files", args{"recursive": true}))); got != "[/workspace/a/ /workspace/b /workspace/a/x]" {
				d.t.Error(got)
			}
		},
		"pattern: Glob, e.g. **/*.py": func(d *disk) {
			d.commit(files("a/x.py", "b.txt")...)
			if got := fmt.Sprint(names(d.ok("list_files", args{"pattern": "**/*.py", "recursive": true}))); got != "[/workspace/a/x.py]" {
				d.t.Error(got)
			}
		},
		"contains: RE2 regexp in text files; answers path:line: text": func(d *disk) {
			d.write("a", "one\ntwo 2\n")
			wantText(d.t, d.ok("list_files", args{"contains": `t\w+ \d`}), "/workspace/a:2: two 2")
		},
		"limit: Default 200": func(d *disk) {
			for i := range 201 {
				d.commit(files(fmt.Sprintf("f%03d", i))...)
			}
			if n := len(names(d.ok("list_files", nil))); n != 200 {
				d.t.Errorf("%d entries", n)
			}
		},
	},
	"make_directory": {
		"Makes a directory and its missing parents in /workspace.": func(d *disk) {
			wantText(d.t, d.ok("make_directory", args{"path": "a/b/c"}), "/workspace/a/b/c")
			wantText(d.t, d.ok("list_files", args{"path": "a/b"}), "/workspace/a/b/c/")
		},
		"An existing one is fine.": func(d *disk) {
			d.ok("make_directory", args{"path": "a"})
			d.ok("make_directory", args{"path": "a"})
		},
	},
	"delete_file": {
		"Deletes a file, a link (never its target) or a directory in /workspace.": func(d *disk) {
			d.write("f", "kept")
			d.commit(link("l", "f"))
			d.ok("make_directory", args{"path": "d"})
			d.ok("delete_file", args{"path": "l"})
			wantText(d.t, d.read("f"), "kept")
			d.ok("delete_file", args{"path": "f"})
			d.ok("delete_file", args{"path": "d"})
			if d.tree() != "" {
				d.t.Error(d.tree())
			}
		},
		"recursive: If a directory is not empty": func(d *disk) {
			d.write("d/f", "x")
			d.fails(DirectoryNotEmpty, "delete_file", args{"path": "d"})
			d.ok("delete_file", args{"path": "d", "recursive": true})
		},
		"if_version: Only if still at this version": func(d *disk) {
			d.write("f", "x")
			d.fails(VersionConflict, "delete_file", args{"path": "f", "if_version": "v1"})
			d.ok("delete_file", args{"path": "f", "if_version": "v2"})
		},
	},
	"run_script": {
		"Runs a script in a sandbox, in /workspace, on the same files.": func(d *disk) {
			d.write("a", "by the tool")
			wantText(d.t, d.bash("pwd; cat a; echo x >b").String(), "stdout:\n/workspace\nby the tool")
			wantText(d.t, d.read("b"), "x")
		},
		"No network.": func(d *disk) {
			wantText(d.t, d.python("import socket\ntry: socket.create_connection(('192.0.2.1', 80), 2)\nexcept OSError as e: print('none:', e)").String(), "none: [Errno 101]")
		},
		"Exit 0 saves its changes in /workspace as one transaction; anything else is NOT SAVED unless commit is always.": func(d *disk) {
			wantText(d.t, d.bash("echo 1 >a; echo 2 >b").String(), "SAVED as v2", "2 created")
			wantText(d.t, d.bash("echo 1 >c; exit 1").String(), "NOT SAVED (exit 1")
			wantText(d.t, d.script(args{"language": "bash", "source": "echo 1 >c; exit 1", "commit": "always"}).String(), "SAVED as v3 (exit 1")
		},
		"/tmp and $HOME start empty.": func(d *disk) {
			d.bash("echo x >/tmp/x; echo x >~/x")
			wantText(d.t, d.bash("ls -A /tmp ~ | grep -c x").String(), "stdout:\n0")
		},
		"After 45 s it answers RUNNING and goes on: call with job alone to wait, with cancel to stop, with commit always to save what was not saved.": func(d *disk) {
			if d.cfg.Limits.Answer != 45*time.Second {
				d.t.Errorf("it answers after %s", d.cfg.Limits.Answer)
			}
			d.cfg.Limits.Answer, d.cfg.Limits.ScriptMemory = 200*time.Millisecond, math.MaxInt64
			stopped, left := d.begin("sleep 60"), d.begin("sleep 0.5; echo x >x; exit 1")
			wantText(d.t, d.ask(args{"job": stopped, "cancel": true}).String(), "stopped")
			wantText(d.t, d.end(left).String(), "NOT SAVED (exit 1")
			wantText(d.t, d.ask(args{"job": left, "commit": "always"}).String(), "SAVED")
		},
		"Answers exit code, output (cut if long), changes, job.": func(d *disk) {
			wantText(d.t, d.bash("echo out; echo err >&2; echo x >x; exit 3").String(), "exit 3", "stdout:\nout", "stderr:\nerr", "changed:\n  created  /workspace/x", "\njob 0")
			wantText(d.t, d.bash("seq 100000").String(), "left out")
		},
		"Packages: python_env, not pip.": func(d *disk) {
			wantText(d.t, d.bash("python3 -m pip install six").String(), "FAILED (exit 1")
			wantText(d.t, d.python("import no_such_module").String(), "mcp-vdisk env ensure")
		},
		"source: Script text; give source or path": func(d *disk) {
			d.refused(InvalidArgument, "run_script", args{"language": "bash"})
			d.refused(InvalidArgument, "run_script", args{"language": "bash", "source": "x", "path": "y"})
			wantText(d.t, d.bash("echo text").String(), "text")
		},
		"path: Script file in /workspace": func(d *disk) {
			d.write("a.sh", "echo from a file")
			wantText(d.t, d.script(args{"language": "bash", "path": "/workspace/a.sh"}).String(), "from a file")
		},
		"timeout_s: Default 600": func(d *disk) {
			if got := (&script{t: d.Tools}).timeout(); got != 600*time.Second {
				d.t.Errorf("%s", got)
			}
		},
		"commit: Default on_success; always: however it ends": func(d *disk) {
			wantText(d.t, d.script(args{"language": "bash", "source": "echo x >a; exit 1", "commit": "on_success"}).String(), "NOT SAVED")
			wantText(d.t, d.bash("echo x >a; exit 1").String(), "NOT SAVED")
			wantText(d.t, d.script(args{"language": "bash", "source": "echo x >a; kill -KILL $$", "commit": "always"}).String(), "SAVED as v2")
		},
		"job: An earlier run": func(d *disk) {
			wantText(d.t, d.ok("run_script", args{"job": jobOf(d.bash("echo earlier"))}), "stdout:\nearlier")
		},
		"output_offset: Show only newer output": func(d *disk) {
			text := d.ok("run_script", args{"job": jobOf(d.bash("echo first; echo second")), "output_offset": len("first\n")})
			if wantText(d.t, text, "stdout:\nsecond"); strings.Contains(text, "first") {
				d.t.Error(text)
			}
		},
	},
	"python_env": {
		"Python packages for run_script.": func(d *disk) { wantText(d.t, d.ok("python_env", args{"action": "status"}), "packages") },
		"status lists them.": func(d *disk) {
			wantText(d.t, withBase(d.t).ok("python_env", args{"action": "status"}), "python-docx 1.2.0")
		},
		"request asks for some, or a wheel; a person may have to approve.": func(d *disk) {
			p := sharedEnvs(d.t).disk(d.t)
			wantText(p.t, p.ok("python_env", args{"action": "request", "packages": []string{"foo"}, "timeout_s": 50}), "PENDING APPROVAL: ", "a person has to decide about foo")
			p.putBytes("demo-1.0-py3-none-any.whl", wheeltest.Wheel{}.Bytes())
			wantText(p.t, p.ok("python_env", args{"action": "request", "wheel": "/workspace/demo-1.0-py3-none-any.whl", "timeout_s": 50}), "PENDING APPROVAL: ")
		},
		"wait waits for it.": func(d *disk) {
			p := sharedEnvs(d.t).disk(d.t)
			start, id := time.Now(), p.pend("foo")
			p.ok("python_env", args{"action": "wait", "request_id": id, "timeout_s": 1})
			if took := time.Since(start); took < time.Second {
				p.t.Errorf("it took %s", took)
			}
		},
		"What is ready is in the next run_script.": func(d *disk) {
			p := sharedEnvs(d.t).disk(d.t)
			wantText(p.t, p.ok("python_env", args{"action": "request", "packages": []string{"pandas"}, "timeout_s": 50}), "READY: pandas")
			wantText(p.t, p.python("import pandas; print(pandas.version)").String(), "stdout:\n2.2.3")
		},
		"packages: Up to 20 PEP 508 strings, e.g. pandas==2.2.3": func(d *disk) {
			p := sharedEnvs(d.t).disk(d.t)
			p.refused(InvalidArgument, "python_env", `{"action":"request","packages":[`+strings.Repeat(`"a",`, 20)+`"a"]}`)
			wantText(p.t, p.ok("python_env", args{"action": "request", "packages": []string{"pandas==2.2.3"}, "timeout_s": 50}), "pandas 2.2.3")
		},
		"wheel: A .whl file in /workspace": func(d *disk) {
			wantText(d.t, d.fails(NotFound, "python_env", args{"action": "request", "wheel": "/workspace/a.whl"}), "env.bad_path")
			d.refused(InvalidPath, "python_env", args{"action": "request", "wheel": "/workspace/a.zip"})
		},
		"reason: For the person who approves, up to 500 characters": func(d *disk) {
			d.refused(InvalidArgument, "python_env", args{"action": "request", "packages": []string{"a"}, "reason": strings.Repeat("x", 501)})
			p := sharedEnvs(d.t).disk(d.t)
			card := p.card(p.pend("foo"))
			wantText(p.t, card.Text(72), "to read pages")
		},
	},
}

// sentenceEnd is where a sentence of a description ends.
var sentenceEnd = regexp.MustCompile(`\.( |$)`)

// TestSentences: every sentence that a model reads about a tool is true.
func TestSentences(t *testing.T) {
	for _, def := range schemas.Defs() {
		for _, s := range described(t, def) {
			t.Run(def.Name+"/"+short(s), func(t *testing.T) {
				t.Parallel()
				check := sentences[def.Name][s]
				if check == nil {
					t.Fatalf("nothing shows that this is true: %s", s)
				}
				check(newScripted(t))
			})
		}
		if n := len(described(t, def)); n != len(sentences[def.Name]) {
			t.Errorf("%s: %d sentences are described, %d are tested", def.Name, n, len(sentences[def.Name]))
		}
	}
}

// described are the sentences of a tool.
func described(t *testing.T, def schemas.Def) (list []string) {
	t.Helper()
	text := def.Description
	for len(text) > 0 {
		end := len(text)
		if at := sentenceEnd.FindStringIndex(text); at != nil {
			end = at[1]
		}
		list = append(list, strings.TrimSpace(text[:end]))
		text = text[end:]
	}
	var s struct {
		Properties map[string]struct{ Description string }
	}
	if err := json.Unmarshal(def.Schema, &s); err != nil {
		t.Fatal(err)
	}
	for name, p := range s.Properties {
		if p.Description != "" {
			list = append(list, name+": "+p.Description)
		}
	}
	return list
}
