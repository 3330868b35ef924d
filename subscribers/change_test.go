package subscribers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/secret"
	"spendhook/subscribers"
)

func TestUpdateChangesWhatIsNamed(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	want := b.create(t, "https://example.com/a")
	for _, step := range []struct {
		update subscribers.Settings
		expect func()
	}{
		{subscribers.Settings{Name: new("Cards")}, func() { want.Name = "Cards" }},
		{subscribers.Settings{Events: new([]string{"A", "B"})}, func() { want.Events = []string{"A", "B"} }},
		{subscribers.Settings{CallbackURL: new("https://EXAMPLE.com/b")}, func() { want.CallbackURL = "https://example.com/b" }},
		{subscribers.Settings{Enabled: new(false)}, func() {
			want.Enabled, want.DisabledReason, want.DisabledAt = false, subscribers.ReasonManual, new(b.clock.Now().UTC())
		}},
		{subscribers.Settings{Enabled: new(true)}, func() { want.Enabled, want.DisabledReason, want.DisabledAt = true, "", nil }},
	} {
		b.clock.advance(time.Second)
		got, err := b.store.Update(t.Context(), b.company, want.UUID, step.update)
		noErr(t, err)
		step.expect()
		want.UpdatedAt = b.clock.Now().UTC()
		if got.Revision == want.Revision {
			t.Errorf("the revision stays %s", got.Revision)
		}
		want.Revision = got.Revision
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(subscribers.Subscriber{})); diff != "" {
			t.Fatalf("updated (-want +got):\n%s", diff)
		}
		read, err := b.store.Get(t.Context(), b.company, want.UUID)
		noErr(t, err)
		if diff := cmp.Diff(got, read, cmpopts.IgnoreUnexported(subscribers.Subscriber{})); diff != "" {
			t.Fatalf("read (-updated +read):\n%s", diff)
		}
	}
}

func TestUpdateThatChangesNothingWritesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	made := b.create(t, "https://example.com/")
	before := b.version(t)
	b.clock.advance(time.Minute)
	for _, u := range []subscribers.Settings{{}, {Name: &made.Name, CallbackURL: &made.CallbackURL, Events: &made.Events, Enabled: new(true)}} {
		got, err := b.store.Update(t.Context(), b.company, made.UUID, u)
		noErr(t, err)
		if diff := cmp.Diff(made, got, cmpopts.IgnoreUnexported(subscribers.Subscriber{})); diff != "" {
			t.Errorf("(-made +got):\n%s", diff)
		}
	}
	if v := b.version(t); v != before {
		t.Errorf("version %d, was %d", v, before)
	}
}

func TestUpdateRefuses(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.create(t, "https://example.com/")
	_, err := b.store.Update(t.Context(), b.company, s.UUID, subscribers.Settings{
		Name: new(""), CallbackURL: new("http://example.com"), Events: new([]string{}),
	})
	if got := codes(t, err); got != "name REQUIRED, callbackUrl INVALID, events REQUIRED" {
		t.Errorf("codes = %s", got)
	}
	read, err := b.store.Get(t.Context(), b.company, s.UUID)
	noErr(t, err)
	if diff := cmp.Diff(s, read, cmpopts.IgnoreUnexported(subscribers.Subscriber{})); diff != "" {
		t.Errorf("changed (-before +after):\n%s", diff)
	}
}

func TestURLMovesAndIsFreedForOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	first := b.create(t, "https://example.com/1")
	second := b.create(t, "https://example.com/2")
	_, err := b.store.Update(t.Context(), b.company, first.UUID, subscribers.Settings{CallbackURL: &second.CallbackURL})
	wantErr(t, err, subscribers.ErrConflict)
	_, err = b.store.Update(t.Context(), b.company, first.UUID, subscribers.Settings{CallbackURL: new("https://example.com/3")})
	noErr(t, err)
	b.create(t, "https://example.com/1")
	_, err = b.store.Create(t.Context(), b.company, b.input("https://example.com/3"))
	wantErr(t, err, subscribers.ErrConflict)
	_, err = b.store.AddEvent(t.Context(), b.company, "https://example.com/3", "A")
	noErr(t, err)
}

func TestConcurrentChangesLoseNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.create(t, "https://example.com/")
	errs := make([]error, 41)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() { _, errs[i] = b.store.AddEvent(t.Context(), b.company, s.CallbackURL, fmt.Sprintf("E%d", i)) })
	}
	wg.Go(func() {
		_, errs[40] = b.store.Update(t.Context(), b.company, s.UUID, subscribers.Settings{Name: new("Renamed")})
	})
	wg.Wait()
	noErr(t, errors.Join(errs...))
	got, err := b.store.Get(t.Context(), b.company, s.UUID)
	noErr(t, err)
	if len(got.Events) != 41 || got.Name != "Renamed" {
		t.Errorf("%d events, name %q", len(got.Events), got.Name)
	}
}

func TestAddAndRemoveEvent(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.create(t, "https://example.com/")
	for range 2 { // the second time changes nothing
		got, err := b.store.AddEvent(t.Context(), b.company, "https://EXAMPLE.com:443/#x", "EXTRA")
		noErr(t, err)
		if want := []string{"PAYMENT_PAID", "EXTRA"}; !slices.Equal(got.Events, want) {
			t.Errorf("events = %v, want %v", got.Events, want)
		}
	}
	for _, name := range []string{"PAYMENT_PAID", "EXTRA", "EXTRA", "NEVER_THERE"} {
		noErr(t, b.store.RemoveEvent(t.Context(), b.company, s.CallbackURL, name))
	}
	got, err := b.store.Get(t.Context(), b.company, s.UUID)
	noErr(t, err)
	if len(got.Events) != 0 || got.Wants("EXTRA") {
		t.Errorf("events = %v, want none", got.Events)
	}
	_, err = b.store.AddEvent(t.Context(), b.company, s.CallbackURL, "EXTRA")
	noErr(t, err)
}

func TestAddAndRemoveEventRefuse(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	b.create(t, "https://example.com/")
	_, err := b.store.AddEvent(t.Context(), b.company, "nonsense", "bad")
	if got := codes(t, err); got != "event INVALID, callbackUrl INVALID" {
		t.Errorf("codes = %s", got)
	}
	err = b.store.RemoveEvent(t.Context(), b.company, "", "")
	if got := codes(t, err); got != "event REQUIRED, callbackUrl REQUIRED" {
		t.Errorf("codes = %s", got)
	}
	_, err = b.store.AddEvent(t.Context(), b.company, "https://example.com/other", "A")
	wantErr(t, err, subscribers.ErrNotFound)
	wantErr(t, b.store.RemoveEvent(t.Context(), b.company, "https://example.com/other", "A"), subscribers.ErrNotFound)
}

func TestAtMost100Events(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	in := b.input("https://example.com/")
	in.Events = new([]string)
	for i := range 100 {
		*in.Events = append(*in.Events, fmt.Sprintf("E%d", i))
	}
	_, err := b.store.Create(t.Context(), b.company, in)
	noErr(t, err)
	_, err = b.store.AddEvent(t.Context(), b.company, *in.CallbackURL, "E5")
	noErr(t, err)
	_, err = b.store.AddEvent(t.Context(), b.company, *in.CallbackURL, "E100")
	if got := codes(t, err); got != "event TOO_MANY" {
		t.Errorf("codes = %s", got)
	}
}

func TestDisableKeepsTheFirstReason(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.create(t, "https://example.com/")
	for i, reason := range []string{subscribers.ReasonGone, subscribers.ReasonFailing} {
		changed, err := b.store.Disable(t.Context(), b.company, s.UUID, reason)
		noErr(t, err)
		if changed != (i == 0) {
			t.Errorf("disable %d: changed = %v", i, changed)
		}
	}
	got, err := b.store.Get(t.Context(), b.company, s.UUID)
	noErr(t, err)
	if got.Enabled || got.DisabledReason != subscribers.ReasonGone {
		t.Errorf("enabled %v, reason %q", got.Enabled, got.DisabledReason)
	}
	if _, err := b.store.Disable(t.Context(), b.company, s.UUID, "WHIM"); err == nil {
		t.Error("an unknown reason was accepted")
	}
}

func TestConcurrentDisablesChangeOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.create(t, "https://example.com/")
	changed := make([]bool, 20)
	var wg, reads sync.WaitGroup
	reads.Add(len(changed)) // all read before one writes
	b.client.AddHook(hook{each: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		err := next(ctx, cmd)
		if cmd.Name() == "hget" {
			reads.Done()
			reads.Wait()
		}
		return err
	}})
	for i := range changed {
		wg.Go(func() { changed[i], _ = b.store.Disable(t.Context(), b.company, s.UUID, subscribers.ReasonFailing) })
	}
	wg.Wait()
	if n := len(slices.DeleteFunc(changed, func(c bool) bool { return !c })); n != 1 {
		t.Errorf("%d callers were answered that they disabled it", n)
	}
}

func TestRotatedSecretSignsUntilTheOverlapEnds(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{SecretOverlap: time.Hour})
	made := b.create(t, "https://example.com/")
	rotated, err := b.store.RotateSecret(t.Context(), b.company, made.UUID)
	noErr(t, err)
	old, fresh := made.Secrets[0].Key, rotated.Secrets[0].Key
	if fresh == old {
		t.Fatal("the secret did not change")
	}
	now := b.clock.Now()
	for at, want := range map[time.Duration][]secret.Text{
		0: {fresh, old}, time.Hour - time.Millisecond: {fresh, old}, time.Hour: {fresh},
	} {
		if got := rotated.LiveSecrets(now.Add(at)); !slices.Equal(got, want) {
			t.Errorf("after %v: %d secrets, want %d", at, len(got), len(want))
		}
	}

	b.clock.advance(time.Hour)
	updated, err := b.store.Update(t.Context(), b.company, made.UUID, subscribers.Settings{Name: new("Later")})
	noErr(t, err)
	if len(updated.Secrets) != 1 || updated.Secrets[0].Key != fresh {
		t.Errorf("%d secrets are kept, want the fresh one", len(updated.Secrets))
	}
}

func TestRotationDoesNotProlongAnOldSecret(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	made := b.create(t, "https://example.com/")
	_, err := b.store.RotateSecret(t.Context(), b.company, made.UUID)
	noErr(t, err)
	b.clock.advance(23 * time.Hour)
	rotated, err := b.store.RotateSecret(t.Context(), b.company, made.UUID)
	noErr(t, err)
	if got := len(rotated.LiveSecrets(b.clock.Now())); got != 3 {
		t.Errorf("%d secrets live, want 3", got)
	}
	if got := len(rotated.LiveSecrets(b.clock.Now().Add(time.Hour))); got != 2 {
		t.Errorf("%d secrets live an hour later, want 2", got)
	}
}

func TestRotationsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.create(t, "https://example.com/")
	first := s.Secrets[0].Key
	for range 6 {
		var err error
		s, err = b.store.RotateSecret(t.Context(), b.company, s.UUID)
		noErr(t, err)
	}
	live := s.LiveSecrets(b.clock.Now())
	if len(live) != 5 || slices.Contains(live, first) || s.Secrets[0].ExpiresAt != nil {
		t.Errorf("%d secrets live, the first of them among: %v", len(live), slices.Contains(live, first))
	}
}

// A 410 disables the subscriber only if its URL is still the one that answered.
func TestDisableGoneIgnoresAChangedSubscriber(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.create(t, "https://example.com/")
	gone := func(url string, began time.Time, want bool) {
		t.Helper()
		changed, err := b.store.DisableGone(t.Context(), b.company, s.UUID, url, began)
		noErr(t, err)
		if changed != want {
			t.Errorf("410 from %s at %v: disabled %v, want %v", url, began, changed, want)
		}
	}
	began := b.clock.Now()
	b.clock.advance(time.Minute)
	_, err := b.store.Update(t.Context(), b.company, s.UUID, subscribers.Settings{Name: new("Other")})
	noErr(t, err)
	gone(s.CallbackURL, began, false)
	gone("https://example.com/old", b.clock.Now(), false)
	gone(s.CallbackURL, b.clock.Now(), true)
	gone(s.CallbackURL, b.clock.Now(), false)
	got, err := b.store.Get(t.Context(), b.company, s.UUID)
	noErr(t, err)
	if got.Enabled || got.DisabledReason != subscribers.ReasonGone {
		t.Errorf("enabled %v, reason %q", got.Enabled, got.DisabledReason)
	}
	_, err = b.store.DisableGone(t.Context(), b.company, uuid.New(), s.CallbackURL, began)
	wantErr(t, err, subscribers.ErrNotFound)
}
