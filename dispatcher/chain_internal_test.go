package dispatcher

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/uuid"

	"spendhook/subscribers"
)

// What chains says is true, or it says nothing: after a gap, a number out of order, a change of the subscriber, or for the
// first event.
func TestChainsSayWhatWasMatchedBefore(t *testing.T) {
	t.Parallel()
	company, other := uuid.New(), uuid.New()
	a, b := &subscribers.Subscriber{UUID: uuid.New(), Revision: "1"}, &subscribers.Subscriber{UUID: uuid.New(), Revision: "1"}
	changed := &subscribers.Subscriber{UUID: a.UUID, Revision: "2"}
	c := newChains()
	for i, s := range []struct {
		company  uuid.UUID
		number   int64
		matching []*subscribers.Subscriber
		want     []int64
	}{
		{company, 7, []*subscribers.Subscriber{a, b}, []int64{0, 0}},
		{company, 8, []*subscribers.Subscriber{b}, []int64{7}},
		{other, 9, nil, []int64{}},
		{company, 9, nil, []int64{}},
		{company, 10, []*subscribers.Subscriber{a, b}, []int64{7, 8}},
		{company, 12, []*subscribers.Subscriber{a}, []int64{0}}, // 11 was not matched
		{company, 13, []*subscribers.Subscriber{a, b}, []int64{12, 0}},
		{company, 13, []*subscribers.Subscriber{a, b}, []int64{0, 0}}, // the number was assigned again
		{company, 14, []*subscribers.Subscriber{changed, b}, []int64{0, 13}},
		{company, 11, []*subscribers.Subscriber{b}, []int64{0}}, // it was requeued
		{company, 15, []*subscribers.Subscriber{b}, []int64{0}},
		{company, 16, []*subscribers.Subscriber{changed, b}, []int64{0, 15}},
	} {
		if got := c.next(s.company, s.number, s.matching); !slices.Equal(got, s.want) {
			t.Errorf("step %d, event %d: %v, want %v", i, s.number, got, s.want)
		}
	}
}

// In any order of events, an event that is named as previous is the latest one that the subscriber matched, and all events
// between were matched after it.
func TestChainsNeverSkipAnEvent(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	company := uuid.New()
	subs := []*subscribers.Subscriber{{UUID: uuid.New()}, {UUID: uuid.New()}}
	c, number, said := newChains(), int64(0), 0
	var matched []int64
	by := map[string]bool{}
	for range 20_000 {
		if number++; random.IntN(10) == 0 {
			number = max(1, number-3+random.Int64N(6))
		}
		var matching []*subscribers.Subscriber
		for i, sub := range subs {
			key := fmt.Sprint(i, "/", number)
			if by[key] = random.IntN(3) > 0; by[key] {
				matching = append(matching, sub)
			}
		}
		for i, previous := range c.next(company, number, matching) {
			if previous == 0 {
				continue
			}
			said++
			which := slices.Index(subs, matching[i])
			for back, n := 1, number-1; n >= previous; back, n = back+1, n-1 {
				if at := len(matched) - back; at < 0 || matched[at] != n || by[fmt.Sprint(which, "/", n)] != (n == previous) {
					t.Fatalf("%d is said to be before %d", previous, number)
				}
			}
		}
		matched = append(matched, number)
	}
	if said < 5000 {
		t.Errorf("only %d times the event before is known", said)
	}
}
