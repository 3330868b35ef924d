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
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/devca"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/subscribers/certificate"
	sublayout "spendhook/subscribers/layout"
)

// damaged is an overwritten value in Redis. mend restores the former value.
type damaged struct {
	h           *harness
	key, field  string // no field: the key is a string
	former      string
	subscribers uuid.UUID // the company whose subscribers it changes, if any
}

func (h *harness) overwrite(d damaged, with string) damaged {
	h.t.Helper()
	d.h = h
	var err error
	if d.field == "" {
		d.former, err = h.client.Get(h.t.Context(), d.key).Result()
	} else {
		d.former, err = h.client.HGet(h.t.Context(), d.key, d.field).Result()
	}
	if err != nil || d.former == "" {
		h.t.Fatalf("%s %s is %q: %v", d.key, d.field, d.former, err)
	}
	d.set(with)
	return d
}

func (d damaged) mend() { d.h.t.Helper(); d.set(d.former) }

func (d damaged) set(value string) {
	d.h.t.Helper()
	ctx, client := d.h.t.Context(), d.h.client
	var err error
	if d.field == "" {
		err = client.Set(ctx, d.key, value, 0).Err()
	} else {
		err = client.HSet(ctx, d.key, d.field, value).Err()
	}
	if err == nil && d.subscribers != uuid.Nil {
		err = client.HIncrBy(ctx, d.key, "v", 1).Err()
	}
	if err != nil {
		d.h.t.Fatal(err)
	}
}

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
// delivered once. The damaged work is delivered once after it is mended.
func damageAmong(t *testing.T, good int) {
	t.Helper()
	var poison string
	h := build(t, redistest.New(t), func(o *Options) {
		o.Logger = slog.New(verbose{slog.DiscardHandler})
	})
	send := h.send
	h.send = func(ctx context.Context, r webhook.Request) attempt.Result {
		if r.EventID == poison {
			panic("an event that cannot be sent")
		}
		return send(ctx, r)
	}
	rc, otherRC, certified := receive(t, nil), receive(t, nil), receive(t, nil)
	sub, other := h.subscribe(rc.URL), h.subscribeTo(h.company, otherRC.URL, "PAYMENT_FAILED")
	var ids []string
	for len(ids) < good {
		ids = append(ids, h.emit(500)...)
	}
	bad := h.emit(4)
	eventID, deliveryID, waitingID := bad[0], bad[1], bad[2]
	poison = bad[3]
	due := func(r *delivery.Record) { r.Due = time.Now().UnixMilli() }
	h.write(sub.UUID, []string{deliveryID}, time.Now(), due)
	h.write(other.UUID, []string{waitingID}, time.Now(), due)

	company := uuid.New()
	show := h.subscribeTo(company, certified.URL, "PAYMENT_PAID")
	h.certify(company)
	held := h.emitOf(company, 3)

	event := h.overwrite(damaged{key: layout.EventKey(events.Ref{Company: h.company, ID: eventID})}, "garbage")
	record := h.overwrite(damaged{
		key: partition.Key(h.company, "d:"+h.company.String()+"/"+deliveryID), field: sub.UUID.String(),
	}, "P1|{")
	whole := h.overwrite(damaged{key: sublayout.CompanyKey(h.company), field: other.UUID.String(), subscribers: h.company}, "{")
	certificate := h.overwrite(damaged{key: sublayout.CompanyKey(company), field: "c", subscribers: company}, `{"key":"sealed1:x:y"}`)

	h.start()
	h.reachAll(ids, sub, delivery.StatusDelivered)
	d := h.reaches(poison, sub, delivery.StatusDead)
	if len(d.Attempts) != 4 || slices.ContainsFunc(d.Attempts, func(a attempt.Attempt) bool { return a.Error != string(attempt.ClassPanic) }) {
		t.Errorf("the event that panics has the attempts %+v", d.Attempts)
	}
	locked := func(d delivery.Delivery) bool { return d.Reason == delivery.ReasonLocked }
	h.becomes(waitingID, other, "locked", locked)
	inCompany(h, company, func() {
		for _, id := range held {
			h.becomes(id, show, "locked", locked)
		}
	})
	entries := []quarantine.Entry{{Company: h.company, EventID: eventID}, {Company: h.company, EventID: deliveryID, Subscriber: &sub.UUID}}
	entries = append(entries, quarantine.Entry{Company: h.company, Subscriber: &other.UUID})
	eventually(t, func() bool { return len(h.listed()) == len(entries) }, "all are in the quarantine")
	for _, want := range entries {
		if !slices.ContainsFunc(h.listed(), func(q quarantine.Entry) bool {
			return q.EventID == want.EventID && (q.Subscriber == nil) == (want.Subscriber == nil)
		}) {
			t.Errorf("%+v is not in the quarantine", want)
		}
	}
	if n := testutil.ToFloat64(h.metrics.quarantined); n != 3 {
		t.Errorf("%v were counted as quarantined", n)
	}
	// 2 are quarantined, 1 waits for its subscriber, 3 wait for their certificate.
	eventually(t, func() bool { return h.pending() == 2+1+3 }, "only what is damaged is pending")
	eventually(t, func() bool { return h.ended(delivery.StatusDelivered) >= len(ids) }, "all deliveries are counted")
	if n, dead := h.ended(delivery.StatusDelivered), h.ended(delivery.StatusDead); n != len(ids) || dead != 1 {
		t.Errorf("%d were delivered and %d are dead", n, dead)
	}
	rc.once(t, ids)
	if n := rc.count(); n != len(ids) || otherRC.count()+certified.count() > 0 {
		t.Errorf("received %d, %d and %d times", n, otherRC.count(), certified.count())
	}

	for _, d := range []damaged{event, record, whole, certificate} {
		d.mend()
	}
	for _, e := range entries {
		if err := h.RetryQuarantined(t.Context(), e); err != nil {
			t.Error(err)
		}
	}
	h.makeDue(other, []string{waitingID})
	inCompany(h, company, func() { h.makeDue(show, held) })
	h.reachAll([]string{eventID, deliveryID}, sub, delivery.StatusDelivered)
	h.reaches(waitingID, other, delivery.StatusDelivered)
	inCompany(h, company, func() { h.reachAll(held, show, delivery.StatusDelivered) })
	h.settled()
	rc.once(t, append([]string{eventID, deliveryID}, ids...))
	otherRC.once(t, []string{waitingID})
	certified.once(t, held)
	if len(h.listed()) > 0 {
		t.Errorf("in the quarantine there are %+v", h.listed())
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

// inCompany runs do with another company as the company of the harness.
func inCompany(h *harness, company uuid.UUID, do func()) {
	defer func(former uuid.UUID) { h.company = former }(h.company)
	h.company = company
	do()
}

// listed is the quarantine as the API lists it.
func (h *harness) listed() []quarantine.Entry {
	h.t.Helper()
	page, err := h.Quarantined(h.t.Context(), quarantine.Filter{Company: &h.company, Size: 100})
	if err != nil {
		h.t.Fatal(err)
	}
	return page.Items
}

// ended counts the deliveries that reached a final status.
func (h *harness) ended(status delivery.Status) int {
	return int(testutil.ToFloat64(h.metrics.ended.WithLabelValues(string(status))))
}
