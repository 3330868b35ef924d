// Package subscribers stores the subscribers of each company with their signing secrets. The
// packages below it list and cache subscribers, evaluate their filters, and keep their health and client
// certificates.
package subscribers

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/events/eventtype"
	"spendhook/internal/invalid"
	"spendhook/internal/secret"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/expression"
)

// Errors that callers check for. Invalid input is an *invalid.Error.
var (
	// ErrNotFound says that the company has no such subscriber.
	ErrNotFound = errors.New("subscriber not found")
	// ErrConflict says that another subscriber of the company has the URL.
	ErrConflict = errors.New("callback URL already in use")
	// ErrChanged says that the subscriber has none of the given revisions.
	ErrChanged = errors.New("the subscriber was changed meanwhile")
	// ErrQuota says that the company has reached its limit of subscribers.
	ErrQuota = errors.New("too many subscribers")
	// ErrTooManySecrets says that as many secrets sign the deliveries of a subscriber as may.
	ErrTooManySecrets = errors.New("too many signing secrets")
	// ErrNoSigningKey says that the company has no such signing key: it was revoked, the company was erased, or it never had
	// a subscriber.
	ErrNoSigningKey = errors.New("the company has no such signing key")
	// ErrRotatedRecently says that receivers may not know the next signing keys yet, or that as many former
	// ones are published as may be.
	ErrRotatedRecently = errors.New("the signing keys were rotated too recently")
	// ErrLocked says that a secret cannot be decrypted with the configured encryption keys, or that
	// a record is damaged. The error also names the missing key, but never any part of a secret.
	ErrLocked = errors.New("cannot be read")
)

// The reasons for which a subscriber is disabled; there are no others.
const (
	ReasonManual  = "MANUAL"  // its company disabled it
	ReasonGone    = "GONE"    // its endpoint answered 410
	ReasonFailing = "FAILING" // its endpoint failed for Policy.DisableAfter of package health
)

// The formats in which a subscriber may be sent events.
const (
	FormatStandard    = "standard"    // the event's record
	FormatThin        = "thin"        // id, company, type and time, and a link to the record
	FormatCloudEvents = "cloudevents" // CloudEvents 1.0.2, structured mode, JSON
)

var formats = []string{FormatStandard, FormatThin, FormatCloudEvents}

// Ways in which deliveries are signed.
const (
	SignatureStandard    = "standard"     // Standard Webhooks 1.0.0
	SignatureHTTPMessage = "http-message" // HTTP Message Signatures (RFC 9421), with a key of the company
)

var signatures = []string{SignatureStandard, SignatureHTTPMessage}

// Subscriber is one endpoint of a company and the events that it subscribes to. Times are UTC
// with milliseconds. DisabledReason and DisabledAt are set exactly while Enabled is false.
// Redis stores its JSON, with sealed secrets; the other fields are part of the key (see codec).
type Subscriber struct {
	UUID           uuid.UUID  `json:"-"`
	CompanyUUID    uuid.UUID  `json:"-"`
	Name           string     `json:"name"`
	CallbackURL    string     `json:"callbackUrl"`          // normalised by callback.Policy.Normalize, unique in the company
	URLVersion     int        `json:"urlVersion,omitzero"`  // how often CallbackURL was changed
	FormerURLs     []string   `json:"formerUrls,omitempty"` // the last ones, newest first, without their queries
	Events         []string   `json:"events"`
	Enabled        bool       `json:"enabled"`
	DisabledReason string     `json:"disabledReason,omitzero"`
	DisabledAt     *time.Time `json:"disabledAt,omitzero"`
	Filter         string     `json:"filter,omitzero"`      // see package expression; empty: none
	Format         string     `json:"format,omitzero"`      // format of delivered events; empty: FormatStandard
	Transform      string     `json:"transform,omitzero"`   // makes the body of deliveries, see package expression; empty: Format does
	Signatures     []string   `json:"signatures,omitempty"` // how deliveries are signed; empty: SignatureStandard alone
	// SignatureAlgorithm is that of SignatureHTTPMessage; empty: Ed25519.
	SignatureAlgorithm KeyAlgorithm      `json:"signatureAlgorithm,omitzero"`
	RateLimit          *RateLimit        `json:"rateLimit,omitzero"`      // nil: none
	Ordered            bool              `json:"ordered,omitzero"`        // one delivery at a time, in the order of the events
	OrderedBy          string            `json:"orderedBy,omitzero"`      // as Ordered, among deliveries with the same value of this expression; empty: none
	OnDead             string            `json:"onDead,omitzero"`         // onDeadContinue (also when empty) or onDeadPause
	StopOn             []int             `json:"stopOn,omitempty"`        // statuses of answers that end the attempts of a delivery, ascending
	RetrySchedule      []int             `json:"retrySchedule,omitempty"` // the wait after each failed attempt, in seconds; empty: the daemon's
	CreatedAt          time.Time         `json:"createdAt"`
	UpdatedAt          time.Time         `json:"updatedAt"`
	Secrets            []SigningSecret   `json:"secrets"`           // newest first
	Headers            []callback.Header `json:"headers,omitempty"` // sent with every delivery, by name
	OAuth              *callback.OAuth   `json:"oauth,omitzero"`    // where deliveries get an access token; nil: they carry none
	// Contacts are told when the subscriber is about to be disabled, is disabled, and works again.
	Contacts []callback.Contact `json:"contacts,omitempty"`
	// Verification of CallbackURL; nil: it was never asked for.
	Verification *Verification `json:"verification,omitzero"`
	Change       string        `json:"change,omitzero"` // only while it is encoded: see encode
	// Revision identifies the stored version; each change gives a new one.
	Revision string `json:"-"`
	// Certificate is the subscriber's own egress certificate, or else the company's; nil when there is none.
	// SigningKeys are the company's. Only DecodeAll sets both.
	Certificate *certificate.Certificate `json:"-"`
	SigningKeys SigningKeys              `json:"-"`
	// Locked is set when the stored record is damaged. Such a subscriber has only its UUIDs. It
	// counts as Enabled, so that its pending deliveries wait, but matches no event. Only
	// DecodeAll returns it; methods of Store return an error for it, except Delete.
	Locked error `json:"-"`

	Unknown *jsontext.Value `json:",embed"` // fields of its record that a newer release wrote

	filter, transform, orderedBy func() (*expression.Expression, error) // of a loaded subscriber that has them
}

// SigningSecret is a secret and its expiry, which is nil while the secret is current.
type SigningSecret struct {
	Key       secret.Text `json:"-"`
	Sealed    string      `json:"key"` // the Key as it is stored; "" when it was opened
	ExpiresAt *time.Time  `json:"expiresAt,omitzero"`
	Locked    error       `json:"-"` // why the Key cannot be decrypted; else nil

	Unknown *jsontext.Value `json:",embed"` // as of a Subscriber
}

// Unusable returns why nothing can be sent to the subscriber: its record, a secret, a header or
// the certificate cannot be read. A receiver would refuse a delivery without them, or accept it
// without authentication. Unusable returns nil for a usable subscriber.
func (s *Subscriber) Unusable() error {
	if s.Locked != nil {
		return fmt.Errorf("record: %w: %w", ErrLocked, s.Locked)
	}
	for _, secret := range s.Secrets {
		if secret.Locked != nil {
			return fmt.Errorf("signing secret: %w: %w", ErrLocked, secret.Locked)
		}
	}
	for _, h := range s.Headers {
		if h.Locked != nil {
			return fmt.Errorf("header %s: %w: %w", h.Name, ErrLocked, h.Locked)
		}
	}
	if s.OAuth != nil && s.OAuth.Locked != nil {
		return fmt.Errorf("client secret: %w: %w", ErrLocked, s.OAuth.Locked)
	}
	if s.Certificate != nil && s.Certificate.Locked != nil {
		return fmt.Errorf("egress certificate: %w: %w", ErrLocked, s.Certificate.Locked)
	}
	return nil
}

// WithoutSecrets returns the subscriber to be shown: without secrets, also in their stored form, certificate and
// signing keys. It shares nothing that is secret with s.
func (s Subscriber) WithoutSecrets() Subscriber {
	s.Secrets, s.Certificate, s.SigningKeys = nil, nil, SigningKeys{}
	s.Headers = slices.Clone(s.Headers)
	for i := range s.Headers {
		s.Headers[i] = callback.Header{Name: s.Headers[i].Name}
	}
	if s.OAuth != nil {
		s.OAuth = &callback.OAuth{TokenURL: s.OAuth.TokenURL, ClientID: s.OAuth.ClientID, Scope: s.OAuth.Scope, Audience: s.OAuth.Audience}
	}
	s.Contacts = slices.Clone(s.Contacts)
	for i := range s.Contacts {
		s.Contacts[i] = callback.Contact{Address: s.Contacts[i].Address}
	}
	return s
}

func (s SigningSecret) liveAt(now time.Time) bool {
	return s.ExpiresAt == nil || now.Before(*s.ExpiresAt)
}

// Wants reports whether eventType matches the list of events.
func (s *Subscriber) Wants(eventType string) bool {
	return slices.ContainsFunc(s.Events, func(pattern string) bool { return eventtype.Matches(pattern, eventType) })
}

// ExpressionBytes is the most memory, in bytes, that filter, transform and order key take once they are compiled.
func (s *Subscriber) ExpressionBytes() int {
	return expression.Bytes(s.Filter) + expression.Bytes(s.Transform) + expression.Bytes(s.OrderedBy)
}

// Matches reports whether an event matches the subscriber: its type matches the list, and the
// filter, if there is one, is true. When the filter fails, the event does not match and err
// says why; it also fails when ctx ends. Matches ignores Enabled: a recover job delivers the events that a disabled
// subscriber matched.
func (s *Subscriber) Matches(ctx context.Context, e *expression.Event) (matches bool, err error) {
	if !s.Wants(e.Type()) {
		return false, nil
	}
	if s.Filter == "" {
		return true, nil
	}
	load := s.filter
	if load == nil {
		load = reload(expression.Filter, s.Filter) //nolint:contextcheck // Reload takes none
	}
	x, err := load()
	if err != nil {
		return false, fmt.Errorf("filter: %w", err)
	}
	if matches, err = x.Matches(ctx, e); err != nil {
		return false, fmt.Errorf("filter: %w", err)
	}
	return matches, nil
}

// Transformed returns the body that the subscriber's Transform, which it must have, makes of an event. The error says why it fails on the
// event, is that of ctx, or is ErrLocked when the transform cannot be compiled.
func (s *Subscriber) Transformed(ctx context.Context, e *expression.Event) ([]byte, error) {
	load := s.transform
	if load == nil {
		load = reload(expression.Transform, s.Transform) //nolint:contextcheck // Reload takes none
	}
	x, err := load()
	if err != nil { // another release has accepted it
		return nil, fmt.Errorf("transform: %w: %w", ErrLocked, err)
	}
	return x.Object(ctx, e)
}

// OrderKey identifies the deliveries that must not overtake that of an event; "" when there are none: the subscriber is not
// ordered by key, or its expression fails on the event, for which the error says why. It also fails when ctx ends.
func (s *Subscriber) OrderKey(ctx context.Context, e *expression.Event) (string, error) {
	if s.OrderedBy == "" {
		return "", nil
	}
	load := s.orderedBy
	if load == nil {
		load = reload(expression.Key, s.OrderedBy) //nolint:contextcheck // Reload takes none
	}
	x, err := load()
	if err != nil { // another release has accepted it
		return "", fmt.Errorf("orderedBy: %w", err)
	}
	text, err := x.Text(ctx, e)
	if err != nil {
		return "", fmt.Errorf("orderedBy: %w", err)
	}
	sum := sha256.Sum256([]byte(s.OrderedBy + "\x00" + text)) // other expressions have other keys
	return base64.RawURLEncoding.EncodeToString(sum[:orderKeyBytes]), nil
}

// orderKeyBytes is the length of an order key. Deliveries whose keys are equal by chance wait for each other.
const orderKeyBytes = 8

// WithExpressions returns the subscriber with another filter and transform, compiled to be used on many events; nil keeps
// what it has, and "" removes it. The error is an *invalid.Error with the position of the mistake, or that of ctx.
func (s Subscriber) WithExpressions(ctx context.Context, filter, transform *string) (Subscriber, error) {
	set(&s.Filter, filter)
	set(&s.Transform, transform)
	problems := &invalid.Error{}
	s.filter = compile(ctx, problems, "filter", expression.Filter, s.Filter)
	s.transform = compile(ctx, problems, "transform", expression.Transform, s.Transform)
	return s, cmp.Or(ctx.Err(), problems.OrNil())
}

// compile returns a function that returns the compiled expression, nil for "". It adds to problems.
func compile(ctx context.Context, problems *invalid.Error, field string, kind expression.Kind, text string) func() (*expression.Expression, error) {
	if text == "" {
		return nil
	}
	x, err := expression.Compile(ctx, kind, text)
	if err != nil {
		problems.Add(field, "INVALID", "%s", err)
	}
	return func() (*expression.Expression, error) { return x, err }
}

// reload returns a function that compiles an accepted expression on its first call; nil for "".
func reload(kind expression.Kind, text string) func() (*expression.Expression, error) {
	if text == "" {
		return nil
	}
	return sync.OnceValues(func() (*expression.Expression, error) { return expression.Reload(kind, text) })
}

// SignedBy lists how deliveries of the subscriber are signed: Signature constants.
func (s Subscriber) SignedBy() []string {
	if len(s.Signatures) == 0 {
		return []string{SignatureStandard}
	}
	return s.Signatures
}

// Settings are the fields of a subscriber that a company sets. A nil field is not changed. In a
// new subscriber, it has its default or is reported as missing. The named Headers are set or, with
// nil, removed; the others stay.
type Settings struct {
	Name        *string
	CallbackURL *string
	Events      *[]string
	Enabled     *bool // true by default
	// Verified is the Verification of CallbackURL, if it was challenged. Update needs one where Prepare says so.
	Verified *Verification
	// Revisions, if any: the change fails with ErrChanged unless the subscriber has one of them.
	Revisions []string
	Headers   map[string]*secret.Text
	OAuth     *callback.OAuthChange
	Filter    *string // "" removes it
	Format    *string // one of the Format constants
	// Transform may be set while Format is FormatStandard; "" removes it.
	Transform *string
	// Signatures are Signature constants, at least one, each once. SignatureAlgorithm is a KeyAlgorithm.
	Signatures         *[]string
	SignatureAlgorithm *string
	RateLimit          *RateLimit // the zero value removes it
	Ordered            *bool
	OrderedBy          *string // "" removes it; not while Ordered is true
	OnDead             *string
	StopOn             *[]int // an empty list removes it
	RetrySchedule      *[]int // an empty list removes it
	// Contacts are mail addresses and URLs of chats, or what is shown of a URL, which keeps it; an empty list removes all.
	Contacts *[]secret.Text

	contacts []callback.Contact // Contacts, as check reads them
	links    bool               // contacts may be added
	mail     bool               // StoreOptions.Mail
}

// require sets missing required fields to empty values, so that check reports them, and reports
// headers without a value.
func (in *Settings) require(problems *invalid.Error) {
	for name, value := range in.Headers {
		if value == nil {
			problems.Add("headers."+name, "INVALID", "must be a string: there is nothing to remove yet")
		}
	}
	in.Name = cmp.Or(in.Name, new(""))
	in.CallbackURL = cmp.Or(in.CallbackURL, new(""))
	in.Events = cmp.Or(in.Events, new([]string))
}

// check adds to problems, and normalises the URL and the names of headers.
func (in *Settings) check(ctx context.Context, problems *invalid.Error, opts *StoreOptions) {
	if in.Name != nil {
		checkName(problems, *in.Name)
	}
	if in.CallbackURL != nil {
		in.CallbackURL = new(opts.Policy.Normalize(problems, *in.CallbackURL))
	}
	if in.Events != nil {
		checkEvents(problems, opts.Catalogue, *in.Events)
	}
	in.Headers = callback.CheckHeaders(problems, in.Headers)
	in.OAuth.Check(problems, opts.Policy)
	if in.Contacts != nil {
		in.contacts = opts.Policy.CheckContacts(problems, *in.Contacts, opts.MaxContacts)
		in.links, in.mail = !opts.NoContacts, opts.Mail
	}
	if in.Filter != nil {
		compile(ctx, problems, "filter", expression.Filter, *in.Filter)
	}
	if in.Transform != nil {
		compile(ctx, problems, "transform", expression.Transform, *in.Transform)
	}
	if in.OrderedBy != nil {
		compile(ctx, problems, "orderedBy", expression.Key, *in.OrderedBy)
	}
	if in.RateLimit != nil && *in.RateLimit != (RateLimit{}) {
		in.RateLimit.check(problems)
	}
	if in.Format != nil && !slices.Contains(formats, *in.Format) {
		problems.Add("format", "INVALID", "must be standard, thin or cloudevents")
	}
	if in.Signatures != nil && !areSignatures(*in.Signatures) {
		problems.Add("signatures", "INVALID", "must be standard, http-message or both")
	}
	if in.SignatureAlgorithm != nil && !slices.Contains(algorithms, KeyAlgorithm(*in.SignatureAlgorithm)) {
		problems.Add("signatureAlgorithm", "INVALID", "must be ed25519 or ecdsa-p256-sha256")
	}
	if in.OnDead != nil && *in.OnDead != onDeadContinue && *in.OnDead != onDeadPause {
		problems.Add("onDead", "INVALID", "must be continue or pause")
	}
	if in.StopOn != nil {
		checkStopOn(problems, *in.StopOn)
	}
	if in.RetrySchedule != nil {
		checkRetrySchedule(problems, *in.RetrySchedule, opts.Retention)
	}
}

func areSignatures(all []string) bool {
	for i, s := range all {
		if !slices.Contains(signatures, s) || slices.Contains(all[:i], s) {
			return false
		}
	}
	return len(all) > 0
}

func (in *Settings) apply(problems *invalid.Error, sub *Subscriber, now time.Time) {
	in.applyCredentials(problems, sub)
	set(&sub.Name, in.Name)
	if in.CallbackURL != nil && sub.CallbackURL != "" && *in.CallbackURL != sub.CallbackURL {
		former := slices.Insert(sub.FormerURLs, 0, withoutQuery(sub.CallbackURL))
		sub.URLVersion, sub.FormerURLs = sub.URLVersion+1, former[:min(len(former), maxFormerURLs)]
	}
	if in.movesReceiver(sub) {
		switch {
		case in.Verified != nil:
			sub.Verification = in.Verified
		case sub.Unverified():
			sub.Verification = &Verification{State: StateUnverified}
		default:
			sub.Verification = nil
		}
	}
	set(&sub.CallbackURL, in.CallbackURL)
	set(&sub.Events, in.Events)
	set(&sub.Filter, in.Filter)
	set(&sub.Format, in.Format)
	set(&sub.Transform, in.Transform)
	if sub.Transform != "" && cmp.Or(sub.Format, FormatStandard) != FormatStandard {
		problems.Add("transform", "CONFLICT", "cannot be set beside the format %s: it makes the body itself", sub.Format)
	}
	if in.Signatures != nil { // in one order, whatever the order that was given
		sub.Signatures = slices.DeleteFunc(slices.Clone(signatures), func(s string) bool { return !slices.Contains(*in.Signatures, s) })
	}
	set(&sub.SignatureAlgorithm, (*KeyAlgorithm)(in.SignatureAlgorithm))
	set(&sub.Ordered, in.Ordered)
	set(&sub.OrderedBy, in.OrderedBy)
	if sub.Ordered && sub.OrderedBy != "" {
		problems.Add("orderedBy", "CONFLICT", "cannot be set while ordered is true: all deliveries are in order then")
	}
	set(&sub.OnDead, in.OnDead)
	if in.StopOn != nil {
		sub.StopOn = slices.Sorted(slices.Values(*in.StopOn))
	}
	set(&sub.RetrySchedule, in.RetrySchedule)
	if in.Contacts != nil {
		sub.Contacts = callback.ChangeContacts(problems, sub.Contacts, in.contacts, in.links, in.mail)
	}
	if in.RateLimit != nil {
		sub.RateLimit = in.RateLimit
		if *in.RateLimit == (RateLimit{}) {
			sub.RateLimit = nil
		}
	}
	switch {
	case in.Enabled == nil || *in.Enabled == sub.Enabled:
	case *in.Enabled:
		sub.Enabled, sub.DisabledReason, sub.DisabledAt = true, "", nil
	default:
		sub.disable(ReasonManual, now)
	}
}

// applyCredentials changes what authenticates deliveries at the receiver, before the URL is changed.
func (in *Settings) applyCredentials(problems *invalid.Error, sub *Subscriber) {
	to := *cmp.Or(in.CallbackURL, &sub.CallbackURL)
	callback.KeepAtOrigin(problems, sub.Headers, in.Headers, sub.CallbackURL, to)
	sub.OAuth = callback.ChangeOAuth(problems, sub.OAuth, in.OAuth, sub.CallbackURL, to)
	if len(in.Headers) > 0 {
		sub.Headers = callback.ChangeHeaders(problems, sub.Headers, in.Headers)
	}
	if sub.OAuth != nil && slices.ContainsFunc(sub.Headers, func(h callback.Header) bool { return h.Name == "Authorization" }) {
		problems.Add("oauth", "CONFLICT", "cannot be set beside the header Authorization, which carries its token: remove one of them")
	}
}

// maxFormerURLs bounds the former URLs that a subscriber keeps.
const maxFormerURLs = 10

// withoutQuery returns the URL without its query, which may have a secret.
func withoutQuery(url string) string {
	before, _, _ := strings.Cut(url, "?")
	return before
}

// URLAt returns the callback URL of a version without its query; "" when it is not kept any more, also of a
// nil subscriber.
func (s *Subscriber) URLAt(version int) string {
	if s == nil {
		return ""
	}
	switch i := s.URLVersion - version - 1; {
	case i == -1:
		return withoutQuery(s.CallbackURL)
	case i >= 0 && i < len(s.FormerURLs):
		return s.FormerURLs[i]
	}
	return ""
}

func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

func (s *Subscriber) disable(reason string, now time.Time) {
	s.Enabled, s.DisabledReason, s.DisabledAt = false, reason, &now
}
