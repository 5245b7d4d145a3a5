package workspace

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
)

// checkMeta checks the records about the image.
func (k *checker) checkMeta() error {
	found := map[string]bool{}
	err := k.walk(k.pages, bucketMeta, func(key, stored []byte) error {
		found[string(key)] = true
		value, err := unseal(key, stored)
		if err == nil {
			err = k.metaRecord(key, value)
		}
		if errors.Is(err, ErrFormat) {
			return err
		}
		if err != nil {
			k.findMeta(string(key), "It is damaged: "+err.Error()+".")
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !found[string(keyFormat)] && !k.plan.rebuild {
		return imageError("check", ErrNotImage, "")
	}
	for _, key := range [][]byte{keyFormat, keyIdentity, keyHead, keyFence} {
		if !found[string(key)] {
			k.findMeta(string(key), "It is missing.")
		}
	}
	return nil
}

func (k *checker) findMeta(key, text string) {
	switch key {
	case string(keyFormat):
		k.plan.meta(keyFormat, binary.AppendUvarint(nil, FormatVersion))
	case string(keyFence):
		text += " The highest fencing token is kept nowhere else, a repair begins at 0."
		k.plan.meta(keyFence, Fence{}.encode())
	case string(keyIdentity):
		text += " The first commit has the uuid too; label and quotas are kept nowhere else, a repair takes the defaults."
	case string(keyHead): // the newest commit has all of it
	default:
		k.plan.drop(bucketMeta, []byte(key))
	}
	k.findf(FindMeta, "record "+showKey([]byte(key)), "%s", text)
}

// metaRecord decodes one record.
func (k *checker) metaRecord(key, value []byte) (err error) {
	switch string(key) {
	case string(keyFormat):
		return knownFormat(value)
	case string(keyIdentity):
		var id *identity
		if id, err = decodeIdentity(value); err == nil {
			k.identity = id
		}
	case string(keyHead):
		var h *head
		if h, err = decodeHead(value); err == nil {
			k.head = h
		}
	case string(keyFence):
		_, err = decodeFence(value)
	}
	return err
}

// identityFrom takes the uuid and the time from the first commit, which has
// them too. The label and the quotas are nowhere else.
func (k *checker) identityFrom(first *record) {
	digits, ok := strings.CutPrefix(first.message, firstMessage)
	uuid, err := hex.DecodeString(strings.ReplaceAll(digits, "-", ""))
	if !ok || err != nil || len(uuid) != 16 {
		return
	}
	id := newIdentity(&CreateOptions{}, first.time)
	copy(id.uuid[:], uuid)
	k.history.identity = id
}

// checkHead compares the record of the head with the newest commit.
func (k *checker) checkHead() error {
	h := &k.history
	if k.identity == nil && h.identity != nil {
		k.plan.meta(keyIdentity, h.identity.encode())
	}
	wrong := func(kind FindingKind, where, format string, args ...any) {
		k.findf(kind, where, format, args...)
		h.gap = h.gap || kind != FindTotals
	}
	switch {
	case h.count == 0:
		wrong(FindCommit, "commits", "There is none.")
	case k.head == nil:
	case k.head.seq > h.at:
		wrong(FindCommit, commitName(h.at+1), "It is missing, as are all up to the head, which is v%d.", k.head.seq)
	case k.head.seq < h.at:
		wrong(FindCommit, commitName(h.at), "It lies behind the head, which is v%d.", k.head.seq)
	case h.last == nil || h.last.seq != h.at:
		return nil // the newest one is damaged
	case k.head.id != h.last.id:
		wrong(FindHistory, commitName(h.at), "Its id is not the one of the head.")
	case *k.head != *h.last:
		wrong(FindTotals, "record \"head\"", "It says %d bytes in %d entries, the commit v%d says %d in %d.",
			k.head.bytes, k.head.entries, h.at, h.last.bytes, h.last.entries)
	default:
		return nil
	}
	if h.chained() {
		k.plan.meta(keyHead, h.last.encode())
	}
	return nil
}
