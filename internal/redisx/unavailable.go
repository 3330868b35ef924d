package redisx

import (
	"errors"

	"github.com/redis/go-redis/v9"
)

// Unavailable reports whether err is a reply of a Redis that cannot serve now
// but may soon: loading its data, failing over, resharding, full, unable to
// write to its disk, or out of connections. Errors of the connection itself are of the net package.
func Unavailable(err error) bool {
	for _, is := range []func(error) bool{
		redis.IsLoadingError, redis.IsReadOnlyError, redis.IsClusterDownError, redis.IsTryAgainError,
		redis.IsMasterDownError, redis.IsMaxClientsError, redis.IsOOMError, redis.IsNoReplicasError,
		isMisconfError,
	} {
		if is(err) {
			return true
		}
	}
	return errors.Is(err, redis.ErrClosed)
}

func isMisconfError(err error) bool { return redis.HasErrorPrefix(err, "MISCONF") }
