package endpoint

import (
	"testing"
)

// enterAt is enter for a delivery to a host; its later decision is sent on the channel.
func (f *fixture) enterAt(host string, company, endpoint int, queued bool, want Decision) (*Delivery, <-chan Decision) {
	f.t.Helper()
	later := make(chan Decision, 2)
	d := &Delivery{
		Company: id(company), Endpoint: id(endpoint), Host: host, Queued: queued,
		Decided: func(decision Decision) { later <- decision },
	}
	if got := f.Enter(d); got != want {
		f.t.Fatalf("company %d, endpoint %d: decision %d, want %d", company, endpoint, got, want)
	}
	return d, later
}

func TestACompanysPlacesAtAHost(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{PerHost: 4})
	var inFlight *Delivery
	for endpoint := range 4 {
		inFlight, _ = f.enterAt("h:443", 1, endpoint, false, Start)
	}
	f.enterAt("h:8443", 1, 6, false, Start) // another port
	f.enterAt("h:443", 2, 7, false, Start)  // another company has places of its own

	_, first := f.enterAt("h:443", 1, 5, true, Wait) // of the retry set
	_, second := f.enterAt("h:443", 1, 5, true, Wait)
	if c := f.Counts(); c.InFlight != 6 || c.Held != 8 {
		t.Errorf("counts %+v", c)
	}
	f.Leave(inFlight, answered)
	f.wantLater(first, Start)
	if len(second) != 0 {
		t.Error("two start in one place")
	}
}

// Deliveries wait in memory for a full host. Its endpoints have turns.
func TestEndpointsTakeTurnsAtAFullHost(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{PerEndpoint: 2, PerHost: 2})
	one, _ := f.enterAt("h:443", 1, 1, false, Start)
	other, _ := f.enterAt("h:443", 1, 1, false, Start)
	_, second := f.enterAt("h:443", 1, 2, false, Wait)
	_, third := f.enterAt("h:443", 1, 2, false, Wait)
	_, queued := f.enterAt("h:443", 1, 3, true, Wait)
	f.Leave(one, answered)
	f.wantLater(second, Start)
	f.Leave(other, answered)
	f.wantLater(queued, Start)
	if len(third) != 0 {
		t.Error("an endpoint starts a second one before the other's first")
	}
}

// A delivery that would wait long for a host goes to the retry set: the host answers slowly, or not
// at all.
func TestDeliveriesOverflowAtASlowHost(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{PerEndpoint: 2, PerHost: 1})
	inFlight, _ := f.enterAt("h:443", 1, 1, false, Start)
	f.enterAt("h:443", 1, 2, false, Wait)
	f.now = f.now.Add(maxWait)
	f.enterAt("h:443", 1, 3, false, OverflowHost)
	f.Leave(inFlight, Result{Latency: 2 * maxWait})
	f.enterAt("h:443", 1, 4, false, OverflowHost)
}
