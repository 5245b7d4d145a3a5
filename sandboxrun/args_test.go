package sandboxrun

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestBwrapArgs keeps what the isolation rests on: the flags, and the order of mounts.
func TestBwrapArgs(t *testing.T) {
	run := Run{Env: []string{"A=b=c"}, Binds: []Bind{{"/host/layer", "/opt/mcp/layers/1"}}}
	l := Limits{TmpBytes: 1, ShmBytes: 2, HomeBytes: 3, WriteBytes: 4}
	v := view{workspace: "/tmp/merged", binds: []string{"/tmp/b/0"}, data: []Data{{Path: "/run/vdisk/s"}}, firstData: 7, filter: 6, root: []string{"--ro-bind", "/usr", "/usr"},
		rooms: []string{"/tmp/r/0", "/tmp/r/1", "/tmp/r/2"}, none: "/tmp/none", masked: []string{"/proc/keys", "/proc/cmdline"}}
	got := strings.Join(bwrapArgs(run, l, v), " ")
	want := "--unshare-user --unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup" +
		" --disable-userns --assert-userns-disabled --uid 1000 --gid 1000 --hostname sandbox" +
		" --die-with-parent --new-session --cap-drop ALL --clearenv" +
		" --setenv PATH /usr/local/bin:/usr/bin:/bin --setenv HOME /home/user --setenv TMPDIR /tmp --setenv LANG C.UTF-8 --setenv A b=c" +
		" --perms 0755 --size 1048576 --tmpfs / --ro-bind /usr /usr --perms 0444 --ro-bind-data 7 /run/vdisk/s" +
		" --proc /proc --dev /dev --ro-bind /tmp/none /proc/keys --ro-bind /tmp/none /proc/cmdline" +
		" --bind /tmp/r/0 /dev/shm --bind /tmp/r/1 /tmp --bind /tmp/r/2 /home/user" +
		" --ro-bind /tmp/b/0 /opt/mcp/layers/1 --bind /tmp/merged /workspace" +
		" --remount-ro /proc --remount-ro /dev --remount-ro / --chdir /workspace --seccomp 6"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	run.ReadOnly = true
	got, want = strings.Join(bwrapArgs(run, l, v), " "), strings.Replace(want, "--bind /tmp/merged", "--ro-bind /tmp/merged", 1)
	if got != want {
		t.Errorf("read-only: got\n%s\nwant\n%s", got, want)
	}
	v.rooms = nil // without a stage
	rooms := " --perms 1777 --size 2 --tmpfs /dev/shm --perms 1777 --size 1 --tmpfs /tmp --perms 0700 --size 3 --tmpfs /home/user"
	got, want = strings.Join(bwrapArgs(run, l, v), " "), strings.Replace(want, " --bind /tmp/r/0 /dev/shm --bind /tmp/r/1 /tmp --bind /tmp/r/2 /home/user", rooms, 1)
	if got != want {
		t.Errorf("bare: got\n%s\nwant\n%s", got, want)
	}
}

// TestOwnEnvironment: what a Run sets takes the place of what it has otherwise, and the
// last of two counts.
func TestOwnEnvironment(t *testing.T) {
	got := Run{Env: []string{"PATH=/opt/x:/usr/bin", "A=1", "B=", "A=2=3", "HOME="}}.environment()
	if want := []string{"PATH=/opt/x:/usr/bin", "HOME=", "TMPDIR=/tmp", "LANG=C.UTF-8", "A=2=3", "B="}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestHostRoot: merged and old layouts of /usr.
func TestHostRoot(t *testing.T) {
	always := []string{"--ro-bind", "/usr", "/usr"}
	tail := []string{"--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--ro-bind-try", "/etc/alternatives", "/etc/alternatives"}
	for _, tc := range []struct {
		name string
		make map[string]string // name → target of a link, "" = a directory
		want []string
	}{
		{"merged", map[string]string{"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}, []string{
			"--symlink", "usr/bin", "/bin", "--symlink", "usr/sbin", "/sbin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"}},
		{"merged, absolute", map[string]string{"bin": "/usr/bin"}, []string{"--symlink", "/usr/bin", "/bin"}},
		{"old", map[string]string{"bin": "", "lib": "", "lib64": ""}, []string{
			"--ro-bind", "/bin", "/bin", "--ro-bind", "/lib", "/lib", "--ro-bind", "/lib64", "/lib64"}},
		{"link elsewhere", map[string]string{"bin": "/opt/bin", "lib": "usr/../home"}, nil},
		{"nothing", nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			for name, target := range tc.make {
				var err error
				if target == "" {
					err = os.Mkdir(filepath.Join(root, name), 0o755)
				} else {
					err = os.Symlink(target, filepath.Join(root, name))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if got, want := hostRoot(root), slices.Concat(always, tc.want, tail); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestLimitsFilled(t *testing.T) {
	if got := (Limits{}).Filled(); got != DefaultLimits() {
		t.Errorf("got %+v", got)
	}
	l := Limits{Timeout: 1, WriteBytes: 2, WriteFiles: 3, TmpBytes: 4, ShmBytes: 5, HomeBytes: 6, MemoryBytes: 12, Processes: 7, OpenFiles: 8, Head: 9, Tail: 10, OutputMax: 11}
	if got := l.Filled(); got != l {
		t.Errorf("got %+v", got)
	}
}
