package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"spendhook/internal/redistest"
)

// failsSometimes answers 500 to one delivery in five.
func failsSometimes(string) int {
	if rand.IntN(5) == 0 {
		return http.StatusInternalServerError
	}
	return http.StatusNoContent
}

func TestKillLosesNothing(t *testing.T) {
	t.Parallel()
	killLosesNothing(t, 2000)
}

// killLosesNothing kills the daemon while it delivers many events to receivers that fail one
// delivery in five. After a restart every event reaches every matching subscriber. The same
// ids sent again are duplicates and cause no delivery.
func killLosesNothing(t *testing.T, manyEvents int) {
	t.Helper()
	server := redistest.Start(t, redistest.Options{AOF: true})
	h := newInstallation(t, unhurried(server.URL()), quickRetries)
	d := h.startChild(t)
	first, second, deaf := newEndpoint(t, failsSometimes), newEndpoint(t, failsSometimes), newEndpoint(t, nil)
	first.subscribe(t, d, "PAYMENT_PAID")
	second.subscribe(t, d, "CARD_CREATION_REQUEST_ERROR", "PAYMENT_PAID")
	deaf.subscribe(t, d, "CARD_CREATION_REQUEST_CREATED")

	last := fmt.Sprintf("evt_%d", manyEvents-1)
	first.holdWith(func(id string, gone <-chan struct{}) bool { // so that the first run cannot deliver all
		if id == last {
			<-gone
		}
		return id != last
	})
	lines := eventLines(0, manyEvents, time.Now())
	// The command resends a batch if a busy daemon answers too late; duplicates are fine.
	d.cli(t, lines, "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
	eventually(t, deliveryPatience, "a part is delivered", func() bool {
		n, _, _ := first.counts(t)
		return n > manyEvents/10
	})
	d.signal(syscall.SIGKILL)
	d.ended(t)
	first.holdWith(nil)

	d = h.startChild(t)
	first.awaits(t, manyEvents)
	second.awaits(t, manyEvents)
	wantNothingPending(t, d)
	_, repeated, posts := first.counts(t)
	t.Logf("%d events came more than once, of %d; %d POSTs to one endpoint", repeated, manyEvents, posts)

	_, _, secondPosts := second.counts(t)
	d.cli(t, lines, "event", "send", "-f", "-").want(t, exitOK, fmt.Sprintf("accepted 0  duplicate %d  refused 0", manyEvents), "")
	wantNothingPending(t, d)
	if _, _, now := first.counts(t); now != posts {
		t.Errorf("duplicates were sent: %d more POSTs", now-posts)
	}
	if _, _, now := second.counts(t); now != secondPosts {
		t.Errorf("duplicates were sent: %d more POSTs", now-secondPosts)
	}
	if _, _, posts := deaf.counts(t); posts != 0 {
		t.Error("events went to a subscriber of another type")
	}
	d.stop(t)
}

// wantNothingPending waits until no event is PENDING: all outcomes are recorded.
func wantNothingPending(tb testing.TB, d *running) {
	tb.Helper()
	eventually(tb, deliveryPatience, "nothing is pending", func() bool {
		var live int
		for _, status := range []string{"PENDING", "DELIVERING", "RETRYING"} {
			var list struct {
				Content []struct {
					ID string `json:"id"`
				} `json:"content"`
				NextCursor string `json:"nextCursor"`
			}
			d.read(tb, "/api/v1/deliveries?size=1&status="+status, &list)
			live += len(list.Content)
			if list.NextCursor != "" {
				live++
			}
		}
		return live == 0
	})
}

func TestStoppingLosesNothing(t *testing.T) {
	t.Parallel()
	stoppingLosesNothing(t, 2000)
}

// stoppingLosesNothing sends SIGTERM while the daemon delivers. Attempts in flight finish, the
// other events are delivered by the next run, and no event is sent twice.
func stoppingLosesNothing(t *testing.T, manyEvents int) {
	t.Helper()
	h := newInstallation(t, sharedRedis(t), quickRetries)
	d := h.startChild(t)
	e := newEndpoint(t, nil)
	e.subscribe(t, d, "PAYMENT_PAID")
	d.cli(t, eventLines(0, manyEvents, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
	eventually(t, deliveryPatience, "the first are delivered", func() bool {
		n, _, _ := e.counts(t)
		return n > 0
	})
	d.stop(t)
	delivered, _, _ := e.counts(t)
	t.Logf("%d of %d delivered in the first run", delivered, manyEvents)

	d = h.startChild(t)
	e.awaits(t, manyEvents)
	wantNothingPending(t, d)
	if _, repeated, _ := e.counts(t); repeated > 0 {
		t.Errorf("%d events were delivered twice", repeated)
	}
	d.stop(t)
}

// A draining daemon is not ready and accepts no events. A second signal ends it at once.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	e := newEndpoint(t, func(string) int {
		<-release
		return http.StatusNoContent
	})
	t.Cleanup(func() { close(release) })
	h := newInstallation(t, sharedRedis(t), "shutdown_grace: 10m\n")
	d := h.startChild(t)
	e.subscribe(t, d, "PAYMENT_PAID")
	d.cli(t, eventLines(0, 1, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
	eventually(t, patience, "an attempt is under way", func() bool {
		_, metrics := get(t, d.admin+"/metrics")
		return strings.Contains(metrics, "\nspendhook_attempts_in_flight 1\n")
	})
	d.signal(os.Interrupt)
	eventually(t, patience, "the daemon accepts no events", func() bool {
		return d.cli(t, eventLines(1, 1, time.Now()), "event", "send", "-f", "-", "--retry-for", "1ms").code == exitUnavailable
	})
	if code, body := get(t, d.admin+"/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "shutting down") {
		t.Errorf("%d %s", code, body)
	}
	d.signal(syscall.SIGTERM)
	d.ended(t) // long before the shutdown times out
	if d.code == exitOK {
		t.Error("exit code 0 after work was cut short")
	}
}
