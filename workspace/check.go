package workspace

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
)

// checker is one look at a whole image.
type checker struct {
	ctx    context.Context
	f      *os.File
	o      *CheckOptions
	report *Report
	plan   plan

	pages   *pages
	buckets map[string]storedBucket
	packer  packer
	lostIn  map[string]bool // buckets with a damaged page, "" for the list of buckets

	identity *identity // nil when it is damaged
	head     *head     // nil when it is damaged

	chunks   chunkTable
	contents contents
	lists    map[listKey][]ref // of files with very many chunks
	history  history
	tree     treeCheck
}

// inspect checks an image from its header to its last value, and plans what a
// repair would do. Damage goes into the report; the errors are those of a file
// that is no image of this format.
func inspect(ctx context.Context, f *os.File, o *CheckOptions) (*checker, error) {
	k := &checker{ctx: ctx, f: f, o: o, report: &Report{Findings: []Finding{}}, lostIn: map[string]bool{}}
	defer k.packer.close()
	h, err := readHeader(f)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("check image: %w", err)
	}
	k.report.FileSize, k.report.Pages = st.Size(), int64(h.pages)
	k.pages = newPages(f, st.Size(), h, k.pageFault)
	k.pages.deep = true
	k.checkHeader(h)
	if err := k.findBuckets(); err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		k.checkMeta, k.gatherContents, k.checkChunks, k.checkHistory, k.checkHead, k.checkTree,
		k.checkIndex, k.checkPending, k.checkCheckpoints, k.dropUseless, k.checkOthers, k.checkFreePages,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	k.summarise()
	return k, nil
}

// find adds a finding to the report.
func (k *checker) find(f Finding) {
	if len(k.report.Findings) == maxFindings {
		k.report.More++
		return
	}
	k.report.Findings = append(k.report.Findings, f)
}

// findf is find for something that has no path.
func (k *checker) findf(kind FindingKind, where, format string, args ...any) {
	k.find(Finding{Kind: kind, Where: where, Text: fmt.Sprintf(format, args...)})
}

// findPath is find for a path.
func (k *checker) findPath(kind FindingKind, where string, p Path, format string, args ...any) {
	k.find(Finding{Kind: kind, Where: where, Path: p, HasPath: true, Text: fmt.Sprintf(format, args...)})
}

func (k *checker) pageFault(f pageFault) {
	k.plan.rebuild = true
	k.lostIn[f.bucket] = k.lostIn[f.bucket] || f.kind != kindFreeList
	k.findf(FindPage, f.where(), "It %s.", f.text)
}

// again is a second reader of the same pages, which reports nothing any more.
func (k *checker) again() *pages {
	p := newPages(k.f, k.pages.size, k.pages.head, func(pageFault) {})
	p.deep = true
	return p
}

// tick is called now and then.
func (k *checker) tick() error {
	if k.o.Progress != nil {
		total := k.pages.size
		k.o.Progress(min(k.pages.bytes, total), total)
	}
	if err := context.Cause(k.ctx); err != nil {
		return fmt.Errorf("check image: %w", err)
	}
	return nil
}

// walk visits a bucket, with a tick now and then. A bucket that is missing was
// reported as such.
func (k *checker) walk(p *pages, name []byte, visit visitor) error {
	b, ok := k.buckets[string(name)]
	if !ok {
		return nil
	}
	last := int64(0)
	return p.walk(b, func(key, value []byte) error {
		if p.bytes-last > 1<<20 {
			last = p.bytes
			if err := k.tick(); err != nil {
				return err
			}
		}
		return visit(key, value)
	})
}

func (k *checker) checkHeader(h *header) {
	for _, text := range h.faults {
		k.plan.header = true
		k.findf(FindHeader, "header", "Of two, %s; the other one is used. What was committed last may be missing.", text)
	}
	if h.pages > k.pages.inFile() {
		k.plan.rebuild = true
		k.findf(FindFile, "file", "It was cut short: %d of its %d pages are left.", k.pages.inFile(), h.pages)
	}
}

// findBuckets reads the list of buckets, and says whether this is an image.
func (k *checker) findBuckets() error {
	all, err := k.pages.buckets()
	if err != nil {
		return err
	}
	k.buckets = map[string]storedBucket{}
	for _, b := range all {
		k.buckets[b.name] = b
	}
	if _, ok := k.buckets[string(bucketMeta)]; !ok && !k.plan.rebuild {
		return imageError("check", ErrNotImage, "")
	}
	for _, name := range buckets {
		if _, ok := k.buckets[string(name)]; !ok {
			k.plan.rebuild = true
			k.findf(FindPage, "bucket "+string(name), "It is missing.")
		}
	}
	return nil
}

// checkOthers looks at buckets that no image has: one whose name is damaged.
func (k *checker) checkOthers() error {
	for name, b := range k.buckets {
		if !isOurs(name) {
			k.plan.rebuild = true
			k.findf(FindPage, "bucket "+showKey([]byte(name)), "No image has such a bucket.")
			if err := k.pages.walk(b, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

func isOurs(name string) bool {
	for _, b := range buckets {
		if string(b) == name {
			return true
		}
	}
	return false
}

func (k *checker) checkFreePages() error {
	p := k.pages
	p.freeList()
	for id := range min(p.head.pages, p.inFile()) {
		switch {
		case p.reached.has(id):
		case p.free.has(id):
			k.report.FreePages++
		default:
			k.report.Leaked++
		}
	}
	return k.tick()
}

// summarise fills in the facts of the report.
func (k *checker) summarise() {
	r := k.report
	if k.identity != nil {
		r.UUID, r.Label = k.identity.uuidString(), k.identity.label
	}
	if h := k.newest(); h != nil {
		r.Seq, r.Commit = h.seq, hex.EncodeToString(h.id[:])
	}
	r.Commits, r.Oldest = k.history.count, k.history.oldest
	for i := range k.chunks.all {
		c := &k.chunks.all[i]
		r.Chunks++
		r.ChunkBytes += int64(c.stored)
		r.PlainBytes += int64(c.size)
		if c.marks&(usedNow|usedBefore|isPending) == 0 {
			r.Unused++
			r.UnusedBytes += int64(c.stored)
		}
	}
}

// newest is the head, or what takes its place when its record is damaged.
func (k *checker) newest() *head {
	if k.head != nil {
		return k.head
	}
	return k.history.last
}
