package archive_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/storage"
	"spendhook/storage/archive"
	"spendhook/storage/storagetest"
)

// described is an event with metadata.
func described(company uuid.UUID, id string, place float64, typ, metadata string) history.Archived {
	a := event(company, id, place)
	a.Value = a.Value[:32] + fmt.Sprintf(`"event":"%s","timestamp":"2026-07-01T00:00:00Z","metadata":%s,"errorCode":"E-17"}`, typ, metadata)
	return a
}

// search reads all pages of a query.
func search(t *testing.T, s *archive.Store, q archive.Query, n int) (found []history.Place) {
	t.Helper()
	if q.High == 0 {
		q.High = noon + 100*day
	}
	for {
		page, next, err := s.Search(t.Context(), q, n)
		if err != nil || len(page) > n {
			t.Fatalf("%+v: %v, %v", q, page, err)
		}
		found = append(found, page...)
		if q.After = next; next.ID == "" {
			return found
		}
	}
}

func TestSearch(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *archive.Store, _ *storage.DB) {
		t.Helper()
		if got := search(t, s, archive.Query{Company: acme, Text: "x"}, 10); len(got) != 0 {
			t.Errorf("found %v in an empty history", got)
		}
		card := "7c1e1f3a-0000-4000-8000-00000000000A"
		first := described(acme, "evt_1-A", float64(noon), "CARD_CREATED", `{"cardUuid":"`+card+`","amount":12.50,"ok":true,"none":null}`)
		first.Value += strings.Repeat("\x01", 25) + "T" // a trace
		damaged := event(acme, "damaged", float64(noon))
		damaged.Value = damaged.Value[:60]
		write(t, s, first, damaged,
			described(acme, "second", float64(noon+day)+0.5, "PAYMENT_PAID", `{"merchant":{"name":"Café Órbita, Łódź"},"items":[{"sku":"A1"},{"sku":"B 2"}],"a.b":1}`),
			described(acme, "third", float64(noon+day), "PAYMENT_PAID", `{"cardUuid":"`+card+`","merchant":{"name":"cafe"}}`),
			described(bolt, "fourth", float64(noon), "PAYMENT_PAID", `{"cardUuid":"`+card+`"}`))
		second := history.Place{MS: float64(noon+day) + 0.5, ID: "second"}
		for _, tc := range []struct {
			archive.Query

			want string
		}{
			{archive.Query{}, "second third evt_1-A damaged"},
			{archive.Query{Text: strings.ToLower(card)}, "third evt_1-A"},
			{archive.Query{Text: "E-17 " + card}, "third evt_1-A"},
			{archive.Query{Field: "metadata.cardUuid", Value: card}, "third evt_1-A"},
			{archive.Query{Field: "metadata.cardUuid", Value: strings.ToLower(card)}, ""},
			{archive.Query{Text: "evt_1-A"}, "evt_1-A"},
			{archive.Query{Text: "card 12"}, "evt_1-A"},
			{archive.Query{Field: "metadata.amount", Value: "12.50"}, "evt_1-A"},
			{archive.Query{Field: "metadata.amount", Value: "12.5"}, ""},
			{archive.Query{Field: "metadata.ok", Value: "true"}, "evt_1-A"},
			{archive.Query{Field: "metadata.none", Value: "null"}, ""},
			{archive.Query{Field: "event", Value: "CARD_CREATED"}, "evt_1-A"},
			{archive.Query{Field: "id", Value: "evt_1-A"}, "evt_1-A"},
			{archive.Query{Text: "CAFE"}, "second third"},
			{archive.Query{Text: "café paid"}, "second third"},
			{archive.Query{Text: "lodz orbita"}, "second"},
			{archive.Query{Text: "caf"}, ""},
			{archive.Query{Text: "paid card"}, ""},
			{archive.Query{Text: "fourth"}, ""},
			{archive.Query{Field: "metadata.items.sku", Value: "B 2"}, "second"},
			{archive.Query{Field: "metadata.items.sku", Value: "A1", Text: "paid"}, "second"},
			{archive.Query{Field: "metadata.a.b", Value: "1"}, "second"},
			{archive.Query{Text: "paid", Low: noon + day + 1}, ""},
			{archive.Query{Text: "paid", Low: noon + day}, "second third"},
			{archive.Query{Text: "E-17", High: noon}, "evt_1-A"},
			{archive.Query{Text: "E-17", High: noon - 1}, ""},
			{archive.Query{Text: "cafe", After: second}, "third"},
		} {
			tc.Company = acme
			for _, n := range []int{1, 2, 10} {
				if got := names(search(t, s, tc.Query, n)); got != tc.want {
					t.Errorf("%+v, %d: %q, want %q", tc.Query, n, got, tc.want)
				}
			}
		}
		erase(t, s, only(acme, "second"))
		if got := names(search(t, s, archive.Query{Company: acme, Text: "cafe"}, 10)); got != "third" {
			t.Errorf("after erasing: %s", got)
		}
		again := described(acme, "third", float64(noon+day), "PAYMENT_PAID", `{"merchant":{"name":"bistro"}}`)
		write(t, s, again)
		if got := names(search(t, s, archive.Query{Company: acme, Text: "cafe"}, 10)) + names(search(t, s, archive.Query{Company: acme, Text: "bistro"}, 10)); got != "third" {
			t.Errorf("after writing again: %s", got)
		}
	})
}

// Pages of searches, with many events in one day and in one millisecond, are those of a model.
func TestSearchEqualsModel(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *archive.Store, _ *storage.DB) {
		t.Helper()
		draw := rand.New(rand.NewPCG(5, 6))
		colours := []string{"red", "green", "blue"}
		model := map[string][]history.Place{}
		var list []history.Archived
		for i := range 300 {
			place := float64(noon+int64(draw.IntN(5))*day+int64(draw.IntN(3))) + float64(draw.IntN(3))/1024
			colour := colours[draw.IntN(3)]
			a := described(acme, fmt.Sprint("e", i), place, "X", `{"colour":"`+colour+`"}`)
			list = append(list, a)
			model[colour] = append(model[colour], history.Place{MS: place, ID: a.Ref.ID})
		}
		write(t, s, list...)
		for range 100 {
			colour := colours[draw.IntN(3)]
			sp := history.Span{Low: noon, High: noon + 100*day}
			if draw.IntN(2) == 0 {
				sp.Low, sp.High = noon+int64(draw.IntN(3))*day+1, noon+int64(2+draw.IntN(3))*day+1
			}
			slices.SortFunc(model[colour], byPlace)
			q := archive.Query{Company: acme, Text: colour, Low: sp.Low, High: sp.High}
			want := expected(model[colour], sp, history.Place{}, 1000)
			if got := search(t, s, q, 1+draw.IntN(40)); !slices.Equal(got, want) {
				t.Fatalf("%+v:\n got %v\nwant %v", q, got, want)
			}
		}
	})
}

// A search that takes too long returns what it has found, and goes on from there.
func TestALongSearchHasANextPage(t *testing.T) {
	t.Parallel()
	db := storagetest.Open(t, storage.Options{URL: storagetest.Postgres(t), History: true})
	s := archive.New(db)
	write(t, s, event(acme, "old", float64(noon)), event(acme, "new", float64(noon+day)), event(acme, "edge", float64(noon-day/2)))
	q := archive.Query{Company: acme, Text: "paid", High: noon + 9*day}
	hold(t, db, func() {
		found, next, err := s.Search(t.Context(), q, 10)
		if err != nil || names(found) != "new" || next.ID == "" {
			t.Errorf("%v, %+v, %v", found, next, err)
		}
		q.After = next
		if _, _, err := s.Search(t.Context(), q, 10); !errors.Is(err, events.ErrUnavailable) {
			t.Errorf("without a result: %v", err)
		}
	}, "LOCK TABLE history_events_20260701 IN ACCESS EXCLUSIVE MODE")
	if got := names(search(t, s, q, 10)); got != "old edge" {
		t.Errorf("then %q", got)
	}
}
