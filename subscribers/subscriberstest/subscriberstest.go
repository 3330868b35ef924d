// Package subscriberstest makes certificates, and damages what is stored of subscribers, for
// tests.
package subscriberstest

import (
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/subscribers/layout"
)

// Overwrite stores value as a field of a company's hash and raises the version, so that every
// replica sees the change. mend restores the former value in the same way.
func Overwrite(tb testing.TB, client redis.UniversalClient, company uuid.UUID, field, value string) (mend func()) {
	tb.Helper()
	key := layout.CompanyKey(company)
	former, err := client.HGet(tb.Context(), key, field).Result()
	if err != nil {
		tb.Fatal(err)
	}
	set := func(value string) {
		tb.Helper()
		err := client.HSet(tb.Context(), key, field, value).Err()
		if err == nil {
			err = client.HIncrBy(tb.Context(), key, layout.VersionField, 1).Err()
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	set(value)
	return func() { tb.Helper(); set(former) }
}
