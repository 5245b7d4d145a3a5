package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
)

// proof is by what somebody who changes policy is taken for a person: a word that
// was typed on a terminal, or a token that such a person made. It keeps away what
// runs by itself, and not a program of the same user that imitates a person:
// see docs/security.md.
type proof struct {
	Typed bool   `json:"typed,omitempty"`
	Token string `json:"token,omitempty"`
}

func (a *app) tokenFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.operatorToken, "operator-token", "", "`FILE` that mcp-vdisk operator token made, where there is no terminal to ask on")
}

// prove asks the person at the terminal to type a word, or takes the token file
// that was named.
func (a *app) prove(word, what string) (proof, error) {
	if a.operatorToken != "" {
		token, private, err := readToken(a.operatorToken)
		if err == nil && !private {
			err = exit.Fail(exit.Refused, "chmod 600 "+tools.ShellQuote(a.operatorToken)+", as its owner; if others have read it, mcp-vdisk operator revoke makes it good for nothing",
				"%s can be read by others, or belongs to somebody else", a.operatorToken)
		}
		return proof{Token: token}, err
	}
	in, ok := a.Stdin.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return proof{}, exit.Fail(exit.Refused, "run it on a terminal, or pass --operator-token FILE; mcp-vdisk operator token FILE makes one",
			"this changes what is allowed, so a person has to confirm it, and standard input is no terminal")
	}
	fmt.Fprintf(a.Stderr, "%s Type %q to go on: ", what, word)
	line, err := bufio.NewReader(io.LimitReader(in, 1<<10)).ReadString('\n')
	if err != nil && err != io.EOF {
		return proof{}, fmt.Errorf("read the answer: %w", err)
	}
	if strings.TrimSpace(line) != word {
		return proof{}, exit.Fail(exit.Refused, "", "not confirmed; nothing was changed")
	}
	return proof{Typed: true}, nil
}

// tokenPrefix tells a token from any other secret, for scanners of such.
const tokenPrefix = "mcpvdisk_op_"

// readToken reads a token from a file; private says that nobody but its owner, who
// is the caller, can read that. Root can read all there is.
func readToken(name string) (token string, private bool, err error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", false, exit.Fail(exit.NotFound, "mcp-vdisk operator token FILE makes one", "open %s: %s", name, front.ErrText(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return "", false, exit.Fail(exit.Failed, "", "%s is not a regular file", name)
	}
	b, err := io.ReadAll(io.LimitReader(f, 1<<10))
	if err != nil {
		return "", false, exit.Fail(exit.Failed, "", "read %s: %s", name, front.ErrText(err))
	}
	token = strings.TrimSpace(string(b))
	if !isToken(token) {
		return "", false, exit.Fail(exit.Refused, "mcp-vdisk operator token FILE makes one", "%s holds no operator token", name)
	}
	euid := os.Geteuid()
	return token, info.Mode().Perm()&0o077 == 0 && (euid == 0 || front.OwnerOf(info) == euid), nil
}

// isToken says whether a text looks like a token; the state knows which are good.
func isToken(s string) bool {
	rest, ok := strings.CutPrefix(s, tokenPrefix)
	return ok && rest != "" && !strings.ContainsFunc(rest, func(c rune) bool { return (c < 'a' || c > 'z') && (c < '2' || c > '7') })
}

// operator adds to facts who asks, for the log.
func (b *back) operator(about audit.Facts) audit.Facts {
	about["op_uid"], about["op_pid"], about["op_parent"], about["op_tty"] = int64(b.peer.UID), int64(b.peer.PID), b.peer.Parent, b.peer.TTY
	return about
}

// proven checks a proof and adds to facts who asks and by what right.
func (b *back) proven(p proof, about audit.Facts) (audit.Facts, error) {
	about = b.operator(about)
	if p.Token == "" {
		if !p.Typed {
			return nil, exit.Fail(exit.Refused, "", "nobody confirmed this")
		}
		about["op_proof"] = "typed on a terminal"
		return about, nil
	}
	good, err := b.goodToken(p.Token)
	if err != nil {
		return nil, err
	}
	if !good {
		return nil, exit.Fail(exit.Refused, "mcp-vdisk operator token FILE makes one", "the operator token is not one of this state directory, or was revoked")
	}
	about["op_proof"] = "token " + tokenName(p.Token)
	return about, nil
}

// goodToken says whether the state knows a token.
func (b *back) goodToken(token string) (bool, error) {
	err := b.st.db.View(func(txn *badger.Txn) error {
		_, err := txn.Get(tokenKey(token))
		return err
	})
	if err != nil && !errors.Is(err, badger.ErrKeyNotFound) {
		return false, exit.Fail(exit.State, "", "look the operator token up: %s", err)
	}
	return err == nil, nil
}

// tokenKey is where the state keeps that a token is good: only its digest is.
func tokenKey(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return append([]byte(tokenPart), sum[:]...)
}

// tokenPart is where the keys of tokens begin.
const tokenPart = "O|"

func isTokenKey(key []byte) bool { return bytes.HasPrefix(key, []byte(tokenPart)) }

// tokenName tells tokens apart in the log.
func tokenName(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:4])
}

func (a *app) operatorCmd() *cobra.Command {
	cmd := group(cobra.Command{
		Use:   "operator",
		Short: "Make and revoke the tokens by which a person's scripts may change what is allowed",
	})
	cmd.AddCommand(a.operatorTokenCmd(), a.operatorRevokeCmd())
	return cmd
}

type tokenArgs struct {
	Token  string // that is made or revoked
	Revoke bool
	All    bool
	Proof  proof
}

func (a *app) operatorTokenCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token FILE",
		Short: "Write a new operator token to FILE, which must not exist, readable by its owner only",
		Long: `Commands that change what is allowed, such as lease break and config set, ask on the
terminal for a word. Where there is none they take --operator-token FILE. The state
directory keeps only a digest of the token.`,
		Example: "  mcp-vdisk operator token ~/.vdisk-operator\n  mcp-vdisk config set script.timeout 5m --operator-token ~/.vdisk-operator",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := tokenArgs{Token: tokenPrefix + strings.ToLower(rand.Text())}
			var err error
			if q.Proof, err = a.prove("token", "Whoever can read "+args[0]+" may change what is allowed."); err != nil {
				return err
			}
			f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return exit.Fail(exit.Refused, "", "make %s: %s", args[0], front.ErrText(err))
			}
			_, err = io.WriteString(f, q.Token+"\n")
			if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
				err = a.simple(cmd, "operator.token", q, front.NoImage)
			}
			if err != nil {
				os.Remove(args[0])
				return err
			}
			fmt.Fprintf(a.Stderr, "wrote %s\n", args[0])
			return nil
		},
	}
	a.tokenFlag(cmd)
	return cmd
}

func (a *app) operatorRevokeCmd() *cobra.Command {
	var q tokenArgs
	cmd := &cobra.Command{
		Use:     "revoke [FILE]",
		Short:   "Make the token in FILE, or with --all every token, good for nothing",
		Example: "  mcp-vdisk operator revoke --all",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if q.All == (len(args) == 1) {
				return exit.Fail(exit.Usage, "", "name the file of the token, or pass --all")
			}
			q.Revoke = true
			var err error
			if len(args) == 1 {
				if q.Token, _, err = readToken(args[0]); err != nil {
					return err
				}
			}
			if q.Proof, err = a.prove("revoke", "Who works with the token is refused from now on."); err != nil {
				return err
			}
			return a.simple(cmd, "operator.token", q, front.NoImage)
		},
	}
	cmd.Flags().BoolVar(&q.All, "all", false, "every token of the state directory")
	a.tokenFlag(cmd)
	return cmd
}

func backToken(ctx context.Context, b *back) error {
	var q tokenArgs
	if err := b.args(&q); err != nil {
		return err
	}
	about := audit.Facts{"revoke": q.Revoke, "all": q.All}
	if q.Token != "" {
		about["token"] = tokenName(q.Token)
	}
	about, err := b.proven(q.Proof, about)
	if err != nil {
		return err
	}
	if q.Revoke && !q.All {
		good, err := b.goodToken(q.Token)
		if err == nil && !good {
			err = exit.Fail(exit.NotFound, "", "this state directory knows no such token, or it was revoked before")
		}
		if err != nil {
			return err
		}
	}
	if err := b.st.record(ctx, audit.StreamSystem, audit.Record{Ev: audit.EvOperatorToken, Args: about}); err != nil {
		return err
	}
	if err := b.st.log.Room(); err != nil {
		return err
	}
	return b.st.db.Update(func(txn *badger.Txn) error {
		switch {
		case q.All:
			return dropTokens(txn)
		case q.Revoke:
			return txn.Delete(tokenKey(q.Token))
		}
		return txn.Set(tokenKey(q.Token), []byte(time.Now().UTC().Format(time.RFC3339)))
	})
}

func dropTokens(txn *badger.Txn) error {
	o := badger.DefaultIteratorOptions
	o.Prefix, o.PrefetchValues = []byte(tokenPart), false
	it := txn.NewIterator(o)
	defer it.Close()
	for it.Rewind(); it.Valid(); it.Next() {
		if err := txn.Delete(it.Item().KeyCopy(nil)); err != nil {
			return err
		}
	}
	return nil
}
