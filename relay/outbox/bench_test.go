package outbox

import "testing"

// Rows per second with a daemon that accepts at once. At most one row of a key is in a request.
func BenchmarkRows(b *testing.B) {
	for name, change := range map[string]string{"16keys": `SELECT`, "nokeys": `UPDATE spendhook_outbox SET key = NULL`} {
		b.Run(name, func(b *testing.B) {
			const rows = 20_000
			for b.Loop() {
				b.StopTimer()
				db := newDatabase(b)
				db.insert(1, rows)
				if _, err := db.conn().Exec(b.Context(), change); err != nil {
					b.Fatal(err)
				}
				e := &emitter{}
				b.StartTimer()
				s := db.serve(e)
				e.wait(b, rows)
				b.StopTimer()
				s.stop()
				b.StartTimer()
			}
			b.ReportMetric(float64(rows*b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
