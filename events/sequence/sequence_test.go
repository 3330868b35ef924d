package sequence_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/events/sequence"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// follow reads all events of a company after a number, and how many are not kept.
func (b *bundle) follow(ctx context.Context, t rapid.TB, company uuid.UUID, after int64) (found []sequence.Event, forgotten int64) {
	t.Helper()
	for {
		f, err := b.reader.After(ctx, company, after)
		if err != nil || f.Through < after || f.Through > f.Last || f.Through == after && after < f.Last {
			t.Fatalf("after %d: %+v, %v", after, f, err)
		}
		found = append(found, f.Events...)
		forgotten += f.Through - after - int64(len(f.Events))
		if after = f.Through; after == f.Last {
			return found, forgotten
		}
	}
}

// Whatever the clock does, the index has the order of the numbers, times of acceptance do not
// decrease, and After returns exactly the events that follow a number.
func TestEventsAreReadByNumber(t *testing.T) {
	t.Parallel()
	b := setup(t)
	rapid.Check(t, func(rt *rapid.T) {
		of, clock := uuid.New(), noon.UnixMilli()
		var accepted []string
		for i := range rapid.IntRange(1, 12).Draw(rt, "requests") {
			clock += rapid.SampledFrom([]int64{0, 0, 1, 7, -1, -5000, 3_600_000}).Draw(rt, "step")
			b.Clock.Store(clock)
			batch := batchOf(of, fmt.Sprintf("r%d-", i), rapid.SampledFrom([]int{1, 2, 60, 130, 300}).Draw(rt, "events"))
			for j := range batch {
				batch[j].Timestamp = time.UnixMilli(clock)
				accepted = append(accepted, batch[j].ID)
			}
			b.Accept(t, batch...)
		}
		index := b.Redis.ZRangeWithScores(t.Context(), layout.IndexKey(of), 0, -1).Val()
		if len(index) != len(accepted) {
			rt.Fatalf("%d in the index, %d were accepted", len(index), len(accepted))
		}
		for i, z := range index {
			if z.Member != accepted[i] || i > 0 && z.Score <= index[i-1].Score {
				rt.Fatalf("at %d of the index: %v at %.4f, want %s after %.4f", i, z.Member, z.Score, accepted[i], index[max(i-1, 0)].Score)
			}
		}
		after := rapid.Int64Range(0, int64(len(accepted))).Draw(rt, "after")
		found, forgotten := b.follow(t.Context(), rt, of, after)
		if int64(len(found)) != int64(len(accepted))-after || forgotten != 0 {
			rt.Fatalf("%d events after %d of %d, %d forgotten", len(found), after, len(accepted), forgotten)
		}
		for i, n := range found {
			at := index[after+int64(i)]
			if n.Sequence != after+int64(i)+1 || n.Ref.ID != at.Member || n.AcceptedAt.UnixMilli() != int64(at.Score) {
				rt.Fatalf("number %d is %+v, want %v", after+int64(i)+1, n, at)
			}
		}
	})
}

// When a millisecond is full, further events get the next one.
func TestMoreEventsThanAMillisecondHolds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Accept(t, batchOf(company, "e", 3000)...)
	found, _ := b.follow(t.Context(), t, company, 0)
	if len(found) != 3000 {
		t.Fatalf("%d were read", len(found))
	}
	for i, n := range found {
		if late := n.AcceptedAt.Sub(noon); n.Sequence != int64(i+1) || late < 0 || late > 3*time.Millisecond {
			t.Fatalf("at %d: number %d, accepted %v late", i, n.Sequence, late)
		}
	}
}

func TestNothingFollowsTheLastEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if f, err := b.reader.After(t.Context(), company, 0); err != nil || f.Last != 0 || f.Through != 0 || len(f.Events) != 0 {
		t.Errorf("a company without events: %+v, %v", f, err)
	}
	b.Accept(t, batchOf(company, "e", 3)...)
	if f, err := b.reader.After(t.Context(), company, 3); err != nil || f.Through != 3 || len(f.Events) != 0 {
		t.Errorf("after the last: %+v, %v", f, err)
	}
	for _, after := range []int64{4, math.MaxInt32, 1 << 40} {
		if _, err := b.reader.After(t.Context(), company, after); !errors.Is(err, sequence.ErrAhead) {
			t.Errorf("after %d: %v, want ErrAhead", after, err)
		}
	}
}

// matched moves the cursor of the company to its last event, as the owner of its partition does.
func (b *bundle) matched(t *testing.T) {
	t.Helper()
	last := b.Redis.HGet(t.Context(), layout.StateKey(company), "at").Val()
	if err := b.Redis.HSet(t.Context(), layout.StateKey(company), "cursor", last).Err(); err != nil {
		t.Fatal(err)
	}
}

// Events past retention are removed from the index and the blocks, and their numbers are
// counted as forgotten.
func TestForgottenNumbersAreCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const old, young = 1000, 400
	b.Accept(t, batchOf(company, "old", old)...)
	b.matched(t)
	b.Clock.Store(noon.Add(retention + time.Hour).UnixMilli())
	for i := range young {
		e := newEvent(fmt.Sprint("young", i))
		e.Timestamp = noon.Add(retention + time.Hour)
		b.Accept(t, e)
	}
	blocks := b.Redis.HKeys(t.Context(), partition.Key(company, "en:"+company.String())).Val()
	if first := old / 128; len(blocks) > (old+young)/128-first+1 {
		t.Errorf("blocks %q are kept, want those from %d", blocks, first)
	}
	for after, want := range map[int64]int64{0: old, 500: old - 500, old: 0, old + 10: 0} {
		found, forgotten := b.follow(t.Context(), t, company, after)
		if forgotten != want || int64(len(found)) != old+young-after-want || found[0].Sequence != max(old, after)+1 {
			t.Errorf("after %d: %d events, %d forgotten, want %d", after, len(found), forgotten, want)
		}
	}
	b.Redis.Del(t.Context(), layout.IndexKey(company), partition.Key(company, "en:"+company.String())) // nothing came for so long
	if found, forgotten := b.follow(t.Context(), t, company, 10); len(found) != 0 || forgotten != old+young-10 {
		t.Errorf("after a pause: %d events, %d forgotten", len(found), forgotten)
	}
	b.Clock.Add(2 * time.Hour.Milliseconds())
	e := newEvent("later")
	e.Timestamp = time.UnixMilli(b.Clock.Load())
	b.Accept(t, e)
	if found, forgotten := b.follow(t.Context(), t, company, 10); len(found) != 1 || found[0].Ref.ID != "later" || forgotten != old+young-10 {
		t.Errorf("after a pause, and one event: %+v, %d forgotten", found, forgotten)
	}
}

// Damaged and missing events do not hide others.
func TestDamagedEventsAreCountedAsForgotten(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Accept(t, batchOf(company, "e", 200)...)
	key := func(n int) string { return layout.EventKey(events.Ref{Company: company, ID: fmt.Sprintf("e%04d", n)}) }
	b.Redis.Del(t.Context(), key(3), key(10))
	b.Redis.Set(t.Context(), key(4), "R", 0)
	b.Redis.LPush(t.Context(), key(10), "x")
	b.Redis.HSet(t.Context(), partition.Key(company, "en:"+company.String()), "1c", "\x05\xff broken")
	found, forgotten := b.follow(t.Context(), t, company, 0)
	if len(found) != 197 || forgotten != 3 {
		t.Errorf("%d events, %d forgotten", len(found), forgotten)
	}
}

func TestCompaniesHaveNumbersOfTheirOwn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 5 {
		of := uuid.UUID{byte(i), 7}
		b.Accept(t, batchOf(of, "e"+strconv.Itoa(i), i+1)...)
	}
	for i := range 5 {
		found, _ := b.follow(t.Context(), t, uuid.UUID{byte(i), 7}, 0)
		if len(found) != i+1 || found[0].Ref.Company != (uuid.UUID{byte(i), 7}) {
			t.Errorf("company %d: %+v", i, found)
		}
	}
}

// Events are read while Redis refuses writes, as without enough replicas.
func TestEventsAreReadWhileRedisRefusesWrites(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t, redistest.Options{}).Client()
	if err := client.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err(); err != nil {
		t.Fatal(err)
	}
	r := sequence.New(client)
	t.Cleanup(r.Close)
	if _, err := r.After(t.Context(), uuid.New(), 0); err != nil {
		t.Error(err)
	}
}
