package archive_test

import (
	"cmp"
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
)

// Any byte of a value and of a record is stored as it is.
func TestBytesAreKept(t *testing.T) {
	t.Parallel()
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	onBoth(t, func(t *testing.T, s *archive.Store, _ *storage.DB) {
		t.Helper()
		a := delivered(acme, "Az0_-", float64(noon)+3/1024.0, one, two)
		a.Value += string(all) + `'?\x00''$1 ??T`
		a.Deliveries[0].Record += string(all)
		a.Deliveries[1] = delivery(a, two, 3, float64(noon)+5000)
		write(t, s, a, event(acme, "az0_-", float64(noon)))
		got, err := s.Get(t.Context(), []events.Ref{{Company: bolt, ID: "Az0_-"}, a.Ref, {Company: acme, ID: "none"}, a.Ref})
		if err != nil || len(got) != 4 || got[0] != nil || got[2] != nil {
			t.Fatalf("%v, %v", got, err)
		}
		wantEqual(t, got[1], a)
		wantEqual(t, got[3], a)
		wantEqual(t, get(t, s, acme, "az0_-"), event(acme, "az0_-", float64(noon)))
	})
}

// random fills the store with events of two companies, and returns the entries of all indexes.
func random(t *testing.T, s *archive.Store) map[string][]history.Place {
	t.Helper()
	draw := rand.New(rand.NewPCG(1, 2))
	model := map[string][]history.Place{}
	add := func(company uuid.UUID, sub *uuid.UUID, deaths bool, score float64, id string) {
		name := indexName(history.Span{Company: company, Subscriber: sub, Deaths: deaths})
		model[name] = append(model[name], history.Place{MS: score, ID: id})
	}
	used := map[string]bool{}
	var list []history.Archived
	for range 400 {
		company := []uuid.UUID{acme, acme, acme, bolt}[draw.IntN(4)]
		id := string([]byte{"aB-_z0"[draw.IntN(6)], "Ab-_Z9"[draw.IntN(6)], "aA-_zZ09"[draw.IntN(8)]})[:1+draw.IntN(3)]
		if used[company.String()+id] {
			continue
		}
		used[company.String()+id] = true
		place := float64(noon+int64(draw.IntN(3))*day+int64(draw.IntN(4))) + float64(draw.IntN(4))/1024
		a := event(company, id, place)
		add(company, nil, false, place, id)
		for _, sub := range []uuid.UUID{one, two, three} {
			if draw.IntN(4) == 0 {
				continue
			}
			died := 0.0
			if draw.IntN(2) == 0 {
				died = float64(noon+int64(draw.IntN(4))*day+int64(draw.IntN(4))) + float64(draw.IntN(2))/2
				add(company, &sub, true, died, id)
				add(company, nil, true, died, id+"/"+sub.String())
			}
			a.Deliveries = append(a.Deliveries, delivery(a, sub, 2, died))
			add(company, &sub, false, float64(int64(place)), id)
		}
		list = append(list, a)
	}
	for part := range slices.Chunk(list, 100) {
		write(t, s, part...)
	}
	for _, places := range model {
		slices.SortFunc(places, byPlace)
	}
	return model
}

func indexName(sp history.Span) string {
	sub := ""
	if sp.Subscriber != nil {
		sub = sp.Subscriber.String()
	}
	return fmt.Sprint(sp.Company, sub, sp.Deaths)
}

func byPlace(a, b history.Place) int {
	return cmp.Or(cmp.Compare(a.MS, b.MS), strings.Compare(a.ID, b.ID))
}

// expected is the answer of Index according to the model.
func expected(all []history.Place, sp history.Span, after history.Place, n int) []history.Place {
	all = slices.Clone(all)
	sign := 1
	if !sp.Ascending {
		slices.Reverse(all)
		sign = -1
	}
	var out []history.Place
	for _, p := range all {
		c := sign * byPlace(p, after)
		if p.MS >= float64(sp.Low) && int64(p.MS) <= sp.High && (after.ID == "" || c > 0 || c == 0 && after.Inclusive) && len(out) < n {
			out = append(out, p)
		}
	}
	return out
}

func TestIndexEqualsModel(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *archive.Store, _ *storage.DB) {
		t.Helper()
		model := random(t, s)
		draw := rand.New(rand.NewPCG(3, 4))
		for range 300 {
			sp := history.Span{Company: acme, Low: 0, High: noon + 100*day, Ascending: draw.IntN(2) == 0, Deaths: draw.IntN(2) == 0}
			if draw.IntN(2) == 0 {
				sp.Subscriber = &[]uuid.UUID{one, two, three}[draw.IntN(3)]
			}
			if draw.IntN(2) == 0 {
				sp.Low = noon + int64(draw.IntN(3))*day + int64(draw.IntN(4))
				sp.High = sp.Low + int64(draw.IntN(2))*day + int64(draw.IntN(4))
			}
			all := model[indexName(sp)]
			var after history.Place
			if draw.IntN(2) == 0 {
				after = all[draw.IntN(len(all))]
				after.Inclusive = draw.IntN(2) == 0
				if draw.IntN(4) == 0 { // between two entries
					after.MS += 1.0 / 2048
				}
			}
			for n := 1 + draw.IntN(40); ; {
				got, err := s.Index(t.Context(), sp, after, n)
				want := expected(all, sp, after, n)
				if err != nil || !slices.Equal(got, want) {
					t.Fatalf("%+v after %+v, %d:\n got %v, %v\nwant %v", sp, after, n, got, err, want)
				}
				if len(got) < n {
					break
				}
				after = got[n-1]
			}
		}
	})
}
