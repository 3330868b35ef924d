package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/events"
	"spendhook/events/eventtest"
	"spendhook/events/history"
	"spendhook/events/layout"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/storage"
	"spendhook/storage/archive"
	"spendhook/storage/storagetest"
)

// past has events of some companies in Redis, and moves them to an archive in SQLite.
type past struct {
	client     redis.UniversalClient
	archive    *observed
	events     *history.Reader
	deliveries *store.Store
	publisher  *publish.Publisher
	now        time.Time
	companies  []uuid.UUID // two of one partition, and one more
	refs       []events.Ref
}

// observed counts the calls of an archive, and can fail.
type observed struct {
	*archive.Store

	calls int
	fails error
}

func (o *observed) Index(ctx context.Context, sp history.Span, after history.Place, n int) ([]history.Place, error) {
	if o.calls++; o.fails != nil {
		return nil, o.fails
	}
	return o.Store.Index(ctx, sp, after, n)
}

func (o *observed) Get(ctx context.Context, refs []events.Ref) ([]*history.Archived, error) {
	if o.calls++; o.fails != nil {
		return nil, o.fails
	}
	return o.Store.Get(ctx, refs)
}

func (o *observed) Companies(ctx context.Context, after uuid.UUID, n int) ([]uuid.UUID, error) {
	if o.calls++; o.fails != nil {
		return nil, o.fails
	}
	return o.Store.Companies(ctx, after, n)
}

var (
	firstSub = uuid.MustParse("10000000-0000-4000-8000-000000000000")
	otherSub = uuid.MustParse("20000000-0000-4000-8000-000000000000")
)

func newPast(t *testing.T) *past {
	t.Helper()
	h := &past{
		client: redistest.New(t), now: eventtest.Noon,
		archive: &observed{Store: archive.New(storagetest.Open(t, storage.Options{DataDir: t.TempDir(), History: true}))},
	}
	clock := func() time.Time { return h.now }
	h.events = history.New(history.Options{Client: h.client, Retention: keepIDs, Archive: h.archive, Now: clock})
	h.publisher = publish.New(publish.Options{Client: h.client, Retention: keepIDs, Wake: func(context.Context, []int) {}, Now: clock})
	t.Cleanup(h.publisher.Close)
	h.deliveries = store.New(store.Options{
		Client: h.client, Archive: h.archive, Now: clock,
		Policy: delivery.Policy{Retention: keepIDs, DeadRetention: 30 * 24 * time.Hour, KeepDelivered: keepDelivered},
	})
	h.companies = []uuid.UUID{eventtest.Company, {1}}
	for i := byte(1); len(h.companies) < 3; i++ {
		if c := (uuid.UUID{2, i}); partition.Of(c) == partition.Of(eventtest.Company) {
			h.companies = append(h.companies, c)
		}
	}
	return h
}

// accept accepts events of one company in one millisecond.
func (h *past) accept(t *testing.T, company uuid.UUID, kind string, ids ...string) {
	t.Helper()
	batch := make([]events.Event, len(ids))
	for i, id := range ids {
		batch[i] = events.Event{ID: id, CompanyUUID: company, Type: kind, Timestamp: h.now}
		h.refs = append(h.refs, events.Ref{Company: company, ID: id})
	}
	results, err := h.publisher.Accept(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Status != publish.Accepted {
			t.Fatalf("%+v", r)
		}
	}
}

// record writes the next version of deliveries of an event, and ends its matching.
func (h *past) record(t *testing.T, ref events.Ref, statuses map[uuid.UUID]delivery.Status) {
	t.Helper()
	stored, err := h.events.Get(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	w := store.Write{Event: ref, Matched: stored.State == events.Ready, Fanout: len(statuses)}
	for sub, status := range statuses {
		r := delivery.Ref{Ref: ref, Subscriber: sub}
		base := delivery.NewRecord(stored, "")
		if kept, err := h.deliveries.InRedis().Stored(t.Context(), []delivery.Ref{r}); err != nil {
			t.Fatal(err)
		} else if kept[0] != nil {
			base = kept[0]
		}
		next := *base
		next.Status, next.Updated = status, h.now.UnixMilli()
		code := map[delivery.Status]int{delivery.StatusDelivered: 200, delivery.StatusDead: 404, delivery.StatusRetrying: 503}[status]
		if code > 0 {
			next.Attempts = []attempt.Attempt{{Number: 1, StatusCode: code, Error: map[int]string{404: "http_4xx", 503: "http_5xx"}[code]}}
		}
		w.Changes = append(w.Changes, store.Change{Ref: r, Base: base, Next: &next})
	}
	recorded, _, err := h.deliveries.Record(t.Context(), h.now, []store.Write{w})
	if err != nil || recorded[0].Err != nil || slices.ContainsFunc(recorded[0].Found, func(f *store.Found) bool { return f != nil }) {
		t.Fatalf("%+v, %v", recorded, err)
	}
}

// fill accepts events of all companies, many of them in one millisecond, with deliveries of all kinds.
func (h *past) fill(t *testing.T) {
	t.Helper()
	names := []string{"b", "a-b", "a", "a_b", "B", "ab", "a0", "A-", "z9"} // bytes, a locale, and members with a slash have other orders
	for i := range 3 {
		for _, company := range h.companies {
			first := len(h.refs)
			kind := []string{"CARD_CREATED", "PAYMENT_PAID", "PAYMENT_FAILED", "PAYMENT_PAID"}[i]
			ids := make([]string, len(names))
			for j, name := range names {
				ids[j] = name + strconv.Itoa(i)
			}
			h.accept(t, company, kind, ids...)
			for j, ref := range h.refs[first:] {
				h.settle(t, ref, i+j)
			}
		}
		h.now = h.now.Add(time.Duration(i%2) * time.Minute)
	}
}

// settle gives an event deliveries of one of some kinds. A few events stay open.
func (h *past) settle(t *testing.T, ref events.Ref, kind int) {
	t.Helper()
	const delivered, dead = delivery.StatusDelivered, delivery.StatusDead
	switch kind % 8 {
	case 0:
		h.record(t, ref, map[uuid.UUID]delivery.Status{firstSub: delivered})
	case 1:
		h.record(t, ref, map[uuid.UUID]delivery.Status{firstSub: delivered, otherSub: delivery.StatusCancelled})
	case 2:
		h.record(t, ref, map[uuid.UUID]delivery.Status{firstSub: dead, otherSub: delivered})
	case 3:
		h.record(t, ref, map[uuid.UUID]delivery.Status{firstSub: dead, otherSub: dead})
	case 4:
		h.record(t, ref, nil)
	case 5:
		h.record(t, ref, map[uuid.UUID]delivery.Status{firstSub: delivered, otherSub: delivery.StatusRetrying})
	case 6: // it died, and was delivered later
		h.record(t, ref, map[uuid.UUID]delivery.Status{otherSub: dead})
		h.record(t, ref, map[uuid.UUID]delivery.Status{otherSub: delivered})
	default: // it is not matched
	}
}

// key is a key of a company.
func key(kind string, company uuid.UUID, rest string) string {
	return partition.Key(company, kind+":"+company.String()+rest)
}

// copy writes settled events to the archive.
func (h *past) copy(t *testing.T) {
	t.Helper()
	found, err := h.deliveries.Unarchived(t.Context(), partition.All())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range found {
		if err := h.archive.Write(t.Context(), u.Events); err != nil || u.More() {
			t.Fatalf("%v, %v", u.More(), err)
		}
	}
	if err := h.deliveries.Archived(t.Context(), found...); err != nil {
		t.Fatal(err)
	}
}

// forget removes settled and compacted events from Redis, as time does.
func (h *past) forget(t *testing.T, refs ...events.Ref) {
	t.Helper()
	for _, ref := range refs {
		if state := h.client.GetRange(t.Context(), layout.EventKey(ref), 0, 0).Val(); state != "S" && state != "C" {
			continue
		}
		h.client.Del(t.Context(), layout.EventKey(ref), key("d", ref.Company, "/"+ref.ID))
		h.client.ZRem(t.Context(), key("ei", ref.Company, ""), ref.ID)
		for _, sub := range []uuid.UUID{firstSub, otherSub} {
			h.client.ZRem(t.Context(), key("da", ref.Company, "/"+sub.String()), ref.ID)
			h.client.ZRem(t.Context(), key("dd", ref.Company, "/"+sub.String()), ref.ID)
			h.client.ZRem(t.Context(), key("cd", ref.Company, ""), ref.ID+"/"+sub.String())
		}
	}
}

func (h *past) compact(t *testing.T) (n int) {
	t.Helper()
	n, more, err := h.deliveries.Compact(t.Context(), h.now, partition.All())
	if err != nil || len(more) > 0 {
		t.Fatalf("%v, %v", more, err)
	}
	return n
}

// shows is what all readers show of the events, by a name of the question.
func (h *past) shows(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	stored, err := h.events.GetMany(t.Context(), h.refs)
	if err != nil {
		t.Fatal(err)
	}
	sums, err := h.deliveries.SumUp(t.Context(), h.refs, store.Filter{CodeFrom: 404})
	if err != nil {
		t.Fatal(err)
	}
	for i, ref := range h.refs {
		one, err := h.events.Get(t.Context(), ref)
		if err != nil || fmt.Sprint(one) != fmt.Sprint(*stored[i]) {
			t.Fatalf("%s: %v, %v, and %v", ref, one, err, stored[i])
		}
		all, err := h.deliveries.OfEvent(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range all {
			got, err := h.deliveries.Delivery(t.Context(), ref.Company, d.PublicID())
			if err != nil || fmt.Sprint(got) != fmt.Sprint(d) {
				t.Fatalf("%s: %v, %v, and %v", d.PublicID(), got, err, d)
			}
		}
		out["event "+ref.String()] = fmt.Sprintf("%s %c %v %v %+v", one.Body, one.State, one, all, sums[i])
	}
	for _, company := range []*uuid.UUID{nil, &h.companies[0]} {
		sizes := []int{1, 3, 100}
		if company == nil {
			sizes = []int{23, 100} // each page of all companies reads the companies of all partitions
		}
		for name, f := range h.eventFilters(company) {
			out[name] = h.everySize(t, name, sizes, func(size int, cursor string) ([]string, string, error) {
				f.Size, f.Cursor = size, cursor
				return h.eventPage(t, f)
			})
		}
		for _, f := range deliveryFilters(company) {
			name := fmt.Sprintf("deliveries of %v %+v", company, f)
			out[name] = h.everySize(t, name, sizes, func(size int, cursor string) ([]string, string, error) {
				f.Size, f.Cursor = size, cursor
				return h.deliveryPage(t, f)
			})
		}
	}
	for _, company := range h.companies {
		name := "walk of " + company.String()
		out[name] = h.everySize(t, name, []int{1, 100}, func(size int, cursor string) ([]string, string, error) {
			return h.events.Walk(t.Context(), company, eventtest.Noon, eventtest.Noon.Add(time.Minute), cursor, size)
		})
	}
	return out
}

func (h *past) eventPage(t *testing.T, f history.Filter) (lines []string, next string, err error) {
	t.Helper()
	page, err := h.events.List(t.Context(), f)
	for _, e := range page.Items {
		lines = append(lines, e.Ref().String()+" "+e.AcceptedAt.String()+" "+e.Type)
	}
	return lines, page.Next, err
}

func (h *past) deliveryPage(t *testing.T, f store.Filter) (lines []string, next string, err error) {
	t.Helper()
	page, err := h.deliveries.List(t.Context(), f)
	for _, d := range page.Items {
		lines = append(lines, fmt.Sprint(d))
	}
	return lines, page.Next, err
}

// everySize reads a list with pages of several sizes. They have the same lines, each once.
func (h *past) everySize(t *testing.T, name string, sizes []int, read func(size int, cursor string) (lines []string, next string, err error)) string {
	t.Helper()
	var last string
	for i, size := range sizes {
		var all []string
		for next, more := "", true; more; more = next != "" {
			lines, after, err := read(size, next)
			if err != nil || len(lines) > size || len(all) > len(h.refs)*2 {
				t.Fatalf("%s: %d lines, %v", name, len(lines), err)
			}
			all, next = append(all, lines...), after
		}
		for line, n := range counts(all) {
			if n > 1 {
				t.Errorf("%s: %d times %s", name, n, line)
			}
		}
		text := strings.Join(all, "\n")
		if i > 0 && text != last {
			t.Errorf("%s: pages of %d have\n%s\nothers\n%s", name, size, text, last)
		}
		last = text
	}
	return last
}

func counts(lines []string) map[string]int {
	n := map[string]int{}
	for _, line := range lines {
		n[line]++
	}
	return n
}

var (
	soon   = eventtest.Noon.Add(time.Millisecond)
	minute = eventtest.Noon.Add(time.Minute)
)

func (h *past) eventFilters(company *uuid.UUID) map[string]history.Filter {
	withStatus := func(f store.Filter, statuses ...store.EventStatus) func(context.Context, []events.Ref) ([]bool, int, error) {
		return func(ctx context.Context, refs []events.Ref) ([]bool, int, error) {
			sums, err := h.deliveries.SumUp(ctx, refs, f)
			on := make([]bool, len(sums))
			for i, sum := range sums {
				on[i] = slices.Contains(statuses, sum.Status) || len(statuses) == 0 && sum.Matches
			}
			return on, 0, err
		}
	}
	filters := map[string]history.Filter{
		"all":       {},
		"types":     {Types: []string{"PAYMENT_*"}},
		"from":      {From: &soon},
		"to":        {To: &soon},
		"at noon":   {From: &eventtest.Noon, To: &eventtest.Noon},
		"delivered": {Only: withStatus(store.Filter{}, store.EventDelivered)},
		"dead":      {Only: withStatus(store.Filter{}, store.EventDead), Types: []string{"PAYMENT_PAID"}},
		"neither":   {Only: withStatus(store.Filter{}, store.EventNoSubscriber, store.EventPending)},
		"error":     {Only: withStatus(store.Filter{ErrorClasses: []string{"http_4xx"}})},
	}
	if company != nil {
		filters["subscriber"] = history.Filter{Subscriber: &firstSub}
		filters["subscriber's types"] = history.Filter{Subscriber: &otherSub, Types: []string{"PAYMENT_PAID"}, To: &minute}
	}
	named := map[string]history.Filter{}
	for name, f := range filters {
		f.Company = company
		named[fmt.Sprintf("events of %v: %s", company, name)] = f
	}
	return named
}

func deliveryFilters(company *uuid.UUID) []store.Filter {
	dead := []delivery.Status{delivery.StatusDead}
	filters := []store.Filter{
		{},
		{Statuses: dead},
		{Statuses: dead, From: &minute},
		{Statuses: dead, To: &soon, EventTypes: []string{"PAYMENT_PAID", "CARD_*"}},
		{Statuses: []delivery.Status{delivery.StatusRetrying}},
		{Statuses: []delivery.Status{delivery.StatusDelivered, delivery.StatusDead}},
		{ErrorClasses: []string{"http_4xx"}, CodeFrom: 400, CodeTo: 404},
		{From: &soon, To: &minute},
	}
	if company != nil {
		for _, sub := range []*uuid.UUID{&firstSub, &otherSub} {
			filters = append(filters, store.Filter{Subscriber: sub}, store.Filter{Subscriber: sub, Statuses: dead},
				store.Filter{Subscriber: sub, EventTypes: []string{"PAYMENT_PAID"}, To: &minute})
		}
	}
	for i := range filters {
		filters[i].Company = company
	}
	return filters
}

// half returns every second ref.
func half(refs []events.Ref) (out []events.Ref) {
	for i := 0; i < len(refs); i += 2 {
		out = append(out, refs[i])
	}
	return out
}

// What readers show does not depend on where events are: in Redis, in the archive, or in both.
func TestHistoryShowsWhatRedisShowed(t *testing.T) {
	t.Parallel()
	h := newPast(t)
	h.fill(t)
	want := h.shows(t)
	same := func(when string) {
		t.Helper()
		for name, got := range h.shows(t) {
			if got != want[name] {
				t.Errorf("%s: %s\n got %s\nwant %s", when, name, got, want[name])
			}
		}
	}
	h.copy(t)
	same("Redis and the archive have all")
	h.forget(t, half(h.refs)...)
	same("Redis has half")
	h.now = eventtest.Noon.Add(keepDelivered + time.Hour)
	if n := h.compact(t); n < 10 {
		t.Fatalf("%d were compacted", n)
	}
	same("Redis has compacted the rest")
	h.forget(t, h.refs...)
	same("Redis has open events")

	for _, ref := range h.refs {
		statuses := map[uuid.UUID]delivery.Status{}
		stored, err := h.events.Get(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		switch stored.State {
		case events.Ready:
			statuses[firstSub] = delivery.StatusDelivered
		case events.Matched:
			statuses[otherSub] = delivery.StatusDead
		default:
			continue
		}
		h.record(t, ref, statuses)
	}
	want = h.shows(t)
	h.copy(t)
	h.client.FlushDB(t.Context())
	h.now = eventtest.Noon.AddDate(3, 0, 0)
	same("Redis has nothing")
}

// An event that Redis has is read without the archive. Others fail while it does not answer.
func TestTheArchiveIsReadOnlyWhenNeeded(t *testing.T) {
	t.Parallel()
	h := newPast(t)
	h.accept(t, eventtest.Company, "PAYMENT_PAID", "kept", "alone", "moved", "forgotten")
	kept, alone, moved, forgotten := h.refs[0], h.refs[1], h.refs[2], h.refs[3]
	for _, ref := range []events.Ref{kept, moved, forgotten} {
		h.record(t, ref, map[uuid.UUID]delivery.Status{firstSub: delivery.StatusDelivered})
	}
	h.record(t, alone, nil)
	h.copy(t)
	h.forget(t, forgotten)
	h.archive.fails = fmt.Errorf("%w: the database is down", events.ErrUnavailable)
	of := func(ref events.Ref, sub uuid.UUID) delivery.Ref { return delivery.Ref{Ref: ref, Subscriber: sub} }
	reads := func(ref events.Ref) map[string]error {
		_, get := h.events.Get(t.Context(), ref)
		_, many := h.events.GetMany(t.Context(), []events.Ref{kept, ref})
		_, ofEvent := h.deliveries.OfEvent(t.Context(), ref)
		_, sums := h.deliveries.SumUp(t.Context(), []events.Ref{kept, ref}, store.Filter{})
		_, one := h.deliveries.Get(t.Context(), []delivery.Ref{of(ref, firstSub), of(kept, otherSub)})
		return map[string]error{"get": get, "get many": many, "of event": ofEvent, "sum up": sums, "delivery": one}
	}
	for _, ref := range []events.Ref{kept, alone} {
		for name, err := range reads(ref) {
			if err != nil {
				t.Errorf("%s of %s: %v", name, ref.ID, err)
			}
		}
	}
	live := store.Filter{Company: &eventtest.Company, Statuses: []delivery.Status{delivery.StatusRetrying, delivery.StatusPending}}
	for _, f := range []store.Filter{live, {Statuses: live.Statuses}} {
		if _, err := h.deliveries.List(t.Context(), f); err != nil {
			t.Errorf("live deliveries: %v", err)
		}
	}
	if h.archive.calls > 0 {
		t.Errorf("the archive was asked %d times", h.archive.calls)
	}
	h.now = h.now.Add(keepDelivered)
	h.compact(t)
	for _, ref := range []events.Ref{moved, forgotten} {
		for name, err := range reads(ref) {
			if !errors.Is(err, events.ErrUnavailable) {
				t.Errorf("%s of %s: %v", name, ref.ID, err)
			}
		}
	}
	_, list := h.events.List(t.Context(), history.Filter{Company: &eventtest.Company})
	_, all := h.events.List(t.Context(), history.Filter{})
	_, deliveries := h.deliveries.List(t.Context(), store.Filter{Company: &eventtest.Company})
	for _, err := range []error{list, all, deliveries} {
		if !errors.Is(err, events.ErrUnavailable) {
			t.Errorf("a list: %v", err)
		}
	}
	if stored, err := h.events.InRedis().Get(t.Context(), moved); err != nil || stored.State != events.Compacted {
		t.Errorf("in Redis: %c, %v", stored.State, err)
	}
}

// Neither Redis nor the archive has the payload of an erased event.
func TestErasedEventsAreNotInTheHistory(t *testing.T) {
	t.Parallel()
	h := newPast(t)
	h.accept(t, eventtest.Company, "PAYMENT_PAID", "erased", "again")
	for _, ref := range h.refs {
		h.record(t, ref, map[uuid.UUID]delivery.Status{firstSub: delivery.StatusDelivered})
	}
	erased, again := h.refs[0], h.refs[1]
	h.copy(t)
	if err := h.deliveries.Erase(t.Context(), erased); err != nil {
		t.Fatal(err)
	}
	h.forget(t, again)
	h.accept(t, eventtest.Company, "PAYMENT_PAID", "again") // the archive has the earlier event
	h.record(t, again, map[uuid.UUID]delivery.Status{firstSub: delivery.StatusDelivered})
	if err := h.deliveries.Erase(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	many, err := h.events.GetMany(t.Context(), []events.Ref{erased, again})
	if err != nil {
		t.Fatal(err)
	}
	for i, ref := range []events.Ref{erased, again} {
		one, err := h.events.Get(t.Context(), ref)
		if err != nil || one.State != events.Compacted || one.Body != nil || many[i] == nil || many[i].State != events.Compacted {
			t.Errorf("%s: %+v, %v; %+v", ref.ID, one, err, many[i])
		}
	}
}

// A delivery that died, was retried and died again is listed once, as Redis has it.
func TestAnArchivedDeathIsNotListedTwice(t *testing.T) {
	t.Parallel()
	h := newPast(t)
	h.accept(t, eventtest.Company, "PAYMENT_PAID", "again", "delivered", "once")
	h.now = h.now.Add(time.Minute)
	for _, ref := range h.refs {
		h.record(t, ref, map[uuid.UUID]delivery.Status{firstSub: delivery.StatusDead})
	}
	h.copy(t)
	h.now = h.now.Add(time.Minute)
	for i, ref := range h.refs[:2] {
		h.record(t, ref, map[uuid.UUID]delivery.Status{firstSub: delivery.StatusRetrying})
		h.record(t, ref, map[uuid.UUID]delivery.Status{firstSub: []delivery.Status{delivery.StatusDead, delivery.StatusDelivered}[i]})
	}
	h.forget(t, h.refs[2])
	for _, sub := range []*uuid.UUID{nil, &firstSub} {
		f := store.Filter{Company: &eventtest.Company, Subscriber: sub, Statuses: []delivery.Status{delivery.StatusDead}, Size: 10}
		page, err := h.deliveries.List(t.Context(), f)
		if err != nil || len(page.Items) != 2 || page.Items[0].ID != "again" || page.Items[1].ID != "once" || page.Items[0].Version != 3 {
			t.Errorf("%v, %v", page.Items, err)
		}
	}
}

// An id that was accepted again after Redis had forgotten it is listed once, as the later event.
func TestAnIDThatWasUsedAgain(t *testing.T) {
	t.Parallel()
	h := newPast(t)
	for range 3 {
		h.accept(t, eventtest.Company, "PAYMENT_PAID", "again")
		h.now = h.now.Add(time.Minute)
		h.record(t, h.refs[0], map[uuid.UUID]delivery.Status{firstSub: delivery.StatusDead})
		h.copy(t)
		h.check(t)
		h.forget(t, h.refs[0])
		h.check(t)
		h.now = h.now.Add(keepIDs + time.Hour)
	}
}

// check checks that the lists have one event and one delivery.
func (h *past) check(t *testing.T) {
	t.Helper()
	accepted := h.now.Add(-time.Minute).UnixMilli()
	for _, sub := range []*uuid.UUID{nil, &firstSub} {
		list, err := h.events.List(t.Context(), history.Filter{Company: &eventtest.Company, Subscriber: sub})
		if err != nil || len(list.Items) != 1 || list.Items[0].AcceptedAt.UnixMilli() != accepted {
			t.Errorf("events: %v, %v", list.Items, err)
		}
		for _, statuses := range [][]delivery.Status{nil, {delivery.StatusDead}} {
			page, err := h.deliveries.List(t.Context(), store.Filter{Company: &eventtest.Company, Subscriber: sub, Statuses: statuses})
			if err != nil || len(page.Items) != 1 || page.Items[0].Created != accepted {
				t.Errorf("deliveries of %v %v: %v, %v", sub, statuses, page.Items, err)
			}
		}
	}
}

// A write that is based on an archived record is refused.
func TestArchivedDeliveriesAreNotChanged(t *testing.T) {
	t.Parallel()
	h := newPast(t)
	h.accept(t, eventtest.Company, "PAYMENT_PAID", "e")
	h.record(t, h.refs[0], map[uuid.UUID]delivery.Status{firstSub: delivery.StatusDelivered})
	h.copy(t)
	h.forget(t, h.refs[0])
	r := delivery.Ref{Ref: h.refs[0], Subscriber: firstSub}
	read, err := h.deliveries.Stored(t.Context(), []delivery.Ref{r})
	if err != nil || read[0] == nil {
		t.Fatalf("%v, %v", read, err)
	}
	next := delivery.Restart(*read[0], delivery.ReasonReplay, h.now)
	recorded, _, err := h.deliveries.Record(t.Context(), h.now, []store.Write{{Event: r.Ref, Changes: []store.Change{{Ref: r, Base: read[0], Next: &next, Guarded: true}}}})
	if err != nil || recorded[0].Found[0] == nil || recorded[0].Found[0].Record.Version != 0 {
		t.Errorf("%+v, %v", recorded, err)
	}
}
