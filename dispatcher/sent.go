package dispatcher

import (
	"context"
	"crypto/subtle"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/webhook"
	"spendhook/events"
)

// Sent is what every attempt of a delivery sends to its subscriber as it is now, but for
// the signature.
type Sent struct {
	URL, ContentType, EventID string
	Sequence                  int64 // of the event in its company; 0: not sent
	Body                      []byte
}

// Sent reads what the attempts of a delivery send. delivery.ErrNotFound,
// delivery.ErrSubscriberGone, events.ErrNotFound or events.ErrCompacted.
func (d *Dispatcher) Sent(ctx context.Context, company uuid.UUID, id string) (Sent, error) {
	r, err := d.requestOf(ctx, company, id)
	if err != nil {
		return Sent{}, err
	}
	sent := Sent{ContentType: r.ContentType, EventID: r.EventID, Sequence: r.Sequence, Body: r.Body}
	if r.URL != nil {
		sent.URL = r.URL.String()
	}
	if sent.ContentType == "" {
		sent.ContentType = "application/json"
	}
	return sent, nil
}

// VerifySignature reports whether one of the signatures in a webhook-signature header is
// one that this daemon would make now of the delivery, with that webhook-timestamp. The
// errors are those of Sent, or why the subscriber's secrets do not open.
func (d *Dispatcher) VerifySignature(ctx context.Context, company uuid.UUID, id string, timestamp int64, header string) (bool, error) {
	r, err := d.requestOf(ctx, company, id)
	if err != nil {
		return false, err
	}
	if r.Locked != nil {
		return false, r.Locked
	}
	for ours := range strings.FieldsSeq(r.Signed(time.Unix(timestamp, 0))[webhook.HeaderSignature]) {
		for theirs := range strings.FieldsSeq(header) {
			if subtle.ConstantTimeCompare([]byte(ours), []byte(theirs)) == 1 {
				return true, nil
			}
		}
	}
	return false, nil
}

// requestOf is the attempt of a delivery that would be made now.
func (d *Dispatcher) requestOf(ctx context.Context, company uuid.UUID, id string) (r webhook.Request, err error) {
	found, err := d.deliveries.Delivery(ctx, company, id)
	if err != nil {
		return r, err
	}
	stored, err := d.opts.Events.Get(ctx, found.Ref.Ref)
	if err != nil {
		return r, err
	}
	if stored.State == events.Compacted {
		return r, events.ErrCompacted
	}
	sub, err := d.subscriber(ctx, company, found.Subscriber)
	if err != nil {
		return r, err
	}
	to, err := d.targets.of(ctx, sub)
	if err != nil {
		return r, err
	}
	body, err := d.payloadsOf(&stored).in(sub.Format)
	if err != nil {
		return r, err
	}
	return to.request(stored.ID, stored.Sequence, body), nil
}
