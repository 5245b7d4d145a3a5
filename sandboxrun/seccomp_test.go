package sandboxrun

import (
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the programs in testdata")

// TestFilterGolden: the programs, in words, as they were reviewed.
func TestFilterGolden(t *testing.T) {
	for goarch := range archs {
		path := "testdata/seccomp_" + goarch + ".golden"
		got := listing(goarch, filterRules(false))
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("the program for %s is not that of %s; look at it with -update and git diff", goarch, path)
		}
	}
}

// listing is a program as text: what it is in memory, and what it means.
func listing(goarch string, rules []rule) string {
	names := map[uint32]string{}
	for name, numbers := range callNumbers {
		names[uint32(numbers[archs[goarch].column])] = name
	}
	var b strings.Builder
	for i, in := range decode(mustCompile(goarch, rules)) {
		raw := fmt.Sprintf("%04x %02x %02x %08x", in.code, in.jt, in.jf, in.k)
		fmt.Fprintf(&b, "%3d  %s  %s\n", i, raw, in.text(i, names))
	}
	return b.String()
}

func (in instr) text(at int, names map[uint32]string) string {
	yes, no := at+1+int(in.jt), at+1+int(in.jf)
	switch in.code {
	case opLoad:
		if in.k >= dataArgs {
			return fmt.Sprintf("load argument %d", (in.k-dataArgs)/8)
		}
		return map[uint32]string{dataArch: "load architecture", dataNumber: "load number"}[in.k]
	case opAnd:
		return fmt.Sprintf("and %#x", in.k)
	case opJEQ:
		what := fmt.Sprintf("%#x", in.k)
		if name := names[in.k]; name != "" && in.jt == 0 {
			what += " (" + name + ")"
		}
		return fmt.Sprintf("= %s ? %d : %d", what, yes, no)
	case opJGT:
		return fmt.Sprintf("> %d ? %d : %d", in.k, yes, no)
	}
	return answer(in.k).String()
}

// answer is what a program says of a call.
type answer uint32

func (a answer) String() string {
	names := map[answer]string{ePERM: "EPERM", eNOSYS: "ENOSYS", eAFNOSUPPORT: "EAFNOSUPPORT", ePROTONOSUPPORT: "EPROTONOSUPPORT", eSOCKTNOSUPPORT: "ESOCKTNOSUPPORT"}
	switch {
	case a == retAllow:
		return "allow"
	case a == retKill:
		return "kill"
	case a&^0xffff == retErrno:
		return names[a&0xffff]
	}
	return fmt.Sprintf("%#x", uint32(a))
}

func mustCompile(goarch string, rules []rule) []byte {
	b, err := compileFilter(goarch, rules)
	if err != nil {
		panic(err)
	}
	return b
}

func decode(b []byte) []instr {
	var program []instr
	for ; len(b) > 0; b = b[8:] {
		program = append(program, instr{binary.LittleEndian.Uint16(b), b[2], b[3], binary.LittleEndian.Uint32(b[4:])})
	}
	return program
}

// ask runs a program as the kernel does.
func (f testFilter) ask(audit, number uint32, args ...uint64) answer {
	data := binary.LittleEndian.AppendUint32(nil, number)
	data = binary.LittleEndian.AppendUint32(data, audit)
	data = append(data, make([]byte, 8)...) // instruction pointer
	for i := range 6 {
		var arg uint64
		if i < len(args) {
			arg = args[i]
		}
		data = binary.LittleEndian.AppendUint64(data, arg)
	}
	var a uint32
	for pc := 0; ; pc++ {
		jump := func(yes bool) {
			if yes {
				pc += int(f.program[pc].jt)
			} else {
				pc += int(f.program[pc].jf)
			}
		}
		switch in := f.program[pc]; in.code {
		case opLoad:
			a = binary.LittleEndian.Uint32(data[in.k:])
		case opAnd:
			a &= in.k
		case opJEQ:
			jump(a == in.k)
		case opJGT:
			jump(a > in.k)
		case opRet:
			return answer(in.k)
		default:
			panic(fmt.Sprintf("instruction %#x", in.code))
		}
	}
}

// testFilter is a compiled filter with the numbers of its architecture.
type testFilter struct {
	arch
	program []instr
}

func newTestFilter(goarch string, rules []rule) testFilter {
	return testFilter{archs[goarch], decode(mustCompile(goarch, rules))}
}

// call asks for a call by its name.
func (f testFilter) call(name string, args ...uint64) answer {
	return f.ask(f.audit, uint32(callNumbers[name][f.column]), args...)
}

func (f testFilter) has(name string) bool { return callNumbers[name][f.column] != none }

// everyArch runs a test on the programs of all architectures.
func everyArch(t *testing.T, rules []rule, test func(t *testing.T, f testFilter)) {
	for goarch := range archs {
		t.Run(goarch, func(t *testing.T) { test(t, newTestFilter(goarch, rules)) })
	}
}

// TestFilterIsTaken: what the kernel demands of a program, and what bubblewrap
// demands of its length.
func TestFilterIsTaken(t *testing.T) {
	everyArch(t, filterRules(true), func(t *testing.T, f testFilter) {
		n := len(f.program)
		if n > 4096 || f.program[n-1].code != opRet {
			t.Errorf("%d instructions, the last one is %#x", n, f.program[n-1].code)
		}
		for i, in := range f.program {
			switch in.code {
			case opLoad:
				if in.k%4 != 0 || in.k >= 64 {
					t.Errorf("%d loads from %d", i, in.k)
				}
			case opJEQ, opJGT:
				if i+1+int(in.jt) >= n || i+1+int(in.jf) >= n {
					t.Errorf("%d jumps out of the program", i)
				}
			case opAnd, opRet:
			default:
				t.Errorf("%d is %#x", i, in.code)
			}
		}
	})
}

// filterCase is a call with arguments. The kernel looks at the lower 32 bits
// of those that are named here, and so must the filter.
type filterCase struct {
	call string
	args []uint64
	want answer // an errno, or 0 = allowed
}

const fd, ptr = 3, 0x7fff_1234_5678

// conditional are the cases of the rules that look at arguments.
var conditional = []filterCase{
	{"openat", []uint64{fd, ptr, oCreat | 1, 0o644}, 0},
	{"openat", []uint64{fd, ptr, oCreat | 1, 0o1777}, 0},
	{"openat", []uint64{fd, ptr, oCreat | 1, 0o4755}, ePERM},
	{"openat", []uint64{fd, ptr, oCreat | 1, 0o2755}, ePERM},
	{"openat", []uint64{fd, ptr, oTmpfile | 2, 0o6000}, ePERM},
	{"openat", []uint64{fd, ptr, 0o2000001, 0o6777}, 0}, // nothing is made: the mode is garbage
	{"open", []uint64{ptr, oCreat, 0o755}, 0},
	{"open", []uint64{ptr, oCreat, 0o4000}, ePERM},
	{"open", []uint64{ptr, oTmpfile, 0o2000}, ePERM},
	{"open", []uint64{ptr, 2, 0o4000}, 0},
	{"creat", []uint64{ptr, 0o644}, 0}, {"creat", []uint64{ptr, 0o2644}, ePERM},
	{"chmod", []uint64{ptr, 0o1777}, 0}, {"chmod", []uint64{ptr, 0o4755}, ePERM}, {"chmod", []uint64{ptr, 0o2755}, ePERM},
	{"fchmod", []uint64{fd, 0o777}, 0}, {"fchmod", []uint64{fd, 0o6777}, ePERM},
	{"fchmodat", []uint64{fd, ptr, 0o777}, 0}, {"fchmodat", []uint64{fd, ptr, 0o4777}, ePERM},
	{"fchmodat2", []uint64{fd, ptr, 0o777, 0}, 0}, {"fchmodat2", []uint64{fd, ptr, 0o4777, 0}, ePERM},
	{"mknod", []uint64{ptr, 0o100644, 0}, 0}, {"mknod", []uint64{ptr, 0o104755, 0}, ePERM},
	{"mknodat", []uint64{fd, ptr, 0o010644, 0}, 0}, {"mknodat", []uint64{fd, ptr, 0o102755, 0}, ePERM},

	{"ioctl", []uint64{0, 0x5401}, 0}, // TCGETS
	{"ioctl", []uint64{0, 0x5413}, 0}, // TIOCGWINSZ
	{"ioctl", []uint64{0, tiocSTI}, ePERM},
	{"ioctl", []uint64{0, tiocLINUX}, ePERM},

	{"clone", []uint64{17}, 0},               // fork
	{"clone", []uint64{0x003d0f00, 1, 2}, 0}, // pthread_create
	{"clone", []uint64{0x00004111, 0}, 0},    // vfork and exec
	{"clone", []uint64{0x00020011}, ePERM},   // CLONE_NEWNS
	{"clone", []uint64{0x02000011}, ePERM},   // CLONE_NEWCGROUP
	{"clone", []uint64{0x04000011}, ePERM},   // CLONE_NEWUTS
	{"clone", []uint64{0x08000011}, ePERM},   // CLONE_NEWIPC
	{"clone", []uint64{0x10000011}, ePERM},   // CLONE_NEWUSER
	{"clone", []uint64{0x20000011}, ePERM},   // CLONE_NEWPID
	{"clone", []uint64{0x40000011}, ePERM},   // CLONE_NEWNET
	{"clone", []uint64{0x003d0f00 | 1<<28}, ePERM},

	{"socket", []uint64{afInet, sockStream, 0}, 0},
	{"socket", []uint64{afInet6, sockDgram | 0x80000, ipprotoUDP}, 0},
	{"socket", []uint64{afInet, sockStream, ipprotoMPTCP}, 0}, // Go listens with it
	{"socket", []uint64{afInet, sockDgram, ipprotoICMP}, 0},
	{"socket", []uint64{afInet6, sockDgram, ipprotoICMPv6}, 0},
	{"socket", []uint64{afInet6, sockStream, ipprotoTCP}, 0},
	{"socket", []uint64{0, sockStream, 0}, eAFNOSUPPORT},
	{"socket", []uint64{afUnix, sockStream, 0}, eAFNOSUPPORT},
	{"socket", []uint64{16, 3, 0}, eAFNOSUPPORT},          // AF_NETLINK
	{"socket", []uint64{17, 3, 0}, eAFNOSUPPORT},          // AF_PACKET
	{"socket", []uint64{29, 3, 1}, eAFNOSUPPORT},          // AF_CAN
	{"socket", []uint64{31, 3, 1}, eAFNOSUPPORT},          // AF_BLUETOOTH
	{"socket", []uint64{38, 5, 0}, eAFNOSUPPORT},          // AF_ALG
	{"socket", []uint64{40, sockStream, 0}, eAFNOSUPPORT}, // AF_VSOCK
	{"socket", []uint64{44, 3, 0}, eAFNOSUPPORT},          // AF_XDP
	{"socket", []uint64{0xffffffff, 1, 0}, eAFNOSUPPORT},
	{"socket", []uint64{afInet, sockRaw, ipprotoICMP}, 0},             // the kernel refuses it
	{"socket", []uint64{afInet, 6, 0}, eSOCKTNOSUPPORT},               // SOCK_DCCP
	{"socket", []uint64{afInet, 10 | 0x800, 0}, eSOCKTNOSUPPORT},      // SOCK_PACKET
	{"socket", []uint64{afInet, sockSeqpacket, 132}, ePROTONOSUPPORT}, // SCTP
	{"socket", []uint64{afInet, sockDgram, 33}, ePROTONOSUPPORT},      // DCCP
	{"socket", []uint64{afInet6, sockDgram, 136}, ePROTONOSUPPORT},    // UDP-Lite

	{"socketpair", []uint64{afUnix, sockStream, 0, ptr}, 0},
	{"socketpair", []uint64{afUnix, sockStream | 0x80800, 0, ptr}, 0},
	{"socketpair", []uint64{afUnix, sockSeqpacket, 0, ptr}, 0},
	{"socketpair", []uint64{afUnix, sockDgram, 0, ptr}, eSOCKTNOSUPPORT},
	{"socketpair", []uint64{afUnix, sockDgram | 0x80000, 0, ptr}, eSOCKTNOSUPPORT},
	{"socketpair", []uint64{afUnix, 3, 0, ptr}, eSOCKTNOSUPPORT},   // SOCK_RAW is SOCK_DGRAM here
	{"socketpair", []uint64{30, sockStream, 0, ptr}, eAFNOSUPPORT}, // AF_TIPC

	{"personality", []uint64{0}, 0},
	{"personality", []uint64{personalityQuery}, 0},
	{"personality", []uint64{8}, ePERM},         // PER_LINUX32
	{"personality", []uint64{0x0040000}, ePERM}, // ADDR_NO_RANDOMIZE
	{"personality", []uint64{0x0400000}, ePERM}, // READ_IMPLIES_EXEC
}

// filterCases are all cases: those above, with and without bits in the upper
// halves of the arguments, and each call that is refused whatever they are.
func filterCases() []filterCase {
	cases := slices.Clone(conditional)
	for _, c := range conditional {
		for _, upper := range []uint64{1 << 32, 0xffffffff << 32} {
			high := slices.Clone(c.args)
			for i := range high {
				high[i] |= upper
			}
			cases = append(cases, filterCase{c.call, high, c.want})
		}
	}
	for _, r := range filterRules(false) {
		for _, name := range strings.Fields(r.calls) {
			if r.when == nil {
				all := ^uint64(0)
				cases = append(cases, filterCase{name, nil, answer(r.errno)}, filterCase{name, []uint64{all, all, all, all, all, all}, answer(r.errno)})
			}
		}
	}
	return cases
}

// wrong returns the cases that a filter does not answer as it should.
func wrong(f testFilter) []string {
	var list []string
	for _, c := range filterCases() {
		want := answer(retAllow)
		if c.want != 0 {
			want = retErrno | c.want
		}
		if got := f.call(c.call, c.args...); f.has(c.call) && got != want {
			list = append(list, fmt.Sprintf("%s %#x: %s, want %s", c.call, c.args, got, want))
		}
	}
	return list
}

func TestFilterRules(t *testing.T) {
	everyArch(t, filterRules(false), func(t *testing.T, f testFilter) {
		for _, line := range wrong(f) {
			t.Error(line)
		}
	})
}

// TestEveryRuleIsTested: a table in which a call is not refused, or is refused
// whatever its arguments are, fails TestFilterRules.
func TestEveryRuleIsTested(t *testing.T) {
	mutants := 0
	rules := filterRules(false)
	for i, r := range rules {
		for _, name := range strings.Fields(r.calls) {
			everyArchHaving(name, func(goarch string) {
				mutants++
				if len(wrong(newTestFilter(goarch, without(rules, i, name)))) == 0 {
					t.Errorf("%s: nothing notices that rule %d (%s) is gone", goarch, i, name)
				}
				if r.when == nil {
					return
				}
				mutants++
				always := append([]rule{{name, r.errno, nil, ""}}, rules...)
				if len(wrong(newTestFilter(goarch, always))) == 0 {
					t.Errorf("%s: nothing notices that %s is always refused", goarch, name)
				}
			})
		}
		if r.why == "" {
			t.Errorf("%s: no reason", r.calls)
		}
	}
	t.Logf("%d mutants", mutants)
}

func everyArchHaving(name string, f func(goarch string)) {
	for goarch, a := range archs {
		if callNumbers[name][a.column] != none {
			f(goarch)
		}
	}
}

// without returns the table without a call in its rule i.
func without(rules []rule, i int, name string) []rule {
	mutant := slices.Clone(rules)
	names := slices.DeleteFunc(strings.Fields(rules[i].calls), func(s string) bool { return s == name })
	mutant[i].calls = strings.Join(names, " ")
	return mutant
}

// TestFilterOfForeignCalls: another architecture's calls end the process, the
// x32 ones do not exist, nor do those that nobody has looked at yet.
func TestFilterOfForeignCalls(t *testing.T) {
	everyArch(t, filterRules(false), func(t *testing.T, f testFilter) {
		foreign := map[string]uint32{"i386": 0x40000003, "arm": 0x40000028, "riscv64": 0xc00000f3, "nothing": 0}
		for goarch, a := range archs {
			if a != f.arch {
				foreign[goarch] = a.audit
			}
		}
		for name, audit := range foreign {
			for _, number := range []uint32{0, 1, 20, 39, newestCall, newestCall + 1, 0x40000000, 0xffffffff} {
				if got := f.ask(audit, number); got != retKill {
					t.Errorf("call %d of %s: %s", number, name, got)
				}
			}
		}
		for _, number := range []uint32{newestCall + 1, 1000, 0x40000000, 0x40000000 + 39, 0x40000000 + 101, 0x40000000 + 520, 0x80000000, 0xffffffff} {
			if got := f.ask(f.audit, number); got != retErrno|eNOSYS {
				t.Errorf("call %#x: %s", number, got)
			}
		}
	})
}

// TestFilterUnixSockets: what Config.AllowUnixSockets allows, and that it is all.
func TestFilterUnixSockets(t *testing.T) {
	opened := func(c filterCase) bool {
		return c.call == "socket" && uint32(c.args[0]) == afUnix || c.call == "socketpair" && uint32(c.args[0]) == afUnix && c.args[1]&sockTypeMask == sockDgram
	}
	everyArch(t, filterRules(true), func(t *testing.T, f testFilter) {
		n := 0
		for _, line := range filterCases() {
			want := answer(retAllow)
			if opened(line) {
				n++
			} else if line.want != 0 {
				want = retErrno | line.want
			}
			if got := f.call(line.call, line.args...); f.has(line.call) && got != want {
				t.Errorf("%s %#x: %s, want %s", line.call, line.args, got, want)
			}
		}
		if n == 0 {
			t.Error("no case of an opened call")
		}
	})
}

// kernelCalls reads testdata/syscalls.txt: the numbers of all calls there are.
func kernelCalls(t *testing.T) map[string][2]int {
	t.Helper()
	b, err := os.ReadFile("testdata/syscalls.txt")
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string][2]int{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if f[0] == "#" {
			continue
		}
		var numbers [2]int
		for i, s := range f[1:] {
			if numbers[i], err = strconv.Atoi(s); err != nil {
				numbers[i] = none
			}
		}
		calls[f[0]] = numbers
	}
	return calls
}

// TestFilterNumbers: the numbers are those of the kernel, every number in the
// table is used, and every call of the kernel that has no rule is allowed.
func TestFilterNumbers(t *testing.T) {
	calls := kernelCalls(t)
	newest := 0
	for _, numbers := range calls {
		newest = max(newest, numbers[0], numbers[1])
	}
	if newest != newestCall {
		t.Errorf("the newest call is %d, not %d", newest, newestCall)
	}
	rules := filterRules(false)
	_, byName := byCall(rules)
	for name, numbers := range callNumbers {
		if calls[name] != numbers {
			t.Errorf("%s is %v, not %v", name, calls[name], numbers)
		}
		if byName[name] == nil {
			t.Errorf("%s has a number and no rule", name)
		}
	}
	everyArch(t, rules, func(t *testing.T, f testFilter) {
		allowed := 0
		all := ^uint64(0)
		for name, numbers := range calls {
			if numbers[f.column] == none || byName[name] != nil {
				continue
			}
			allowed++
			for _, args := range [][]uint64{nil, {all, all, all, all, all, all}} {
				if got := f.ask(f.audit, uint32(numbers[f.column]), args...); got != retAllow {
					t.Errorf("%s: %s", name, got)
				}
			}
		}
		t.Logf("%d calls without a rule", allowed)
	})
}

// TestCompileFilterErrors: a table that cannot be a program is an error, and
// without a filter nothing is run.
func TestCompileFilterErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		goarch string
		rules  []rule
		want   string
	}{
		"architecture": {"riscv64", filterRules(false), "there is no system call filter for riscv64"},
		"call":         {"amd64", []rule{{"no_such_call", ePERM, nil, ""}}, "system call no_such_call has no number"},
		"far jump":     {"arm64", []rule{{"socket", ePERM, when(among(0, make([]uint32, 300)...)), ""}}, "system call socket has too many conditions"},
	} {
		if b, err := compileFilter(tc.goarch, tc.rules); err == nil || err.Error() != tc.want || b != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func BenchmarkCompileFilter(b *testing.B) {
	for b.Loop() {
		if _, err := compileFilter("amd64", filterRules(false)); err != nil {
			b.Fatal(err)
		}
	}
}
