package policy

import "fmt"

// Tier is who may say yes. The zero value is none of them.
type Tier string

// The tiers.
const (
	Auto   Tier = "auto"   // the catalog has said it
	Ask    Tier = "ask"    // a person
	Reject Tier = "reject" // nobody
)

// UnmarshalText reads a tier that was stored. Errors: ErrInvalid.
func (t *Tier) UnmarshalText(b []byte) error {
	switch read := Tier(b); read {
	case Auto, Ask, Reject:
		*t = read
		return nil
	}
	return fmt.Errorf("%w: %s is no tier", ErrInvalid, quote(string(b), 40))
}

// rank orders tiers; what is none counts as the worst.
func (t Tier) rank() int {
	switch t {
	case Auto:
		return 0
	case Ask:
		return 1
	default:
		return 2
	}
}
