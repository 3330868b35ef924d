//go:build faults

package main

import (
	"testing"

	"spendhook/internal/pgtest"
)

func TestKilledBulkMakesEachCardOnceOnPostgres(t *testing.T) {
	t.Parallel()
	killBulk(t, pgtest.New(t))
}
