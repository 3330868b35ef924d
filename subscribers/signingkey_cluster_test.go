package subscribers_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
	"spendhook/subscribers/registry"
	"spendhook/subscribers/subscriberstest"
)

// In a Cluster, a replica signs with the keys that another replica has rotated or revoked, from its next turn on. Of two
// rotations at once one is made.
func TestReplicasShareSigningKeysInACluster(t *testing.T) {
	t.Parallel()
	connect := redistest.Cluster(t, 3)[0].ClusterClient
	b := &bundle{subscriberstest.On(connect(), subscribers.StoreOptions{})}
	second := connect()
	stores := []*subscribers.Store{b.Store, subscribers.NewStore(subscribers.StoreOptions{Client: second, Now: b.Now, Keyring: sealtest.Keyring()})}
	copies := []*registry.Registry{b.Registry(), registry.New(second, sealtest.Keyring(), 0)}
	signs := func() string {
		t.Helper()
		var ids []string
		for _, c := range copies {
			matched, err := c.Current(t.Context(), b.Company)
			noErr(t, err)
			key, err := matched[0].SigningKeys.Signing(subscribers.ES256)
			noErr(t, err)
			ids = append(ids, key.ID)
		}
		if ids[0] != ids[1] {
			t.Errorf("one replica signs with %s, the other with %s", ids[0], ids[1])
		}
		return ids[0]
	}
	for range 8 { // in several slots
		b.Company = uuid.New()
		b.Create(t, "https://example.com/")
		first := signs()
		b.Advance(10 * time.Minute)
		var all sync.WaitGroup
		results := make([]error, 2)
		for i, s := range stores {
			all.Go(func() { _, results[i] = s.RotateSigningKeys(t.Context(), b.Company) })
		}
		all.Wait()
		if (results[0] == nil) == (results[1] == nil) || !errors.Is(errors.Join(results...), subscribers.ErrRotatedRecently) {
			t.Errorf("two rotations at once: %v", results)
		}
		rotated := signs()
		noErr(t, stores[1].RevokeSigningKey(t.Context(), b.Company, rotated))
		if revoked := signs(); rotated == first || revoked == rotated || revoked == first {
			t.Errorf("%s, then %s, then %s signs", first, rotated, revoked)
		}
	}
}
