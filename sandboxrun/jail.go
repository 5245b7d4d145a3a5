package sandboxrun

import (
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Jail is one command that may use the network of the host, and has even less than
// a script of everything else: see Runner.Jail.
type Jail struct {
	// Argv is the command. Argv[0] is an absolute path inside the jail. All of it can
	// be read by other users of the host while it runs: secrets go into Data or Env.
	Argv []string
	// Env is added to PATH, HOME, TMPDIR and LANG, each as KEY=VALUE.
	Env []string
	// Data are small files shown read-only below /run/vdisk.
	Data []Data
	// Binds are host files or directories shown read-only below /opt or /run/vdisk.
	Binds []Bind
	// Out is called for all that the command has left in /out, as the callback of
	// Run is. Nil drops it.
	Out func(Change) error
	// Timeout counts from the start of the command, and reaching it kills all of it.
	// 0: 180 s.
	Timeout time.Duration
	// OutBytes and OutFiles bound what may be in /out; more is ENOSPC. OutBytes is
	// the most bytes of one file, too (RLIMIT_FSIZE). 0: 256 MiB and 4,096.
	OutBytes, OutFiles int64
	// Head and Tail are the bytes kept of the beginning and the end of each stream
	// of output. 0: 192 and 64 KiB.
	Head, Tail int
}

// JailResult is what is known of a command in a jail besides its files.
type JailResult = Result

// What a jail has, whatever it is for.
const (
	jailTime    = 180 * time.Second
	jailCPU     = 120     // seconds of each process
	jailSpace   = 2 << 30 // bytes of address space of each process
	jailOut     = 256 << 20
	jailFiles   = 4096
	jailTmp     = 16 << 20
	jailTasks   = 64
	jailPrinted = 16 << 20
	// jailMemory is the size of /out above which it goes to Config.Scratch.
	jailMemory = 512 << 20
)

// run is the jail as the stage runs it: /out is what the workspace is to a script.
func (j Jail) run() Run {
	l := Limits{
		Timeout: j.Timeout, WriteBytes: j.OutBytes, WriteFiles: j.OutFiles,
		TmpBytes: jailTmp, ShmBytes: 1, HomeBytes: 1, MemoryBytes: jailSpace, Processes: jailTasks,
		Head: j.Head, Tail: j.Tail, OutputMax: jailPrinted,
	}
	orDefault(&l.Timeout, jailTime)
	orDefault(&l.WriteBytes, jailOut)
	orDefault(&l.WriteFiles, jailFiles)
	return Run{Argv: j.Argv, Env: j.Env, Data: j.Data, Binds: j.Binds, Limits: l, jail: &j}
}

// large tells whether what is written should rather not be in memory.
func (r Run) large() bool { return r.jail != nil && r.Limits.WriteBytes > jailMemory }

// jailArgs returns the options of bwrap for a jail: those of a script without a
// network of its own, and without /proc, /dev/shm and a home. /proc would show the
// sockets of the host, for they belong to the network.
func jailArgs(r Run, v view) []string {
	a := slices.DeleteFunc(slices.Clone(isolation), func(flag string) bool { return flag == "--unshare-net" })
	a = appendEnv(a, append([]string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp", "TMPDIR=/tmp", "LANG=C.UTF-8"}, r.Env...))
	a = appendRoot(a, v)
	a = append(a, "--dev", "/dev", "--bind", v.rooms[0], "/tmp")
	for i, b := range r.Binds {
		a = append(a, "--ro-bind", v.binds[i], b.Target)
	}
	return append(a, "--bind", v.workspace, "/out", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/out",
		"--seccomp", strconv.Itoa(v.filter))
}

// etc are the files of the /etc that the command sees.
func (r Run) etc() []Data {
	if r.jail == nil {
		return etcData()
	}
	return append(etcData()[:2:2], nameData("/")...)
}

// jailSwitch asks the name servers and nobody else: other sources are programs
// of the host, behind sockets that the filter refuses.
const jailSwitch = "passwd: files\ngroup: files\nhosts: files dns\n"

// nameData is what the C library needs to find hosts by their names, from the host
// below root ("/" but for tests). The files are read anew for each jail, through
// links: /etc/resolv.conf often is one into /run, and changes with the network.
func nameData(root string) []Data {
	hosts := readSmall(path.Join(root, "etc/hosts"))
	if hosts == nil {
		hosts = []byte(etcHosts)
	}
	return []Data{
		{Path: "/etc/hosts", Mode: 0o644, Bytes: hosts},
		{Path: "/etc/resolv.conf", Mode: 0o644, Bytes: readSmall(path.Join(root, "etc/resolv.conf"))},
		{Path: "/etc/nsswitch.conf", Mode: 0o644, Bytes: []byte(jailSwitch)},
	}
}

// readSmall reads a file of at most a mebibyte; nil if it cannot or if it is larger.
func readSmall(name string) []byte {
	const most = 1 << 20
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil || len(b) > most {
		return nil
	}
	return b
}

// tlsPaths is where systems keep the certificates of authorities, without the
// directories of private keys beside them.
var tlsPaths = []string{
	"/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/ca-certificates",
	"/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/tls/openssl.cnf", "/etc/pki/ca-trust/extracted",
}

// root returns the arguments that show what the command may use of the host.
func (r Run) root(root string) []string {
	a := hostRoot(root)
	if r.jail == nil {
		return a
	}
	for _, p := range tlsPaths {
		a = append(a, "--ro-bind-try", p, p)
	}
	return a
}

// check refuses what would be a mistake of the caller.
func (j Jail) check() error {
	if j.Timeout < 0 || j.OutBytes < 0 || j.OutFiles < 0 {
		return fmt.Errorf("a limit is negative")
	}
	for _, b := range j.Binds {
		if strings.HasPrefix(b.Target, "/tmp/") {
			return fmt.Errorf("mount target %q is in /tmp, which is the command's own", b.Target)
		}
	}
	return j.run().check()
}
