package requests

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"spendhook/dispatcher/webhook"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/subscribers"
	"spendhook/subscribers/vault"
)

// Target is a subscriber that is ready to be sent to. It is never changed.
type Target struct {
	Subscriber *subscribers.Subscriber
	URL        *url.URL // nil while it cannot be read
	Locked     error    // why no attempt is possible; else nil

	signer  *signature.Signer
	headers http.Header
}

// Address is the host and port that it is sent to, "" while that cannot be read.
func (t *Target) Address() string {
	if t.URL == nil {
		return ""
	}
	return net.JoinHostPort(t.URL.Hostname(), t.Port())
}

// Port is the port of its URL, also where that names none. The URL must not be nil.
func (t *Target) Port() string {
	switch {
	case t.URL.Port() != "":
		return t.URL.Port()
	case t.URL.Scheme == "http":
		return "80"
	}
	return "443"
}

// Request is the attempt that sends an event to the target; sequence 0 is not sent.
func (t *Target) Request(id string, sequence int64, p Payload) webhook.Request {
	return webhook.Request{
		URL: t.URL, EventID: id, Sequence: sequence, Body: p.Body, ContentType: p.ContentType, Signer: t.signer, Headers: t.headers,
		Company: t.Subscriber.CompanyUUID, Certificate: t.Subscriber.Certificate, Locked: t.Locked,
	}
}

// Target prepares a subscriber of a registry's snapshot. Snapshots are never
// changed, so a subscriber that changes is another target. Secrets that do not open
// are no error: the target is Locked.
func (m *Maker) Target(ctx context.Context, sub *subscribers.Subscriber) (*Target, error) {
	if ready, ok := m.ready.Get(sub); ok {
		return ready, nil
	}
	made := &Target{Subscriber: sub, headers: make(http.Header, len(sub.Headers)), Locked: sub.Unusable()}
	for _, h := range sub.Headers {
		made.headers[h.Name] = []string{h.Value.Reveal()}
	}
	if made.Locked == nil {
		key, err := m.key(ctx, sub)
		switch {
		case errors.Is(err, vault.ErrLocked):
			made.Locked = err
		case err != nil:
			return nil, err
		default:
			made.Locked = made.open(key)
		}
	}
	if made.Locked != nil {
		m.opts.Logger.Error("deliveries wait: the subscriber's secrets do not open, check the encryption keys",
			"company_uuid", sub.CompanyUUID, "subscriber_uuid", sub.UUID, "exception.message", made.Locked)
	}
	m.ready.Add(sub, made)
	return made, nil
}

// key is the company's ed25519 key, nil when it signs nothing.
func (m *Maker) key(ctx context.Context, sub *subscribers.Subscriber) (ed25519.PrivateKey, error) {
	if m.opts.SigningKeys == nil {
		return nil, nil
	}
	return m.opts.SigningKeys.Key(ctx, sub.CompanyUUID)
}

// open fills in what an attempt needs of the subscriber's record.
func (t *Target) open(key ed25519.PrivateKey) (err error) {
	if t.URL, err = url.Parse(t.Subscriber.CallbackURL); err != nil {
		return fmt.Errorf("callback URL of %s: %w", t.Subscriber.UUID, err)
	}
	t.signer, err = signature.New(t.Subscriber.Secrets, key)
	return err
}
