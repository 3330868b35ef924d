package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"spendhook/internal/httpsig"
)

const (
	// keysLife is how long published keys are used: as long as their Cache-Control says.
	keysLife = 5 * time.Minute
	// keysPause is the least time between two reads of the published keys, after an unknown key or a failure.
	keysPause = 5 * time.Second
	// keysTimeout bounds a read.
	keysTimeout = 5 * time.Second
	// maxKeys bounds the answer with the published keys, in bytes.
	maxKeys = 1 << 16
	// clockDifference is how far the clocks of the daemon and the receiver may differ.
	clockDifference = time.Minute
)

// MessageVerifier verifies the HTTP message signatures (RFC 9421) of a company's deliveries, with the keys that
// the daemon publishes. It keeps the keys for five minutes. It is safe for concurrent use.
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

	mu      sync.Mutex
	keys    []httpsig.JWK
	readAt  time.Time // when keys were read
	triedAt time.Time // when they were last to be read
	failed  error     // why that failed
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
	now := clock()
	keys, err := v.known(r.Context(), now, keysLife)
	if err != nil {
		return err
	}
	check := func() error {
		return httpsig.Verify(r.Header, r.Method, v.Origin+r.RequestURI, body, keys, clockDifference, now)
	}
	err = check()
	if errors.Is(err, httpsig.ErrUnknownKey) { // of a rotation since the keys were read
		if keys, err = v.known(r.Context(), now, keysPause); err != nil {
			return err
		}
		err = check()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidMessage, err)
	}
	return nil
}

// known returns the keys. It reads them when they are older than life.
func (v *MessageVerifier) known(ctx context.Context, now time.Time, life time.Duration) ([]httpsig.JWK, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.keys != nil && now.Sub(v.readAt) < life:
		return v.keys, nil
	case v.failed != nil && now.Sub(v.triedAt) < keysPause:
		return nil, v.failed
	}
	keys, err := v.read(ctx)
	v.triedAt, v.failed = now, err
	if err != nil {
		return nil, err
	}
	v.keys, v.readAt = keys, now
	return keys, nil
}

func (v *MessageVerifier) read(ctx context.Context) ([]httpsig.JWK, error) {
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.KeysURL, nil)
	if err != nil {
		return nil, err
	}
	client := v.Client
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("read the published keys: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read the published keys: %s", resp.Status)
	}
	var set struct {
		Keys []httpsig.JWK `json:"keys"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxKeys)).Decode(&set); err != nil {
		return nil, fmt.Errorf("read the published keys: %w", err)
	}
	return set.Keys, nil
}
