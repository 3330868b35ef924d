package subscribers_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/queues"
	"spendhook/subscribers"
)

// why is the reason for which deliveries wait; "" when they do not.
func (b *bundle) why(t *testing.T, id uuid.UUID) string {
	t.Helper()
	of, err := b.Redis.HMGet(t.Context(), queues.EndpointKey(b.Company, id), "paused", "why").Result()
	noErr(t, err)
	if of[0] == nil {
		return ""
	}
	return of[1].(string)
}

func state(s subscribers.Subscriber) string {
	if s.Verification == nil {
		return ""
	}
	return s.Verification.State
}

func verified() subscribers.Verification {
	return subscribers.Verification{State: subscribers.StateVerified, At: new(time.UnixMilli(1_700_000_000_000).UTC())}
}

func TestANewSubscriberWaitsForItsVerification(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{Challenge: subscribers.ChallengeNew})
	sub := b.Create(t, "https://example.com/a")
	if state(sub) != subscribers.StateUnverified || b.why(t, sub.UUID) != "UNVERIFIED" || !b.Store.MustVerify(&sub) {
		t.Fatalf("created: %q, waits for %q", state(sub), b.why(t, sub.UUID))
	}
	wantErr(t, b.Store.Resume(t.Context(), b.Company, sub.UUID), subscribers.ErrUnverified)

	failed := subscribers.Verification{State: subscribers.StateFailed, Reason: "timeout"}
	sub, err := b.Store.NoteChallenge(t.Context(), b.Company, sub.UUID, sub.CallbackURL, failed)
	noErr(t, err)
	if state(sub) != subscribers.StateFailed || b.why(t, sub.UUID) != "UNVERIFIED" {
		t.Errorf("after a failure: %q, waits for %q", state(sub), b.why(t, sub.UUID))
	}
	_, err = b.Store.NoteChallenge(t.Context(), b.Company, sub.UUID, "https://example.com/other", verified())
	wantErr(t, err, subscribers.ErrChanged)

	for range 2 { // a repeated call changes nothing
		sub, err = b.Store.NoteChallenge(t.Context(), b.Company, sub.UUID, sub.CallbackURL, verified())
		noErr(t, err)
	}
	if state(sub) != subscribers.StateVerified || b.why(t, sub.UUID) != "" || b.Store.MustVerify(&sub) {
		t.Errorf("verified: %q, waits for %q", state(sub), b.why(t, sub.UUID))
	}
	if sub, err = b.Store.NoteChallenge(t.Context(), b.Company, sub.UUID, sub.CallbackURL, failed); err != nil || state(sub) != subscribers.StateVerified {
		t.Errorf("a failure after that: %q, %v", state(sub), err)
	}
}

func TestAnUnverifiedSubscriberTakesAnyURL(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{Challenge: subscribers.ChallengeNew})
	sub := b.Create(t, "https://example.com/a")
	_, err := b.Store.NoteChallenge(t.Context(), b.Company, sub.UUID, sub.CallbackURL, subscribers.Verification{State: subscribers.StateFailed, Reason: "dns"})
	noErr(t, err)
	sub, err = b.Store.Update(t.Context(), b.Company, sub.UUID, subscribers.Settings{CallbackURL: new("https://example.com/b")})
	noErr(t, err)
	if v := sub.Verification; v.State != subscribers.StateUnverified || v.Reason != "" || b.why(t, sub.UUID) != "UNVERIFIED" {
		t.Errorf("%+v, waits for %q", v, b.why(t, sub.UUID))
	}
}

// The former URL is used until the new one is verified, whether or not the former one ever was.
func TestAVerifiedSubscriberNeedsAVerifiedURL(t *testing.T) {
	t.Parallel()
	plain := setup(t, subscribers.StoreOptions{})
	old := plain.Create(t, "https://example.com/old")
	b := &bundle{plain.With(subscribers.StoreOptions{Challenge: subscribers.ChallengeNew})}
	fresh := b.Create(t, "https://example.com/a")
	_, err := b.Store.NoteChallenge(t.Context(), b.Company, fresh.UUID, fresh.CallbackURL, verified())
	noErr(t, err)
	for _, sub := range []subscribers.Subscriber{old, fresh} {
		in := subscribers.Settings{CallbackURL: new(sub.CallbackURL + "/new"), Name: new("Other")}
		next, prove, err := b.Store.Prepare(t.Context(), b.Company, sub.UUID, in)
		if err != nil || !prove || next.CallbackURL != sub.CallbackURL+"/new" {
			t.Errorf("prepared %s, %t, %v", next.CallbackURL, prove, err)
		}
		_, err = b.Store.Update(t.Context(), b.Company, sub.UUID, in)
		wantErr(t, err, subscribers.ErrUnverified)
		if read, err := b.Store.Get(t.Context(), b.Company, sub.UUID); err != nil || read.CallbackURL != sub.CallbackURL || read.Name != sub.Name {
			t.Errorf("after the refusal: %s, %s, %v", read.CallbackURL, read.Name, err)
		}
		in.Verified = new(verified())
		changed, err := b.Store.Update(t.Context(), b.Company, sub.UUID, in)
		if err != nil || changed.CallbackURL != sub.CallbackURL+"/new" || state(changed) != subscribers.StateVerified || b.why(t, sub.UUID) != "" {
			t.Errorf("with a verification: %s, %q, %v", changed.CallbackURL, state(changed), err)
		}
		if _, prove, err := b.Store.Prepare(t.Context(), b.Company, sub.UUID, subscribers.Settings{Name: new("X")}); prove || err != nil {
			t.Errorf("another change needs a proof: %t, %v", prove, err)
		}
	}
}

// A pause that the company asks for is not ended by the verification.
func TestAPauseOutlivesTheVerification(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{Challenge: subscribers.ChallengeNew})
	sub := b.Create(t, "https://example.com/a")
	noErr(t, b.Store.Pause(t.Context(), b.Company, sub.UUID))
	_, err := b.Store.NoteChallenge(t.Context(), b.Company, sub.UUID, sub.CallbackURL, verified())
	noErr(t, err)
	if why := b.why(t, sub.UUID); why != "MANUAL" {
		t.Errorf("waits for %q", why)
	}
	noErr(t, b.Store.Resume(t.Context(), b.Company, sub.UUID))
	if why := b.why(t, sub.UUID); why != "" {
		t.Errorf("after the resume: waits for %q", why)
	}
}

// With ChallengeAll the present subscribers wait as well; those that are verified, or of which it was asked before,
// stay as they are. Without a challenge, the company may resume all.
func TestAllSubscribersMustBeVerified(t *testing.T) {
	t.Parallel()
	off := setup(t, subscribers.StoreOptions{})
	old, proven := off.Create(t, "https://example.com/old"), off.Create(t, "https://example.com/proven")
	_, err := off.Store.NoteChallenge(t.Context(), off.Company, proven.UUID, proven.CallbackURL, verified())
	noErr(t, err)
	all := &bundle{off.With(subscribers.StoreOptions{Challenge: subscribers.ChallengeAll})}
	asked := all.Create(t, "https://example.com/asked")
	for _, want := range []int{1, 0} {
		if n, err := all.Store.RequireVerification(t.Context()); err != nil || n != want {
			t.Errorf("%d subscribers wait from now on, %v, want %d", n, err, want)
		}
	}
	for _, c := range []struct {
		sub  subscribers.Subscriber
		want string
	}{{old, "UNVERIFIED"}, {proven, ""}, {asked, "UNVERIFIED"}} {
		if why := all.why(t, c.sub.UUID); why != c.want {
			t.Errorf("%s waits for %q, want %q", c.sub.CallbackURL, why, c.want)
		}
	}
	noErr(t, off.Store.Resume(t.Context(), off.Company, old.UUID))
	if why := off.why(t, old.UUID); why != "" {
		t.Errorf("resumed, waits for %q", why)
	}
}

// The receiver's rate holds beside the subscriber's own: the lower one counts.
func TestTheRateOfTheReceiverIsKept(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	for _, c := range []struct {
		name    string
		own     float64 // per second; 0: none
		allowed int     // per minute
		want    string  // ms between two attempts
	}{{"none of its own", 0, 120, "500"}, {"a higher one", 10, 120, "500"}, {"a lower one", 1, 120, "1000"}, {"none allowed", 4, 0, "250"}} {
		sub := b.Create(t, "https://example.com/"+uuid.NewString())
		if c.own > 0 {
			_, err := b.Store.Update(t.Context(), b.Company, sub.UUID, subscribers.Settings{RateLimit: &subscribers.RateLimit{PerSecond: c.own}})
			noErr(t, err)
		}
		v := verified()
		v.PerMinute = c.allowed
		_, err := b.Store.NoteChallenge(t.Context(), b.Company, sub.UUID, sub.CallbackURL, v)
		noErr(t, err)
		if got := b.Redis.HGet(t.Context(), queues.EndpointKey(b.Company, sub.UUID), "interval").Val(); got != c.want {
			t.Errorf("%s: interval %q, want %s", c.name, got, c.want)
		}
	}
}
