package delivery

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"spendhook/internal/partition"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/internal/redistest"
)

// write stores deliveries as a dispatch would have, all of the same moment: the
// hard case for paging.
func (h *house) write(sub uuid.UUID, ids []string, at time.Time, as func(*record)) {
	h.t.Helper()
	for chunk := range slices.Chunk(ids, 500) {
		var writes []write
		for _, id := range chunk {
			r := ref{Ref: events.Ref{Company: h.company, ID: id}, Subscriber: sub}
			next := &record{Status: StatusPending, EventType: "PAYMENT_PAID", Created: at.UnixMilli()}
			as(next)
			writes = append(writes, writeOf(r, &record{}, next))
		}
		if _, err := h.Store.record(h.t.Context(), at, writes, h.Replica, nil); err != nil {
			h.t.Fatal(err)
		}
	}
}

func dead(r *record) { r.Status, r.Reason = StatusDead, ReasonExhausted }

// all reads every page and returns the delivery ids, failing on a repeat.
func (h *house) all(f DeliveryFilter) []string {
	h.t.Helper()
	var ids []string
	seen := map[string]bool{}
	for {
		page, err := h.Deliveries(h.t.Context(), f)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, d := range page.Items {
			if seen[d.ID()] {
				h.t.Fatalf("%s came twice", d.ID())
			}
			seen[d.ID()] = true
			ids = append(ids, d.ID())
		}
		if f.Cursor = page.Next; f.Cursor == "" {
			return ids
		}
	}
}

func names(prefix string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s-%05d", prefix, i)
	}
	return ids
}

func TestTenThousandAndOneDeadLettersAreListedAndReplayed(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	const n = 10_001
	var ids []string
	for range n / 73 {
		ids = append(ids, h.emit(73)...)
	}
	deleteQueue(t, h.client) // they were dispatched long ago
	deleteOpen(t, h)
	h.write(sub.UUID, ids, time.Now(), dead)

	for name, f := range map[string]DeliveryFilter{
		"subscriber": {Company: &h.company, Subscriber: &sub.UUID, Status: StatusDead, Size: 100},
		"company":    {Company: &h.company, Status: StatusDead, Size: 100},
		"platform":   {Status: StatusDead, Size: 100},
	} {
		if got := h.all(f); len(got) != len(ids) {
			t.Errorf("%s: %d listed of %d", name, len(got), len(ids))
		}
	}
	if g, err := h.Store.gauges(t.Context()); err != nil || g.dead != int64(len(ids)) {
		t.Errorf("%d counted, %v", g.dead, err)
	}
	h.start()
	job := h.recover(RecoverRequest{Company: h.company, Subscriber: sub.UUID, Since: time.Now().Add(-time.Hour)})
	if job.Redelivered != int64(len(ids)) {
		t.Errorf("%d redelivered", job.Redelivered)
	}
	h.settled()
	if got := rc.ids(); len(got) != len(ids) {
		t.Errorf("%d received of %d", len(got), len(ids))
	}
	if got := h.all(DeliveryFilter{Company: &h.company, Status: StatusDead}); len(got) != 0 {
		t.Errorf("%d dead letters are left", len(got))
	}
}

func deleteOpen(t *testing.T, h *house) {
	t.Helper()
	if err := h.client.Del(t.Context(), events.OpenKey(partition.Of(h.company))).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestListFilters(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	early, late := time.Now().Add(-time.Hour).Truncate(time.Millisecond), time.Now().Truncate(time.Millisecond)
	a, b := uuid.New(), uuid.New()
	h.write(a, names("early", 30), early, func(r *record) { r.Status = StatusDelivered })
	h.write(a, names("late", 30), late, func(r *record) { r.Status, r.EventType = StatusRetrying, "OTHER"; r.Due, r.Step = late.UnixMilli(), 1 })
	h.write(b, names("dead", 7), late, dead)

	between := early.Add(time.Minute)
	count := map[string]struct {
		f    DeliveryFilter
		want int
	}{
		"subscriber":        {DeliveryFilter{Subscriber: &a}, 60},
		"live":              {DeliveryFilter{Subscriber: &a, Status: StatusRetrying}, 30},
		"delivered":         {DeliveryFilter{Subscriber: &a, Status: StatusDelivered}, 30},
		"of company, live":  {DeliveryFilter{Status: StatusRetrying}, 30},
		"of company, dead":  {DeliveryFilter{Status: StatusDead}, 7},
		"event type":        {DeliveryFilter{Subscriber: &a, EventType: "OTHER"}, 30},
		"from":              {DeliveryFilter{Subscriber: &a, From: &between}, 30},
		"to":                {DeliveryFilter{Subscriber: &a, To: &between}, 30},
		"exactly then":      {DeliveryFilter{Subscriber: &a, From: &early, To: &early}, 30},
		"nothing":           {DeliveryFilter{Subscriber: &b, Status: StatusDelivered}, 0},
		"unknown":           {DeliveryFilter{Subscriber: &h.company}, 0},
		"dead in a span":    {DeliveryFilter{Status: StatusDead, From: &between}, 7},
		"dead, but earlier": {DeliveryFilter{Status: StatusDead, To: &between}, 0},
	}
	for name, c := range count {
		for _, size := range []int{1, 7, 100} {
			c.f.Company, c.f.Size = &h.company, size
			if got := h.all(c.f); len(got) != c.want {
				t.Errorf("%s by %d: %d, want %d", name, size, len(got), c.want)
			}
		}
	}
}

func TestListOfEventsPagesWithinAnEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for i := range 7 {
		h.subscribe(receive(t, status(http.StatusOK)).URL + "/" + uuid.NewString()[:i+1])
	}
	ids := h.emit(5)
	h.settled()
	for size := 1; size < 10; size++ {
		if got := h.all(DeliveryFilter{Company: &h.company, Size: size}); len(got) != 7*len(ids) {
			t.Errorf("by %d: %d deliveries listed, want %d", size, len(got), 7*len(ids))
		}
		if got := h.all(DeliveryFilter{Size: size}); len(got) != 7*len(ids) {
			t.Errorf("of all companies, by %d: %d deliveries listed, want %d", size, len(got), 7*len(ids))
		}
	}
}

func TestCursorOfAnotherCompanyIsRefused(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	sub := uuid.New()
	h.write(sub, names("e", 3), time.Now(), dead)
	page, err := h.Deliveries(t.Context(), DeliveryFilter{Company: &h.company, Status: StatusDead, Size: 1})
	if err != nil || page.Next == "" {
		t.Fatalf("page = %+v, %v", page, err)
	}
	other := uuid.New()
	for _, cursor := range []string{page.Next, "garbage", "e30"} {
		if _, err := h.Deliveries(t.Context(), DeliveryFilter{Company: &other, Cursor: cursor}); !errors.Is(err, ErrBadCursor) {
			t.Errorf("cursor %q: %v", cursor, err)
		}
	}
}
