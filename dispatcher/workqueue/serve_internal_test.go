package workqueue

import (
	"testing"
	"time"
)

// The budget of a round shrinks while rounds take long, and grows again after that.
func TestBudgetFollowsTheTimeOfRounds(t *testing.T) {
	t.Parallel()
	s := &shard{budget: claimLong}
	s.adjust(roundTime + 1)
	if s.budget != claimLong*3/4 {
		t.Errorf("after a long round the budget is %d", s.budget)
	}
	s.adjust(roundTime)
	if s.budget != claimLong*3/4 {
		t.Errorf("after a round of the right length the budget is %d", s.budget)
	}
	for range 100 {
		s.adjust(time.Second)
	}
	if s.budget != roundLeast {
		t.Errorf("after many long rounds the budget is %d", s.budget)
	}
	for range 100 {
		s.adjust(time.Millisecond)
	}
	if s.budget != claimLong {
		t.Errorf("after many short rounds the budget is %d", s.budget)
	}
}

// A call claims less of each partition the more partitions it serves, but not too little, and
// not more than the company's share.
func TestClaimSize(t *testing.T) {
	t.Parallel()
	of := func(n int) []int { return make([]int, n) }
	for _, c := range []struct {
		name                      string
		partitions, share, budget int
		want                      int
	}{
		{"one partition", 1, 1000, roundLeast, claimLong},
		{"two partitions", 2, 1000, claimLong, claimShort},
		{"many partitions", 20, 1000, claimLong, 20},
		{"a small budget", 20, 1000, roundLeast, claimLeast},
		{"a small share", 20, 30, claimLong, 3},
		{"no share", 20, 1, claimLong, 1},
	} {
		q := &Queue{}
		if got := q.claimSize(of(c.partitions), c.share, c.budget); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
