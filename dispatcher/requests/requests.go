// Package requests prepares the requests to subscribers: events in the subscriber's
// format, with its URL, headers and signing keys.
package requests

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spendhook/dispatcher/webhook"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/events"
	"spendhook/internal/httpsig"
	"spendhook/subscribers"
	"spendhook/subscribers/expression"
)

// Options configures a Maker.
type Options struct {
	SignEd25519 bool   // add v1a signatures
	PublicURL   string // of the API, for links and with the company, as the source of CloudEvents
	Logger      *slog.Logger
	Registerer  prometheus.Registerer // nil: no metrics
}

const maxTargets = 1 << 14

// Maker makes requests. It caches the Target of each subscriber. It is safe for concurrent use.
// Make it with New.
type Maker struct {
	opts    Options
	origin  string // the host name of Options.PublicURL
	targets *lru.Cache[*subscribers.Subscriber, *Target]
	locked  prometheus.Counter
}

// New returns a Maker.
func New(o Options) *Maker {
	o.PublicURL = strings.TrimSuffix(o.PublicURL, "/")
	targets, _ := lru.New[*subscribers.Subscriber, *Target](maxTargets) // fails only for a size < 1
	locked := promauto.With(o.Registerer).NewCounter(prometheus.CounterOpts{
		Name: "spendhook_signing_keys_locked_total", Help: "Times that a subscriber was read whose deliveries wait because the signing keys of its company cannot be decrypted.",
	})
	m := &Maker{opts: o, targets: targets, locked: locked}
	if base, err := url.Parse(o.PublicURL); err == nil {
		m.origin = base.Hostname()
	}
	return m
}

// Origin is the host name by which receivers of CloudEvents know this system.
func (m *Maker) Origin() string { return m.origin }

// Payloads encodes an event as its subscribers without a transform get it.
func (m *Maker) Payloads(e *events.Stored) *Payloads {
	return &Payloads{event: e, publicURL: m.opts.PublicURL}
}

// TransformError means that the transform of a subscriber failed on an event.
type TransformError struct{ Why error }

func (e *TransformError) Error() string { return "the transform failed: " + e.Why.Error() }

// Payload encodes an event as a subscriber gets it. With a transform it may take some milliseconds; the error is then
// a *TransformError, that of ctx, or subscribers.ErrLocked.
func (m *Maker) Payload(ctx context.Context, e *events.Stored, sub *subscribers.Subscriber) (Payload, error) {
	if sub.Transform == "" {
		return m.Payloads(e).In(sub.Format)
	}
	body, err := sub.Transformed(ctx, expression.NewEvent(e.Event))
	switch {
	case ctx.Err() != nil:
		return Payload{}, ctx.Err()
	case errors.Is(err, subscribers.ErrLocked):
		return Payload{}, err
	case err != nil:
		return Payload{}, &TransformError{err}
	}
	return Payload{Body: body, ContentType: jsonType}, nil
}

// Target is a subscriber with its parsed URL, headers and decoded keys. It is immutable.
type Target struct {
	Subscriber *subscribers.Subscriber
	URL        *url.URL // nil while it cannot be read
	Locked     error    // why no attempt is possible; else nil

	signer     *signature.Signer // nil: no such signature
	messageKey httpsig.Key       // nil: no HTTP message signature
	headers    http.Header
}

// Address is the host and port that requests are sent to, "" while the URL cannot be read.
func (t *Target) Address() string {
	if t.URL == nil {
		return ""
	}
	return net.JoinHostPort(t.URL.Hostname(), t.Port())
}

// Port is the port of the URL, or the default port of its scheme. The URL must not be nil.
func (t *Target) Port() string {
	switch {
	case t.URL.Port() != "":
		return t.URL.Port()
	case t.URL.Scheme == "http":
		return "80"
	}
	return "443"
}

// Request returns the request of one attempt. A sequence of 0 is not sent.
func (t *Target) Request(id string, sequence int64, p Payload) webhook.Request {
	return webhook.Request{
		URL: t.URL, URLVersion: t.Subscriber.URLVersion, EventID: id, Sequence: sequence, Body: p.Body, ContentType: p.ContentType, Signer: t.signer,
		MessageKey: t.messageKey, Headers: t.headers,
		Company: t.Subscriber.CompanyUUID, Subscriber: t.Subscriber.UUID, StopOn: t.Subscriber.StopOn, OAuth: t.Subscriber.OAuth, Certificate: t.Subscriber.Certificate, Locked: t.Locked,
	}
}

// Target returns the Target of a subscriber of a registry's snapshot. A changed subscriber is a new
// pointer in the next snapshot, and gets a new Target. The Target is Locked if a secret cannot be
// decrypted.
func (m *Maker) Target(sub *subscribers.Subscriber) *Target {
	if cached, ok := m.targets.Get(sub); ok {
		return cached
	}
	made := &Target{Subscriber: sub, headers: make(http.Header, len(sub.Headers)), Locked: sub.Unusable()}
	for _, h := range sub.Headers {
		made.headers[h.Name] = []string{h.Value.Reveal()}
	}
	if v := sub.Verification; v != nil && v.State == subscribers.StateVerified && sub.Format == subscribers.FormatCloudEvents {
		made.headers[webhook.HeaderOrigin] = []string{m.origin} // CloudEvents, HTTP 1.1 Web Hooks for Event Delivery 1.0.2, 2.1
	}
	if made.Locked == nil {
		if made.Locked = made.open(m.opts.SignEd25519); errors.Is(made.Locked, subscribers.ErrLocked) { // Unusable has the other secrets
			m.locked.Inc()
		}
	}
	if made.Locked != nil {
		m.opts.Logger.Error("deliveries wait: the subscriber's secrets cannot be decrypted, check the encryption keys",
			"company_uuid", sub.CompanyUUID, "subscriber_uuid", sub.UUID, "exception.message", made.Locked)
	}
	m.targets.Add(sub, made)
	return made
}

func (t *Target) open(signEd25519 bool) (err error) {
	if t.URL, err = url.Parse(t.Subscriber.CallbackURL); err != nil {
		return fmt.Errorf("callback URL of %s: %w", t.Subscriber.UUID, err)
	}
	for _, s := range t.Subscriber.SignedBy() {
		if s == subscribers.SignatureHTTPMessage {
			err = t.openMessageKey()
		} else {
			err = t.openSigner(signEd25519)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *Target) openSigner(signEd25519 bool) (err error) {
	var key ed25519.PrivateKey // nil signs nothing
	if signEd25519 {
		signing, err := t.Subscriber.SigningKeys.Signing(subscribers.Ed25519)
		if err != nil {
			return err
		}
		key, _ = signing.Private.(ed25519.PrivateKey)
	}
	t.signer, err = signature.New(t.Subscriber.Secrets, key)
	return err
}

func (t *Target) openMessageKey() error {
	signing, err := t.Subscriber.SigningKeys.Signing(cmp.Or(t.Subscriber.SignatureAlgorithm, subscribers.Ed25519))
	if err != nil {
		return err
	}
	t.messageKey, err = httpsig.NewKey(signing.Private)
	return err
}

const jsonType = "application/json"

// Payload is an event as a subscriber gets it. Its bytes are the same on every attempt.
type Payload struct {
	Body        []byte
	ContentType string
}

// Payloads encodes one event, once in each format. One goroutine uses it.
type Payloads struct {
	event     *events.Stored
	publicURL string // no slash at its end
	made      map[string]Payload
}

// In encodes the event in one of the formats of subscribers.
func (p *Payloads) In(format string) (Payload, error) {
	if format == "" || format == subscribers.FormatStandard {
		return Payload{Body: p.event.Body, ContentType: jsonType}, nil
	}
	if made, ok := p.made[format]; ok {
		return made, nil
	}
	var record any
	out := Payload{ContentType: jsonType}
	switch format {
	case subscribers.FormatThin:
		record = p.thin()
	case subscribers.FormatCloudEvents:
		record, out.ContentType = p.cloudEvent(), "application/cloudevents+json"
	default:
		return Payload{}, fmt.Errorf("format %q is not known", format)
	}
	var err error
	if out.Body, err = json.Marshal(record); err != nil {
		return Payload{}, fmt.Errorf("encode event %s as %s: %w", p.event.Ref(), format, err)
	}
	if p.made == nil {
		p.made = make(map[string]Payload, 1)
	}
	p.made[format] = out
	return out, nil
}

const timeFormat = "2006-01-02T15:04:05.000Z"

type thinEvent struct {
	ID          string `json:"id"`
	CompanyUUID string `json:"companyUuid"`
	Event       string `json:"event"`
	Timestamp   string `json:"timestamp"`
	URL         string `json:"url"`
}

func (p *Payloads) thin() thinEvent {
	e := p.event
	return thinEvent{
		ID: e.ID, CompanyUUID: e.CompanyUUID.String(), Event: e.Type, Timestamp: utc(e.Timestamp),
		URL: p.publicURL + "/api/v1/events/" + e.ID,
	}
}

// cloudEvent is in the structured mode of CloudEvents 1.0.2, with its sequence
// extension. Extension attributes have lower-case names.
type cloudEvent struct {
	SpecVersion     string         `json:"specversion"`
	ID              string         `json:"id"`
	Source          string         `json:"source"`
	Type            string         `json:"type"`
	Subject         string         `json:"subject"`
	Time            string         `json:"time"`
	Sequence        string         `json:"sequence,omitempty"`
	ErrorCode       string         `json:"errorcode,omitempty"`
	ErrorMessage    string         `json:"errormessage,omitempty"`
	DataContentType string         `json:"datacontenttype"`
	Data            jsontext.Value `json:"data"`
}

func (p *Payloads) cloudEvent() cloudEvent {
	e := p.event
	out := cloudEvent{
		SpecVersion: "1.0", ID: e.ID, Source: p.publicURL + "/companies/" + e.CompanyUUID.String(), Type: e.Type, Subject: e.CompanyUUID.String(), Time: utc(e.Timestamp),
		ErrorCode: attribute(e.ErrorCode), ErrorMessage: attribute(e.ErrorMessage), DataContentType: jsonType, Data: p.cloudEventData(),
	}
	if e.Sequence > 0 {
		out.Sequence = fmt.Sprintf("%019d", e.Sequence) // sorts as text like the numbers
	}
	return out
}

// cloudEventData returns the metadata, with the texts of an error as they are, unless the metadata have
// fields of these names.
func (p *Payloads) cloudEventData() jsontext.Value {
	e, metadata := p.event, p.event.Metadata
	if len(metadata) == 0 {
		metadata = jsontext.Value("{}")
	}
	var fields map[string]jsontext.Value
	if e.ErrorCode+e.ErrorMessage == "" || json.Unmarshal(metadata, &fields) != nil { // an accepted event has an object
		return metadata
	}
	for name, text := range map[string]string{"errorCode": e.ErrorCode, "errorMessage": e.ErrorMessage} {
		if _, taken := fields[name]; text != "" && !taken {
			fields[name], _ = json.Marshal(text)
		}
	}
	data, _ := json.Marshal(fields, json.Deterministic(true)) // the parts are valid
	return data
}

// attribute replaces what an attribute cannot have (CloudEvents 1.0.2, "Type System") by spaces: control characters, and
// code points that Unicode keeps free of characters.
func attribute(text string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || unicode.Is(unicode.Noncharacter_Code_Point, c) {
			return ' '
		}
		return c
	}, text)
}

func utc(t time.Time) string { return t.UTC().Format(timeFormat) }
