package audit

// opens are the intents of a stream that have no outcome yet.
type opens struct {
	at    map[string]uint64 // call → n of its intent
	order []intent          // in the order of n; entries that at does not confirm are over
}

type intent struct {
	call string
	n    uint64
}

// move is what a record does to its call.
type move byte

const (
	passes move = iota
	begins
	ends
)

// moveOf is the move of a record, which tells what came of its call or does not.
// What a person does to an image has two records of one event, before and after.
func moveOf(ev Event, told bool) move {
	switch ev {
	case EvCallIntent:
		return begins
	case EvCallOutcome, EvCallRefused, EvRecover:
		return ends
	case EvImagePut, EvImageRm, EvImageRestore, EvImageUndo:
		if told {
			return ends
		}
		return begins
	}
	return passes
}

func (v *view) move() move { return moveOf(Event(v.bare(colEv)), len(v[colOut]) > 0) }

func (o *opens) see(m move, call string, n uint64) {
	switch m {
	case begins:
		if o.at == nil {
			o.at = map[string]uint64{}
		}
		o.at[call] = n
		o.order = append(o.order, intent{call, n})
	case ends:
		delete(o.at, call)
	}
	if len(o.order) > 2*len(o.at)+64 {
		o.compact()
	}
}

// settled is the n below and at which no intent is open, given the newest n.
func (o *opens) settled(n uint64) uint64 {
	for len(o.order) > 0 && !o.isOpen(o.order[0]) {
		o.order = o.order[1:]
	}
	if len(o.order) == 0 {
		return n
	}
	return o.order[0].n - 1
}

func (o *opens) isOpen(i intent) bool {
	n, ok := o.at[i.call]
	return ok && n == i.n
}

func (o *opens) compact() {
	var kept []intent
	for _, i := range o.order {
		if o.isOpen(i) {
			kept = append(kept, i)
		}
	}
	o.order = kept
}
