package workspace

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// storedBucket is a bucket as the list of buckets has it.
type storedBucket struct {
	name     string
	root     uint64 // page; 0 when inline
	sequence uint64
	inline   []byte // its only leaf
}

// visitor is told every entry of a bucket that can be read, in the order in
// which the pages have them. Key and value are good during the call only.
type visitor func(key, value []byte) error

// buckets reads the list of buckets. bbolt takes what it says without a look,
// so everything that is wrong with it is endless.
func (p *pages) buckets() ([]storedBucket, error) {
	var all []storedBucket
	w := walk{pages: p, strict: true, deep: true}
	err := w.run(p.head.root, func(e leafElement) string {
		b, wrong := parseBucket(e)
		if wrong == "" {
			all = append(all, b)
		}
		return wrong
	}, nil)
	return all, err
}

func parseBucket(e leafElement) (b storedBucket, wrong string) {
	if e.flags != elementBucket || len(e.value) < bucketFront {
		return b, fmt.Sprintf("has an entry %s that is no bucket", showKey(e.key))
	}
	o := binary.NativeEndian
	b = storedBucket{name: string(e.key), root: o.Uint64(e.value), sequence: o.Uint64(e.value[8:])}
	if b.root != 0 {
		return b, ""
	}
	b.inline = bytes.Clone(e.value[bucketFront:])
	if len(b.inline) < pageFront || parsePageHead(b.inline).flags != flagLeaf {
		return b, fmt.Sprintf("has a bucket %s that is no leaf", showKey(e.key))
	}
	return b, ""
}

// showKey names a bucket in a message; a damaged name may hold anything.
func showKey(key []byte) string {
	const most = 40
	if len(key) > most {
		return fmt.Sprintf("%q…", key[:most])
	}
	return fmt.Sprintf("%q", key)
}

// walk goes through the tree of one bucket.
type walk struct {
	*pages
	bucket string
	strict bool // every fault is an endless one
	deep   bool
	visit  func(leafElement) string
	each   func() error // after every leaf

	stack []branchPage
	level int     // of the leaves; 0 until one was met
	seen  pageSet // leaves that were visited
}

// branchPage is one on the way from the root to where the walk is.
type branchPage struct {
	id       uint64
	elements []branchElement
	next     int
	high     []byte // first key behind it, nil for none
}

// walk visits the entries of a bucket; visit may be nil. It fails only when
// visit does.
func (p *pages) walk(b storedBucket, visit visitor) error {
	var failed error
	element := func(e leafElement) string {
		if visit != nil && failed == nil && entry(e) {
			failed = visit(e.key, e.value)
		}
		switch {
		case e.flags&elementBucket != 0:
			return "has an entry that is marked as a bucket"
		case e.flags != 0:
			return "has an entry with a flag that means nothing"
		}
		return ""
	}
	w := walk{pages: p, bucket: b.name, deep: p.deep}
	if b.root == 0 {
		w.inline(b, element)
		return failed
	}
	err := w.run(b.root, element, func() error { return failed })
	return err
}

// entry says whether an element of a bucket is an entry: bbolt knows one flag
// only, and what has a good checksum is an entry with that flag, too.
func entry(e leafElement) bool {
	if e.flags&elementBucket == 0 {
		return true
	}
	_, err := unseal(e.key, e.value)
	return err == nil
}

// inline visits a bucket that lies within the list of buckets.
func (w *walk) inline(b storedBucket, visit func(leafElement) string) {
	h := parsePageHead(b.inline)
	w.visit = visit
	whole := newSalvage(bytes.NewReader(b.inline), 0, int64(len(b.inline)))
	if wrong := w.elements(h, b.inline, uint64(len(b.inline)), nil, nil, whole); wrong != "" {
		w.fault(pageFault{page: w.head.root, kind: kindLeaf, bucket: b.name, text: wrong})
	}
}

// run walks down from root, depth first, without recursion.
func (w *walk) run(root uint64, visit func(leafElement) string, each func() error) error {
	w.visit, w.each = visit, each
	if err := w.enter(root, nil, nil, nil, nil); err != nil {
		return err
	}
	for len(w.stack) > 0 {
		top := &w.stack[len(w.stack)-1]
		if top.next == len(top.elements) {
			w.stack = w.stack[:len(w.stack)-1]
			continue
		}
		e, high := top.elements[top.next], top.high
		top.next++
		if top.next < len(top.elements) {
			high = top.elements[top.next].key
		}
		if err := w.enter(e.page, top, top.elements[top.next:], e.key, high); err != nil {
			return err
		}
	}
	return nil
}

// report tells a fault of a page of this bucket.
func (w *walk) report(id uint64, kind, text string, endless bool) {
	w.fault(pageFault{page: id, kind: kind, bucket: w.bucket, text: text, endless: endless || w.strict})
}

// reportFrom tells a fault of the page that leads to another one.
func (w *walk) reportFrom(parent *branchPage, id uint64, text string, endless bool) {
	if parent == nil {
		w.report(id, "", text, endless)
		return
	}
	w.report(parent.id, kindBranch, fmt.Sprintf("leads to page %d, which %s", id, text), endless)
}

// enter looks at one page, in which keys from low up to high are expected:
// a leaf is visited, a branch is put on the stack.
func (w *walk) enter(id uint64, parent *branchPage, following []branchElement, low, high []byte) error {
	for i := range w.stack {
		if w.stack[i].id == id {
			w.reportFrom(parent, id, "leads back to it", true)
			return nil
		}
	}
	if id < 2 || id >= w.inFile() {
		w.reportFrom(parent, id, "does not exist in the file", false)
		return nil
	}
	b, err := w.first(id, following)
	if err != nil {
		w.reportFrom(parent, id, "cannot be read", false)
		return nil
	}
	h := parsePageHead(b)
	if h.id != id {
		w.reportFrom(parent, id, "says that it is another one", false)
		return nil
	}
	switch h.flags {
	case flagBranch:
		return w.branch(id, h, b, parent, low, high)
	case flagLeaf:
		return w.leaf(id, h, b, low, high)
	}
	w.reportFrom(parent, id, "is neither a branch nor a leaf", true)
	return nil
}

// take marks the pages of a run as reached, and cuts a run that is longer than
// the file.
func (w *walk) take(id uint64, h *pageHead) (run uint64) {
	run = h.run()
	switch {
	case run > w.inFile()-id:
		w.report(id, h.kind(), "is longer than the file", false)
		run = w.inFile() - id
	case id+run > w.head.pages:
		w.report(id, h.kind(), "lies behind the last page that is in use", false)
	}
	if w.reached.add(id, run) {
		w.report(id, h.kind(), "belongs to two places", false)
	}
	w.walked.add(id, 1)
	return run
}

func (w *walk) branch(id uint64, h pageHead, b []byte, parent *branchPage, low, high []byte) error {
	if w.walked.has(id) {
		// It leads to no circle, that was seen when it was walked. But many of
		// these are as good as one.
		w.shared++
		w.reportFrom(parent, id, "belongs to another place too", w.shared > maxShared)
		return nil
	}
	if len(w.stack) == maxLevels {
		w.report(id, kindBranch, "lies too deep", true)
		return nil
	}
	run := w.take(id, &h)
	b, err := w.whole(id, b, min(run, maxRun/pageSize), nil)
	if err != nil {
		w.report(id, kindBranch, "cannot be read", false)
		return nil
	}
	elements, wrong, ok := parseBranch(h, b)
	if !ok {
		w.report(id, kindBranch, "has elements that do not fit into it", true)
		return nil
	}
	first, last := elements[0].key, elements[len(elements)-1].key
	switch {
	case wrong != "":
		w.report(id, kindBranch, wrong, false)
	case outside(first, low, nil), outside(last, nil, high):
		w.report(id, kindBranch, "has keys that belong elsewhere", false)
	}
	w.stack = append(w.stack, branchPage{id: id, elements: elements, high: high})
	return nil
}

// outside says whether a key is not between low and high; nil is no limit.
func outside(key, low, high []byte) bool {
	return key != nil && (low != nil && bytes.Compare(key, low) < 0 || high != nil && bytes.Compare(key, high) >= 0)
}

func (w *walk) leaf(id uint64, h pageHead, b []byte, low, high []byte) error {
	run := w.take(id, &h)
	if w.seen.add(id, 1) {
		return nil
	}
	switch level := len(w.stack) + 1; {
	case w.level == 0:
		w.level = level
	case w.level != level:
		w.report(id, kindLeaf, "does not lie as deep as the others", false)
	}
	if h.count == 0 && len(w.stack) > 0 {
		w.report(id, kindLeaf, "is empty", false)
	}
	b, whole := w.runOf(id, h, b, run)
	if b == nil {
		w.report(id, kindLeaf, "cannot be read", false)
		return nil
	}
	if wrong := w.elements(h, b, whole, low, high, w.salvage(id)); wrong != "" {
		w.report(id, kindLeaf, wrong, false)
	}
	if w.each != nil {
		return w.each()
	}
	return nil
}

// runOf reads as much of a leaf as is wanted: its first page, or all of it.
func (w *walk) runOf(id uint64, h pageHead, first []byte, run uint64) (b []byte, whole uint64) {
	whole = run * pageSize
	elements := pageFront + elementSize*uint64(h.count)
	if !w.deep && elements <= pageSize {
		return first, whole
	}
	want := run
	if !w.deep {
		want = min(run, (elements+pageSize-1)/pageSize)
	}
	if want*pageSize > maxRun {
		want, whole = maxRun/pageSize, maxRun
	}
	b, err := w.whole(id, first, want, w.buf)
	if err != nil {
		return nil, whole
	}
	w.buf = b
	return b, whole
}

// elements visits the elements of a leaf that are sound. From the first one that
// is not on, rest visits those that can be saved; not in the list of buckets,
// whose values have no checksum.
func (w *walk) elements(h pageHead, b []byte, whole uint64, low, high []byte, rest *salvage) (wrong string) {
	var last []byte
	disorder, visited := "", 0
	wrong = parseLeaf(h, b, whole, func(i int, e leafElement) string {
		switch {
		case disorder != "" || e.key == nil:
		case last != nil && bytes.Compare(last, e.key) >= 0:
			disorder = fmt.Sprintf("has keys out of order at element %d", i)
		case outside(e.key, low, high):
			disorder = fmt.Sprintf("has element %d, whose key belongs elsewhere", i)
		}
		last = e.key
		visited++
		if wrong := w.visit(e); wrong != "" && disorder == "" {
			disorder = wrong
		}
		return ""
	})
	switch {
	case wrong == "":
		wrong = disorder
	case w.deep && !w.strict:
		w.bytes += rest.run(h, visited, func(e leafElement) { w.visit(e) })
	}
	return wrong
}

// freeList reads the list of free pages, after everything else was walked.
func (p *pages) freeList() {
	id := p.head.freeList
	fault := func(text string) {
		p.badFree = true
		p.fault(pageFault{page: id, kind: kindFreeList, text: text})
	}
	if id < 2 || id >= p.inFile() {
		fault("does not exist in the file")
		return
	}
	b, err := p.first(id, nil)
	if err != nil {
		fault("cannot be read")
		return
	}
	h := parsePageHead(b)
	if h.id != id || h.flags != flagFreeList {
		fault("is no list of free pages")
		return
	}
	if h.run() > p.inFile()-id {
		fault("is longer than the file")
		return
	}
	if p.reached.add(id, h.run()) {
		fault("belongs to two places")
	}
	if b, err = p.whole(id, b, h.run(), nil); err != nil {
		fault("cannot be read")
		return
	}
	if wrong := p.freePages(h, b[pageFront:]); wrong != "" {
		fault(wrong)
	}
}

// freePages reads the numbers of a list of free pages. More than 65,534 have
// their number in front.
func (p *pages) freePages(h pageHead, b []byte) (wrong string) {
	o := binary.NativeEndian
	count := uint64(h.count)
	if count == 0xFFFF {
		if count, b = o.Uint64(b), b[8:]; count < 0xFFFF {
			return "has a wrong number of entries"
		}
	}
	if count > uint64(len(b))/8 {
		return "has more entries than fit into it"
	}
	last := uint64(1)
	for i := range count {
		id := o.Uint64(b[8*i:])
		switch {
		case id <= last:
			return "is not in order"
		case id >= p.head.pages:
			return "has a page behind the last one that is in use"
		case p.reached.has(id) && wrong == "":
			wrong = fmt.Sprintf("has page %d, which is in use", id)
		}
		last = id
		p.free.add(id, 1)
	}
	return wrong
}

// find returns the value of a key by the way on which bbolt would look for it,
// nil when it does not lead to one.
func (p *pages) find(b storedBucket, key []byte) []byte {
	if b.root == 0 {
		return findInLeaf(parsePageHead(b.inline), b.inline, key, newSalvage(bytes.NewReader(b.inline), 0, int64(len(b.inline))))
	}
	id := b.root
	for range maxLevels + 1 {
		if id < 2 || id >= p.inFile() {
			return nil
		}
		page, err := p.first(id, nil)
		if err != nil {
			return nil
		}
		h := parsePageHead(page)
		if h.id != id || h.run() > min(p.inFile()-id, maxRun/pageSize) {
			return nil
		}
		if page, err = p.whole(id, page, h.run(), nil); err != nil {
			return nil
		}
		if h.flags == flagLeaf {
			return findInLeaf(h, page, key, p.salvage(id))
		}
		elements, _, ok := parseBranch(h, page)
		if h.flags != flagBranch || !ok {
			return nil
		}
		id = elements[0].page
		for _, e := range elements[1:] {
			if e.key != nil && bytes.Compare(e.key, key) <= 0 {
				id = e.page
			}
		}
	}
	return nil
}

func findInLeaf(h pageHead, b []byte, key []byte, rest *salvage) (value []byte) {
	visited := 0
	wrong := parseLeaf(h, b, uint64(len(b)), func(_ int, e leafElement) string {
		if visited++; bytes.Equal(e.key, key) {
			value = e.value
		}
		return ""
	})
	if wrong != "" && value == nil {
		rest.run(h, visited, func(e leafElement) {
			if bytes.Equal(e.key, key) {
				value = bytes.Clone(e.value)
			}
		})
	}
	return value
}

// salvage is for the leaf at a page of the file.
func (p *pages) salvage(id uint64) *salvage { return newSalvage(p.r, int64(id)*pageSize, p.size) }

// lost goes through the leaves that nothing leads to and that are not free:
// what lay below a branch page that cannot be read. The entries may be of any
// bucket. It must run when everything else was walked.
func (p *pages) lost(visit visitor) error {
	for id := uint64(2); id < min(p.head.pages, p.inFile()); {
		if p.reached.has(id) || p.free.has(id) {
			id++
			continue
		}
		run, err := p.lostLeaf(id, visit)
		if err != nil {
			return err
		}
		id += run
	}
	return nil
}

func (p *pages) lostLeaf(id uint64, visit visitor) (run uint64, err error) {
	b, err := p.first(id, nil)
	if err != nil {
		return 1, nil
	}
	h := parsePageHead(b)
	if h.id != id || h.flags != flagLeaf {
		return 1, nil
	}
	visited := 0
	element := func(e leafElement) {
		if visited++; err == nil && entry(e) {
			err = visit(e.key, e.value)
		}
	}
	if h.run() > min(p.inFile()-id, maxRun/pageSize) { // the file was cut within it
		p.bytes += p.salvage(id).run(h, 0, element)
		return 1, err
	}
	for i := range h.run() {
		if p.reached.has(id + i) {
			return 1, nil
		}
	}
	if p.buf, err = p.whole(id, b, h.run(), p.buf); err != nil {
		return 1, nil
	}
	wrong := parseLeaf(h, p.buf, uint64(len(p.buf)), func(_ int, e leafElement) string {
		element(e)
		return ""
	})
	if wrong != "" {
		p.bytes += p.salvage(id).run(h, visited, element)
		return 1, err
	}
	return h.run(), err
}
