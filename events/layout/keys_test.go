package layout_test

import (
	"testing"

	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/partition"
)

// Partitions are part of every stored key: the partition of a company must never change.
func TestPartitionIsStable(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	for i := range 5000 {
		p := partition.Of(uuid.UUID{0: byte(i), 15: byte(i >> 8)})
		if p < 0 || p >= partition.Count {
			t.Fatalf("partition %d", p)
		}
		seen[p] = true
	}
	if len(seen) != partition.Count {
		t.Errorf("5,000 companies use %d partitions, want all", len(seen))
	}
	for want, key := range map[string]string{
		"sh:{160}:e:0190a3b4-0000-7000-8000-000000000001:evt_1": layout.EventKey(events.Ref{Company: company, ID: "evt_1"}),
		"sh:{160}:ei:0190a3b4-0000-7000-8000-000000000001":      layout.IndexKey(company),
		"sh:{7}:companies": partition.Prefix(7) + "companies",
	} {
		if key != want {
			t.Errorf("key %q, want %q", key, want)
		}
	}
}
