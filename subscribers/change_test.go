package subscribers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events/eventtype"
	"spendhook/internal/redistest"
	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/subscriberstest"
)

func TestUpdateChangesWhatIsNamed(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	want := b.Create(t, "https://example.com/a")
	for _, step := range []struct {
		update subscribers.Settings
		expect func()
	}{
		{subscribers.Settings{Name: new("Cards")}, func() { want.Name = "Cards" }},
		{subscribers.Settings{Events: new([]string{"A", "B"})}, func() { want.Events = []string{"A", "B"} }},
		{subscribers.Settings{CallbackURL: new("https://EXAMPLE.com/b")}, func() {
			want.CallbackURL, want.URLVersion, want.FormerURLs = "https://example.com/b", 1, []string{"https://example.com/a"}
		}},
		{subscribers.Settings{Enabled: new(false)}, func() {
			want.Enabled, want.DisabledReason, want.DisabledAt = false, subscribers.ReasonManual, new(b.Now().UTC())
		}},
		{subscribers.Settings{Enabled: new(true)}, func() { want.Enabled, want.DisabledReason, want.DisabledAt = true, "", nil }},
	} {
		b.Advance(time.Second)
		got, err := b.Store.Update(t.Context(), b.Company, want.UUID, step.update)
		noErr(t, err)
		step.expect()
		want.UpdatedAt = b.Now().UTC()
		if got.Revision == want.Revision {
			t.Errorf("the revision stays %s", got.Revision)
		}
		want.Revision = got.Revision
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(subscribers.Subscriber{}, subscribers.SigningKeys{})); diff != "" {
			t.Fatalf("updated (-want +got):\n%s", diff)
		}
		read, err := b.Store.Get(t.Context(), b.Company, want.UUID)
		noErr(t, err)
		if diff := cmp.Diff(got, read, cmpopts.IgnoreUnexported(subscribers.Subscriber{}, subscribers.SigningKeys{})); diff != "" {
			t.Fatalf("read (-updated +read):\n%s", diff)
		}
	}
}

func TestUpdateThatChangesNothingWritesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	made := b.Create(t, "https://example.com/")
	before := b.Version(t)
	b.Advance(time.Minute)
	for _, u := range []subscribers.Settings{{}, {Name: &made.Name, CallbackURL: &made.CallbackURL, Events: &made.Events, Enabled: new(true)}} {
		got, err := b.Store.Update(t.Context(), b.Company, made.UUID, u)
		noErr(t, err)
		if diff := cmp.Diff(made, got, cmpopts.IgnoreUnexported(subscribers.Subscriber{}, subscribers.SigningKeys{})); diff != "" {
			t.Errorf("(-made +got):\n%s", diff)
		}
	}
	if v := b.Version(t); v != before {
		t.Errorf("version %d, was %d", v, before)
	}
}

func TestUpdateRefuses(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.Create(t, "https://example.com/")
	_, err := b.Store.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{
		Name: new(""), CallbackURL: new("http://example.com"), Events: new([]string{}),
	})
	if got := subscriberstest.Codes(t, err); got != "name REQUIRED, callbackUrl INVALID, events REQUIRED" {
		t.Errorf("codes = %s", got)
	}
	read, err := b.Store.Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if diff := cmp.Diff(s, read, cmpopts.IgnoreUnexported(subscribers.Subscriber{}, subscribers.SigningKeys{})); diff != "" {
		t.Errorf("changed (-before +after):\n%s", diff)
	}
}

func TestURLMovesAndIsFreedForOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	first := b.Create(t, "https://example.com/1")
	second := b.Create(t, "https://example.com/2")
	_, err := b.Store.Update(t.Context(), b.Company, first.UUID, subscribers.Settings{CallbackURL: &second.CallbackURL})
	wantErr(t, err, subscribers.ErrConflict)
	_, err = b.Store.Update(t.Context(), b.Company, first.UUID, subscribers.Settings{CallbackURL: new("https://example.com/3")})
	noErr(t, err)
	b.Create(t, "https://example.com/1")
	_, err = b.Store.Create(t.Context(), b.Company, b.Settings("https://example.com/3"))
	wantErr(t, err, subscribers.ErrConflict)
	_, err = b.Store.AddEvent(t.Context(), b.Company, "https://example.com/3", "A")
	noErr(t, err)
}

func TestConcurrentChangesLoseNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.Create(t, "https://example.com/")
	errs := make([]error, 41)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() { _, errs[i] = b.Store.AddEvent(t.Context(), b.Company, s.CallbackURL, fmt.Sprintf("E%d", i)) })
	}
	wg.Go(func() {
		_, errs[40] = b.Store.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{Name: new("Renamed")})
	})
	wg.Wait()
	noErr(t, errors.Join(errs...))
	got, err := b.Store.Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if len(got.Events) != 41 || got.Name != "Renamed" {
		t.Errorf("%d events, name %q", len(got.Events), got.Name)
	}
}

func TestAddAndRemoveEvent(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.Create(t, "https://example.com/")
	for range 2 { // the second time changes nothing
		got, err := b.Store.AddEvent(t.Context(), b.Company, "https://EXAMPLE.com:443/#x", "EXTRA")
		noErr(t, err)
		if want := []string{"PAYMENT_PAID", "EXTRA"}; !slices.Equal(got.Events, want) {
			t.Errorf("events = %v, want %v", got.Events, want)
		}
	}
	for _, name := range []string{"PAYMENT_PAID", "EXTRA", "EXTRA", "NEVER_THERE"} {
		_, err := b.Store.RemoveEvent(t.Context(), b.Company, s.CallbackURL, name)
		noErr(t, err)
	}
	got, err := b.Store.Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if len(got.Events) != 0 || got.Wants("EXTRA") {
		t.Errorf("events = %v, want none", got.Events)
	}
	_, err = b.Store.AddEvent(t.Context(), b.Company, s.CallbackURL, "EXTRA")
	noErr(t, err)
}

func TestAddAndRemoveEventRefuse(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	b.Create(t, "https://example.com/")
	_, err := b.Store.AddEvent(t.Context(), b.Company, "nonsense", "*bad")
	if got := subscriberstest.Codes(t, err); got != "event INVALID, callbackUrl INVALID" {
		t.Errorf("codes = %s", got)
	}
	_, err = b.Store.RemoveEvent(t.Context(), b.Company, "", "")
	if got := subscriberstest.Codes(t, err); got != "event REQUIRED, callbackUrl REQUIRED" {
		t.Errorf("codes = %s", got)
	}
	_, err = b.Store.AddEvent(t.Context(), b.Company, "https://example.com/other", "A")
	wantErr(t, err, subscribers.ErrNotFound)
	_, err = b.Store.RemoveEvent(t.Context(), b.Company, "https://example.com/other", "A")
	wantErr(t, err, subscribers.ErrNotFound)
}

func TestAtMost100Events(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	in := b.Settings("https://example.com/")
	in.Events = new([]string)
	for i := range 100 {
		*in.Events = append(*in.Events, fmt.Sprintf("E%d", i))
	}
	_, err := b.Store.Create(t.Context(), b.Company, in)
	noErr(t, err)
	_, err = b.Store.AddEvent(t.Context(), b.Company, *in.CallbackURL, "E5")
	noErr(t, err)
	_, err = b.Store.AddEvent(t.Context(), b.Company, *in.CallbackURL, "E100")
	if got := subscriberstest.Codes(t, err); got != "event TOO_MANY" {
		t.Errorf("codes = %s", got)
	}
}

func TestDisableKeepsTheFirstReason(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.Create(t, "https://example.com/")
	changed, err := b.Store.DisableGone(t.Context(), b.Company, s.UUID, s.CallbackURL, b.Now())
	noErr(t, err)
	again, err := b.Store.DisableFailing(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if !changed || again {
		t.Errorf("changed = %v, again = %v", changed, again)
	}
	got, err := b.Store.Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if got.Enabled || got.DisabledReason != subscribers.ReasonGone {
		t.Errorf("enabled %v, reason %q", got.Enabled, got.DisabledReason)
	}
}

func TestConcurrentDisablesChangeOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.Create(t, "https://example.com/")
	changed := make([]bool, 20)
	var wg, reads sync.WaitGroup
	reads.Add(len(changed)) // all read before one writes
	b.Redis.AddHook(redistest.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		err := next(ctx, cmd)
		if cmd.Name() == "hget" {
			reads.Done()
			reads.Wait()
		}
		return err
	}})
	for i := range changed {
		wg.Go(func() { changed[i], _ = b.Store.DisableFailing(t.Context(), b.Company, s.UUID) })
	}
	wg.Wait()
	if n := len(slices.DeleteFunc(changed, func(c bool) bool { return !c })); n != 1 {
		t.Errorf("%d callers were answered that they disabled it", n)
	}
}

func TestRotatedSecretSignsUntilTheOverlapEnds(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{SecretOverlap: time.Hour})
	made := b.Create(t, "https://example.com/")
	rotated, err := b.Store.RotateSecret(t.Context(), b.Company, made.UUID)
	noErr(t, err)
	old, fresh := made.Secrets[0].Key, rotated.Secrets[0].Key
	if fresh == old {
		t.Fatal("the secret did not change")
	}
	now := b.Now()
	for at, want := range map[time.Duration][]secret.Text{
		0: {fresh, old}, time.Hour - time.Millisecond: {fresh, old}, time.Hour: {fresh},
	} {
		if got := subscriberstest.LiveSecrets(&rotated, now.Add(at)); !slices.Equal(got, want) {
			t.Errorf("after %v: %d secrets, want %d", at, len(got), len(want))
		}
	}

	b.Advance(time.Hour)
	updated, err := b.Store.Update(t.Context(), b.Company, made.UUID, subscribers.Settings{Name: new("Later")})
	noErr(t, err)
	if len(updated.Secrets) != 1 || updated.Secrets[0].Key != fresh {
		t.Errorf("%d secrets are kept, want the fresh one", len(updated.Secrets))
	}
}

func TestRotationDoesNotProlongAnOldSecret(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	made := b.Create(t, "https://example.com/")
	_, err := b.Store.RotateSecret(t.Context(), b.Company, made.UUID)
	noErr(t, err)
	b.Advance(23 * time.Hour)
	rotated, err := b.Store.RotateSecret(t.Context(), b.Company, made.UUID)
	noErr(t, err)
	if got := len(subscriberstest.LiveSecrets(&rotated, b.Now())); got != 3 {
		t.Errorf("%d secrets live, want 3", got)
	}
	if got := len(subscriberstest.LiveSecrets(&rotated, b.Now().Add(time.Hour))); got != 2 {
		t.Errorf("%d secrets live an hour later, want 2", got)
	}
}

// Each secret signs until its overlap ends: a rotation that would need a sixth one is refused.
func TestRotationsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.Create(t, "https://example.com/")
	first := s.Secrets[0].Key
	for range 4 {
		var err error
		s, err = b.Store.RotateSecret(t.Context(), b.Company, s.UUID)
		noErr(t, err)
	}
	_, err := b.Store.RotateSecret(t.Context(), b.Company, s.UUID)
	wantErr(t, err, subscribers.ErrTooManySecrets)
	s, err = b.Store.Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if live := subscriberstest.LiveSecrets(&s, b.Now()); len(live) != 5 || live[4] != first {
		t.Errorf("%d secrets live, the first of them among: %v", len(live), slices.Contains(live, first))
	}
	b.Advance(24 * time.Hour)
	s, err = b.Store.RotateSecret(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if live := subscriberstest.LiveSecrets(&s, b.Now()); len(live) != 2 || slices.Contains(live, first) {
		t.Errorf("%d secrets live a day later", len(live))
	}
}

// A 410 disables the subscriber only if its URL is still the one that answered.
func TestDisableGoneIgnoresAChangedSubscriber(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.Create(t, "https://example.com/")
	gone := func(url string, began time.Time, want bool) {
		t.Helper()
		changed, err := b.Store.DisableGone(t.Context(), b.Company, s.UUID, url, began)
		noErr(t, err)
		if changed != want {
			t.Errorf("410 from %s at %v: disabled %v, want %v", url, began, changed, want)
		}
	}
	began := b.Now()
	b.Advance(time.Minute)
	_, err := b.Store.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{Name: new("Other")})
	noErr(t, err)
	gone(s.CallbackURL, began, false)
	gone("https://example.com/old", b.Now(), false)
	gone(s.CallbackURL, b.Now(), true)
	gone(s.CallbackURL, b.Now(), false)
	got, err := b.Store.Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if got.Enabled || got.DisabledReason != subscribers.ReasonGone {
		t.Errorf("enabled %v, reason %q", got.Enabled, got.DisabledReason)
	}
	_, err = b.Store.DisableGone(t.Context(), b.Company, uuid.New(), s.CallbackURL, began)
	wantErr(t, err, subscribers.ErrNotFound)
}

// A pattern matches what begins with it, but operational events match only by name.
func TestPatternsOfEvents(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		events, name string
		want         bool
	}{
		{"payment.*", "payment.paid", true},
		{"payment.*", "PAYMENT_PAID", false},
		{"*", "payment.paid", true},
		{"*", eventtype.SubscriberDisabled, false},
		{"*", eventtype.DeliveryDead, false},
		{"S*", eventtype.SubscriberFailing, false},
		{"* " + eventtype.DeliveryDead, eventtype.DeliveryDead, true},
		{"A*", "A", true},
	} {
		s := subscribers.Subscriber{Events: strings.Fields(tc.events)}
		if got := s.Wants(tc.name); got != tc.want {
			t.Errorf("%s matches %s: %v", tc.events, tc.name, got)
		}
	}
}
