package dispatcher

import (
	"net/http"
	"testing"

	"spendhook/events/eventtype"
	"spendhook/events/history"
	"spendhook/internal/redistest"
)

// countEvents counts the company's events of a type.
func (h *harness) countEvents(kind string) int {
	h.t.Helper()
	n, cursor := 0, ""
	for {
		p, err := h.opts.Events.List(h.t.Context(), history.Filter{Company: &h.company, Types: []string{kind}, Size: 100, Cursor: cursor})
		if err != nil {
			h.t.Fatal(err)
		}
		n += len(p.Items)
		if cursor = p.Next; cursor == "" {
			return n
		}
	}
}

func noRetries(o *Options) { o.Policy.Schedule = nil }

func TestDeadLettersDuringShutdownMakeNotices(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), noRetries)
	h.start()
	gate := make(chan struct{})
	rc := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		<-gate
		w.WriteHeader(http.StatusInternalServerError)
	})
	h.subscribe(rc.URL)
	h.subscribeTo(h.company, receive(t, nil).URL, eventtype.DeliveryDead)
	h.emit(20)
	eventually(t, func() bool { return rc.count() == 20 }, "all are in flight")
	go func() {
		<-h.intake.Done()
		close(gate)
	}()
	h.stop(patience)
	if n := h.countEvents(eventtype.DeliveryDead); n != 20 {
		t.Errorf("%d of 20 deaths made a notice", n)
	}
}
