// Package subscriberstest damages what is stored of subscribers, for tests.
package subscriberstest

import (
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
)

// Certificate is the field of CompanyKey with the egress certificate.
const Certificate = "c"

// CompanyKey names the hash of a company's subscribers by their uuids.
func CompanyKey(company uuid.UUID) string {
	return "sh:{" + strconv.Itoa(partition.Of(company)) + "}:s:" + company.String()
}

// Overwrite stores value as a field of a company's hash, as a change that every replica
// sees.
func Overwrite(tb testing.TB, client redis.UniversalClient, company uuid.UUID, field, value string) {
	tb.Helper()
	if err := client.HSet(tb.Context(), CompanyKey(company), field, value).Err(); err != nil {
		tb.Fatal(err)
	}
	if err := client.HIncrBy(tb.Context(), CompanyKey(company), "v", 1).Err(); err != nil {
		tb.Fatal(err)
	}
}
