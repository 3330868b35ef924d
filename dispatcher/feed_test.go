package dispatcher

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/feed"
	"spendhook/dispatcher/redelivery"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/sequence"
	"spendhook/internal/cursor"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

// feedOf reads a whole feed, page by page.
func (h *harness) feedOf(q feed.Request) (items []feed.Item, forgotten int64) {
	h.t.Helper()
	for {
		page, err := h.feed.Read(h.t.Context(), q)
		if err != nil || len(page.Items) > q.Limit || page.More && page.Next == q.After {
			h.t.Fatalf("feed after %d: %d items, next %d, more %t, %v", q.After, len(page.Items), page.Next, page.More, err)
		}
		items, forgotten = append(items, page.Items...), forgotten+page.Forgotten
		if q.After = page.Next; !page.More {
			return items, forgotten
		}
	}
}

func idsOf(items []feed.Item) []string {
	ids := make([]string, len(items))
	for i, item := range items {
		ids[i] = item.ID
	}
	return ids
}

// emitWith accepts one event of a type, with an amount.
func (h *harness) emitWith(id, kind, amount string) {
	h.t.Helper()
	results, err := h.publisher.Accept(h.t.Context(), []events.Event{{
		ID: id, CompanyUUID: h.company, Type: kind, Timestamp: time.Now(), Metadata: []byte(`{"amount":"` + amount + `"}`),
	}})
	if err != nil || results[0].Err != nil {
		h.t.Fatalf("event %s: %+v, %v", id, results, err)
	}
}

// A feed lists the events that match the subscriber, in order and page by page, whatever
// the subscriber's state. Two readers do not affect each other.
func TestFeed(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil) // not started: nothing is delivered
	plain := h.subscribeTo(h.company, "http://receiver.test/plain", "A", "B")
	picky := h.subscribeTo(h.company, "http://receiver.test/picky", "A")
	h.update(picky, subscribers.Settings{Filter: new(`decimal(metadata.amount) >= decimal("100")`)})
	var all, big []string
	for i := range 300 {
		id, kind, amount := fmt.Sprintf("e%03d", i), string("ABC"[i%3]), strconv.Itoa(i)
		h.emitWith(id, kind, amount)
		if kind != "C" {
			all = append(all, id)
		}
		if kind == "A" && i >= 100 {
			big = append(big, id)
		}
	}
	h.emitWith("odd", "A", "much") // the filter fails
	all = append(all, "odd")
	h.enable(plain, false)
	if err := h.service.Pause(t.Context(), h.company, picky.UUID); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int{1, 7, 1000} {
		one, _ := h.feedOf(feed.Request{Company: h.company, Subscriber: plain.UUID, Limit: limit})
		two, _ := h.feedOf(feed.Request{Company: h.company, Subscriber: picky.UUID, Limit: limit})
		if !slices.Equal(idsOf(one), all) || !slices.Equal(idsOf(two), big) {
			t.Errorf("pages of %d: %d and %d events, want %d and %d", limit, len(one), len(two), len(all), len(big))
		}
	}
	page, err := h.feed.Read(t.Context(), feed.Request{Company: h.company, Subscriber: picky.UUID, Limit: 10, After: 299})
	if err != nil || len(page.Items) != 0 || page.Next != 301 || page.More || page.Forgotten != 0 {
		t.Errorf("nothing matches: %+v, %v", page, err)
	}
	for name, q := range map[string]feed.Request{
		"another subscriber": {Company: h.company, Subscriber: uuid.New(), Limit: 1},
		"another company's":  {Company: uuid.New(), Subscriber: plain.UUID, Limit: 1},
	} {
		if _, err := h.feed.Read(t.Context(), q); !errors.Is(err, subscribers.ErrNotFound) {
			t.Errorf("%s: %v, want ErrNotFound", name, err)
		}
	}
	if _, err := h.feed.Read(t.Context(), feed.Request{Company: h.company, Subscriber: plain.UUID, Limit: 1, After: 302}); !errors.Is(err, sequence.ErrAhead) {
		t.Errorf("after a number beyond the last event: %v", err)
	}
}

// Items have the body and the valid signatures of a delivery, in each format.
func TestFeedIsAsItIsSent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, format := range []string{subscribers.FormatStandard, subscribers.FormatThin, subscribers.FormatCloudEvents} {
		in := receive(t, nil)
		sub := h.subscribeTo(h.company, in.URL, "PAYMENT_PAID")
		h.update(sub, subscribers.Settings{Format: &format})
		id := h.emit(1)[0]
		eventually(t, func() bool { return in.count() == 1 }, "the delivery")
		sent := in.got[0]
		items, _ := h.feedOf(feed.Request{Company: h.company, Subscriber: sub.UUID, Limit: 100, Signatures: true})
		item := items[len(items)-1]
		if item.ID != id || string(item.Body) != string(sent.body) || item.ContentType != sent.header.Get("Content-Type") {
			t.Errorf("%s: read %q as %s, sent %q as %s", format, item.Body, item.ContentType, sent.body, sent.header.Get("Content-Type"))
		}
		header := http.Header{}
		for name, value := range item.Headers {
			header.Set(name, value)
		}
		if err := signature.Verify(sub.Secrets[0].Key.Reveal(), header, item.Body, time.Minute, time.Now()); err != nil {
			t.Errorf("%s: signature: %v", format, err)
		}
		for _, name := range []string{signature.HeaderID, signature.HeaderSequence} {
			if header.Get(name) != sent.header.Get(name) {
				t.Errorf("%s: %s is %q, sent as %q", format, name, header.Get(name), sent.header.Get(name))
			}
		}
		if unsigned, _ := h.feedOf(feed.Request{Company: h.company, Subscriber: sub.UUID, Limit: 100}); unsigned[0].Headers != nil {
			t.Errorf("%s: signed without being asked", format)
		}
	}
}

// A page is bounded in bytes, but has at least one event.
func TestFeedPagesAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	sub := h.subscribeTo(h.company, "http://receiver.test/", "A")
	for i := range 30 {
		h.emitWith(fmt.Sprint("e", i), "A", strings.Repeat("x", 250<<10))
	}
	q := feed.Request{Company: h.company, Subscriber: sub.UUID, Limit: 1000}
	page, err := h.feed.Read(t.Context(), q)
	bytes := 0
	for _, item := range page.Items {
		bytes += len(item.Body)
	}
	if err != nil || !page.More || bytes > history.PageBytes || len(page.Items) < 10 || page.Next != int64(len(page.Items)) {
		t.Errorf("%d items of %d bytes, next %d, %v", len(page.Items), bytes, page.Next, err)
	}
	if items, forgotten := h.feedOf(q); len(items) != 30 || forgotten != 0 {
		t.Errorf("%d items in all, %d forgotten", len(items), forgotten)
	}
}

// Redis loses its last events in a failover, and others get their numbers: a reader that goes on where it was would miss those.
func TestFeedTellsThatNumbersWereAssignedAgain(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	sub := h.subscribeTo(h.company, "http://receiver.test/", "A")
	read := func(cursor string) (feed.Page, error) {
		t.Helper()
		return h.feed.Read(t.Context(), feed.Request{Company: h.company, Subscriber: sub.UUID, Cursor: cursor, Limit: 2})
	}
	expect := func(what, cursor string, want ...string) (next string) {
		t.Helper()
		page, err := read(cursor)
		if err != nil || !slices.Equal(idsOf(page.Items), want) {
			t.Errorf("%s: %v, %v, want %v", what, idsOf(page.Items), err, want)
		}
		return page.Cursor
	}
	changed := func(what, cursor string) {
		t.Helper()
		if page, err := read(cursor); !errors.Is(err, feed.ErrChanged) {
			t.Errorf("%s: %v, %v", what, idsOf(page.Items), err)
		}
	}
	h.emitWith("e1", "A", "1")
	h.emitWith("e2", "A", "1")
	h.emitWith("e3", "B", "1") // for others
	second := expect("the first page", "", "e1", "e2")
	third := expect("the next one", second)
	kept := dump(t, h.client)
	h.emitWith("e4", "A", "1")
	fourth := expect("what came", third, "e4")

	restore(t, h.client, kept)
	changed("the event is gone", fourth)
	changed("without a mark", "4-")
	known := expect("the mark is found out", "3-")
	if known != third {
		t.Errorf("the cursor is %s, not %s", known, third)
	}
	expect("what was read before it", third)
	h.emitWith("e5", "A", "1")
	changed("another event has the number", fourth)
	expect("what was read before it", third, "e5")
	expect("again", second, "e5")
	for _, bad := range []string{"x", "-1", "x-1"} {
		if _, err := read(bad); !errors.Is(err, cursor.ErrBad) {
			t.Errorf("cursor %q: %v", bad, err)
		}
	}
}

// dump reads all keys of a server, as they are stored.
func dump(t *testing.T, client redis.UniversalClient) map[string]string {
	t.Helper()
	all := map[string]string{}
	keys, err := client.Keys(t.Context(), "*").Result()
	for _, key := range keys {
		if err == nil {
			all[key], err = client.Dump(t.Context(), key).Result()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// restore replaces all keys of a server.
func restore(t *testing.T, client redis.UniversalClient, all map[string]string) {
	t.Helper()
	err := client.FlushDB(t.Context()).Err()
	for key, value := range all {
		if err == nil {
			err = client.Restore(t.Context(), key, 0, value).Err()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Compacted events are listed as stubs if the subscriber wants their type.
func TestFeedOfCompactedEvents(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(o *Options) {
		o.Policy.KeepDelivered, o.CompactEvery = time.Millisecond, 50*time.Millisecond
	})
	in := receive(t, nil)
	sub := h.subscribeTo(h.company, in.URL, "A")
	for i := range 10 {
		h.emitWith(fmt.Sprint("e", i), string("AB"[i%2]), "1")
	}
	q := feed.Request{Company: h.company, Subscriber: sub.UUID, Limit: 5}
	page, err := h.feed.Read(t.Context(), q)
	if err != nil || len(page.Items) != 5 {
		t.Fatal(page, err)
	}
	h.start()
	eventually(t, func() bool {
		items, _ := h.feedOf(feed.Request{Company: h.company, Subscriber: sub.UUID, Limit: 3})
		compacted := 0
		for i, item := range items {
			if item.Sequence != int64(2*i+1) || item.Type != "A" || item.ID != fmt.Sprint("e", 2*i) || (item.Gone == feed.GoneCompacted) != (item.Body == nil) ||
				item.Timestamp.IsZero() || item.AcceptedAt.IsZero() {
				t.Fatalf("item %+v", item)
			}
			if item.Gone == feed.GoneCompacted {
				compacted++
			}
		}
		return compacted == 5 && len(items) == 5
	}, "all are stubs")
	q.Cursor = page.Cursor
	if page, err := h.feed.Read(t.Context(), q); err != nil || len(page.Items) != 0 {
		t.Errorf("from an event that was compacted: %v, %v", page, err)
	}
}

// A cancelled delivery is not made good by the feed, nor is an event that ended the daemon matched for it: both are named, so
// that nothing seems to be missing.
func TestFeedNamesWhatIsGone(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(o *Options) { o.Policy.Schedule = []time.Duration{time.Hour} })
	h.start()
	cancelled, other := h.subscribeTo(h.company, receive(t, nil).URL, "BAD", "GOOD"), h.subscribeTo(h.company, receive(t, nil).URL, "BAD", "GOOD")
	for _, sub := range []subscribers.Subscriber{cancelled, other} {
		if err := h.service.Pause(t.Context(), h.company, sub.UUID); err != nil {
			t.Fatal(err)
		}
	}
	bad, good := h.emitType("BAD", 2), h.emitType("GOOD", 1)
	for _, sub := range []subscribers.Subscriber{cancelled, other} {
		h.reachAll(append(bad, good...), sub, delivery.StatusPending)
	}
	if _, err := h.Redelivery.Bulk(t.Context(), redelivery.BulkRequest{
		Kind: redelivery.JobCancel, Company: h.company, Filter: store.Filter{EventTypes: []string{"BAD"}, Subscriber: &cancelled.UUID},
	}); err != nil {
		t.Fatal(err)
	}
	h.reachAll(bad, cancelled, delivery.StatusCancelled)
	h.expectGone(cancelled, feed.GoneCancelled, feed.GoneCancelled, "")
	h.expectGone(other, "", "", "")

	// What has arrived stays on the feed, although its replay is cancelled.
	if err := h.service.Resume(t.Context(), h.company, other.UUID); err != nil {
		t.Fatal(err)
	}
	h.reachAll(append(bad, good...), other, delivery.StatusDelivered)
	if err := h.service.Pause(t.Context(), h.company, other.UUID); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Redelivery.Replay(t.Context(), events.Ref{Company: h.company, ID: bad[0]}, []uuid.UUID{other.UUID}); err != nil {
		t.Fatal(err)
	}
	h.reachAll(bad[:1], other, delivery.StatusPending)
	if _, err := h.Redelivery.Bulk(t.Context(), redelivery.BulkRequest{
		Kind: redelivery.JobCancel, Company: h.company, Filter: store.Filter{Subscriber: &other.UUID},
	}); err != nil {
		t.Fatal(err)
	}
	h.reachAll(bad[:1], other, delivery.StatusCancelled)
	h.expectGone(other, "", "", "")
}

// expectGone reads the feed of a subscriber, and compares its items.
func (h *harness) expectGone(sub subscribers.Subscriber, want ...feed.Gone) {
	h.t.Helper()
	items, forgotten := h.feedOf(feed.Request{Company: h.company, Subscriber: sub.UUID, Limit: 2, Signatures: true})
	var got []feed.Gone
	for _, item := range items {
		got = append(got, item.Gone)
		if (item.Gone == "") != (item.Body != nil && item.ContentType != "" && item.Headers != nil) || item.Type == "" || item.Timestamp.IsZero() {
			h.t.Errorf("item %+v", item)
		}
	}
	if !slices.Equal(got, want) || forgotten != 0 {
		h.t.Errorf("gone: %q, want %q; %d forgotten", got, want, forgotten)
	}
}

func TestFeedDoesNotMatchWhatIsInTheQuarantine(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil) // not started: no event is matched
	plain, picky := h.subscribeTo(h.company, "http://receiver.test/plain", "A"), h.subscribeTo(h.company, "http://receiver.test/picky", "A")
	h.update(picky, subscribers.Settings{Filter: new(`metadata.amount == "2"`)})
	h.emitWith("e1", "A", "1")
	h.emitWith("e2", "A", "2")
	e := quarantine.Entry{Company: h.company, EventID: "e1"}
	if err := h.client.ZAdd(t.Context(), quarantine.Key(partition.Of(h.company)), redis.Z{Score: 1, Member: e.Member()}).Err(); err != nil {
		t.Fatal(err)
	}
	h.expectGone(picky, feed.GoneQuarantined, "") // the filter is not evaluated
	h.expectGone(plain, "", "")                   // it has none
	if err := h.Quarantine.Forget(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	h.expectGone(picky, "")
}
