package history_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/layout"
)

// finder is an archive whose searches examine some of these places, and find the ones with an id of an event.
type finder struct {
	history.Archive

	places []history.Place
	most   int
	before func(history.Span) // runs before each search
}

func (f *finder) Search(_ context.Context, sp history.Span, after history.Place, n int) (found []history.Place, next history.Place, err error) {
	f.before(sp)
	rest := pageOf(f.places, sp, after, len(f.places))
	for _, next = range rest[:min(f.most, len(rest))] {
		if next.ID != "other" {
			found = append(found, next)
		}
		if len(found) == n {
			return found, next, nil
		}
	}
	if f.most >= len(rest) {
		next = history.Place{}
	}
	return found, next, nil
}

func (*finder) Get(_ context.Context, refs []events.Ref) ([]*history.Archived, error) {
	return make([]*history.Archived, len(refs)), nil
}

// Pages of a search have the events that the archive finds and the other filters select, each once.
func TestSearchPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	batch := batchOf(company, "e", 12)
	var wanted []string
	for i := range batch {
		if i%3 == 0 {
			batch[i].Type = "CARD_CREATED"
			wanted = append(wanted, batch[i].ID)
		}
	}
	slices.Reverse(wanted)
	b.Accept(t, batch...)
	places, err := history.ReadIndex(t.Context(), b.Redis, nil, history.Span{Index: layout.IndexKey(company), High: 1 << 50}, history.Place{}, 100)
	if err != nil || len(places) != len(batch) {
		t.Fatalf("%v, %v", places, err)
	}
	searches := 0
	f := &finder{places: append(places, history.Place{MS: places[0].MS, ID: "forgotten"}, history.Place{MS: places[0].MS, ID: "other"}), before: func(sp history.Span) {
		searches++
		if sp.Company != company || sp.Search != "lisbon" {
			t.Errorf("%+v is searched", sp)
		}
	}}
	now := func() time.Time { return time.UnixMilli(b.Clock.Load()) }
	r := history.New(history.Options{Client: b.Redis, Retention: retention, Archive: f, Now: now})
	for _, f.most = range []int{1, 5, 100} {
		for _, size := range []int{1, 3, 20} {
			filter := history.Filter{Company: &company, Search: "lisbon", Types: []string{"CARD_*"}, Size: size}
			var got []string
			for before := searches; ; {
				page, err := r.List(t.Context(), filter)
				if err != nil || len(page.Items) > size || searches-before > 20 {
					t.Fatalf("%d searches: %+v, %v", searches-before, page, err)
				}
				for _, e := range page.Items {
					got = append(got, e.ID)
				}
				if filter.Cursor = page.Next; filter.Cursor == "" {
					break
				}
			}
			want(t, "the events found", got, wanted...)
		}
	}
	if _, err := b.Reader.List(t.Context(), history.Filter{Company: &company, Search: "lisbon"}); !errors.Is(err, events.ErrNoHistory) {
		t.Errorf("without an archive: %v", err)
	}
}

// One search of a company is under way, and four in all.
func TestSearchesAtATime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	begun, end := make(chan bool, 10), make(chan bool)
	r := history.New(history.Options{Client: b.Redis, Retention: retention, Archive: &finder{most: 1, before: func(history.Span) {
		begun <- true
		<-end
	}}})
	search := func(company uuid.UUID) error {
		_, err := r.List(t.Context(), history.Filter{Company: &company, Search: "lisbon"})
		return err
	}
	var running sync.WaitGroup
	for i := range byte(4) {
		running.Go(func() {
			if err := search(uuid.UUID{i}); err != nil {
				t.Error(err)
			}
		})
		<-begun
		if err := search(uuid.UUID{i}); !errors.Is(err, events.ErrSearching) {
			t.Errorf("a second search of a company: %v", err)
		}
	}
	if err := search(uuid.UUID{9}); !errors.Is(err, events.ErrSearching) {
		t.Errorf("a fifth search: %v", err)
	}
	close(end)
	running.Wait()
	if err := search(uuid.UUID{9}); err != nil {
		t.Errorf("after them: %v", err)
	}
}
