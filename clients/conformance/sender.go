package conformance

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"spendhook/dispatcher/webhook/signature"
	"spendhook/internal/httpsig"
	"spendhook/internal/secret"
	"spendhook/subscribers"
)

const (
	// origin is not where the program listens: it must not trust the Host header.
	origin = "https://hooks.example.com"
	// daemonOrigin is how the daemon names itself in the handshake of CloudEvents.
	daemonOrigin = "spendhook.example.com"
	// hookPath has what a library may decode by mistake.
	hookPath = "/hooks/caf%C3%A9%2Fbar?tenant=a%20b&x=1+2"
)

// spareSecret is a second secret that the program accepts, as during a rotation.
var spareSecret = newSecret()

func newSecret() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return "whsec_" + base64.StdEncoding.EncodeToString(key)
}

// sender signs deliveries as the daemon does.
type sender struct {
	secrets []string
	v1a     ed25519.PrivateKey
	key     crypto.Signer // of HTTP message signatures
	at      time.Time
}

// event is an event as the daemon delivers it.
type event struct {
	id          string
	sequence    int64
	kind        string
	contentType string
	body        []byte
	gone        bool
}

// headers returns the signed headers of a delivery.
func (s *sender) headers(e *event) (http.Header, error) {
	secrets := make([]subscribers.SigningSecret, 0, len(s.secrets))
	for _, key := range s.secrets {
		secrets = append(secrets, subscribers.SigningSecret{Key: secret.Text(key)})
	}
	signer, err := signature.New(secrets, s.v1a)
	if err != nil {
		return nil, err
	}
	key, err := httpsig.NewKey(s.key)
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(origin + hookPath)
	if err != nil {
		return nil, err
	}
	m := httpsig.Message{
		Method: http.MethodPost, URL: target, ContentType: e.contentType, Body: e.body, ID: e.id,
		Timestamp: strconv.FormatInt(s.at.Unix(), 10), Sequence: strconv.FormatInt(e.sequence, 10),
	}
	if e.sequence > 1 { // each event is for the subscriber
		m.Previous = strconv.FormatInt(e.sequence-1, 10)
	}
	signed, err := httpsig.Sign(key, m, s.at, 5*time.Minute)
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	for name, value := range map[string]string{
		signature.HeaderID: e.id, signature.HeaderTimestamp: m.Timestamp, signature.HeaderSequence: m.Sequence,
		signature.HeaderSignature: signer.Sign(e.id, s.at.Unix(), e.body), "Content-Type": e.contentType,
		httpsig.HeaderDigest: signed.Digest, httpsig.HeaderInput: signed.Input, httpsig.HeaderSignature: signed.Signature,
	} {
		header.Set(name, value)
	}
	if m.Previous != "" {
		header.Set(signature.HeaderPrevious, m.Previous)
	}
	return header, nil
}

// delivery is one attempt. A case changes what is signed and, afterwards, what is sent.
type delivery struct {
	event  *event
	signer sender
	header http.Header // changes of the signed headers; an empty value removes a header
	body   []byte      // instead of the signed one; nil: that
}

// send posts a delivery to the program, and returns its answer.
func (s *suite) send(ctx context.Context, p *program, d delivery) (status int, answer string, err error) {
	header, err := d.signer.headers(d.event)
	if err != nil {
		return 0, "", err
	}
	maps.Copy(header, d.header)
	maps.DeleteFunc(header, func(_ string, values []string) bool { return len(values) == 0 })
	body := d.event.body
	if d.body != nil {
		body = d.body
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+hookPath, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header = header
	resp, err := p.http.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	return resp.StatusCode, string(text), err
}

// delivery returns a valid delivery of an event now.
func (s *suite) delivery(e *event) delivery {
	signer := s.daemon.sender
	signer.at = s.o.Now()
	return delivery{event: e, signer: signer}
}

// deliver delivers an event, once, and checks the status of the answer.
func (r *run) deliver(e *event, want int) {
	if r.err == nil {
		r.attempt(r.delivery(e), want)
	}
}

// attempt makes one attempt, and checks the status of the answer.
func (r *run) attempt(d delivery, want int) (answer string) {
	if r.err != nil {
		return ""
	}
	status, answer, err := r.send(r.ctx, r.program, d)
	if err != nil {
		r.failf("deliver %s: %w", d.event.id, err)
	} else if status != want {
		r.failf("the delivery of %s was answered %d, not %d: %.200q", d.event.id, status, want, answer)
	}
	return answer
}

// until delivers an event again and again, as the daemon does, until it is answered with want. Only the other statuses
// may be answered before.
func (s *suite) until(ctx context.Context, to func() *program, e *event, want int, others ...int) error {
	for deadline := s.o.Now().Add(patience); ; {
		p := to()
		status, answer, err := 0, "", errors.New("the program does not run")
		if p != nil {
			status, answer, err = s.send(ctx, p, s.delivery(e))
		}
		switch {
		case err == nil && status == want:
			return nil
		case err == nil && !slices.Contains(others, status):
			return fmt.Errorf("the delivery of %s was answered %d, not %d: %.200q", e.id, status, want, answer)
		case err != nil && p != nil && !p.runs() && to() == p:
			return fmt.Errorf("the program has ended: %w", err)
		case s.o.Now().After(deadline):
			return fmt.Errorf("the delivery of %s was not answered %d in time, at last %d: %w", e.id, want, status, err)
		}
		if err := wait(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}
