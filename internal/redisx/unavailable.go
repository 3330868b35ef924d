package redisx

import (
	"errors"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
)

// Unavailable reports whether err is a reply of a Redis that cannot serve now
// but may soon: it is loading its data, failing over, resharding, full, unable to write to its
// disk or out of connections, or its format is one that this build cannot read. Connection
// errors are errors of the net package.
func Unavailable(err error) bool {
	for _, is := range []func(error) bool{
		redis.IsLoadingError, redis.IsReadOnlyError, redis.IsClusterDownError, redis.IsTryAgainError,
		redis.IsMasterDownError, redis.IsMaxClientsError, redis.IsOOMError, redis.IsNoReplicasError,
		isMisconfError, isFormatError,
	} {
		if is(err) {
			return true
		}
	}
	return errors.Is(err, redis.ErrClosed)
}

func isMisconfError(err error) bool { return redis.HasErrorPrefix(err, "MISCONF") }

func isFormatError(err error) bool {
	_, ok := errors.AsType[*partition.FormatError](partition.CheckedError(err))
	return ok
}
