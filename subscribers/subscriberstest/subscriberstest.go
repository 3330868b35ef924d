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
// replica sees the change.
func Overwrite(tb testing.TB, client redis.UniversalClient, company uuid.UUID, field, value string) {
	tb.Helper()
	if err := client.HSet(tb.Context(), layout.CompanyKey(company), field, value).Err(); err != nil {
		tb.Fatal(err)
	}
	if err := client.HIncrBy(tb.Context(), layout.CompanyKey(company), layout.VersionField, 1).Err(); err != nil {
		tb.Fatal(err)
	}
}
