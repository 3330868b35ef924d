package subscribers

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
)

// loadTimeout bounds a load; it is shared, so no caller's context may end it.
const loadTimeout = 10 * time.Second

// Registry keeps copies of the subscribers of the companies used last. A copy
// is only given out for the version it was asked with, so it is never stale.
// Safe for concurrent use.
type Registry struct {
	store *Store
	cache *lru.Cache[uuid.UUID, *snapshot]
	loads singleflight.Group
}

// snapshot never changes once it is in the cache.
type snapshot struct {
	version     int64
	subscribers []*Subscriber
}

// NewRegistry returns a Registry with copies of at most size companies (1 or
// more).
func NewRegistry(store *Store, size int) *Registry {
	cache, _ := lru.New[uuid.UUID, *snapshot](max(size, 1)) // fails only for a size < 1
	return &Registry{store: store, cache: cache}
}

// Match returns all subscribers of the company, oldest first, also disabled
// ones, as they were at version or later. version is what CompanyKey's
// VersionField held when the caller read it, 0 when there was none. It talks to
// Redis only when the copy has another version. The result is shared: do not
// change it.
func (r *Registry) Match(ctx context.Context, company uuid.UUID, version int64) ([]*Subscriber, error) {
	if version == 0 {
		return nil, nil
	}
	if s, ok := r.cache.Get(company); ok && s.version == version {
		return s.subscribers, nil
	}
	s, err := r.load(ctx, company)
	if err == nil && s.version < version {
		// We joined a load that began before version was written; the next one
		// began after it.
		s, err = r.load(ctx, company)
	}
	if err != nil {
		return nil, err
	}
	return s.subscribers, nil
}

// load reads a company anew, or waits for whoever does so now.
func (r *Registry) load(ctx context.Context, company uuid.UUID) (*snapshot, error) {
	loading := r.loads.DoChan(company.String(), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
		defer cancel()
		return r.fetch(ctx, company)
	})
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("load subscribers: %w", ctx.Err())
	case result := <-loading:
		s, _ := result.Val.(*snapshot)
		return s, result.Err
	}
}

// fetch takes subscribers and version from one reply, so that they agree.
func (r *Registry) fetch(ctx context.Context, company uuid.UUID) (*snapshot, error) {
	hash, err := r.store.opts.Client.HGetAll(ctx, CompanyKey(company)).Result()
	if err != nil {
		return nil, fmt.Errorf("load subscribers: %w", err)
	}
	all, version, err := r.store.vault.decodeAll(company, hash)
	if err != nil {
		return nil, err
	}
	s := &snapshot{version, all}
	r.cache.Add(company, s)
	return s, nil
}
