package workqueue_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/workqueue"
)

const hourMS = 3_600_000

// clockAhead makes the times of the test partition those of a Redis whose clock is an hour ahead. clockBack then
// is the moment at which Redis's clock goes back by an hour.
func (b *bench) clockAhead() {
	b.tb.Helper()
	b.do("HSET", "clock", "last", time.Now().UnixMilli()+hourMS, "ahead", hourMS)
}

func (b *bench) clockBack() {
	b.tb.Helper()
	b.do("HSET", "clock", "ahead", 0)
}

// When Redis's clock goes back by an hour while no replica runs, all work is served on time.
func TestRedisClockGoesBack(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*bench, *workqueue.Queue, uuid.UUID){
		"a rate limit": func(b *bench, q *workqueue.Queue, company uuid.UUID) {
			b.configure(subscriber(company, 0), company, settings{20, 1, "", ""})
			b.overflowed(q, company, 2)
			b.succeed(q, company, b.claim(q))
		},
		"the retry of an ordered delivery": func(b *bench, q *workqueue.Queue, company uuid.UUID) {
			b.configure(subscriber(company, 0), company, ordered)
			b.overflowed(q, company, 1)
			b.record(q.Name(), b.attempted(company, b.claimOne(q), attempt.ClassHTTP5xx, store.Reached))
		},
		"an open breaker": func(b *bench, q *workqueue.Queue, company uuid.UUID) {
			b.overflowed(q, company, 1)
			for range testFailures {
				b.record(q.Name(), b.attempted(company, b.claimOne(q), attempt.ClassConnectTimeout, store.Unreachable))
			}
		},
		"a first attempt": func(b *bench, q *workqueue.Queue, company uuid.UUID) {
			b.overflowed(q, company, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, redisOf(t))
			b.clockAhead()
			prepare(b, b.queue("former"), companies(testPartition, 1)[0])
			b.clockBack()
			k := &taker{others: 100}
			start(t, b.client, k, nil)
			eventually(t, "the delivery is claimed", func() bool {
				k.mu.Lock()
				defer k.mu.Unlock()
				return len(deliveriesOf(k.batches)) == 1
			})
			b.mustBeRight()
			if ahead, _ := strconv.Atoi(b.do("HGET", "clock", "ahead").(string)); ahead < hourMS*9/10 || ahead > hourMS {
				t.Errorf("the partition's clock is %d ms ahead", ahead)
			}
		})
	}
}

// The owner of a partition without due work notices that Redis's clock went back: later work is due on time.
func TestOwnerNoticesThatRedisClockWentBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	b.clockAhead()
	k := &taker{others: 100}
	start(t, b.client, k, nil)
	job := "j:" + companies(testPartition, 1)[0].String() + "/" + uuid.NewString()
	b.do("ZADD", "due", time.Now().UnixMilli()+hourMS+200, job)
	b.clockBack()
	eventually(t, "the job is claimed", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return len(k.batches) == 1 && len(k.batches[0].Jobs) == 1
	})
}

// A partition's clock that is ahead approaches Redis's clock, and never goes back.
func TestClockOfAPartitionSlowsDown(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q := b.queue("r")
	for _, c := range []struct {
		what         string
		last, ahead  int64 // last: ms after Redis's time
		from, atMost int64 // ms that it is ahead
	}{
		{"Redis's clock went back", hourMS, 0, hourMS - 1000, hourMS},
		{"a minute has passed", hourMS - 60_000, hourMS, hourMS - 7000, hourMS - 6000},
		{"ten hours have passed", -9 * hourMS, hourMS, 0, 0},
		{"a month has passed", -720 * hourMS, hourMS, 0, 0},
		{"it was not used before", -1_000_000 * hourMS, 0, 0, 0},
	} {
		before := time.Now().UnixMilli() + c.last
		b.do("HSET", "clock", "last", before, "ahead", c.ahead)
		b.promote(q)
		noted := b.read().pairs("clock")
		ahead, _ := strconv.ParseInt(noted["ahead"], 10, 64)
		last, _ := strconv.ParseInt(noted["last"], 10, 64)
		if now := time.Now().UnixMilli(); ahead < c.from || ahead > c.atMost || last < before || last > now+ahead {
			t.Errorf("%s: the clock is %d ms ahead, and went on by %d ms", c.what, ahead, last-before)
		}
	}
}
