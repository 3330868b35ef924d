// Package pipeline sends many commands to Redis in one round trip.
package pipeline

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// Each sends one command for each item, all in one round trip, and returns them in the order
// of the items. Without items it sends nothing. The error is the first of the commands' own,
// which may be redis.Nil.
func Each[T any, C redis.Cmder](ctx context.Context, client redis.UniversalClient, items []T, ask func(pipe redis.Pipeliner, item T) C) ([]C, error) {
	commands := make([]C, len(items))
	_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, item := range items {
			commands[i] = ask(pipe, item)
		}
		return nil
	})
	return commands, err
}

// Readable is Each, except that a missing key and a key of the wrong type give zero values and no error.
func Readable[T any, C redis.Cmder](ctx context.Context, client redis.UniversalClient, items []T, ask func(pipe redis.Pipeliner, item T) C) ([]C, error) {
	commands, _ := Each(ctx, client, items, ask) // each command has its own error
	for _, c := range commands {
		if err := c.Err(); err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, err
		}
	}
	return commands, nil
}
