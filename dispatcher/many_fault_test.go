//go:build faults

package dispatcher

import "testing"

func TestDamageAmongTenThousandEvents(t *testing.T) {
	t.Parallel()
	damageAmong(t, 10_000)
}

func TestACompanysFloodOfThousandsHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	floodHoldsUpNoOther(t, 5000)
}

func TestAnEndpointsBacklogOfThousandsHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	backlogHoldsUpNoOther(t, 5000)
}

func TestTenThousandAndOneDeadLettersAreListedAndRecovered(t *testing.T) {
	t.Parallel()
	deadLettersAreListedAndRecovered(t, 10_001)
}
