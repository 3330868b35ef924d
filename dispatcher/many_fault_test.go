//go:build faults

package dispatcher

import "testing"

func TestDamageAmongTenThousandEvents(t *testing.T) {
	t.Parallel()
	damageAmong(t, 10_000)
}

func TestFloodOfThousandsDelaysNoOther(t *testing.T) {
	t.Parallel()
	floodDelaysNoOther(t, 5000)
}

func TestBacklogOfThousandsDelaysNoOther(t *testing.T) {
	t.Parallel()
	backlogDelaysNoOther(t, 5000)
}

func TestTenThousandAndOneDeadLettersAreListedAndRecovered(t *testing.T) {
	t.Parallel()
	deadLettersAreListedAndRecovered(t, 10_001)
}
