package archive_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

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
func search(t *testing.T, s *archive.Store, sp history.Span, after history.Place, n int) (found []history.Place) {
	t.Helper()
	if sp.High == 0 {
		sp.High = noon + 100*day
	}
	for {
		page, next, err := s.Search(t.Context(), sp, after, n)
		if err != nil || len(page) > n {
			t.Fatalf("%+v: %v, %v", sp, page, err)
		}
		found = append(found, page...)
		if after = next; next.ID == "" {
			return found
		}
	}
}

func TestSearch(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *archive.Store, _ *storage.DB) {
		t.Helper()
		if got := search(t, s, history.Span{Company: acme, Search: "x"}, history.Place{}, 10); len(got) != 0 {
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
			search, want string
			low, high    int64
			after        history.Place
		}{
			{want: "second third evt_1-A damaged"},
			{search: strings.ToLower(card), want: "third evt_1-A"},
			{search: "E-17 " + card, want: "third evt_1-A"},
			{search: "metadata.cardUuid=" + card, want: "third evt_1-A"},
			{search: "metadata.cardUuid=" + strings.ToLower(card), want: ""},
			{search: "evt_1-A", want: "evt_1-A"},
			{search: "card 12", want: "evt_1-A"},
			{search: "metadata.amount=12.50", want: "evt_1-A"},
			{search: "metadata.amount=12.5", want: ""},
			{search: "metadata.ok=true", want: "evt_1-A"},
			{search: "metadata.none=null", want: ""},
			{search: "timestamp=2026-07-01T00:00:00Z", want: "second third evt_1-A"},
			{search: "timestamp", want: ""},
			{search: "metadata=1", want: ""},
			{search: "metadata.a=1", want: ""},
			{search: "cardUuid=" + card, want: ""},
			{search: "event=CARD_CREATED", want: "evt_1-A"},
			{search: "id=evt_1-A", want: "evt_1-A"},
			{search: "CAFE", want: "second third"},
			{search: "café paid", want: "second third"},
			{search: "lodz orbita", want: "second"},
			{search: "caf", want: ""},
			{search: "paid card", want: ""},
			{search: "fourth", want: ""},
			{search: "metadata.items.sku=B 2", want: "second"},
			{search: "metadata.items.sku=A1", want: "second"},
			{search: "metadata.a.b=1", want: "second"},
			{search: "paid", low: noon + day + 1, want: ""},
			{search: "paid", low: noon + day, want: "second third"},
			{search: "E-17", high: noon, want: "evt_1-A"},
			{search: "E-17", high: noon - 1, want: ""},
			{search: "cafe", after: second, want: "third"},
		} {
			sp := history.Span{Company: acme, Search: tc.search, Low: tc.low, High: tc.high}
			for _, n := range []int{1, 2, 10} {
				if got := names(search(t, s, sp, tc.after, n)); got != tc.want {
					t.Errorf("%+v, %d: %q, want %q", sp, n, got, tc.want)
				}
			}
		}
		erase(t, s, only(acme, "second"))
		if got := names(search(t, s, history.Span{Company: acme, Search: "cafe"}, history.Place{}, 10)); got != "third" {
			t.Errorf("after erasing: %s", got)
		}
		again := described(acme, "third", float64(noon+day), "PAYMENT_PAID", `{"merchant":{"name":"bistro"}}`)
		write(t, s, again)
		if got := names(search(t, s, history.Span{Company: acme, Search: "cafe"}, history.Place{}, 10)) + names(search(t, s, history.Span{Company: acme, Search: "bistro"}, history.Place{}, 10)); got != "third" {
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
			asked := sp
			asked.Company, asked.Search = acme, colour
			want := expected(model[colour], sp, history.Place{}, 1000)
			if got := search(t, s, asked, history.Place{}, 1+draw.IntN(40)); !slices.Equal(got, want) {
				t.Fatalf("%+v:\n got %v\nwant %v", asked, got, want)
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
	sp := history.Span{Company: acme, Search: "paid", High: noon + 9*day}
	var after history.Place
	hold(t, db, func() {
		found, next, err := s.Search(t.Context(), sp, after, 10)
		if err != nil || names(found) != "new" || next.ID == "" {
			t.Errorf("%v, %+v, %v", found, next, err)
		}
		after = next
		if _, _, err := s.Search(t.Context(), sp, after, 10); !errors.Is(err, events.ErrUnavailable) {
			t.Errorf("without a result: %v", err)
		}
	}, "LOCK TABLE history_events_20260701 IN ACCESS EXCLUSIVE MODE")
	if got := names(search(t, s, sp, after, 10)); got != "old edge" {
		t.Errorf("then %q", got)
	}
}

// An event with long names and many values takes little memory when it is written.
func TestLongNamesTakeNoMemory(t *testing.T) { //nolint:paralleltest // it measures what the whole process allocates
	name := strings.Repeat("n", 100_000)
	var members strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&members, `,"m%d":%d`, i, i)
	}
	a := described(acme, "long", float64(noon), "X", `{"`+name+`":{"a":"end"`+members.String()+`}}`)
	s := archive.New(storagetest.Open(t, storage.Options{DataDir: t.TempDir(), History: true}))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	write(t, s, a)
	runtime.ReadMemStats(&after)
	if made := (after.TotalAlloc - before.TotalAlloc) >> 20; made > 100 {
		t.Errorf("%d MiB were allocated", made)
	}
	if got := names(search(t, s, history.Span{Company: acme, Search: "metadata." + name + ".a=end"}, history.Place{}, 10)); got != "long" {
		t.Errorf("found %q", got)
	}
}

// A search leaves time to read what it has found.
func TestASearchLeavesTime(t *testing.T) {
	t.Parallel()
	for left, most := range map[time.Duration]time.Duration{
		1500 * time.Millisecond: time.Second, 3 * time.Second: 2 * time.Second, time.Minute: 2 * time.Second,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), left)
		if got := archive.SearchTime(ctx); got > most {
			t.Errorf("of %v a search takes %v", left, got)
		}
		cancel()
	}
	if got := archive.SearchTime(t.Context()); got != 2*time.Second {
		t.Errorf("it takes %v", got)
	}
}
