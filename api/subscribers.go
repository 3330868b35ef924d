package api

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/events/publish"
	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/health"
	"spendhook/subscribers/registry"
)

// ListSubscribers is GET /api/v1/subscribers.
func (s *server) ListSubscribers(ctx context.Context, q *request, p gen.ListSubscribersParams) (reply, error) {
	page := pageOf(p.Page, p.Size)
	items, total, err := s.opts.Registry.List(ctx, registry.Filter{
		Company: q.companies, Page: page.Number, Size: page.Size, UUID: p.UUID, Enabled: p.Enabled,
		Name: textOf(p.Name), CallbackURL: textOf(p.CallbackURL), Events: or(p.Events, nil),
	})
	if err != nil {
		return reply{}, err
	}
	content, err := s.withHealth(ctx, items)
	return byNumber(page, content, int64(total), same[gen.Subscriber]), err
}

// CreateSubscriber is POST /api/v1/subscribers. The body has the fields of an update. Package
// subscribers checks which are required.
func (s *server) CreateSubscriber(ctx context.Context, q *request, in gen.SubscriberUpdate) (reply, error) {
	settings, err := settingsOf(in)
	if err != nil {
		return reply{}, err
	}
	if s.opts.Full(q.company) {
		return reply{}, publish.ErrStorageFull
	}
	sub, err := s.opts.Subscribers.Create(ctx, q.company, settings)
	if err != nil {
		return reply{}, err
	}
	q.auditTarget(&q.company, "subscriber", sub.UUID.String())
	// A new subscriber has no health yet. A read could fail, and no other answer has the secret.
	rep := created(shownWithSecret(sub, health.Health{}, nil), q.sent.URL.Path+"/"+sub.UUID.String()).with("ETag", `"`+sub.Revision+`"`)
	rep.secret = true
	return rep, nil
}

// GetSubscriber is GET /api/v1/subscribers/{uuid}.
func (s *server) GetSubscriber(ctx context.Context, q *request, id gen.SubscriberPath) (reply, error) {
	sub, err := s.opts.Subscribers.Get(ctx, q.company, id)
	if err != nil {
		return reply{}, err
	}
	return s.answerWith(ctx, http.StatusOK, sub)
}

// UpdateSubscriber is PATCH /api/v1/subscribers/{uuid}.
func (s *server) UpdateSubscriber(ctx context.Context, q *request, id gen.SubscriberPath, in gen.SubscriberUpdate) (reply, error) {
	settings, err := settingsOf(in)
	if err != nil {
		return reply{}, err
	}
	if settings.Revisions, err = q.ifMatch(); err != nil {
		return reply{}, err
	}
	sub, err := s.opts.Challenger.Update(ctx, q.company, id, settings)
	if err != nil {
		return reply{}, err
	}
	return s.answerWith(ctx, http.StatusOK, sub)
}

// DeleteSubscriber is DELETE /api/v1/subscribers/{uuid}.
func (s *server) DeleteSubscriber(ctx context.Context, q *request, id gen.SubscriberPath, _ gen.CompanyScope) (reply, error) {
	revisions, err := q.ifMatch()
	if err != nil {
		return reply{}, err
	}
	return noContent(), s.opts.Subscribers.Delete(ctx, q.company, id, revisions...)
}

// AddSubscriberEvent is POST /api/v1/subscribers/add-event.
func (s *server) AddSubscriberEvent(ctx context.Context, q *request, in gen.SubscriberEventChange) (reply, error) {
	q.auditDetail(in.Event)
	sub, err := s.opts.Subscribers.AddEvent(ctx, q.company, in.CallbackURL, in.Event)
	q.auditTarget(&q.company, "subscriber", sub.UUID.String())
	if err != nil {
		return reply{}, err
	}
	return s.answerWith(ctx, http.StatusCreated, sub)
}

// DeleteSubscriberEvent is DELETE /api/v1/subscribers/delete-event.
func (s *server) DeleteSubscriberEvent(ctx context.Context, q *request, p gen.DeleteSubscriberEventParams, in gen.SubscriberEventChange) (reply, error) {
	callbackURL, err := either("callbackUrl", in.CallbackURL, p.CallbackURL)
	if err != nil {
		return reply{}, err
	}
	event, err := either("event", in.Event, p.Event)
	if err != nil {
		return reply{}, err
	}
	q.auditDetail(event)
	sub, err := s.opts.Subscribers.RemoveEvent(ctx, q.company, callbackURL, event)
	q.auditTarget(&q.company, "subscriber", sub.UUID.String())
	return noContent(), err
}

// either returns the value of a field that is in the body or in the query.
func either(field, inBody string, inQuery *string) (string, error) {
	query := textOf(inQuery)
	switch {
	case inBody == "" && query == "":
		return "", fieldProblem(field, "REQUIRED", "is required")
	case inBody != "" && query != "" && inBody != query:
		return "", fieldProblem(field, "INVALID", "is given twice with different values")
	case inBody == "":
		return query, nil
	default:
		return inBody, nil
	}
}

// RotateSubscriberSecret is POST /api/v1/subscribers/{uuid}/rotate-secret.
func (s *server) RotateSubscriberSecret(ctx context.Context, q *request, id gen.SubscriberPath, _ gen.CompanyScope) (reply, error) {
	// These are read first, because nothing may fail between the rotation and its answer.
	before, err := s.opts.Subscribers.Get(ctx, q.company, id)
	if err != nil {
		return reply{}, err
	}
	known, err := s.opts.Health.Of(ctx, q.company, id)
	if err != nil {
		return reply{}, err
	}
	states, err := s.opts.Contacts.States(ctx, q.company, before.Contacts...)
	if err != nil {
		return reply{}, err
	}
	sub, err := s.opts.Subscribers.RotateSecret(ctx, q.company, id)
	if err != nil {
		return reply{}, err
	}
	return reply{status: http.StatusOK, content: shownWithSecret(sub, known[id], states), secret: true}, nil
}

// answerWith answers a subscriber with its health and the states of its contacts.
func (s *server) answerWith(ctx context.Context, status int, sub subscribers.Subscriber) (reply, error) {
	known, err := s.opts.Health.Of(ctx, sub.CompanyUUID, sub.UUID)
	if err != nil {
		return reply{}, err
	}
	states, err := s.opts.Contacts.States(ctx, sub.CompanyUUID, sub.Contacts...)
	answer := reply{status: status, content: shownSubscriber(sub, known[sub.UUID], states)}
	return answer.with("ETag", `"`+sub.Revision+`"`), err
}

// entityTag is an element of If-Match (RFC 9110, 8.8.3), with the comma after it.
var entityTag = regexp.MustCompile(`^[ \t]*(?:W/)?"([!\x23-\x7e\x80-\xff]*)"[ \t]*(?:,|$)`)

// ifMatch reads the revisions of If-Match (RFC 9110, 13.1.1): "*", for any, or entity tags. A weak tag
// matches none.
func (q *request) ifMatch() (revisions []string, err error) {
	list := strings.Join(q.sent.Header["If-Match"], ",")
	if len(q.sent.Header["If-Match"]) == 0 || strings.TrimSpace(list) == "*" {
		return nil, nil
	}
	for more := true; more; more = strings.Trim(list, " \t,") != "" {
		found := entityTag.FindStringSubmatchIndex(strings.TrimLeft(list, " \t,"))
		if found == nil {
			return nil, fieldProblem("If-Match", "INVALID", "must be * or a list of entity tags, separated by commas, each in the form of the ETag header")
		}
		list = strings.TrimLeft(list, " \t,")
		tag := list[found[2]:found[3]]
		if strings.HasPrefix(list, "W/") || strings.Contains(tag, ",") {
			tag = "none" // no revision has a comma
		}
		revisions, list = append(revisions, tag), list[found[1]:]
	}
	return revisions, nil
}

// withHealth is the published form of subscribers, with one look-up of health for
// each company, and one of the states of contacts if there are any.
func (s *server) withHealth(ctx context.Context, items []subscribers.Subscriber) ([]gen.Subscriber, error) {
	byCompany, contacts := map[uuid.UUID][]uuid.UUID{}, map[uuid.UUID][]callback.Contact{}
	for _, sub := range items {
		byCompany[sub.CompanyUUID] = append(byCompany[sub.CompanyUUID], sub.UUID)
		contacts[sub.CompanyUUID] = append(contacts[sub.CompanyUUID], sub.Contacts...)
	}
	healths, states := map[uuid.UUID]map[uuid.UUID]health.Health{}, map[uuid.UUID]map[string]string{}
	for company, ids := range byCompany {
		known, err := s.opts.Health.Of(ctx, company, ids...)
		if err != nil {
			return nil, err
		}
		healths[company] = known
		if states[company], err = s.opts.Contacts.States(ctx, company, contacts[company]...); err != nil {
			return nil, err
		}
	}
	return convertAll(items, func(sub subscribers.Subscriber) gen.Subscriber {
		return shownSubscriber(sub, healths[sub.CompanyUUID][sub.UUID], states[sub.CompanyUUID])
	}), nil
}

// settingsOf converts a body to the settings of a subscriber. shownSubscriber converts a
// subscriber to a body.
func settingsOf(in gen.SubscriberUpdate) (subscribers.Settings, error) {
	settings := subscribers.Settings{
		Name: in.Name, CallbackURL: in.CallbackURL, Events: in.Events, Enabled: in.Enabled,
		Filter: in.Filter, Transform: in.Transform, Format: (*string)(in.Format), Signatures: in.Signatures,
		SignatureAlgorithm: (*string)(in.SignatureAlgorithm), Ordered: in.Ordered, OrderedBy: in.OrderedBy, OnDead: (*string)(in.OnDead), StopOn: in.StopOn, RetrySchedule: in.RetrySchedule,
	}
	if in.Contacts != nil {
		settings.Contacts = new(make([]secret.Text, len(*in.Contacts)))
		for i, c := range *in.Contacts {
			(*settings.Contacts)[i] = secret.Text(c)
		}
	}
	if in.Headers != nil {
		settings.Headers = make(map[string]*secret.Text, len(*in.Headers))
		for name, value := range *in.Headers {
			settings.Headers[name] = (*secret.Text)(value)
		}
	}
	var err error
	if settings.RateLimit, err = rateLimitOf(in.RateLimit); err != nil {
		return settings, err
	}
	settings.OAuth, err = oauthOf(in.OAuth)
	return settings, err
}

// oauthOf reads a change of oauth. null removes it.
func oauthOf(raw jsontext.Value) (*callback.OAuthChange, error) {
	if len(raw) == 0 {
		return nil, nil //nolint:nilnil // it is not changed
	}
	if raw.Kind() == jsontext.KindNull {
		return &callback.OAuthChange{Remove: true}, nil
	}
	var in gen.OAuthInput
	var given map[string]*string // of nulls, in does not tell that they were given
	err := errors.Join(json.Unmarshal(raw, &in, json.RejectUnknownMembers(true)), json.Unmarshal(raw, &given))
	if err != nil || slices.Contains(slices.Collect(maps.Values(given)), nil) { // err may quote the secret
		return nil, fieldProblem("oauth", "INVALID", "must be an object of tokenUrl, clientId, clientSecret, scope and audience, all texts, or null")
	}
	return &callback.OAuthChange{
		TokenURL: in.TokenURL, ClientID: in.ClientID, ClientSecret: (*secret.Text)(in.ClientSecret), Scope: in.Scope, Audience: in.Audience,
	}, nil
}

// shownOAuth leaves out the secret.
func shownOAuth(o *callback.OAuth) *gen.OAuth {
	if o == nil {
		return nil
	}
	return &gen.OAuth{TokenURL: o.TokenURL, ClientID: o.ClientID, Scope: optional(o.Scope), Audience: optional(o.Audience)}
}

// rateLimitOf reads a rate limit. It returns the zero value for null, which removes the limit.
func rateLimitOf(raw jsontext.Value) (*subscribers.RateLimit, error) {
	if len(raw) == 0 {
		return nil, nil //nolint:nilnil // the rate limit is not changed
	}
	if raw.Kind() == jsontext.KindNull {
		return &subscribers.RateLimit{}, nil
	}
	var in gen.RateLimit
	if err := json.Unmarshal(raw, &in, json.RejectUnknownMembers(true)); err != nil {
		return nil, fieldProblem("rateLimit", "INVALID", "must be an object of perSecond and burst, both numbers, or null")
	}
	limit := &subscribers.RateLimit{PerSecond: in.PerSecond}
	switch { // the domain reads 0 as no limit or as the default burst
	case in.PerSecond <= 0:
		return nil, fieldProblem("/rateLimit/perSecond", "OUT_OF_RANGE", "must be 0.01 to 10,000")
	case in.Burst == nil:
	case *in.Burst < 1:
		return nil, fieldProblem("/rateLimit/burst", "OUT_OF_RANGE", "must be 1 to 10,000")
	default:
		limit.Burst = *in.Burst
	}
	return limit, nil
}

// shownSubscriber returns the published form, without the secrets.
func shownSubscriber(sub subscribers.Subscriber, h health.Health, states map[string]string) gen.Subscriber {
	return gen.Subscriber{
		UUID: sub.UUID, CompanyUUID: sub.CompanyUUID, Name: sub.Name, CallbackURL: sub.CallbackURL,
		Events: sub.Events, Enabled: sub.Enabled, CreatedAt: sub.CreatedAt, UpdatedAt: sub.UpdatedAt,
		Health: shownHealth(sub, h), Headers: shownHeaders(sub.Headers),
		Filter: optional(sub.Filter), Transform: optional(sub.Transform), Format: gen.Format(cmp.Or(sub.Format, subscribers.FormatStandard)),
		Signatures: new(sub.SignedBy()), SignatureAlgorithm: (*gen.KeyAlgorithm)(optional(string(sub.SignatureAlgorithm))),
		OAuth: shownOAuth(sub.OAuth), RateLimit: shownRateLimit(sub.RateLimit), Ordered: sub.Ordered, OrderedBy: optional(sub.OrderedBy), OnDead: (*gen.OnDead)(optional(sub.OnDead)), StopOn: optionalList(sub.StopOn), RetrySchedule: optionalList(sub.RetrySchedule),
		Paused: h.PausedAt != nil, PausedAt: h.PausedAt,
		PausedReason: (*gen.SubscriberPausedReason)(optional(h.PausedReason)), Verification: shownVerification(sub.Verification),
		Contacts: shownContacts(sub.Contacts, states),
	}
}

// shownContacts gives each contact its state; one that is not among the states is new.
func shownContacts(all []callback.Contact, states map[string]string) *[]gen.Contact {
	shown := make([]gen.Contact, len(all))
	for i, c := range all {
		shown[i] = gen.Contact{Address: c.Address, State: cmp.Or(gen.ContactState(states[c.Address]), gen.ContactStateUnconfirmed)}
	}
	return optionalList(shown)
}

func shownVerification(v *subscribers.Verification) *gen.Verification {
	if v == nil {
		return nil
	}
	return &gen.Verification{State: gen.VerificationState(v.State), ChallengedAt: v.At, Reason: optional(v.Reason), AllowedPerMinute: optional(v.PerMinute)}
}

func shownRateLimit(limit *subscribers.RateLimit) *gen.RateLimit {
	if limit == nil {
		return nil
	}
	return &gen.RateLimit{PerSecond: limit.PerSecond, Burst: &limit.Burst}
}

// shownHeaders hides the values.
func shownHeaders(headers []callback.Header) *map[string]string {
	if len(headers) == 0 {
		return nil
	}
	shown := make(map[string]string, len(headers))
	for _, h := range headers {
		shown[h.Name] = callback.HiddenValue
	}
	return &shown
}

func shownHealth(sub subscribers.Subscriber, h health.Health) gen.Health {
	shown := gen.Health{
		State: gen.HealthState(h.State), FailingSince: h.FailingSince,
		ConsecutiveFailures: h.ConsecutiveFailures, LastSuccessAt: h.LastSuccessAt,
	}
	switch {
	case !sub.Enabled:
		shown.State, shown.DisabledReason = gen.HealthStateDisabled, &sub.DisabledReason
	case !shown.State.Valid(): // not known yet
		shown.State = gen.HealthStateHealthy
	}
	return shown
}

// withSecret is the answer of create and of rotate. No other answer has the secret.
type withSecret struct {
	gen.Subscriber

	Secret string `json:"secret"`
}

func shownWithSecret(sub subscribers.Subscriber, h health.Health, states map[string]string) withSecret {
	return withSecret{shownSubscriber(sub, h, states), sub.Secrets[0].Key.Reveal()}
}
