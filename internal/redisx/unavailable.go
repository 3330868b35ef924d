package redisx

import (
	"errors"

	"github.com/redis/go-redis/v9"
)

// Unavailable reports whether err is a reply of a Redis that cannot serve now
// but may soon: loading its data, failing over, resharding, full, or out of
// connections. Errors of the connection itself are of the net package.
func Unavailable(err error) bool {
	for _, is := range []func(error) bool{
		redis.IsLoadingError, redis.IsReadOnlyError, redis.IsClusterDownError, redis.IsTryAgainError,
		redis.IsMasterDownError, redis.IsMaxClientsError, redis.IsOOMError, redis.IsNoReplicasError,
	} {
		if is(err) {
			return true
		}
	}
	return errors.Is(err, redis.ErrClosed)
}
