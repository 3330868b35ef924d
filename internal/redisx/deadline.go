package redisx

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// deadline bounds each command and each pipeline as a whole, including the wait for a
// connection, dialling, redirects and retries. go-redis bounds each of these separately.
type deadline struct{ limit time.Duration }

// DialHook leaves dialling as it is.
func (d deadline) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook bounds a command.
func (d deadline) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		ctx, cancel := d.within(ctx)
		defer cancel()
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook bounds a pipeline.
func (d deadline) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		ctx, cancel := d.within(ctx)
		defer cancel()
		return next(ctx, cmds)
	}
}

func (d deadline) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if d.limit <= 0 { // read_timeout=-1: no limit
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d.limit)
}
