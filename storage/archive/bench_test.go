package archive_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"spendhook/events/history"
	"spendhook/storage"
	"spendhook/storage/archive"
	"spendhook/storage/storagetest"
)

// BenchmarkWrite measures batches of 300 events with 12 fields and a delivery, of 50 companies.
func BenchmarkWrite(b *testing.B) {
	for name, o := range map[string]storage.Options{"sqlite": {DataDir: b.TempDir()}, "postgres": {URL: storagetest.Postgres(b)}} {
		b.Run(name, func(b *testing.B) {
			o.History = true
			s := archive.New(storagetest.Open(b, o))
			next := 0
			for b.Loop() {
				batch := make([]history.Archived, 300)
				for i := range batch {
					batch[i] = payment(next)
					next++
				}
				if err := s.Write(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(next)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

func payment(i int) history.Archived {
	id := func(kind string, n int) string { return uuid.NewSHA1(uuid.Nil, fmt.Append(nil, kind, n)).String() }
	a := described(uuid.UUID{byte(i % 50)}, id("event", i), float64(noon+int64(i)*10), "PAYMENT_PAID", fmt.Sprintf(
		`{"amount":%d.%02d,"approvedAt":"2026-07-01T10:%02d:00Z","cardUuid":"%s","currency":"EUR","locationUuid":"%s",`+
			`"merchant":{"category":"Restaurants","country":"PT","name":"Cafe %d Lisbon"},`+
			`"note":"Lunch with the team of project %d in the new office","status":"APPROVED","userUuid":"%s"}`,
		i%5000, i%100, i%60, id("card", i%20_000), id("location", i%50), i%3000, i%700, id("user", i%5000)))
	a.Deliveries = []history.ArchivedDelivery{delivery(a, one, 3, 0)}
	return a
}
