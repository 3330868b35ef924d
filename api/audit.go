package api

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/audit"
	"spendhook/internal/clientcert"
	"spendhook/internal/peer"
)

// auditLog is *audit.Log.
type auditLog interface {
	Record(e audit.Entry)
	List(ctx context.Context, f audit.Filter) (audit.Page, error)
}

// actions maps each operation that changes something to its name in the audit log.
// Operations that may change something and are not here are in unaudited, in the test.
var actions = map[string]string{
	"createSubscriber":        "subscriber.create",
	"updateSubscriber":        "subscriber.update",
	"deleteSubscriber":        "subscriber.delete",
	"addSubscriberEvent":      "subscriber.add-event",
	"deleteSubscriberEvent":   "subscriber.delete-event",
	"rotateSubscriberSecret":  "subscriber.rotate-secret",
	"testSubscriber":          "subscriber.test",
	"recoverSubscriber":       "subscriber.recover",
	"pauseSubscriber":         "subscriber.pause",
	"resumeSubscriber":        "subscriber.resume",
	"setEgressCertificate":    "egress-certificate.set",
	"deleteEgressCertificate": "egress-certificate.delete",
	"putEventType":            "event-type.put",
	"deleteEventType":         "event-type.delete",
	"eraseCompany":            "company.erase",
	"replayEvent":             "event.replay",
	"eraseEventPayload":       "event.erase",
	"retryDelivery":           "delivery.retry",
	"retryDeliveries":         "delivery.retry-all",
	"cancelJob":               "job.cancel",
	"retryQuarantined":        "quarantine.retry",
	"dropQuarantined":         "quarantine.drop",
	"createConsoleLink":       "console-link.create",
	"endConsoleSession":       "console-session.end",
	"createClient":            "client.create",
	"updateClient":            "client.update",
	"rotateClientSecret":      "client.rotate-secret",
	"deleteClient":            "client.delete",
	"createCard":              "card.create",
	"createCards":             "card.bulk-create",
	"cancelCard":              "card.delete",
	"cancelCards":             "card.bulk-delete",
	"lockCard":                "card.lock",
	"setCardThreshold":        "card.threshold",
}

// newAuditEntry returns the audit entry of a request, or nil when the operation is not audited.
func (s *server) newAuditEntry(w http.ResponseWriter, r *http.Request, c *caller, op *operation) *audit.Entry {
	if op.action == "" || s.opts.Audit == nil {
		return nil
	}
	return &audit.Entry{
		Actor: audit.Actor{
			Kind: audit.Client, Subject: c.Subject, ClientID: c.ClientID, Issuer: c.Issuer, CompanyUUID: c.Company,
			Certificate: clientcert.ThumbprintFrom(r.Context()),
		},
		Action: op.action, RequestID: w.Header().Get("X-Request-Id"), Address: peer.AddressText(r.Context()),
	}
}

// auditTarget sets the target of the audit entry: the resources that the request will change or
// has created. A nil company is for a target without one.
func (c *caller) auditTarget(company *uuid.UUID, kind string, ids ...string) {
	if c.entry != nil {
		c.entry.CompanyUUID, c.entry.Target = company, audit.Target{Kind: kind, IDs: ids}
	}
}

// auditAction sets the action of the audit entry when it is not the operation's.
func (c *caller) auditAction(action string) {
	if c.entry != nil {
		c.entry.Action = action
	}
}

// auditDetail sets the detail of the audit entry.
func (c *caller) auditDetail(detail string) {
	if c.entry != nil {
		c.entry.Detail = detail
	}
}

// recordAudit writes the audit entry before the request is answered. A refused request changed
// nothing and has no entry.
func (s *server) recordAudit(r *http.Request, c *caller, err error) {
	if c == nil || c.entry == nil {
		return
	}
	e := *c.entry
	e.Outcome = audit.Success
	if err != nil {
		if problemOf(err).status < http.StatusInternalServerError {
			return
		}
		e.Outcome = audit.Unknown
	}
	e.Fields = fieldsOf(bodyOf(r))
	s.opts.Audit.Record(e)
}

// fieldsOf returns the names of a body's fields except companyUuid. The names are known
// fields, since the body was decoded before.
func fieldsOf(body []byte) (names []string) {
	dec := jsontext.NewDecoder(strings.NewReader(string(body)))
	if token, err := dec.ReadToken(); err != nil || token.Kind() != jsontext.KindBeginObject {
		return nil
	}
	for dec.PeekKind() == jsontext.KindString {
		name, err := dec.ReadToken()
		if err != nil {
			return names
		}
		if text := name.String(); text != "companyUuid" {
			names = append(names, text)
		}
		if dec.SkipValue() != nil {
			return names
		}
	}
	return names
}

// ListAudit is GET /api/v1/audit.
func (s *server) ListAudit(w http.ResponseWriter, r *http.Request, p gen.ListAuditParams) {
	if s.opts.Audit == nil {
		s.notFound(w, r)
		return
	}
	filter, err := auditFilter(callerOf(r), p)
	switch {
	case err != nil:
		s.fail(w, r, err)
	case wantsNDJSON(r.Header.Get("Accept")):
		s.exportAudit(w, r, filter)
	default:
		s.do(w, r, func(ctx context.Context, _ *caller) (reply, error) {
			page, err := s.opts.Audit.List(ctx, filter)
			if err != nil {
				return reply{}, err
			}
			return byCursor(r, filter.Size, page.Items, page.Next, shownEntry), nil
		})
	}
}

func auditFilter(c *caller, p gen.ListAuditParams) (f audit.Filter, err error) {
	if err = checkPeriod(p.From, p.To); err != nil {
		return f, err
	}
	f.Actor, f.Action, f.Target, f.Cursor = textOf(p.Actor), textOf(p.Action), textOf(p.Target), textOf(p.Cursor)
	f.From, f.To, f.Size = p.From, p.To, or(p.Size, defaultSize)
	f.Company, err = c.companyOfList(p.CompanyUUID)
	return f, err
}

func shownEntry(e audit.Entry) gen.AuditEntry {
	return gen.AuditEntry{
		ID: e.ID, Timestamp: e.At, RecordedAt: e.RecordedAt, Action: e.Action, Outcome: gen.AuditEntryOutcome(e.Outcome),
		Actor: gen.AuditActor{
			Kind: gen.AuditActorKind(e.Actor.Kind), Subject: e.Actor.Subject, ClientID: optional(e.Actor.ClientID),
			Issuer: optional(e.Actor.Issuer), CompanyUUID: e.Actor.CompanyUUID, Certificate: optional(e.Actor.Certificate),
			Session: e.Actor.Session,
		},
		Target:      gen.AuditTarget{Kind: e.Target.Kind, Ids: slices.Concat([]string{}, e.Target.IDs)},
		CompanyUUID: e.CompanyUUID, Fields: slices.Concat([]string{}, e.Fields), Detail: optional(e.Detail),
		RequestID: optional(e.RequestID), Address: optional(e.Address),
	}
}

// optional returns a pointer to value, or nil for the zero value.
func optional[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}
