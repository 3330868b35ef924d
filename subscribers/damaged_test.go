package subscribers_test

import (
	"testing"

	"spendhook/internal/partition"
	"spendhook/subscribers"
)

// A change that fails half-way, for a damaged key of the company, has its whole effect when it is made again.
func TestAChangeThatFailsHalfWayCanBeRepeated(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	listed, failing := partition.Key(b.Company, "bl:"+b.Company.String()), partition.Key(b.Company, "fs:"+b.Company.String())
	// twice makes a change while a key has another type, and then once more.
	twice := func(key string, change func() error) {
		t.Helper()
		noErr(t, b.Redis.Set(t.Context(), key, "damaged", 0).Err())
		if change() == nil {
			t.Fatal("it succeeds with a damaged key")
		}
		noErr(t, b.Redis.Del(t.Context(), key).Err())
		before := b.Version(t)
		noErr(t, change())
		if b.Version(t) == before {
			t.Error("the replicas do not learn of the change")
		}
	}
	in := b.Settings("https://example.com/a")
	in.Ordered = new(true)
	var s subscribers.Subscriber
	twice(listed, func() (err error) {
		s, err = b.Store.Create(t.Context(), b.Company, in)
		return err
	})
	if !b.Redis.SIsMember(t.Context(), listed, s.UUID.String()).Val() {
		t.Error("the deliveries of an ordered subscriber do not wait")
	}
	update := func(in subscribers.Settings) func() error {
		return func() error {
			_, err := b.Store.Update(t.Context(), b.Company, s.UUID, in)
			return err
		}
	}
	twice(listed, update(subscribers.Settings{CallbackURL: new("https://example.com/b"), Enabled: new(false)}))
	twice(failing, update(subscribers.Settings{Enabled: new(true)}))
	if s, err := b.Store.Get(t.Context(), b.Company, s.UUID); err != nil || !s.Enabled || s.CallbackURL != "https://example.com/b" {
		t.Errorf("%+v, %v", s, err)
	}
	twice(failing, func() error { return b.Store.Delete(t.Context(), b.Company, s.UUID) })
	b.Create(t, "https://example.com/b")
}
