package redistest

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Hook is a redis.Hook for tests: Command is called in place of each command that a client
// sends alone, and Pipeline in place of each pipeline. They call next to send it. A function
// that is nil changes nothing.
type Hook struct {
	Command  func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error
	Pipeline func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error
}

// DialHook changes nothing.
func (h Hook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook calls Command.
func (h Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	if h.Command == nil {
		return next
	}
	return func(ctx context.Context, cmd redis.Cmder) error { return h.Command(ctx, cmd, next) }
}

// ProcessPipelineHook calls Pipeline.
func (h Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	if h.Pipeline == nil {
		return next
	}
	return func(ctx context.Context, cmds []redis.Cmder) error { return h.Pipeline(ctx, cmds, next) }
}
