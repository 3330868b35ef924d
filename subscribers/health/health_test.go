package health_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"spendhook/internal/redistest"
	"spendhook/subscribers"
	"spendhook/subscribers/health"
)

func (b *bundle) sample(s subscribers.Subscriber, success bool, failures int) health.Sample {
	return health.Sample{
		Company: b.Company, Subscriber: s.UUID, Success: success, TrailingFailures: failures, At: b.Now(),
	}
}

func (b *bundle) record(t *testing.T, samples ...health.Sample) []health.Transition {
	t.Helper()
	transitions := b.healths.Record(t.Context(), samples, health.Policy{})
	for _, transition := range transitions {
		noErr(t, transition.Err)
	}
	return transitions
}

func (b *bundle) health(t *testing.T, s subscribers.Subscriber) health.Health {
	t.Helper()
	all, err := b.healths.Of(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	return all[s.UUID]
}

// A subscriber with a longer schedule of retries is not disabled before its end.
func TestASubscriberMayFailForLonger(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.Create(t, "https://example.com/")
	const day = 24 * time.Hour
	record := func(after time.Duration) health.Kind {
		t.Helper()
		b.Advance(after)
		sample := b.sample(s, false, 4)
		sample.DisableAfter = 20 * day
		return b.record(t, sample)[0].Kind
	}
	for i, step := range []struct {
		after time.Duration
		want  health.Kind
	}{{0, health.Failing}, {6 * day, health.None}, {14*day - time.Millisecond, health.None}, {time.Millisecond, health.Expired}} {
		if got := record(step.after); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
}

func TestHealthOverALifetime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.Create(t, "https://example.com/")
	if diff := cmp.Diff(health.Health{State: health.StateHealthy}, b.health(t, s)); diff != "" {
		t.Errorf("health of a new one (-want +got):\n%s", diff)
	}
	const day = 24 * time.Hour
	for i, step := range []struct {
		wait     time.Duration
		success  bool
		failures int
		want     health.Kind
	}{
		{0, true, 0, health.None},
		{0, false, 3, health.None},
		{0, false, 1, health.Failing},
		{0, false, 1, health.None},
		{day, true, 0, health.Recovered},
		{day, true, 4, health.Failing},
		{5*day - time.Millisecond, false, 1, health.None},
		{time.Millisecond, false, 1, health.Expired},
		{time.Minute, false, 1, health.Expired},
		{0, true, 4, health.None}, // recovered and failing again: no difference
		{0, true, 3, health.Recovered},
	} {
		b.Advance(step.wait)
		if got := b.record(t, b.sample(s, step.success, step.failures))[0].Kind; got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
	now := b.Now().UTC()
	want := health.Health{State: health.StateHealthy, FailingSince: &now, LastSuccessAt: &now, ConsecutiveFailures: 3}
	if diff := cmp.Diff(want, b.health(t, s)); diff != "" {
		t.Errorf("health (-want +got):\n%s", diff)
	}
}

// model is record.lua again, in the plainest Go.
type model struct {
	failing     bool
	fails       int
	since, last int64
}

func (m *model) add(success bool, failures int, at int64) health.Kind {
	was := m.failing
	if success {
		*m = model{last: max(m.last, at)}
	}
	if failures > 0 && m.fails == 0 {
		m.since = at
	}
	m.fails += failures
	m.failing = m.failing || failures > 0 && m.fails >= 3
	switch {
	case m.failing && !was:
		return health.Failing
	case was && !m.failing:
		return health.Recovered
	case m.failing && at-m.since >= 1_800_000:
		return health.Expired
	}
	return health.None
}

func (m *model) health() health.Health {
	h := health.Health{State: health.StateHealthy, ConsecutiveFailures: int64(m.fails)}
	if m.failing {
		h.State = health.StateFailing
	}
	if m.since != 0 {
		h.FailingSince = new(time.UnixMilli(m.since).UTC())
	}
	if m.last != 0 {
		h.LastSuccessAt = new(time.UnixMilli(m.last).UTC())
	}
	return h
}

func TestTheClassOfTheLastFailure(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.Create(t, "https://example.com/")
	for _, step := range []struct {
		success  bool
		failures int
		class    string
	}{{false, 1, "timeout"}, {false, 5, "token"}, {true, 2, "status"}, {true, 0, ""}} {
		sample := b.sample(s, step.success, step.failures)
		sample.Error = step.class
		b.record(t, sample)
		if got := b.health(t, s).Error; got != step.class {
			t.Errorf("%q, want %q", got, step.class)
		}
	}
}

func TestHealthFollowsTheModel(t *testing.T) {
	t.Parallel()
	b := setup(t)
	policy := health.Policy{FailingAfter: 3, DisableAfter: 30 * time.Minute}
	rapid.Check(t, func(rt *rapid.T) {
		s := b.Create(t, "https://example.com/"+uuid.NewString())
		m := &model{}
		steps := rapid.SliceOfN(rapid.Custom(drawSample), 1, 12).Draw(rt, "samples")
		for _, step := range steps {
			b.Advance(step.wait)
			at := b.Now()
			got := b.healths.Record(t.Context(), []health.Sample{b.sample(s, step.success, step.failures)}, policy)
			want := []health.Transition{{
				Company: b.Company, Subscriber: s.UUID, Kind: m.add(step.success, step.failures, at.UnixMilli()), Health: m.health(),
			}}
			if diff := cmp.Diff(want, got); diff != "" {
				rt.Fatalf("transition (-model +redis):\n%s", diff)
			}
			if diff := cmp.Diff(m.health(), b.health(t, s)); diff != "" {
				rt.Fatalf("health (-model +redis):\n%s", diff)
			}
		}
	})
}

type drawn struct {
	wait     time.Duration
	success  bool
	failures int
}

func drawSample(t *rapid.T) drawn {
	return drawn{
		wait:     time.Duration(rapid.IntRange(0, 40).Draw(t, "minutes")) * time.Minute,
		success:  rapid.IntRange(0, 4).Draw(t, "success") == 0,
		failures: rapid.IntRange(0, 4).Draw(t, "failures"),
	}
}

func TestEachChangeOfStateIsReportedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.Create(t, "https://example.com/")
	count := func(success bool, failures int, kind health.Kind) int {
		results := make([][]health.Transition, 20)
		var wg sync.WaitGroup
		for i := range results {
			wg.Go(func() { results[i] = b.record(t, b.sample(s, success, failures), b.sample(s, success, failures)) })
		}
		wg.Wait()
		told := 0
		for _, transitions := range results {
			for _, transition := range transitions {
				if transition.Kind == kind {
					told++
				}
			}
		}
		return told
	}
	if n := count(false, 1, health.Failing); n != 1 {
		t.Errorf("failing was reported %d times", n)
	}
	if n := count(true, 0, health.Recovered); n != 1 {
		t.Errorf("recovered was reported %d times", n)
	}
}

// A call that Redis receives twice counts its failures once, and gets the same answer.
func TestARepeatedSampleIsCountedOnce(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	client.AddHook(redistest.Repeats())
	b := setupOn(client)
	s := b.Create(t, "https://example.com/")
	for i, want := range []health.Kind{health.None, health.None, health.Failing} {
		got := b.healths.Record(redistest.Repeated(t.Context()), []health.Sample{b.sample(s, false, 1)}, health.Policy{FailingAfter: 3})
		if noErr(t, got[0].Err); got[0].Kind != want || got[0].Health.ConsecutiveFailures != int64(i+1) {
			t.Errorf("failure %d: %s, %d failures, want %s", i+1, got[0].Kind, got[0].Health.ConsecutiveFailures, want)
		}
	}
}

func TestEachRunOfFailuresExpires(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.Create(t, "https://example.com/")
	policy := health.Policy{FailingAfter: 1, DisableAfter: time.Minute}
	for run := range 2 {
		for _, want := range []health.Kind{health.Failing, health.Expired} {
			got := b.healths.Record(t.Context(), []health.Sample{b.sample(s, false, 1)}, policy)
			noErr(t, got[0].Err)
			if got[0].Kind != want {
				t.Errorf("run %d: %s, want %s", run, got[0].Kind, want)
			}
			b.Advance(time.Minute)
		}
		b.record(t, b.sample(s, true, 0))
	}
}

// A replica whose clock is days ahead does not let the failures of a subscriber expire.
func TestAWrongClockDisablesNobody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.Create(t, "https://example.com/")
	b.healths = health.New(health.Options{Client: b.Redis}) // as a daemon makes it
	for _, want := range []health.Kind{health.Failing, health.None} {
		got := b.healths.Record(t.Context(), []health.Sample{b.sample(s, false, 1)}, health.Policy{FailingAfter: 1})
		if noErr(t, got[0].Err); got[0].Kind != want {
			t.Errorf("%s, want %s", got[0].Kind, want)
		}
		b.Advance(6 * 24 * time.Hour)
	}
}

func TestHealthStartsAnewWhenEnabled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.Create(t, "https://example.com/")
	b.record(t, b.sample(s, false, 4))
	_, err := b.Store.DisableFailing(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if h := b.health(t, s); h.State != health.StateFailing || h.ConsecutiveFailures != 4 || h.FailingSince == nil {
		t.Errorf("health of a disabled one: %+v", h)
	}
	_, err = b.Store.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{Enabled: new(true)})
	noErr(t, err)
	if diff := cmp.Diff(health.Health{State: health.StateHealthy}, b.health(t, s)); diff != "" {
		t.Errorf("health once enabled (-want +got):\n%s", diff)
	}
	b.record(t, b.sample(s, false, 3))
	_, err = b.Store.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{Enabled: new(true), Name: new("Other")})
	noErr(t, err)
	if h := b.health(t, s); h.ConsecutiveFailures != 3 {
		t.Errorf("an update of an enabled one reset its health: %+v", h)
	}
}

func TestSampleOfADeletedSubscriberWritesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.Create(t, "https://example.com/1")
	b.Create(t, "https://example.com/2")
	noErr(t, b.Store.Delete(t.Context(), b.Company, s.UUID))
	before := b.Redis.DBSize(t.Context()).Val()
	if got := b.record(t, b.sample(s, false, 9))[0].Kind; got != health.None {
		t.Errorf("transition %s", got)
	}
	if after := b.Redis.DBSize(t.Context()).Val(); after != before {
		t.Errorf("%d keys, were %d", after, before)
	}
	if diff := cmp.Diff(health.Health{State: health.StateHealthy}, b.health(t, s)); diff != "" {
		t.Errorf("its health (-want +got):\n%s", diff)
	}
}

func TestHealthKeyExpires(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.Create(t, "https://example.com/")
	b.record(t, b.sample(s, true, 0))
	keys := b.Redis.Keys(t.Context(), "*sh:"+s.UUID.String()).Val()
	if len(keys) != 1 {
		t.Fatalf("keys = %v", keys)
	}
	if ttl := b.Redis.TTL(t.Context(), keys[0]).Val(); ttl < 89*24*time.Hour {
		t.Errorf("time to live = %v", ttl)
	}
}
