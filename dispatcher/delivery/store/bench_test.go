package store

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/redistest"
)

// New deliveries that succeed at their first attempt, 64 events a call.
func BenchmarkRecord(b *testing.B) {
	for _, fanout := range []int{1, 10} {
		b.Run(fmt.Sprintf("fanout %d", fanout), func(b *testing.B) {
			server := redistest.Start(b, redistest.Options{AOF: true, Args: []string{"--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0"}})
			client := server.Client()
			s := New(Options{Client: client, Policy: harnessPolicy})
			company := uuid.New()
			subs := make([]uuid.UUID, fanout)
			for i := range subs {
				subs[i] = uuid.New()
			}
			var used, n float64
			for i := 0; b.Loop(); i++ {
				now := s.opts.Now()
				values, writes := make([]any, 0, 128), make([]Write, 64)
				for j := range writes {
					ref := events.Ref{Company: company, ID: strconv.Itoa(i*64 + j)}
					values = append(values, layout.EventKey(ref), fmt.Sprintf("R%013d%08x%010x", now.UnixMilli(), 1, i*64+j)+strings.Repeat("b", 512))
					w := Write{Event: ref, Token: "replica.1 token", Matched: true, Fanout: fanout}
					for _, sub := range subs {
						base := &delivery.Record{Status: delivery.StatusPending, EventType: "PAYMENT_PAID", Created: now.UnixMilli()}
						next := delivery.Decide(*base, attempt.Result{StartedAt: now, StatusCode: 200, Class: attempt.ClassNone, Duration: 3e6}, harnessPolicy, now, nil)
						w.Changes = append(w.Changes, Change{Ref: delivery.Ref{Ref: ref, Subscriber: sub}, Base: base, Next: &next})
					}
					writes[j] = w
				}
				if err := client.MSet(b.Context(), values...).Err(); err != nil {
					b.Fatal(err)
				}
				before := redistest.UsedCPU(b, client)
				recorded, _, err := s.Record(b.Context(), now, writes)
				if err != nil || recorded[0].Err != nil || recorded[0].Found[0] != nil {
					b.Fatalf("%+v, %v", recorded[0], err)
				}
				used, n = used+redistest.UsedCPU(b, client)-before, n+float64(64*fanout)
			}
			b.ReportMetric(used*1e6/n, "redis-µs/delivery")
		})
	}
}
