package health_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/queues"
	"spendhook/subscribers"
)

func (b *bundle) history(t *testing.T, s subscribers.Subscriber) (words []string) {
	t.Helper()
	all, err := b.healths.History(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	for _, c := range all {
		words = append(words, c.What)
	}
	return words
}

func (b *bundle) turn(t *testing.T, s subscribers.Subscriber, enabled bool) {
	t.Helper()
	_, err := b.Store.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{Enabled: &enabled})
	noErr(t, err)
}

// TestHistoryOverALifetime: each change is kept once, in order. The history is deleted with the
// subscriber.
func TestHistoryOverALifetime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, other := b.Create(t, "https://example.com/a"), b.Create(t, "https://example.com/b")
	b.record(t, b.sample(s, false, 4))
	b.record(t, b.sample(s, false, 1))
	b.record(t, b.sample(s, true, 0))
	for range 2 { // the second time changes nothing
		noErr(t, b.Store.Pause(t.Context(), b.Company, s.UUID))
	}
	for range 2 {
		noErr(t, b.Store.Resume(t.Context(), b.Company, s.UUID))
	}
	for _, enabled := range []bool{false, false, true, true} {
		b.turn(t, s, enabled)
	}
	want := []string{"failing", "recovered", "paused", "resumed", "disabled", "enabled"}
	if got := b.history(t, s); !slices.Equal(got, want) {
		t.Errorf("history %v, want %v", got, want)
	}
	if got := b.history(t, other); got != nil {
		t.Errorf("the other's: %v", got)
	}
	all, err := b.healths.History(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if !all[0].At.Equal(b.Now()) || !all[5].At.Equal(b.Now()) || time.Since(all[2].At).Abs() > time.Hour { // a pause is timed by Redis
		t.Errorf("times: %+v", all)
	}
	for range 40 {
		b.turn(t, s, false)
		b.turn(t, s, true)
	}
	if n := len(b.history(t, s)); n != 50 {
		t.Errorf("%d changes are kept", n)
	}
	noErr(t, b.Store.Pause(t.Context(), b.Company, s.UUID))
	key := queues.ChangesKey(b.Company, s.UUID)
	if life := b.Redis.TTL(t.Context(), key).Val(); life <= 7*24*time.Hour || life > 9*24*time.Hour {
		t.Errorf("the history expires in %v", life)
	}
	noErr(t, b.Store.Delete(t.Context(), b.Company, s.UUID))
	if n := b.Redis.Exists(t.Context(), key).Val(); n != 0 {
		t.Error("the history exists after the subscriber was deleted")
	}
}

// TestTroubledListsFailingAndPaused subscribers, until they recover or are resumed.
func TestTroubledListsFailingAndPaused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, other := b.Create(t, "https://example.com/a"), b.Create(t, "https://example.com/b")
	is := func(what string, fail, pause []uuid.UUID) {
		t.Helper()
		failing, paused, err := b.healths.Troubled(t.Context(), b.Company)
		noErr(t, err)
		if !slices.Equal(failing, fail) || !slices.Equal(paused, pause) {
			t.Errorf("%s: failing %v, paused %v", what, failing, paused)
		}
	}
	is("at first", nil, nil)
	b.record(t, b.sample(s, false, 3))
	is("nearly failing", nil, nil)
	b.record(t, b.sample(s, false, 1))
	noErr(t, b.Store.Pause(t.Context(), b.Company, other.UUID))
	is("one of each", []uuid.UUID{s.UUID}, []uuid.UUID{other.UUID})
	b.record(t, b.sample(s, true, 0))
	noErr(t, b.Store.Resume(t.Context(), b.Company, other.UUID))
	is("both are well", nil, nil)

	b.record(t, b.sample(s, false, 4), b.sample(other, false, 4))
	b.turn(t, s, false)
	b.turn(t, s, true)
	is("one enabled again", []uuid.UUID{other.UUID}, nil)
	noErr(t, b.Store.Pause(t.Context(), b.Company, other.UUID))
	noErr(t, b.Store.Delete(t.Context(), b.Company, other.UUID))
	is("deleted", nil, nil)
	b.record(t, b.sample(s, false, 4))
	b.Advance(91 * 24 * time.Hour)
	is("90 days after the last sample", nil, nil)
}
