package inspect

import (
	"context"
	"crypto/subtle"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/webhook"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/events"
)

// Sent is the request of a delivery with the present settings of its subscriber, without
// signatures.
type Sent struct {
	URL, ContentType, EventID string
	Sequence                  int64 // of the event in its company; 0: not sent
	Body                      []byte
}

// Sent returns the request that an attempt of a delivery would send. delivery.ErrNotFound,
// delivery.ErrSubscriberGone, events.ErrNotFound or events.ErrCompacted.
func (i *Inspector) Sent(ctx context.Context, company uuid.UUID, id string) (Sent, error) {
	r, err := i.requestOf(ctx, company, id)
	if err != nil {
		return Sent{}, err
	}
	sent := Sent{ContentType: r.ContentType, EventID: r.EventID, Sequence: r.Sequence, Body: r.Body}
	if r.URL != nil {
		sent.URL = r.URL.String()
	}
	return sent, nil
}

// VerifySignature reports whether a webhook-signature header contains a signature that this
// daemon would make for the delivery now, with the given webhook-timestamp. The errors are
// those of Sent, or the reason why the subscriber's secrets do not open.
func (i *Inspector) VerifySignature(ctx context.Context, company uuid.UUID, id string, timestamp int64, header string) (bool, error) {
	r, err := i.requestOf(ctx, company, id)
	if err != nil {
		return false, err
	}
	if r.Locked != nil {
		return false, r.Locked
	}
	for ours := range strings.FieldsSeq(r.Signed(time.Unix(timestamp, 0))[signature.HeaderSignature]) {
		for theirs := range strings.FieldsSeq(header) {
			if subtle.ConstantTimeCompare([]byte(ours), []byte(theirs)) == 1 {
				return true, nil
			}
		}
	}
	return false, nil
}

// requestOf is the request of an attempt that would be made now.
func (i *Inspector) requestOf(ctx context.Context, company uuid.UUID, id string) (r webhook.Request, err error) {
	found, err := i.opts.Deliveries.Delivery(ctx, company, id)
	if err != nil {
		return r, err
	}
	stored, err := i.opts.Events.Get(ctx, found.Ref.Ref)
	if err != nil {
		return r, err
	}
	if stored.State == events.Compacted {
		return r, events.ErrCompacted
	}
	sub, err := i.subscriber(ctx, company, found.Subscriber)
	if err != nil {
		return r, err
	}
	to, err := i.opts.Requests.Target(ctx, sub)
	if err != nil {
		return r, err
	}
	body, err := i.opts.Requests.Payloads(&stored).In(sub.Format)
	if err != nil {
		return r, err
	}
	return to.Request(stored.ID, stored.Sequence, body), nil
}
