package tools

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
)

// startTree is what the scripts of TestOracle find.
const startTree = `set -e
printf 'alpha\n' >a; printf 'beta\n' >b; : >empty; yes alpha | head -c 300000 >big
mkdir -p dir/in/deep emptydir locked/in ro
echo x >dir/x; echo y >dir/y; echo z >dir/in/z; echo w >dir/in/deep/w
echo run >run.sh; chmod 755 run.sh; echo c >closed; echo l >locked/in/f; echo r >ro/f
ln -s a link; ln -s dir dirlink; ln -s no/where dangling
echo 1 >$'new\nline'; echo 2 >'back\slash'; echo 3 >$'latin-\xe9'; echo 4 >'trail  '
find . -type f -exec touch -d @1000000000.123456789 {} +
chmod 0 closed locked; chmod 555 ro`

// python is a step in that language.
func python(source string) string {
	return "python3 - <<'PYTHON'\nimport os, shutil, sqlite3\n" + source + "\nPYTHON"
}

// TestOracle: what a script leaves on a disk is what it leaves in a directory.
func TestOracle(t *testing.T) {
	long := strings.Repeat("n", 255)
	for _, tc := range []struct {
		name, script string
		lost         string // what the result says is not kept
	}{
		{"create", `printf hi >new; mkdir -p p/q/r; printf 1 >p/q/r/f; : >dir/new; mkdir dir/in/new`, ""},
		{"overwrite", `printf new >a; cp b dir/x; printf 'beta\n' >b`, ""},
		{"truncate", `truncate -s 2 a; truncate -s 500000 big; : >b; truncate -s 0 dir/x; truncate -s 7 empty`, ""},
		{"append", `echo more >>a; echo more >>big; echo more >>dir/in/z`, ""},
		{"write in the middle", `printf XX | dd of=big bs=1 seek=150000 conv=notrunc status=none`, ""},
		{"chmod", `chmod 755 a; chmod 444 b; chmod 700 dir; chmod 644 run.sh; chmod 711 dir/in/deep`, ""},
		{"mtime only", `touch -d @5.5 a; touch -d '1960-01-01 UTC' b; touch -d '2200-01-01 UTC' dir/x; touch -h -d @7 link; touch -d @9 dir`, ""},
		{"mtime of what is new", `echo 1 >n; touch -d @-1.000000001 n; mkdir d; echo 2 >d/f; touch -d @1234567890.987654321 d/f d`, ""},
		{"rename a file", `mv a c; mv b dir/x; mv dir/y .; mv run.sh dir/in/deep/`, ""},
		{"rename a link", `mv link l2; mv dangling dir/; mv dirlink link`, ""},
		{"swap files", `mv a t; mv b a; mv t b`, ""},
		{"rename a new directory", `mkdir -p n/m; echo 1 >n/m/f; mv n dir/; mv dir/n/m moved`, ""},
		{"rename a new directory over an empty one", `mkdir n; echo 1 >n/f; mv -T n emptydir`, ""},
		{"rename an old directory", `mv dir d2; mv d2/in .; mv emptydir e2`, ""},
		{"rename an old directory into a new one", `mkdir new; echo 1 >new/f; mv dir new/; mv new newer`, ""},
		{"rename an old directory onto the name of another", `rm -r emptydir; mv dir emptydir; mkdir dir; mv emptydir/x dir/`, ""},
		{"swap directories", `mkdir other; echo o >other/o; mv dir t; mv other dir; mv t other`, ""},
		{"replace by rename", `echo v2 >a.tmp; mv a.tmp a; sed -i s/beta/gamma/ b`, ""},
		{"file to directory", `rm a; mkdir a; echo 1 >a/f`, ""},
		{"file to link", `rm a; ln -s b a; ln -sf dir run.sh`, ""},
		{"directory to file", `rm -r dir; echo f >dir`, ""},
		{"directory to link", `rm -r dir; ln -s emptydir dir`, ""},
		{"link to directory", `rm dirlink link; mkdir dirlink link; echo 1 >dirlink/x`, ""},
		{"link to file", `rm dirlink; echo 1 >dirlink; rm dangling; : >dangling`, ""},
		{"from kind to kind", `rm a; mkdir a; : >a/x; rm -r a; ln -s b a; rm a; mkdir -p a/y; rm -r a; echo end >a
			rm -r dir; ln -s a dir; rm dir; echo x >dir; rm dir; mkdir dir; echo end >dir/x`, ""},
		{"opaque directory", `rm -r dir; mkdir dir; echo n >dir/n`, ""},
		{"opaque directory of another mode", `rm -r dir; mkdir -m 700 dir`, ""},
		{"nested opaque directories", `rm -r dir/in; mkdir dir/in; echo n >dir/in/n; mkdir dir/in/deep; echo v >dir/in/deep/v`, ""},
		{"opaque in opaque", `rm -r dir; mkdir -p dir/in/deep; rm -r dir/in; mkdir -p dir/in/deep; echo w >dir/in/deep/w`, ""},
		{"the same again", `rm -r dir; mkdir -p dir/in/deep; echo x >dir/x; echo y >dir/y; echo z >dir/in/z; echo w >dir/in/deep/w
			find dir -type f -exec touch -d @1000000000.123456789 {} +; echo 1 >changed`, ""},
		{"links", `ln -s dir/x rel; ln -s ../a dir/up; ln -s /etc/passwd abs; ln -s /workspace/a home; ln -s no/where gone
			ln -s self self; ln -s two one; ln -s one two; ln -sfn b link; ln -s $'\xff\n' odd; ln -s "$(printf 'x%.0s' {1..4000})" far`, ""},
		{"write through links", `echo more >>link; echo 1 >dirlink/via; rm dirlink/x; mv dirlink/y dirlink/in/`, ""},
		{"hard links", `echo h >h1; ln h1 h2; echo more >>h2; ln b hb; ln link hl; ln dir/x x2; echo more >>x2; cp -al dir/in linked`, ""},
		{"fifo and socket", `mkfifo p dir/p; rm a; mkfifo a; rm -r emptydir; mkfifo emptydir
			` + python(`os.mknod("s", 0o140755); os.remove("b"); os.mknod("b", 0o140755)`), "4 fifos, 2 sockets"},
		{"sparse", `truncate -s 50M hole; printf end | dd of=holes bs=1 seek=30000000 status=none; printf mid | dd of=holes bs=1 seek=9000000 conv=notrunc status=none
			truncate -s 10M big; truncate -s 1M tail; echo end >>tail; : >z; truncate -s 1 z; fallocate -l 100000 reserved`, ""},
		{"mode 000", `echo s >s; chmod 0 s; mkdir -p m/n; echo 1 >m/n/f; chmod 0 m/n/f m/n m; chmod 0 dir/in/z dir/in dir; chmod 0 a`, ""},
		{"change below mode 000", `chmod 700 locked; echo more >>locked/in/f; rm -r locked/in; mkdir locked/in; echo 1 >locked/in/g; chmod 0 locked/in locked`, ""},
		{"take mode 000 away", `chmod 644 closed; chmod 755 locked`, ""},
		{"replace what has mode 000", `rm -f closed; echo new >closed; chmod 700 locked; rm -r locked; ln -s a locked`, ""},
		{"move what has mode 000", `mv closed c2; mkdir m; echo 1 >m/f; chmod 0 m/f; mv m m2; chmod 0 m2`, ""},
		{"read-only directory", `chmod 755 ro; echo 1 >ro/g; rm ro/f; chmod 555 ro; mkdir r2; echo 1 >r2/f; chmod 555 r2`, ""},
		{"sticky", `chmod 1755 a; mkdir t; chmod 1777 t; chmod 1755 dir`, ""},
		{"names of 255 bytes", fmt.Sprintf(`echo 1 >%s; mkdir dir/%s; echo 2 >dir/%s/%s; ln -s %s l`, long, long, long, long, long), ""},
		{"odd names", `for n in $'new\n\nline' $'\n' $'tab\t' 'a\b' '\' $'\xff\xfe' $'\xc3' ' ' '  lead' 'trail ' $'\x01' $'\x7f' '*' '?' '~' '-rf' 'a:b' '"q"' "'" '$x' '...' '..a' 'é' $'e\xcc\x81' '漢字🎉' $'\u202e' 'C:' 'nul.txt'; do
			echo 1 >"./$n"; mkdir -p ./odd/"$n"; echo 2 >./odd/"$n/$n"; ln -s "$n" ./odd/"l$n"; done`, ""},
		{"change what has an odd name", `rm $'new\nline'; echo more >>'back\slash'; mv $'latin-\xe9' $'latin-\xea'; mkdir $'new\nline'; echo 1 >$'new\nline/f'; chmod 600 'trail  '`, ""},
		{"names of an overlay", `mkdir -p up work index .wh..wh.plnk; echo 1 >.wh.a; echo 2 >.wh..wh..opq; echo 3 >dir/.wh.x; echo 4 >dir/.wh..wh..opq; mkdir dir/.wh.in; echo 5 >work/incompat; echo 6 >'#1'`, ""},
		{"marks of an overlay", `echo 1 >dir/new; mkdir d2; echo 2 >d2/f; ` + python(`
for path, name, value in (("dir", "opaque", b"y"), ("dir/in", "opaque", b"x"), ("dir/in/z", "whiteout", b"y"), ("dir/x", "whiteout", b""), ("dir/y", "metacopy", b""), ("d2", "redirect", b"/dir"), ("d2/f", "origin", b"x"), ("a", "whiteout", b"y")):
    for prefix in ("user.overlay.", "user.overlay.overlay.", "user."):
        try: os.setxattr(path, prefix + name, value)
        except OSError: pass`), ""},
		{"delete everything", `chmod -R u+rwx .; find . -mindepth 1 -delete`, ""},
		{"replace everything", `chmod -R u+rwx .; find . -mindepth 1 -delete; mkdir dir; echo 1 >dir/x; echo 2 >a; mkdir link; ln -s a b`, ""},
		{"copy within", `cp -a dir copy; cp -a dir/. emptydir; cp -r dirlink/ c2; cp -p a dir/a; cp -a link dangling dir/; cp -a big dir/in/deep/`, ""},
		{"tar", `tar cf t.tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@1000 --format=gnu dir a link emptydir; rm -r dir; tar xf t.tar; mkdir out; tar xf t.tar -C out; rm a; tar xf t.tar a`, ""},
		{"git", `export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=e GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=e GIT_AUTHOR_DATE='1000000000 +0000' GIT_COMMITTER_DATE='1000000000 +0000'
			command -v git >/dev/null || { echo none >no-git; exit 0; }
			git init -q -b main; git add a b dir big link run.sh; git commit -q -m one; echo more >>a; git rm -q b; git mv dir/x dir/z; git commit -q -a -m two
			git checkout -q HEAD~1; git checkout -q main; git gc -q; git fsck --strict --no-progress; git status --porcelain a dir run.sh >status
			rm .git/index # it holds inode numbers and times`, ""},
		{"python", python(`
shutil.copytree("dir", "copied", symlinks=True); shutil.rmtree("dir"); shutil.move("copied", "dir"); shutil.move("dir/in", "in")
with open("a.tmp", "w") as f: f.write("v2"); f.flush(); os.fsync(f.fileno())
os.replace("a.tmp", "a"); os.makedirs("p/q/r"); os.renames("p/q/r", "s/t"); os.truncate("big", 5)
import mmap
with open("b", "r+b") as f, mmap.mmap(f.fileno(), 0) as m: m[0:4] = b"BETA"
import shelve, json, pickle, zipfile, tempfile
json.dump({"a": [1]}, open("j", "w")); pickle.dump([1], open("pickled", "wb"))`), ""},
		{"sqlite", python(`
for name, mode in (("wal.db", "wal"), ("del.db", "delete")):
    db = sqlite3.connect(name)
    db.execute("pragma journal_mode=" + mode); db.execute("create table t (a integer primary key, b text)")
    db.executemany("insert into t values (?, ?)", ((i, "x" * (i % 50)) for i in range(5000))); db.commit()
    db.execute("delete from t where a % 3 = 0"); db.commit(); db.execute("vacuum"); db.close()
    assert sqlite3.connect(name).execute("pragma integrity_check").fetchone() == ("ok",)`), ""},
		{"files that are open", `exec 3>gone 4>>a 5>kept; echo 1 >&3; rm gone; echo 2 >&3; echo more >&4; mv a a2; echo more >&4; echo 5 >&5; mv kept dir/; echo 6 >&5; exec 3>&-`, ""},
		{"many files", `mkdir many; for i in {1..10000}; do echo $i >many/$i; done; n=$(ls many | wc -l); echo $n >count`, ""},
		{"as deep as can be", `for i in {1..127}; do mkdir d; cd d; done; echo 1 >f`, ""},
		{"a script that fails", `echo 1 >n; rm a; mv dir d2; exit 7`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := newTwin(t)
			w.both(startTree)
			before := w.held().lines()
			r := w.both("set -e\n" + tc.script)
			if w.held().lines() == before && tc.lost == "" {
				t.Errorf("the script changed nothing: %s", r)
			}
			if tc.lost != "" {
				wantText(t, r.String(), "not kept", tc.lost)
			} else if strings.Contains(r.String(), "not kept") {
				t.Errorf("something was not kept: %s", r)
			}
			w.verify()
		})
	}
}

// TestOracleManyFilesChanged: a second script changes each of 2,000 files in
// one of several ways.
func TestOracleManyFilesChanged(t *testing.T) {
	t.Parallel()
	w := newTwin(t)
	w.both(`for d in {0..9}; do mkdir d$d; for i in {1..200}; do echo $i >d$d/$i; done; done`)
	w.forgive()
	w.both(`rm d0/*; rm -r d1; chmod 600 d2/*; touch -d @5 d3/*; mv d4 e4; for i in {1..200}; do echo more >>d5/$i; done
		rm -r d6; mkdir d6; echo 1 >d6/1; for i in {1..200}; do mv d7/$i d7/n$i; done; cp -a d8 e8; rm d9/*; rmdir d9; echo f >d9`)
}

// TestOracleOneByte: a byte changed within 100 MB is stored as what is new.
func TestOracleOneByte(t *testing.T) {
	w := newTwin(t)
	w.both(python(`
import random
open("big", "wb").write(random.Random(1).randbytes(100_000_000))`))
	before := w.occupies()
	w.both(`printf '\xa5' | dd of=big bs=1 seek=50000000 conv=notrunc status=none`)
	grown := w.occupies() - before
	t.Logf("the image of %d bytes grew by %d", before, grown)
	if grown >= 2<<20 {
		t.Errorf("one byte of 100 MB made the image grow by %d bytes", grown)
	}
}

// occupies is what the image file takes on its disk; its length is extended in
// large steps.
func (d *disk) occupies() int64 {
	d.t.Helper()
	info, err := os.Stat(d.path)
	if err != nil {
		d.t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

// TestOracleDiffers: the places where a disk is known to differ from a
// directory, and how a script notices.
func TestOracleDiffers(t *testing.T) {
	d := newScripted(t)
	d.ok("run_script", args{"language": "bash", "source": `mkdir -p dir/in; echo 1 >dir/f; echo 2 >h1; ln h1 h2`})
	d.run("rename(2) of an old directory", func(t *testing.T) {
		text := d.script(args{"language": "python", "source": `
import errno, os
try: os.rename("dir", "d2")
except OSError as e: print(errno.errorcode[e.errno], sorted(os.listdir()), sorted(os.listdir("dir")))
os.mkdir("new"); os.rename("new", "newer"); os.rename("dir/f", "newer/f")`}).String()
		wantText(t, text, "EXDEV ['dir', 'h1', 'h2'] ['f', 'in']", "SAVED")
		if got := d.content("newer/f"); got != "1\n" {
			t.Errorf("%q", got)
		}
	})
	d.run("hard links", func(t *testing.T) {
		wantText(t, d.script(args{"language": "bash", "source": `echo more >>h1; cat h2; stat -c %h h2`}).String(), "stdout:\n2\n1")
		if got := d.content("h1") + d.content("h2"); got != "2\nmore\n2\n" {
			t.Errorf("%q", got)
		}
	})
}

// TestOracleRandom: scripts of random operations, one after another on the
// same disk, each followed by what it sees itself.
func TestOracleRandom(t *testing.T) {
	disks := 6
	if soak() {
		disks = 60
	}
	for seed := range uint64(disks) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newTwin(t)
			rnd := rand.New(rand.NewPCG(seed, 2))
			for range 5 {
				w.both(randomScript(rnd, 25))
				w.forgive()
			}
			w.verify()
		})
	}
}

// oddNames are given to a part of what random scripts make.
var oddNames = []string{`$'n\nl'`, `'b\s'`, `$'\xff'`, `' '`, `'t '`, `.wh.a`, `é`}

// randomScript makes a script of n operations on few names, so that they meet.
// Everything stays readable and writable for its owner: mv of a directory that
// was there copies on a disk, which needs that, and does not in a directory. For
// the same reason no directory hands its group on (setgid).
func randomScript(rnd *rand.Rand, n int) string {
	name := func() string {
		parts := make([]string, 1+rnd.IntN(3))
		for i := range parts {
			parts[i] = string(rune('a' + rnd.IntN(3)))
			if rnd.IntN(12) == 0 {
				parts[i] = oddNames[rnd.IntN(len(oddNames))]
			}
		}
		return strings.Join(parts, "/")
	}
	var b strings.Builder
	b.WriteString("exec 2>/dev/null\n")
	for i := range n {
		b.WriteString(randomStep(rnd, i, name) + "\n")
	}
	// A script that opened a FIFO would wait for ever, so they come last.
	fifo := fmt.Sprintf("rm -r %[1]s; mkfifo %[1]s\n", name())
	b.WriteString(`list=$(find . -mindepth 1 ! -type d -printf '%P %y %m %s %l\n' -o -mindepth 1 -type d -printf '%P %y %m\n' | LC_ALL=C sort); echo "$list" >seen` + "\n" + fifo + "exit 0\n")
	return b.String()
}

func randomStep(rnd *rand.Rand, i int, name func() string) string {
	to := name()
	switch rnd.IntN(17) {
	case 0, 1:
		return fmt.Sprintf("echo %d >%s", i, to)
	case 2:
		return fmt.Sprintf("echo %d >>%s", i, to)
	case 3, 4:
		return fmt.Sprintf("mkdir -p %s", to)
	case 5:
		return fmt.Sprintf("rm -rf %s", to)
	case 6, 7:
		return fmt.Sprintf("mv -fT %s %s", name(), to)
	case 8:
		return fmt.Sprintf("ln -sfn %s %s", name(), to)
	case 9:
		return fmt.Sprintf("ln %s %s", name(), to)
	case 10:
		return fmt.Sprintf("[ -d %s ] && chmod %o %s || chmod %o %s", to, []int{0o755, 0o700, 0o750}[rnd.IntN(3)], to, []int{0o644, 0o600, 0o711}[rnd.IntN(3)], to)
	case 11:
		// What a copy into itself makes depends on the order of a directory.
		if from := name(); !strings.HasPrefix(from+"/", to+"/") && !strings.HasPrefix(to+"/", from+"/") {
			return fmt.Sprintf("cp -rT %s %s", from, to)
		}
		return "true"
	case 12:
		return fmt.Sprintf("rmdir %s; truncate -s %d %s", to, rnd.IntN(300_000), to)
	case 13:
		return fmt.Sprintf("touch -d @%d.%09d %s", rnd.Int64N(2e9), rnd.IntN(1e9), to)
	case 14:
		return fmt.Sprintf("[ -d %s ] && rm -r %s && mkdir %s && echo %d >%s/a", to, to, to, i, to)
	case 15:
		return fmt.Sprintf("printf %d | dd of=%s bs=1 seek=%d conv=notrunc status=none", i, to, rnd.IntN(200_000))
	}
	return fmt.Sprintf("yes %d | head -c %d >%s", i, rnd.IntN(400_000), to)
}
