package store_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/layout"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/storage"
	"spendhook/storage/archive"
	"spendhook/storage/storagetest"
)

// archived is a settled whose store has a history in SQLite.
type archived struct {
	*settled

	history *archive.Store
}

func newArchived(t *testing.T) *archived {
	t.Helper()
	a := &archived{
		settled: newSettled(t, redistest.New(t)),
		history: archive.New(storagetest.Open(t, storage.Options{DataDir: t.TempDir(), History: true})),
	}
	a.deliveries = store.New(store.Options{
		Client: a.client, Now: func() time.Time { return a.now }, Archive: a.history,
		Policy: delivery.Policy{Retention: keepIDs, DeadRetention: 30 * 24 * time.Hour, KeepDelivered: keepDelivered},
	})
	return a
}

// unarchived reads what waits for the history.
func (a *archived) unarchived(t *testing.T) store.Unarchived {
	t.Helper()
	found, err := a.deliveries.Unarchived(t.Context(), []int{0, partition.Of(a.company)})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		return store.Unarchived{}
	}
	return found[0]
}

// archive writes what waits to the history, as a dispatcher does, and returns the ids.
func (a *archived) archive(t *testing.T) string {
	t.Helper()
	found := a.unarchived(t)
	if found.More() {
		t.Fatal("not everything was read")
	}
	names := make([]string, len(found.Events))
	for i, e := range found.Events {
		names[i] = e.Ref.ID
	}
	ctx := t.Context()
	for _, err := range []error{a.history.Write(ctx, found.Events), a.history.Erase(ctx, found.Erased), a.deliveries.Archived(ctx, found)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if left := a.unarchived(t); len(left.Events)+len(left.Erased) > 0 {
		t.Errorf("still waiting: %v", left)
	}
	return strings.Join(names, " ")
}

// kept describes an event in Redis: its body and its deliveries.
func (a *archived) kept(t *testing.T, id string) string {
	t.Helper()
	stored, err := a.events.Get(t.Context(), a.ref(id))
	if err != nil {
		t.Fatal(err)
	}
	deliveries, err := a.deliveries.OfEvent(t.Context(), a.ref(id))
	if err != nil {
		t.Fatal(err)
	}
	out := []string{string(stored.State) + string(stored.Body)}
	for _, d := range deliveries {
		text, err := d.Encode()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, d.Subscriber.String()+" "+text)
	}
	return strings.Join(out, "\n")
}

func (a *archived) bytes(t *testing.T) int64 {
	t.Helper()
	n, err := a.client.HGet(t.Context(), partition.Key(a.company, "c:"+a.company.String()), "bytes").Int64()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A settled event is compacted only when the history has it, also one whose delivery is dead or that has none.
func TestCompactionWaitsForTheHistory(t *testing.T) {
	t.Parallel()
	a := newArchived(t)
	sub := uuid.New()
	a.accept(t, "it", "delivered", "dead", "nobody", "open")
	a.record(t, "delivered", sub, delivery.StatusDelivered, false, false)
	a.record(t, "dead", sub, delivery.StatusDead, false, false)
	a.write(t, store.Write{Event: a.ref("nobody"), Matched: true})
	a.record(t, "open", sub, delivery.StatusRetrying, false, false)
	a.now = a.began.Add(2 * keepDelivered)
	if n := a.compact(t); n != 0 {
		t.Fatalf("%d events were compacted that the history has not", n)
	}
	if ids := a.archive(t); ids != "delivered dead nobody" {
		t.Errorf("archived %q", ids)
	}
	if n := a.compact(t); n != 2 {
		t.Errorf("%d events were compacted, want 2", n)
	}
	a.wantStates(t, map[string]events.State{"delivered": events.Compacted, "dead": events.Settled, "nobody": events.Compacted, "open": events.Matched})
}

// An event that settled again is written again. One that is open again when it is read is not written.
func TestAnEventThatSettlesAgainIsArchivedAgain(t *testing.T) {
	t.Parallel()
	a := newArchived(t)
	sub := uuid.New()
	a.accept(t, "it", "a")
	a.record(t, "a", sub, delivery.StatusDead, false, false)
	a.record(t, "a", sub, delivery.StatusPending, false, true)
	if ids := a.archive(t); ids != "" {
		t.Errorf("archived %q while a delivery was open", ids)
	}
	a.record(t, "a", sub, delivery.StatusDelivered, false, true)
	if ids := a.archive(t); ids != "a" {
		t.Errorf("archived %q", ids)
	}
	found, err := a.history.Get(t.Context(), []events.Ref{a.ref("a")})
	if err != nil || len(found[0].Deliveries) != 1 || !strings.HasPrefix(found[0].Deliveries[0].Record, "D3|") {
		t.Errorf("archived %+v, %v", found[0], err)
	}
}

// Two owners of a partition archive the same events, one after the other.
func TestALateOwnerArchivesNothingTwice(t *testing.T) {
	t.Parallel()
	a := newArchived(t)
	sub := uuid.New()
	a.accept(t, "it", "a", "b")
	a.record(t, "a", sub, delivery.StatusDelivered, false, false)
	late := a.unarchived(t)
	a.archive(t)
	a.record(t, "b", sub, delivery.StatusDelivered, false, false)
	if err := a.deliveries.Archived(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	if ids := a.archive(t); ids != "b" {
		t.Errorf("archived %q, want the event that the late owner has not read", ids)
	}
}

func TestRestore(t *testing.T) {
	t.Parallel()
	a := newArchived(t)
	sub := []uuid.UUID{uuid.New(), uuid.New()}
	a.accept(t, strings.Repeat("content", 100), "a", "dead")
	a.record(t, "a", sub[0], delivery.StatusDelivered, false, false)
	a.record(t, "a", sub[1], delivery.StatusCancelled, false, true)
	a.record(t, "dead", sub[0], delivery.StatusDead, false, false)
	before, dead := a.kept(t, "a"), a.kept(t, "dead")
	a.archive(t)
	a.now = a.began.Add(keepDelivered + time.Second)
	a.compact(t)
	a.wantStates(t, map[string]events.State{"a": events.Compacted})
	for _, key := range slices.Concat(a.keys(t, "e:"+a.company.String()+":dead"), a.keys(t, "d:"+a.company.String()+"/dead"), a.keys(t, "dd:"), a.keys(t, "cd:")) {
		a.client.Del(t.Context(), key) // as after their time
	}
	restore := func() {
		t.Helper()
		if err := a.deliveries.Restore(t.Context(), []events.Ref{a.ref("a"), a.ref("dead"), a.ref("unknown")}, math.MaxInt64); err != nil {
			t.Fatal(err)
		}
	}
	restore()
	if got := a.kept(t, "a"); got != before {
		t.Errorf("restored\n%s\nwant\n%s", got, before)
	}
	if got := a.kept(t, "dead"); got != dead {
		t.Errorf("restored\n%s\nwant\n%s", got, dead)
	}
	letters, err := a.deliveries.List(t.Context(), store.Filter{Company: &a.company, Statuses: []delivery.Status{delivery.StatusDead}})
	if err != nil || len(letters.Items) != 1 {
		t.Errorf("dead letters %v, %v", letters.Items, err)
	}
	for _, id := range []string{"a", "dead"} {
		for _, key := range append(a.keys(t, "e:"+a.company.String()+":"+id), a.keys(t, "d:"+a.company.String()+"/"+id)...) {
			if ttl := a.client.PTTL(t.Context(), key).Val(); ttl < time.Hour {
				t.Errorf("%s expires in %v", key, ttl)
			}
		}
	}
	a.record(t, "a", sub[0], delivery.StatusPending, false, true)
	changed := a.kept(t, "a")
	restore()
	if got := a.kept(t, "a"); got != changed {
		t.Errorf("restoring again changed\n%s\nto\n%s", changed, got)
	}
	a.record(t, "a", sub[0], delivery.StatusDelivered, false, true)
	if ids := a.archive(t); ids != "a" {
		t.Errorf("archived %q after the replay", ids)
	}
	a.now = a.began.Add(3 * keepDelivered)
	a.compact(t)
	page, err := a.numbers.After(t.Context(), a.company, 0)
	if err != nil || len(page.Events) != 2 || page.Events[0].Ref.ID != "a" || !page.Events[0].Compacted {
		t.Errorf("the company's log has %+v, %v; want the compacted event once, and the dead one", page.Events, err)
	}
}

// A restored event counts in the company's share as it did before it was compacted.
func TestRestoredEventsCount(t *testing.T) {
	t.Parallel()
	a := newArchived(t)
	a.accept(t, strings.Repeat("content", 100), "a")
	a.record(t, "a", uuid.New(), delivery.StatusDelivered, false, false)
	a.record(t, "a", uuid.New(), delivery.StatusDelivered, false, true)
	before := a.bytes(t)
	a.archive(t)
	a.now = a.began.Add(keepDelivered + time.Second)
	if a.compact(t); a.bytes(t) >= before {
		t.Fatalf("%d bytes after the compaction, %d before", a.bytes(t), before)
	}
	if err := a.deliveries.Restore(t.Context(), []events.Ref{a.ref("a")}, math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	if got := a.bytes(t); got != before {
		t.Errorf("%d bytes after the event was restored, %d before it was compacted", got, before)
	}
}

// What a company restores from beyond the retention counts in its share for an hour.
func TestRestoringIsBounded(t *testing.T) {
	t.Parallel()
	a := newArchived(t)
	refs := make([]events.Ref, 10)
	for i := range refs {
		id := string(rune('a' + i))
		a.accept(t, strings.Repeat("content", 100), id)
		a.record(t, id, uuid.New(), delivery.StatusDelivered, false, false)
		refs[i] = a.ref(id)
	}
	a.archive(t)
	for _, ref := range refs {
		a.client.Del(t.Context(), layout.EventKey(ref)) // as after its time
	}
	a.now = a.began.Add(keepIDs + 2*time.Hour)
	errs := []error{a.deliveries.Restore(t.Context(), refs[:1], math.MaxInt64)}
	size := a.bytes(t)
	for _, ref := range refs[1:] {
		errs = append(errs, a.deliveries.Restore(t.Context(), []events.Ref{ref}, 6*size))
	}
	for i, err := range errs {
		if want := i >= 5; errors.Is(err, publish.ErrStorageFull) != want || err != nil != want {
			t.Errorf("event %d: %v", i, err)
		}
		if n := a.client.Exists(t.Context(), layout.EventKey(refs[i])).Val(); n == 1 != (i < 5) {
			t.Errorf("event %d: %d in Redis", i, n)
		}
	}
	if got := a.bytes(t); got != 5*size {
		t.Errorf("the company stores %d bytes, want %d", got, 5*size)
	}
	a.now = a.now.Add(2 * time.Hour)
	if err := a.deliveries.Restore(t.Context(), refs[9:], 3*size); err != nil {
		t.Errorf("later: %v", err)
	}
}

// An event that was accepted with the id of an archived one is not overwritten.
func TestRestoreKeepsALaterEvent(t *testing.T) {
	t.Parallel()
	a := newArchived(t)
	a.accept(t, "it", "a")
	a.record(t, "a", uuid.New(), delivery.StatusDelivered, false, false)
	a.archive(t)
	a.client.FlushDB(t.Context())
	a.now = a.began.Add(keepIDs + time.Hour)
	a.began = a.now
	a.accept(t, "another", "a")
	a.record(t, "a", uuid.New(), delivery.StatusDelivered, false, false)
	key := partition.Key(a.company, "e:"+a.company.String()+":a")
	a.client.SetRange(t.Context(), key, 0, string(events.Compacted))
	if err := a.deliveries.Restore(t.Context(), []events.Ref{a.ref("a")}, math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	a.wantStates(t, map[string]events.State{"a": events.Compacted})
}

// An erased event leaves the history, whenever it was archived: before, meanwhile, or never.
func TestErasedEventsLeaveTheHistory(t *testing.T) {
	t.Parallel()
	a := newArchived(t)
	sub := uuid.New()
	a.accept(t, "it", "archived", "compacted", "waits", "read")
	for _, id := range []string{"archived", "compacted"} {
		a.record(t, id, sub, delivery.StatusDelivered, false, false)
	}
	a.archive(t)
	a.now = a.began.Add(keepDelivered)
	a.compact(t)
	a.record(t, "waits", sub, delivery.StatusDelivered, false, false)
	a.record(t, "read", sub, delivery.StatusDelivered, false, false)
	late := a.unarchived(t)
	for _, id := range []string{"archived", "compacted", "waits", "read"} {
		if err := a.deliveries.Erase(t.Context(), a.ref(id)); err != nil {
			t.Fatal(err)
		}
	}
	if ids := a.archive(t); ids != "" {
		t.Errorf("archived %q, which were erased", ids)
	}
	if err := a.history.Write(context.Background(), late.Events); err != nil { // by an owner that read them before
		t.Fatal(err)
	}
	for _, id := range []string{"archived", "compacted", "waits", "read"} {
		if found, err := a.history.Get(t.Context(), []events.Ref{a.ref(id)}); err != nil || found[0] != nil {
			t.Errorf("%s is in the history: %+v, %v", id, found[0], err)
		}
	}
}

// With the history switched off again, nothing waits for it.
func TestHistorySwitchedOff(t *testing.T) {
	t.Parallel()
	a := newArchived(t)
	a.accept(t, "it", "a")
	a.now = a.began
	a.record(t, "a", uuid.New(), delivery.StatusDelivered, false, false)
	a.deliveries = store.New(store.Options{
		Client: a.client, Now: func() time.Time { return a.now },
		Policy: delivery.Policy{Retention: keepIDs, DeadRetention: 30 * 24 * time.Hour, KeepDelivered: keepDelivered},
	})
	a.compact(t)
	if left := a.keys(t, "}:history"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	a.now = a.began.Add(keepDelivered)
	if n := a.compact(t); n != 1 {
		t.Errorf("%d events were compacted", n)
	}
}

// An erased event is not restored, also when the history could not be told.
func TestAnErasedEventIsNotRestored(t *testing.T) {
	t.Parallel()
	a := newArchived(t)
	sub := uuid.New()
	a.accept(t, "it", "compacted", "forgotten")
	for _, id := range []string{"compacted", "forgotten"} {
		a.record(t, id, sub, delivery.StatusDelivered, false, false)
	}
	a.archive(t)
	a.now = a.began.Add(keepDelivered + time.Second)
	a.compact(t)
	for _, key := range a.keys(t, ":forgotten") {
		a.client.Del(t.Context(), key)
	}
	found, err := a.history.Get(t.Context(), []events.Ref{a.ref("compacted"), a.ref("forgotten")})
	if err != nil || found[0] == nil || found[1] == nil {
		t.Fatalf("%v, %v", found, err)
	}
	late := store.New(store.Options{ // reads the history as it was before the erasure
		Client: a.client, Now: func() time.Time { return a.now }, Archive: fixed{a.history, found},
		Policy: delivery.Policy{Retention: keepIDs, DeadRetention: 30 * 24 * time.Hour, KeepDelivered: keepDelivered},
	})
	for _, id := range []string{"compacted", "forgotten"} {
		if err := a.deliveries.Erase(t.Context(), a.ref(id)); err != nil {
			t.Fatal(err)
		}
		if err := late.Restore(t.Context(), []events.Ref{a.ref(id)}, math.MaxInt64); err != nil {
			t.Fatal(err)
		}
	}
	a.wantStates(t, map[string]events.State{"compacted": events.Compacted})
	if kept := a.keys(t, "e:"+a.company.String()+":forgotten"); len(kept) != 0 {
		t.Errorf("restored: %v", kept)
	}
}

// fixed is an archive that has some events only.
type fixed struct {
	history.Archive

	found []*history.Archived
}

func (f fixed) Get(_ context.Context, refs []events.Ref) ([]*history.Archived, error) {
	out := make([]*history.Archived, len(refs))
	for i, ref := range refs {
		at := slices.IndexFunc(f.found, func(e *history.Archived) bool { return e.Ref == ref })
		if at >= 0 {
			out[i] = f.found[at]
		}
	}
	return out, nil
}

// An event that settled again is not compacted before the history has it, whatever its earlier entry says.
func TestAnEventThatSettledAgainWaitsForTheHistory(t *testing.T) {
	t.Parallel()
	a := newArchived(t)
	sub := uuid.New()
	a.accept(t, "it", "a")
	a.record(t, "a", sub, delivery.StatusDelivered, false, false)
	a.archive(t)
	a.record(t, "a", sub, delivery.StatusPending, false, true)
	a.record(t, "a", sub, delivery.StatusDelivered, false, true)
	a.now = a.began.Add(2 * keepDelivered)
	if n := a.compact(t); n != 0 {
		t.Fatalf("%d events were compacted, and the history has an earlier state", n)
	}
	a.archive(t)
	if n := a.compact(t); n != 1 {
		t.Errorf("%d events were compacted", n)
	}
}

// A dead letter that was restored after its time, because another delivery of its event is repeated, stays a dead letter of
// the history.
func TestADeadLetterStaysInTheHistory(t *testing.T) {
	t.Parallel()
	a := newArchived(t)
	one, two := uuid.New(), uuid.New()
	a.accept(t, "it", "a")
	a.record(t, "a", one, delivery.StatusDead, false, false)
	a.record(t, "a", two, delivery.StatusDead, false, true)
	a.archive(t)
	for _, key := range a.keys(t, a.company.String()) {
		a.client.Del(t.Context(), key)
	}
	a.now = a.began.Add(40 * 24 * time.Hour)
	if err := a.deliveries.Restore(t.Context(), []events.Ref{a.ref("a")}, math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	a.record(t, "a", one, delivery.StatusPending, false, true)
	a.record(t, "a", one, delivery.StatusDelivered, false, true)
	a.archive(t)
	span := history.Span{Company: a.company, Subscriber: &two, Deaths: true, High: a.now.UnixMilli()}
	places, err := a.history.Index(t.Context(), span, history.Place{}, 10)
	if err != nil || len(places) != 1 || int64(places[0].MS) != a.began.UnixMilli() {
		t.Errorf("dead letters %v, %v", places, err)
	}
}
