package main

import (
	"testing"

	"spendhook/events/eventtype"
)

// TestRareSubscriptions: each event of rare matches one subscriber, and one event in 10,000 matches the
// rare one, whose endpoint gets nothing else.
func TestRareSubscriptions(t *testing.T) {
	t.Parallel()
	list := rareSubscriptions([]string{"a", "b", "c"})
	if len(list) != rareSubscribers {
		t.Fatalf("%d subscribers", len(list))
	}
	matched := make([]int, len(list))
	for n := range int64(rareTypes) {
		kind, matches := loadSpec{Types: rareTypes}.eventType(n), 0
		for i, s := range list {
			if eventtype.Matches(s.event, kind) {
				matched[i]++
				matches++
			}
		}
		if matches != 1 {
			t.Fatalf("%s matches %d subscribers", kind, matches)
		}
	}
	urls := map[string]bool{}
	for i, s := range list {
		if urls[s.url] {
			t.Errorf("two subscribers have %s", s.url)
		}
		urls[s.url] = true
		if (s.url[0] == 'a') != (i == 0) {
			t.Errorf("subscriber %d has %s", i, s.url)
		}
		if matched[i] == 0 || i == 0 && matched[i] != 1 {
			t.Errorf("%s matches %d types", s.event, matched[i])
		}
	}
}
