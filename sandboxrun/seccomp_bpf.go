package sandboxrun

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// compileFilter returns the program for the rules as bubblewrap takes it: an
// array of struct sock_filter.
func compileFilter(goarch string, rules []rule) ([]byte, error) {
	program, err := assemble(goarch, rules)
	if err != nil {
		return nil, err
	}
	var b []byte
	for _, in := range program {
		b = binary.LittleEndian.AppendUint16(b, in.code)
		b = append(b, in.jt, in.jf)
		b = binary.LittleEndian.AppendUint32(b, in.k)
	}
	return b, nil
}

// instr is an instruction of the classic BPF machine. Jumps are counted from
// the next instruction.
type instr struct {
	code   uint16
	jt, jf uint8
	k      uint32
}

// The instructions that are used. The kernel can tell without running these
// whether a call is allowed whatever its arguments are.
const (
	opLoad = 0x20 // A = word at k of struct seccomp_data
	opAnd  = 0x54 // A &= k
	opJEQ  = 0x15 // if A == k
	opJGT  = 0x25 // if A > k
	opRet  = 0x06 // answer k
)

// struct seccomp_data.
const (
	dataNumber = 0
	dataArch   = 4
	dataArgs   = 16 // 8 bytes each, the lower half first
)

// The answers.
const (
	retKill  = 0x80000000 // SECCOMP_RET_KILL_PROCESS
	retErrno = 0x00050000
	retAllow = 0x7fff0000
)

// assemble puts the program together: the check of the architecture, then one
// block for each call, which ends in an answer or is jumped over whole.
func assemble(goarch string, rules []rule) ([]instr, error) {
	a, ok := archs[goarch]
	if !ok {
		return nil, fmt.Errorf("there is no system call filter for %s", goarch)
	}
	// The same number is another call on another architecture, as which
	// amd64 counts a call by int 0x80.
	program := []instr{
		{opLoad, 0, 0, dataArch},
		{opJEQ, 1, 0, a.audit},
		{opRet, 0, 0, retKill},
		{opLoad, 0, 0, dataNumber},
		{opJGT, 0, 1, newestCall},
		{opRet, 0, 0, retErrno | eNOSYS},
	}
	names, byName := byCall(rules)
	for _, name := range names {
		numbers, ok := callNumbers[name]
		if !ok {
			return nil, fmt.Errorf("system call %s has no number", name)
		}
		if numbers[a.column] == none {
			continue
		}
		block := callBlock(byName[name])
		if len(block) > 255 {
			return nil, fmt.Errorf("system call %s has too many conditions", name)
		}
		program = append(program, instr{opJEQ, 0, uint8(len(block)), uint32(numbers[a.column])})
		program = append(program, block...)
	}
	return append(program, instr{opRet, 0, 0, retAllow}), nil
}

// byCall sorts the rules by the calls they are for, both in the order of the table.
func byCall(rules []rule) (names []string, byName map[string][]rule) {
	byName = map[string][]rule{}
	for _, r := range rules {
		for _, name := range strings.Fields(r.calls) {
			if byName[name] == nil {
				names = append(names, name)
			}
			byName[name] = append(byName[name], r)
		}
	}
	return names, byName
}

// callBlock answers one call. What no rule forbids is allowed.
func callBlock(rules []rule) []instr {
	var block []instr
	for _, r := range rules {
		// From behind: a condition has to know how much it jumps over.
		code := []instr{{opRet, 0, 0, retErrno | r.errno}}
		for i := len(r.when) - 1; i >= 0; i-- {
			code = append(r.when[i].test(len(code)), code...)
		}
		block = append(block, code...)
		if len(r.when) == 0 {
			return block
		}
	}
	return append(block, instr{opRet, 0, 0, retAllow})
}

// test goes on if the condition holds and jumps over the rest of the rule if not.
func (c cond) test(rest int) []instr {
	code := []instr{{opLoad, 0, 0, uint32(dataArgs + 8*c.arg)}}
	if c.mask != ^uint32(0) {
		code = append(code, instr{opAnd, 0, 0, c.mask})
	}
	for i, v := range c.values {
		later := len(c.values) - 1 - i // comparisons after this one
		in := instr{code: opJEQ, k: v}
		switch {
		case c.not:
			in.jt = uint8(later + rest)
		case later > 0:
			in.jt = uint8(later)
		default:
			in.jf = uint8(rest)
		}
		code = append(code, in)
	}
	return code
}
