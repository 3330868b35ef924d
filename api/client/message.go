package client

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"spendhook/internal/httpsig"
	"spendhook/internal/keyset"
)

// clockDifference is how far the clocks of the daemon and the receiver may differ.
const clockDifference = time.Minute

// MessageVerifier verifies the HTTP message signatures (RFC 9421) of a company's deliveries, with the keys that the
// daemon publishes. It keeps the keys for as long as the daemon says, at least five minutes. It is safe for
// concurrent use.
type MessageVerifier struct {
	// KeysURL is …/.well-known/webhook-keys/{companyUuid} of the daemon.
	KeysURL string
	// Origin is scheme and host of the callback URL, such as https://ledger.example.com. A receiver must not
	// take it from the request.
	Origin string
	// Client reads the keys; nil: http.DefaultClient.
	Client *http.Client
	// Now is the clock; nil: time.Now.
	Now func() time.Time

	keys keyset.Set
}

// ErrInvalidMessage says that a message has no valid signature: answer 401.
var ErrInvalidMessage = errors.New("no valid message signature")

// Verify returns nil if the request was signed by one of the company's keys, at most about five minutes ago, for
// this URL. body is all of the request's body. An error is ErrInvalidMessage, or else the keys cannot be read now:
// answer 503, so that the delivery is repeated.
func (v *MessageVerifier) Verify(r *http.Request, body []byte) error {
	clock := v.Now
	if clock == nil {
		clock = time.Now //nolint:forbidigo // the default
	}
	if !strings.HasPrefix(r.RequestURI, "/") { // it could continue the host of Origin
		return fmt.Errorf("%w: the URL of the request is not a path", ErrInvalidMessage)
	}
	now := clock()
	from := keyset.Source{URL: v.KeysURL, Client: v.Client, Now: now}
	keys, err := v.keys.Known(r.Context(), from)
	if err != nil {
		return err
	}
	check := func() error {
		return httpsig.Verify(r.Header, r.Method, v.Origin+r.RequestURI, body, keys, clockDifference, now)
	}
	err = check()
	if errors.Is(err, httpsig.ErrUnknownKey) { // of a rotation since the keys were read
		if keys, err = v.keys.Again(r.Context(), from); err != nil {
			return err
		}
		err = check()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidMessage, err)
	}
	return nil
}
