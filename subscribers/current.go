package subscribers

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// List is Store.List. The subscribers of one company are not read when there is a copy of
// what they are now.
func (r *Registry) List(ctx context.Context, f Filter) ([]Subscriber, int, error) {
	if f.Company == nil {
		return r.store.List(ctx, f)
	}
	p, err := newPage(f)
	if err != nil {
		return nil, 0, err
	}
	all, err := r.Current(ctx, *f.Company)
	if err != nil {
		return nil, 0, err
	}
	p.add(all)
	return p.items, p.total, nil
}

// Current returns all subscribers of a company as they are now; see Subscribers.
func (r *Registry) Current(ctx context.Context, company uuid.UUID) ([]*Subscriber, error) {
	version, err := r.store.opts.Client.HGet(ctx, CompanyKey(company), VersionField).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("read subscriber version: %w", err)
	}
	return r.Subscribers(ctx, company, version)
}
