package subscribers

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// Current returns all subscribers of a company as they are now; see Subscribers.
func (r *Registry) Current(ctx context.Context, company uuid.UUID) ([]*Subscriber, error) {
	version, err := r.store.opts.Client.HGet(ctx, CompanyKey(company), VersionField).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("read subscriber version: %w", err)
	}
	return r.Subscribers(ctx, company, version)
}
