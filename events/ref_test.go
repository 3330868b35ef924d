package events_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"spendhook/events"
	"spendhook/internal/partition"
)

func TestRefText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := events.Ref{
			Company: uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "company")),
			ID:      rapid.StringMatching(`[A-Za-z0-9_-]{1,128}`).Draw(t, "id"),
		}
		if back, err := events.ParseRef(r.String()); err != nil || back != r {
			t.Fatalf("ParseRef(%q) = %v, %v", r, back, err)
		}
	})
}

func TestParseRefRefuses(t *testing.T) {
	t.Parallel()
	c := company.String()
	for _, text := range []string{
		"", "/", c, c + "/", "/e", c + "/a.b", c + "/a/b", c + "/" + strings.Repeat("a", 129),
		strings.ToUpper(c) + "/e", "{" + c + "}/e", strings.ReplaceAll(c, "-", "") + "/e",
	} {
		if r, err := events.ParseRef(text); err == nil {
			t.Errorf("ParseRef(%q) = %v, want an error", text, r)
		}
	}
}

func FuzzParseRef(f *testing.F) {
	f.Add(company.String() + "/evt_1")
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := events.ParseRef(text); err == nil && r.String() != text {
			t.Errorf("ParseRef(%q).String() = %q", text, r)
		}
	})
}

// Partitions are in every key that was ever written: these never change.
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
		"sh:{160}:e:0190a3b4-0000-7000-8000-000000000001:evt_1": events.EventKey(events.Ref{Company: company, ID: "evt_1"}),
		"sh:{160}:ei:0190a3b4-0000-7000-8000-000000000001":      events.IndexKey(company),
		"sh:{7}:companies": events.CompaniesKey(7),
	} {
		if key != want {
			t.Errorf("key %q, want %q", key, want)
		}
	}
}
