package workspace

import (
	"sync"
	"weak"

	bolt "go.etcd.io/bbolt"
)

// sharing is between stages, which refer to chunks that the image has already, and a
// collection of chunks, which must not take these away before the stage's commit. A
// stage looks for a chunk and notes it under the read lock; a collection decides under
// the lock what it takes, of what no stage has noted. From then on no stage finds it.
type sharing struct {
	sync.RWMutex
	mu     sync.Mutex
	stages map[weak.Pointer[Stage]]bool // one that was given up without a word goes by itself
	holds  map[uint64]int               // see Hold; how many
}

// known is the id of a chunk with these bytes that the image has, and keeps as long as
// the stage may need it; 0 when it has none. fresh says that it is the stage's own.
func (s *Stage) known(sum [32]byte) (id uint64, fresh bool, err error) {
	s.im.sharing.RLock()
	defer s.im.sharing.RUnlock()
	err = s.im.view("stage", func(tx *bolt.Tx) error {
		if id = hashed(tx, sum); s.im.doomed(id) {
			id = 0
		}
		if id == 0 && s.written {
			id = s.pendingID(tx, sum)
			fresh = id != 0
		}
		return nil
	})
	if err == nil && id != 0 && !fresh {
		s.shares.add(id)
		s.im.sharing.join(s)
	}
	return id, fresh, err
}

func (h *sharing) join(s *Stage) {
	if s.shared {
		return
	}
	s.shared = true
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stages == nil {
		h.stages = map[weak.Pointer[Stage]]bool{}
	}
	h.stages[weak.Make(s)] = true
}

// leave forgets a stage that is over.
func (h *sharing) leave(s *Stage) {
	if s.shared {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.stages, weak.Make(s))
	}
}

// alive visits the stages that are not over.
func (h *sharing) alive(visit func(*Stage)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range h.stages {
		if s := p.Value(); s != nil {
			visit(s)
		} else {
			delete(h.stages, p)
		}
	}
}

// Hold keeps all commits behind seq, whatever GC and Trim are told, until release is
// called: for one who is going to commit with that base.
func (im *Image) Hold(seq uint64) (release func()) {
	h := &im.sharing
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.holds == nil {
		h.holds = map[uint64]int{}
	}
	h.holds[seq]++
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.holds[seq]--; h.holds[seq] == 0 {
			delete(h.holds, seq)
		}
	})
}

// Hold is Image.Hold for as long as the stage is neither discarded nor committed. Of
// several calls the last counts.
func (s *Stage) Hold(seq uint64) {
	s.im.sharing.RLock() // not while a collection looks
	defer s.im.sharing.RUnlock()
	s.base = seq
	s.im.sharing.join(s)
}

// oldest is the oldest commit that somebody holds; most when that is none.
func (h *sharing) oldest(most uint64) uint64 {
	h.Lock()
	defer h.Unlock()
	h.alive(func(s *Stage) {
		if s.base > 0 {
			most = min(most, s.base+1)
		}
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	for seq := range h.holds {
		most = min(most, seq+1)
	}
	return most
}

// collection is what commits and stages have to know of a collection that runs. It is
// used under the image's lock for writing; doomed also under sharing's.
type collection struct {
	doomed  idSet // chunks that go; empty until that is decided
	decided bool
	revived idSet // chunks that commits have begun to use before
}

// doomed says whether a chunk is about to go: nothing may begin to refer to it.
func (im *Image) doomed(id uint64) bool { return im.gc != nil && im.gc.doomed.has(id) }

// revive notes that a commit refers to a chunk which the image had before. It is called
// in the commit's transaction.
func (im *Image) revive(id uint64) {
	if im.gc != nil && !im.gc.decided {
		im.gc.revived.add(id)
	}
}
