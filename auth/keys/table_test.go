package keys

import (
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spendhook/storage"
	"spendhook/storage/storagetest"
)

var now = storagetest.Now

func stored(id string, from time.Time) Key {
	return Key{ID: id, Sealed: "sealed-" + id, CreatedAt: storage.At(now), SignsFrom: storage.At(from)}
}

func TestKeysAreChangedAsOne(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		s := Table(db)
		if got := storagetest.Must(s.Read(t.Context()))(t); len(got) != 0 {
			t.Errorf("an empty database has %v", got)
		}
		later, sooner := stored("a", now.Add(time.Hour)), stored("b", now)
		got := storagetest.Must(s.Change(t.Context(), func([]Key) ([]Key, error) {
			return []Key{later, sooner}, nil
		}))(t)
		if diff := cmp.Diff([]Key{sooner, later}, got); diff != "" {
			t.Error(diff)
		}
		later.SignsFrom = storage.At(now.Add(-time.Hour))
		got = storagetest.Must(s.Change(t.Context(), func(list []Key) ([]Key, error) {
			list[1].SignsFrom = later.SignsFrom
			return append(list[1:], stored("c", now)), nil
		}))(t)
		if diff := cmp.Diff([]Key{later, stored("c", now)}, got); diff != "" {
			t.Error(diff)
		}
		refusal := errors.New("no")
		_, err := s.Change(t.Context(), func([]Key) ([]Key, error) { return nil, refusal })
		storagetest.WantError(t, err, refusal)
		if again := storagetest.Must(s.Read(t.Context()))(t); !cmp.Equal(again, got) {
			t.Errorf("a refused change left %v", again)
		}
	})
}

// Concurrent changes are serialised: each sees the result of the one before.
func TestKeysChangedAtOnce(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		s := Table(db)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				_, err := s.Change(t.Context(), func(list []Key) ([]Key, error) {
					return append(list, stored(strconv.Itoa(len(list)), now)), nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got := storagetest.Must(s.Read(t.Context()))(t); len(got) != 8 {
			t.Errorf("%d keys of 8", len(got))
		}
	})
}
