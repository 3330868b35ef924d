package dispatcher

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"

	lru "github.com/hashicorp/golang-lru/v2"

	"spendhook/dispatcher/webhook"
	"spendhook/subscribers"
	"spendhook/subscribers/signingkey"
	"spendhook/subscribers/vault"
)

// maxTargets bounds the subscribers whose keys are held ready.
const maxTargets = 1 << 14

// targets are subscribers with what attempts need of them held ready. Safe for
// concurrent use.
type targets struct {
	ready  *lru.Cache[*subscribers.Subscriber, *target]
	keys   *signingkey.Store // nil: none signs with ed25519
	logger *slog.Logger
}

func newTargets(o Options) (*targets, error) {
	ready, err := lru.New[*subscribers.Subscriber, *target](maxTargets)
	return &targets{ready: ready, keys: o.SigningKeys, logger: o.Logger}, err
}

// target is a subscriber that is ready to be sent to.
type target struct {
	sub     *subscribers.Subscriber
	url     *url.URL
	signer  *webhook.Signer
	headers http.Header
	locked  error // why nothing can be sent to it; else nil
}

// address is the host and port that it is sent to, "" while that cannot be read.
func (t *target) address() string {
	if t.url == nil {
		return ""
	}
	return net.JoinHostPort(t.url.Hostname(), t.port())
}

func (t *target) port() string {
	switch {
	case t.url.Port() != "":
		return t.url.Port()
	case t.url.Scheme == "http":
		return "80"
	}
	return "443"
}

// request is an attempt to send an event there.
func (t *target) request(id string, sequence int64, p payload) webhook.Request {
	return webhook.Request{
		URL: t.url, EventID: id, Sequence: sequence, Body: p.body, ContentType: p.contentType, Signer: t.signer, Headers: t.headers,
		Company: t.sub.CompanyUUID, Certificate: t.sub.Certificate, Locked: t.locked,
	}
}

// of prepares a subscriber of a registry's snapshot. Snapshots are never
// changed, so a subscriber that changes is another target.
func (t *targets) of(ctx context.Context, sub *subscribers.Subscriber) (*target, error) {
	if ready, ok := t.ready.Get(sub); ok {
		return ready, nil
	}
	made := &target{sub: sub, headers: make(http.Header, len(sub.Headers)), locked: sub.Unusable()}
	for _, h := range sub.Headers {
		made.headers[h.Name] = []string{h.Value.Reveal()}
	}
	if made.locked == nil {
		key, err := t.key(ctx, sub)
		switch {
		case errors.Is(err, vault.ErrLocked):
			made.locked = err
		case err != nil:
			return nil, err
		default:
			made.locked = made.open(key)
		}
	}
	if made.locked != nil {
		t.logger.Error("deliveries wait: the subscriber's secrets do not open, check the encryption keys",
			"company_uuid", sub.CompanyUUID, "subscriber_uuid", sub.UUID, "exception.message", made.locked)
	}
	t.ready.Add(sub, made)
	return made, nil
}

// key is the company's ed25519 key, nil when it signs nothing.
func (t *targets) key(ctx context.Context, sub *subscribers.Subscriber) (ed25519.PrivateKey, error) {
	if t.keys == nil {
		return nil, nil
	}
	return t.keys.Key(ctx, sub.CompanyUUID)
}

// open fills in what an attempt needs of the subscriber's record.
func (t *target) open(key ed25519.PrivateKey) (err error) {
	if t.url, err = url.Parse(t.sub.CallbackURL); err != nil {
		return fmt.Errorf("callback URL of %s: %w", t.sub.UUID, err)
	}
	t.signer, err = webhook.NewSigner(t.sub.Secrets, key)
	return err
}
