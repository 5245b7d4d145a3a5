package workspace

import (
	"encoding/binary"
	"encoding/hex"
)

// checkIndex checks that the index leads to chunks with the hash it says, and
// that every chunk in use is found by it.
func (k *checker) checkIndex() error {
	indexed := map[digest]bool{}
	err := k.walk(k.pages, bucketByHash, func(key, stored []byte) error {
		value, err := unseal(key, stored)
		var c *chunkInfo
		if err == nil && len(value) == 8 && len(key) == 32 {
			c = k.chunks.get(binary.BigEndian.Uint64(value))
		}
		switch {
		case err != nil || len(value) != 8 || len(key) != 32:
			k.badIndex(key, "It is damaged.")
		case c == nil:
			k.badIndex(key, "It leads to a chunk that is missing.")
		case c.marks&isBad != 0:
			k.badIndex(key, "It leads to a chunk that is damaged.")
		case c.sum != [32]byte(key):
			k.badIndex(key, "It leads to a chunk with another hash.")
		default:
			c.marks |= isIndexed
			indexed[digest(key[:16])] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range k.chunks.all {
		c := &k.chunks.all[i]
		if c.marks&(usedNow|usedBefore) == 0 || c.marks&(isBad|isIndexed) != 0 || indexed[digest(c.sum[:16])] {
			continue
		}
		indexed[digest(c.sum[:16])] = true
		k.findf(FindIndex, chunkName(c.id), "It cannot be found by its hash.")
		k.plan.put(bucketByHash, c.sum[:], uintKey(c.id))
	}
	return nil
}

func (k *checker) badIndex(key []byte, text string) {
	k.findf(FindIndex, "entry "+hex.EncodeToString(key[:min(len(key), 32)]), "%s", text)
	k.plan.drop(bucketByHash, key)
}

// checkPending looks at the marks of chunks that no commit uses yet. Such
// marks are nothing wrong: a process that was killed leaves them.
func (k *checker) checkPending() error {
	return k.walk(k.pages, bucketPending, func(key, stored []byte) error {
		value, err := unseal(key, stored)
		if err != nil || len(key) == 0 {
			k.findf(FindPending, "mark "+showKey(key), "It is damaged.")
			k.plan.drop(bucketPending, key)
			return nil
		}
		if key[0] != pendingStage {
			return nil // kept for another reason
		}
		if len(value) != 8 || len(key) != 1+8+32 {
			k.findf(FindPending, "mark "+showKey(key), "It is damaged.")
			k.plan.drop(bucketPending, key)
			return nil
		}
		k.report.Pending++
		id := binary.BigEndian.Uint64(value)
		c := k.chunks.get(id)
		switch {
		case c != nil && c.marks&(usedNow|usedBefore) != 0:
			k.findf(FindPending, chunkName(id), "It is in use and marked to be swept.")
			k.plan.drop(bucketPending, key)
		case c != nil:
			c.marks |= isPending
			fallthrough
		default:
			k.plan.sweep = append(k.plan.sweep, mark{key: append([]byte(nil), key...), id: id})
		}
		return nil
	})
}

// dropUseless has damaged chunks forgotten that nothing refers to.
func (k *checker) dropUseless() error {
	for i := range k.chunks.all {
		c := &k.chunks.all[i]
		if c.marks&isBad != 0 && c.marks&(usedNow|usedBefore|isPending) == 0 {
			k.plan.drop(bucketChunks, uintKey(c.id))
		}
	}
	return nil
}
