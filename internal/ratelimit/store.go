package ratelimit

import (
	"context"
	"crypto/sha256"
	_ "embed" // the script
	"encoding/base64"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/lease.lua
var leaseSource string

var leaseScript = redis.NewScript(leaseSource)

type leaseAnswer struct {
	leased        int
	full, missing time.Duration // until the bucket is full, until all that was wanted is there
}

// runLease leases at least need tokens. A negative need returns -need tokens.
func runLease(ctx context.Context, client redis.UniversalClient, limit Limit, key string, need int) (leaseAnswer, error) {
	numbers, err := leaseScript.Run(ctx, client, []string{redisKey(limit.Name, key)},
		1e6/limit.PerSecond, limit.Burst, need, max(need, limit.chunk())).Int64Slice()
	if err != nil {
		return leaseAnswer{}, fmt.Errorf("lease tokens: %w", err)
	}
	if len(numbers) != 3 {
		return leaseAnswer{}, fmt.Errorf("lease tokens: an answer of %d numbers", len(numbers))
	}
	return leaseAnswer{
		leased:  int(numbers[0]),
		full:    time.Duration(numbers[1]) * time.Microsecond,
		missing: time.Duration(numbers[2]) * time.Microsecond,
	}, nil
}

// redisKey contains a hash of key, because a caller may choose any key of any length.
func redisKey(name, key string) string {
	sum := sha256.Sum256([]byte(key))
	return "sh:limit:" + name + ":" + base64.RawURLEncoding.EncodeToString(sum[:16])
}
