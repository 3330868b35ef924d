package publish_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// budget is a Memory that a test sets. release reverses Reserve.
type budget struct {
	mu          sync.Mutex
	admit, free int64
}

func (b *budget) set(admit, free int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.admit, b.free = admit, free
}

func (b *budget) left() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.admit
}

func (b *budget) Reserve(_ context.Context, _ string, n int64) (reserved, free int64, release func(int64)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	reserved, free = min(n, b.admit), b.free
	b.admit -= reserved
	b.free -= reserved
	return reserved, free, func(bytes int64) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.admit += bytes
		b.free += bytes
	}
}

// storage is a publisher with a Memory that the test controls.
type storage struct {
	*publish.Publisher
	client redis.UniversalClient
	memory *budget
	clock  time.Time
	at     time.Time // of all events
}

func newStorage(t *testing.T, client redis.UniversalClient) *storage {
	t.Helper()
	now := time.Now()
	s := &storage{client: client, memory: &budget{}, clock: now, at: now}
	s.memory.set(math.MaxInt64, math.MaxInt64)
	clock := func() time.Time { return s.clock }
	s.Publisher = publish.New(publish.Options{
		Client: client, Retention: 24 * time.Hour, Memory: s.memory, Now: clock, Wake: func(context.Context, []int) {},
	})
	t.Cleanup(s.Close)
	return s
}

// send accepts events with these ids and returns the answers. The part of an id after a slash
// is the content of the event.
func (s *storage) send(t *testing.T, company uuid.UUID, ids ...string) string {
	t.Helper()
	batch := make([]events.Event, len(ids))
	for i, id := range ids {
		id, content, _ := strings.Cut(id, "/")
		batch[i] = events.Event{
			ID: id, CompanyUUID: company, Type: "PAYMENT_PAID", Timestamp: s.at,
			Metadata: jsontext.Value(fmt.Sprintf(`{"content":%q,"fill":%q}`, content, strings.Repeat("x", 10_000))),
		}
	}
	results, err := s.Accept(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	said := make([]string, len(results))
	for i, r := range results {
		switch {
		case errors.Is(r.Err, publish.ErrStorageFull):
			said[i] = "STORAGE_FULL"
		case errors.Is(r.Err, publish.ErrConflict):
			said[i] = "CONFLICT"
		case r.Err != nil:
			said[i] = r.Err.Error()
		default:
			said[i] = string(r.Status)
		}
	}
	return strings.Join(said, " ")
}

func wantSaid(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %s, want %s", what, got, want)
	}
}

// counted returns the counted bytes of a company: the total, and the sum and number of its
// hours.
func (s *storage) counted(t *testing.T, company uuid.UUID) (total, hours int64, n int) {
	t.Helper()
	text, _ := s.client.HGet(t.Context(), partition.Key(company, "c:"+company.String()), "bytes").Result()
	total, _ = strconv.ParseInt(text, 10, 64)
	for _, bytes := range s.client.HGetAll(t.Context(), partition.Key(company, "cb:"+company.String())).Val() {
		b, _ := strconv.ParseInt(bytes, 10, 64)
		hours += b
		n++
	}
	return total, hours, n
}

// An event is refused when the deliveries that the company's events have on average do not fit its share.
func TestTheDeliveriesOfAnEventCountInTheShareOfItsCompany(t *testing.T) {
	t.Parallel()
	s, company := newStorage(t, redistest.New(t)), uuid.New()
	s.memory.set(math.MaxInt64, 60_000)
	for _, step := range []struct {
		cost float64
		id   string
		want string
	}{{100, "a", "STORAGE_FULL"}, {10, "b", "ACCEPTED"}} {
		if err := s.client.HSet(t.Context(), partition.Key(company, "c:"+company.String()), "cost", step.cost).Err(); err != nil {
			t.Fatal(err)
		}
		wantSaid(t, fmt.Sprintf("with %v deliveries", step.cost), s.send(t, company, step.id), step.want)
	}
}

// The answers that a company's requests have stored leave less to its events, until they expire.
func TestAnswersOfRequestsCountInTheShareOfTheirCompany(t *testing.T) {
	t.Parallel()
	s, company := newStorage(t, redistest.New(t)), uuid.New()
	s.memory.set(math.MaxInt64, 40_000)
	answers := func(hour int64) {
		t.Helper()
		_, err := s.client.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
			pipe.HSet(t.Context(), partition.Key(company, "c:"+company.String()), "answers", 50_000)
			pipe.Del(t.Context(), partition.Key(company, "ib:"+company.String()))
			pipe.HSet(t.Context(), partition.Key(company, "ib:"+company.String()), hour, 50_000)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	hour := s.clock.Unix() / 3600
	answers(hour)
	wantSaid(t, "with answers", s.send(t, company, "a"), "STORAGE_FULL")
	answers(hour - 24)
	wantSaid(t, "with answers of a day ago", s.send(t, company, "a"), "STORAGE_FULL")
	answers(hour - 25)
	wantSaid(t, "with expired answers", s.send(t, company, "a"), "ACCEPTED")
	answers(hour - 25)
	s.memory.set(math.MaxInt64, 61_000) // without a new count for the first event
	wantSaid(t, "a batch, with expired answers", s.send(t, company, "b", "c"), "ACCEPTED ACCEPTED")
}

func TestNothingNewIsAdmittedAboveTheHighWaterMark(t *testing.T) {
	t.Parallel()
	s, company := newStorage(t, redistest.New(t)), uuid.New()
	wantSaid(t, "with memory", s.send(t, company, "a", "b"), "ACCEPTED ACCEPTED")
	s.memory.set(0, 0)
	wantSaid(t, "without", s.send(t, company, "a", "b/other", "c", "c", "b"), "DUPLICATE CONFLICT STORAGE_FULL STORAGE_FULL DUPLICATE")
	s.memory.set(25_000, math.MaxInt64)
	wantSaid(t, "for two", s.send(t, company, "a", "c", "d", "e", "d"), "DUPLICATE ACCEPTED ACCEPTED STORAGE_FULL DUPLICATE")
	if left := s.memory.left(); left < 2_000 || left > 4_000 {
		t.Errorf("%d of 25,000 bytes are left after two events of 10,000", left)
	}
	wantSaid(t, "known ones", s.send(t, company, "c", "d"), "DUPLICATE DUPLICATE")
	if left := s.memory.left(); left < 2_000 {
		t.Errorf("known events took memory: %d bytes are left", left)
	}
	s.memory.set(math.MaxInt64, math.MaxInt64)
	wantSaid(t, "with memory again", s.send(t, company, "e"), "ACCEPTED")
}

func TestCompanyWithMoreThanIsFreeGetsNoMore(t *testing.T) {
	t.Parallel()
	s, big, small := newStorage(t, redistest.New(t)), uuid.New(), uuid.New()
	s.memory.set(math.MaxInt64, 100_000)
	accepted := 0
	for i := range 20 {
		if s.send(t, big, fmt.Sprint("e", i)) == "ACCEPTED" {
			accepted++
		}
	}
	if accepted < 4 || accepted > 6 { // half of 100,000
		t.Errorf("%d events of 11,000 bytes were accepted where 100,000 were free", accepted)
	}
	wantSaid(t, "the company that holds most", s.send(t, big, "e0", "more"), "DUPLICATE STORAGE_FULL")
	wantSaid(t, "the other company", s.send(t, small, "e0", "e1"), "ACCEPTED ACCEPTED")
}

func TestStoredBytesAreCountedByTheHour(t *testing.T) {
	t.Parallel()
	s, company := newStorage(t, redistest.New(t)), uuid.New()
	s.send(t, company, "a", "b")
	one, _, _ := s.counted(t, company)
	s.clock, s.at = s.clock.Add(2*time.Hour), s.at.Add(2*time.Hour)
	s.send(t, company, "c", "d", "a")
	if total, hours, n := s.counted(t, company); total != 2*one || hours != total || n != 2 {
		t.Errorf("%d bytes in all, %d in %d hours, want %d in 2", total, hours, n, 2*one)
	}
	s.clock, s.at = s.clock.Add(24*time.Hour), s.at.Add(24*time.Hour)
	s.send(t, company, "e")
	if total, hours, n := s.counted(t, company); total != one+one/2 || hours != total || n != 2 {
		t.Errorf("after retention: %d bytes in all, %d in %d hours, want %d in 2", total, hours, n, one+one/2)
	}
	// After a long time without an accepted event, the total of the company is out of date.
	s.clock, s.at = s.clock.Add(48*time.Hour), s.at.Add(48*time.Hour)
	s.memory.set(math.MaxInt64, 20_000)
	wantSaid(t, "after all was forgotten", s.send(t, company, "f"), "ACCEPTED")
}

// Known ids are answered even when Redis refuses all writes, whatever the last reading of its
// memory was.
func TestKnownIDsAreAnsweredAtTheMemoryLimit(t *testing.T) {
	t.Parallel()
	s, company := newStorage(t, redistest.Start(t, redistest.Options{}).Client()), uuid.New()
	wantSaid(t, "with memory", s.send(t, company, "a", "b"), "ACCEPTED ACCEPTED")
	if err := s.client.ConfigSet(t.Context(), "maxmemory", "1mb").Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.client.Set(t.Context(), "x", "x", 0).Err(); !redis.IsOOMError(err) {
		t.Fatalf("Redis takes writes: %v", err)
	}
	for _, free := range []int64{math.MaxInt64, 0} {
		s.memory.set(free, free)
		wantSaid(t, fmt.Sprint("at the limit, with ", free), s.send(t, company, "a", "b/other", "c"), "DUPLICATE CONFLICT STORAGE_FULL")
	}
}
