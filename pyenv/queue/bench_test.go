package queue

import "testing"

// BenchmarkBindKnown is what the queue adds to a request whose solution and layer are
// there: submitted, approved by itself and bound. Two synced commits.
func BenchmarkBindKnown(b *testing.B) {
	f := newFixture(b)
	n := 0
	for b.Loop() {
		r := f.submit(wsA, specN(n))
		_, err := f.Finish(b.Context(), r.ID, Received, n, Binding{Layers: []string{layer1}}, solved)
		if err != nil {
			b.Fatal(err)
		}
		n++
	}
}

// solved sets what is known of a solution that was approved by itself.
func solved(r *Request) error {
	r.Lock, r.Layer = lock1, layer1
	r.Decision = &Decision{Approve: true, By: "catalog rev 3", Lock: lock1}
	return nil
}

// BenchmarkLook is what a status asks of the queue.
func BenchmarkLook(b *testing.B) {
	f := newFixture(b)
	for n := range MaxOpen {
		f.submit(wsA, specN(n))
	}
	for b.Loop() {
		list, err := f.List(Filter{Workspace: wsA, Last: MaxOpen})
		if _, berr := f.Binding(wsA); err != nil || berr != nil || len(list) != MaxOpen {
			b.Fatal(err, berr)
		}
	}
}
