package store_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// Erasing an event removes its payload and the answers from Redis. Its id, digest and number
// stay.
func TestErase(t *testing.T) {
	t.Parallel()
	s := newSettled(t, redistest.New(t))
	sub := uuid.New()
	s.accept(t, "private", "delivered", "dead", "held", "nobody", "open", "ready", "last")
	s.record(t, "delivered", sub, delivery.StatusDelivered, false, false)
	s.record(t, "dead", sub, delivery.StatusDead, false, false)
	s.write(t, store.Write{Event: s.ref("held"), Matched: true, Held: true})
	s.write(t, store.Write{Event: s.ref("nobody"), Matched: true})
	s.record(t, "open", sub, delivery.StatusRetrying, false, false)
	s.record(t, "last", sub, delivery.StatusDelivered, false, false)
	bytes := func() int64 {
		n, err := s.client.HGet(t.Context(), partition.Key(s.company, "c:"+s.company.String()), "bytes").Int64()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := bytes()
	for _, id := range []string{"delivered", "dead", "held", "nobody", "delivered"} {
		if err := s.deliveries.Erase(t.Context(), s.ref(id)); err != nil {
			t.Errorf("erase %s: %v", id, err)
		}
	}
	for id, want := range map[string]error{"open": store.ErrOpen, "ready": store.ErrOpen, "unknown": events.ErrNotFound} {
		if err := s.deliveries.Erase(t.Context(), s.ref(id)); !errors.Is(err, want) {
			t.Errorf("erase %s: %v, want %v", id, err, want)
		}
	}
	s.wantStates(t, map[string]events.State{
		"delivered": events.Compacted, "dead": events.Compacted, "held": events.Compacted, "nobody": events.Compacted,
		"open": events.Matched, "ready": events.Ready, "last": events.Settled,
	})
	if after := bytes(); after >= before {
		t.Errorf("%d bytes are counted after %d", after, before)
	}
	if r := s.accept(t, "private", "dead")[0]; r.Status != publish.Duplicate {
		t.Errorf("sent again: %+v", r)
	}
	if r := s.accept(t, "other", "dead")[0]; !errors.Is(r.Err, publish.ErrConflict) {
		t.Errorf("sent again with other content: %+v", r)
	}
	for _, id := range []string{"delivered", "dead", "held", "nobody"} {
		for _, key := range s.keys(t, id) {
			if !strings.HasSuffix(key, "e:"+s.company.String()+":"+id) || s.client.TTL(t.Context(), key).Val() <= 0 {
				t.Errorf("%s is left, or has no end", key)
			}
		}
	}
	for _, index := range []string{"ei:" + s.company.String(), "da:" + s.company.String() + "/" + sub.String(), "dd:" + s.company.String() + "/" + sub.String(), "cd:" + s.company.String(), "dead"} {
		for _, member := range s.client.ZRange(t.Context(), partition.Key(s.company, index), 0, -1).Val() {
			if strings.Contains(member, "dead") || strings.Contains(member, "delivered") {
				t.Errorf("%s is left in %s", member, index)
			}
		}
	}
	f, err := s.numbers.After(t.Context(), s.company, 0)
	if err != nil || len(f.Events) != 7 || !f.Events[1].Compacted || f.Events[1].Ref.ID != "dead" || f.Events[6].Compacted {
		t.Errorf("by number: %+v, %v", f, err)
	}
	s.now = s.began.Add(keepDelivered + time.Hour) // compaction passes what was erased
	if n := s.compact(t); n != 1 {
		t.Errorf("%d were compacted, want the last one", n)
	}
}

// Another company's event of the same id is not touched.
func TestEraseOfACompany(t *testing.T) {
	t.Parallel()
	s := newSettled(t, redistest.New(t))
	s.accept(t, "it", "e")
	s.write(t, store.Write{Event: s.ref("e"), Matched: true})
	if err := s.deliveries.Erase(t.Context(), events.Ref{Company: uuid.New(), ID: "e"}); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("another company's: %v", err)
	}
	s.wantStates(t, map[string]events.State{"e": events.Settled})
}

// EraseAll keeps open events. It erases unreadable events only with unreadable set; their ids stay
// known.
func TestEraseAll(t *testing.T) {
	t.Parallel()
	s := newSettled(t, redistest.New(t))
	s.accept(t, "it", "settled", "before", "ready", "damaged")
	for _, id := range []string{"settled", "before"} {
		s.write(t, store.Write{Event: s.ref(id), Matched: true})
	}
	if err := s.deliveries.Erase(t.Context(), s.ref("before")); err != nil {
		t.Fatal(err)
	}
	if err := s.client.Set(t.Context(), layout.EventKey(s.ref("damaged")), "?", 0).Err(); err != nil {
		t.Fatal(err)
	}
	all := []events.Ref{s.ref("settled"), s.ref("before"), s.ref("ready"), s.ref("damaged"), s.ref("unknown")}
	if erased, open, err := s.deliveries.EraseAll(t.Context(), all, false); erased != 1 || open != 2 || err != nil {
		t.Errorf("%d erased, %d open, %v", erased, open, err)
	}
	if erased, open, err := s.deliveries.EraseAll(t.Context(), all, true); erased != 1 || open != 1 || err != nil {
		t.Errorf("then %d erased, %d open, %v", erased, open, err)
	}
	s.wantStates(t, map[string]events.State{"damaged": events.Compacted})
}
