package dispatcher

import (
	"context"
	"crypto/x509"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/webhook"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/internal/devca"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/subscriberstest"
)

// verbose is a log that takes every level and keeps nothing.
type verbose struct{ slog.Handler }

func (verbose) Enabled(context.Context, slog.Level) bool { return true }

func TestDamageAmongManyEvents(t *testing.T) {
	t.Parallel()
	damageAmong(t, 1000)
}

// damageAmong mixes damage into good events: a damaged event, a damaged delivery, a
// subscriber and a certificate that cannot be read, and an event with an attempt that
// panics. Only the damaged work is quarantined, held or failed; every other event is
// delivered once. The damaged work is delivered once after it is repaired.
func damageAmong(t *testing.T, good int) {
	t.Helper()
	w := mixDamage(t, good)
	w.start()
	w.wantGoodDelivered()
	w.wantDamagedHeld()

	for _, repair := range w.repairs {
		repair()
	}
	for _, e := range w.toQuarantine() {
		if err := w.Quarantine.Retry(t.Context(), e); err != nil {
			t.Error(err)
		}
	}
	w.makeDue(w.unreadable, w.waiting)
	w.makeDue(w.certified, w.held)
	repaired := []string{w.event, w.record}
	w.reachAll(repaired, w.sub, delivery.StatusDelivered)
	w.reachAll(w.waiting, w.unreadable, delivery.StatusDelivered)
	w.reachAll(w.held, w.certified, delivery.StatusDelivered)
	w.settled()
	w.ofSub.once(t, append(repaired, w.good...))
	w.ofUnreadable.once(t, w.waiting)
	w.ofCertified.once(t, w.held)
	if len(w.listed()) > 0 {
		t.Errorf("in the quarantine there are %+v", w.listed())
	}
}

// mixedWork is a harness with good events and with damaged work among them.
type mixedWork struct {
	*harness

	sub           subscribers.Subscriber
	ofSub         *inbox
	good          []string // events that are delivered to sub
	event, record string   // the damaged event, and the event whose delivery is damaged
	panics        string   // the event with an attempt that panics

	unreadable   subscribers.Subscriber // its record is damaged
	ofUnreadable *inbox
	waiting      []string // its events

	certified   subscribers.Subscriber // of another company, whose certificate is damaged
	ofCertified *inbox
	held        []string // its events

	repairs []func() // each repairs one damage
}

// mixDamage makes mixedWork that is not started.
func mixDamage(t *testing.T, good int) *mixedWork {
	t.Helper()
	w := &mixedWork{ofSub: receive(t, nil), ofUnreadable: receive(t, nil), ofCertified: receive(t, nil)}
	w.harness = build(t, redistest.New(t), func(o *Options) {
		o.Logger = slog.New(verbose{slog.DiscardHandler})
	})
	send := w.send
	w.send = func(ctx context.Context, r webhook.Request) attempt.Result {
		if r.EventID == w.panics {
			panic("an event that cannot be sent")
		}
		return send(ctx, r)
	}
	company := uuid.New()
	w.sub = w.subscribe(w.ofSub.URL)
	w.unreadable = w.subscribeTo(w.company, w.ofUnreadable.URL, "PAYMENT_FAILED")
	w.certified = w.subscribeTo(company, w.ofCertified.URL, "PAYMENT_PAID")
	w.certify(company)

	for len(w.good) < good {
		w.good = append(w.good, w.emit(500)...)
	}
	bad := w.emit(4)
	w.event, w.record, w.waiting, w.panics = bad[0], bad[1], bad[2:3], bad[3]
	w.write(w.sub.UUID, []string{w.record}, time.Now(), due)
	w.write(w.unreadable.UUID, w.waiting, time.Now(), due)
	w.held = w.emitOf(company, 3)

	w.repairs = []func(){
		w.damageEvent(w.event, "garbage"),
		w.damageDelivery(w.record, w.sub.UUID, "P1|{"),
		subscriberstest.Overwrite(t, w.client, w.company, w.unreadable.UUID.String(), "{"),
		subscriberstest.Overwrite(t, w.client, company, "c", `{"key":"sealed1:x:y"}`),
	}
	return w
}

// toQuarantine is what is quarantined of the work.
func (w *mixedWork) toQuarantine() []quarantine.Entry {
	return []quarantine.Entry{
		{Company: w.company, EventID: w.event},
		{Company: w.company, EventID: w.record, Subscriber: &w.sub.UUID},
		{Company: w.company, Subscriber: &w.unreadable.UUID},
	}
}

// wantGoodDelivered checks that the good events are delivered once, and that the event that
// panics becomes a dead letter.
func (w *mixedWork) wantGoodDelivered() {
	w.t.Helper()
	w.reachAll(w.good, w.sub, delivery.StatusDelivered)
	d := w.reaches(w.panics, w.sub, delivery.StatusDead)
	if len(d.Attempts) != 4 || slices.ContainsFunc(d.Attempts, func(a attempt.Attempt) bool { return a.Error != string(attempt.ClassPanic) }) {
		w.t.Errorf("the event that panics has the attempts %+v", d.Attempts)
	}
	eventually(w.t, func() bool { return w.ended(delivery.StatusDelivered) >= len(w.good) }, "all deliveries are counted")
	if n, dead := w.ended(delivery.StatusDelivered), w.ended(delivery.StatusDead); n != len(w.good) || dead != 1 {
		w.t.Errorf("%d were delivered and %d are dead", n, dead)
	}
	w.ofSub.once(w.t, w.good)
}

// wantDamagedHeld checks that the damaged work, and only that, is in the quarantine or waits.
func (w *mixedWork) wantDamagedHeld() {
	w.t.Helper()
	locked := func(d delivery.Delivery) bool { return d.Reason == delivery.ReasonLocked }
	for _, id := range w.waiting {
		w.becomes(id, w.unreadable, "locked", locked)
	}
	for _, id := range w.held {
		w.becomes(id, w.certified, "locked", locked)
	}
	entries := w.toQuarantine()
	eventually(w.t, func() bool { return len(w.listed()) == len(entries) }, "all are in the quarantine")
	for _, want := range entries {
		if !slices.ContainsFunc(w.listed(), func(q quarantine.Entry) bool {
			return q.EventID == want.EventID && (q.Subscriber == nil) == (want.Subscriber == nil)
		}) {
			w.t.Errorf("%+v is not in the quarantine", want)
		}
	}
	if n := testutil.ToFloat64(w.metrics.quarantined); n != 3 {
		w.t.Errorf("%v were counted as quarantined", n)
	}
	// 2 are quarantined, 1 waits for its subscriber, 3 wait for their certificate.
	eventually(w.t, func() bool { return w.pending() == 2+1+3 }, "only what is damaged is pending")
	if n := w.ofSub.count(); n != len(w.good) || w.ofUnreadable.count()+w.ofCertified.count() > 0 {
		w.t.Errorf("received %d, %d and %d times", n, w.ofUnreadable.count(), w.ofCertified.count())
	}
}

// certify gives a company a certificate.
func (h *harness) certify(company uuid.UUID) {
	h.t.Helper()
	pair, err := authority(h.t).Issue(devca.Leaf{
		Name: "client", Usage: x509.ExtKeyUsageClientAuth,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	in := certificate.Input{Chain: string(pair.Cert), PrivateKey: string(pair.Key)}
	if _, err := h.opts.Certificates.Set(h.t.Context(), company, in); err != nil {
		h.t.Fatal(err)
	}
}

// listed is the quarantine as the API lists it.
func (h *harness) listed() []quarantine.Entry {
	h.t.Helper()
	page, err := h.Quarantine.List(h.t.Context(), quarantine.Filter{Company: &h.company, Size: 100})
	if err != nil {
		h.t.Fatal(err)
	}
	return page.Items
}

// ended counts the deliveries that reached a final status.
func (h *harness) ended(status delivery.Status) int {
	return int(testutil.ToFloat64(h.metrics.ended.WithLabelValues(string(status))))
}
