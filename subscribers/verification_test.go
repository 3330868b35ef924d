package subscribers_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/subscribers"
	"spendhook/subscribers/layout"
)

// why is the reason for which deliveries wait; "" when they do not.
func (b *bundle) why(t *testing.T, id uuid.UUID) string {
	t.Helper()
	of, err := b.Redis.HMGet(t.Context(), queues.EndpointKey(b.Company, id), "paused", "why", "unverified").Result()
	noErr(t, err)
	listed, err := b.Redis.SMIsMember(t.Context(), partition.Key(b.Company, "bl:"+b.Company.String()), id.String(), "!"+id.String()).Result()
	noErr(t, err)
	reason := ""
	switch {
	case of[0] != nil:
		reason = of[1].(string)
	case of[2] != nil:
		reason = "UNVERIFIED"
	}
	if waits := reason != ""; listed[0] != waits || listed[1] != waits {
		t.Errorf("waits for %q, and is listed as one that does: %v", reason, listed)
	}
	waiting, err := b.Redis.SIsMember(t.Context(), layout.UnverifiedKey(partition.Of(b.Company)), b.Company.String()+"/"+id.String()).Result()
	noErr(t, err)
	if waiting != (of[2] != nil) {
		t.Errorf("unverified: %v, and in the set of those: %t", of[2], waiting)
	}
	return reason
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
	if state(sub) != subscribers.StateUnverified || b.why(t, sub.UUID) != "UNVERIFIED" {
		t.Fatalf("created: %q, waits for %q", state(sub), b.why(t, sub.UUID))
	}
	noErr(t, b.Store.Resume(t.Context(), b.Company, sub.UUID))
	if why := b.why(t, sub.UUID); why != "UNVERIFIED" {
		t.Errorf("resumed, it waits for %q", why)
	}

	failed := subscribers.Verification{State: subscribers.StateFailed, Reason: "timeout"}
	sub, err := b.Store.NoteChallenge(t.Context(), &sub, failed)
	noErr(t, err)
	if state(sub) != subscribers.StateFailed || b.why(t, sub.UUID) != "UNVERIFIED" {
		t.Errorf("after a failure: %q, waits for %q", state(sub), b.why(t, sub.UUID))
	}
	elsewhere := sub
	elsewhere.CallbackURL = "https://example.com/other"
	_, err = b.Store.NoteChallenge(t.Context(), &elsewhere, verified())
	wantErr(t, err, subscribers.ErrChanged)

	for range 2 { // a repeated call changes nothing
		sub, err = b.Store.NoteChallenge(t.Context(), &sub, verified())
		noErr(t, err)
	}
	if state(sub) != subscribers.StateVerified || b.why(t, sub.UUID) != "" {
		t.Errorf("verified: %q, waits for %q", state(sub), b.why(t, sub.UUID))
	}
	if sub, err = b.Store.NoteChallenge(t.Context(), &sub, failed); err != nil || state(sub) != subscribers.StateVerified {
		t.Errorf("a failure after that: %q, %v", state(sub), err)
	}
}

func TestAnUnverifiedSubscriberTakesAnyURL(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{Challenge: subscribers.ChallengeNew})
	sub := b.Create(t, "https://example.com/a")
	_, err := b.Store.NoteChallenge(t.Context(), &sub, subscribers.Verification{State: subscribers.StateFailed, Reason: "dns"})
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
	_, err := b.Store.NoteChallenge(t.Context(), &fresh, verified())
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
		for _, other := range []struct {
			in    subscribers.Settings
			prove bool
		}{
			{subscribers.Settings{Name: new("X")}, false},
			{subscribers.Settings{Format: new(subscribers.FormatThin)}, false},
			{subscribers.Settings{Format: new(subscribers.FormatCloudEvents)}, true}, // by the handshake
		} {
			if _, prove, err := b.Store.Prepare(t.Context(), b.Company, sub.UUID, other.in); prove != other.prove || err != nil {
				t.Errorf("%+v needs a verification: %t, %v", other.in, prove, err)
			}
		}
	}
}

// A pause and the verification are two reasons to wait. Neither ends the other.
func TestAPauseOutlivesTheVerification(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{Challenge: subscribers.ChallengeNew})
	sub, other := b.Create(t, "https://example.com/a"), b.Create(t, "https://example.com/b")
	for _, s := range []subscribers.Subscriber{sub, other} {
		noErr(t, b.Store.Pause(t.Context(), b.Company, s.UUID))
		if why := b.why(t, s.UUID); why != "MANUAL" {
			t.Errorf("waits for %q", why)
		}
	}
	_, err := b.Store.NoteChallenge(t.Context(), &sub, verified())
	noErr(t, err)
	noErr(t, b.Store.Resume(t.Context(), b.Company, other.UUID))
	for id, want := range map[uuid.UUID]string{sub.UUID: "MANUAL", other.UUID: "UNVERIFIED"} {
		if why := b.why(t, id); why != want {
			t.Errorf("waits for %q, want %q", why, want)
		}
	}
	noErr(t, b.Store.Resume(t.Context(), b.Company, sub.UUID))
	if why := b.why(t, sub.UUID); why != "" {
		t.Errorf("resumed, it waits for %q", why)
	}
	noErr(t, b.Store.Delete(t.Context(), b.Company, other.UUID))
	if why := b.why(t, other.UUID); why != "" {
		t.Errorf("deleted, it waits for %q", why)
	}
}

// With ChallengeAll the subscribers that exist wait as well; those that are verified, or wait already, stay as they are.
// With ChallengeOff none waits any longer. A damaged one disturbs neither.
func TestAChangedSettingIsApplied(t *testing.T) {
	t.Parallel()
	off := setup(t, subscribers.StoreOptions{})
	with := func(c subscribers.Challenge) *bundle {
		return &bundle{off.With(subscribers.StoreOptions{Challenge: c})}
	}
	old, proven := off.Create(t, "https://example.com/old"), off.Create(t, "https://example.com/proven")
	_, err := off.Store.NoteChallenge(t.Context(), &proven, verified())
	noErr(t, err)
	asked := with(subscribers.ChallengeNew).Create(t, "https://example.com/asked")
	noErr(t, off.Redis.HSet(t.Context(), layout.CompanyKey(off.Company), uuid.NewString(), "damaged").Err())
	for _, step := range []struct {
		setting                  subscribers.Challenge
		changed                  int
		forOld, forProven, waits string
	}{
		{subscribers.ChallengeNew, 0, "", "", "UNVERIFIED"},
		{subscribers.ChallengeAll, 1, "UNVERIFIED", "", "UNVERIFIED"},
		{subscribers.ChallengeAll, 0, "UNVERIFIED", "", "UNVERIFIED"},
		{subscribers.ChallengeNew, 0, "UNVERIFIED", "", "UNVERIFIED"},
		{subscribers.ChallengeOff, 2, "", "", ""},
		{"", 0, "", "", ""},
	} {
		b := with(step.setting)
		if n, err := b.Store.ApplyChallenge(t.Context()); err != nil || n != step.changed {
			t.Errorf("%s: %d changed, %v, want %d", step.setting, n, err, step.changed)
		}
		waiting := int64(0)
		for id, want := range map[uuid.UUID]string{old.UUID: step.forOld, proven.UUID: step.forProven, asked.UUID: step.waits} {
			if why := b.why(t, id); why != want {
				t.Errorf("%s: waits for %q, want %q", step.setting, why, want)
			}
			if want != "" {
				waiting++
			}
		}
		if n, err := b.Store.CountUnverified(t.Context()); err != nil || n != waiting {
			t.Errorf("%s: %d wait, %v, want %d", step.setting, n, err, waiting)
		}
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
			_, err := b.Store.Update(t.Context(), b.Company, sub.UUID, subscribers.Settings{RateLimit: &subscribers.RateLimit{PerSecond: c.own, Burst: 100}})
			noErr(t, err)
		}
		v := verified()
		v.PerMinute = c.allowed
		_, err := b.Store.NoteChallenge(t.Context(), &sub, v)
		noErr(t, err)
		burst := "1" // what the receiver allows is a rate, not a number at once
		if c.allowed == 0 {
			burst = "100"
		}
		of := b.Redis.HMGet(t.Context(), queues.EndpointKey(b.Company, sub.UUID), "interval", "burst").Val()
		if of[0] != c.want || of[1] != burst {
			t.Errorf("%s: interval and burst %v, want %s, %s", c.name, of, c.want, burst)
		}
	}
}
