package subscribers

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue/queues"
	"spendhook/internal/partition"
	"spendhook/subscribers/layout"
)

// pausedManually is the reason of a pause that the company asked for. The only other reason is
// DEAD, which record.lua of delivery/store gives.
const pausedManually = "MANUAL"

// Pause pauses a subscriber: from now on none of its deliveries is claimed until Resume. A
// paused subscriber keeps its first reason. ErrNotFound.
func (s *Store) Pause(ctx context.Context, company, id uuid.UUID) error {
	return s.runOne(ctx, pauseScript, "pause", company, id, pausedManually)
}

// Resume ends a pause. It does nothing when the subscriber is not paused. ErrNotFound.
func (s *Store) Resume(ctx context.Context, company, id uuid.UUID) error {
	return s.runOne(ctx, resumeScript, "resume", company, id)
}

// runOne runs a script that changes how a subscriber is served.
func (s *Store) runOne(ctx context.Context, script *redis.Script, what string, company, id uuid.UUID, args ...any) error {
	p := partition.Of(company)
	args = append([]any{id.String(), partition.Prefix(p), company.String()}, args...)
	found, err := script.Run(ctx, s.opts.Client, append(queues.Keys(p), layout.CompanyKey(company)), args...).Int()
	switch {
	case err != nil:
		return fmt.Errorf("%s subscriber: %w", what, err)
	case found == 0:
		return ErrNotFound
	}
	return nil
}
