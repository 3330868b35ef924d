package api

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/gorilla/mux"

	"spendhook/api/gen"
	"spendhook/audit"
	"spendhook/dispatcher/challenge"
	"spendhook/internal/clientcert"
	"spendhook/internal/peer"
)

// newAuditEntry returns the audit entry of a request, or nil when the operation is not audited.
func (s *server) newAuditEntry(w http.ResponseWriter, r *http.Request, q *request) *audit.Entry {
	if q.op.action == "" || s.opts.Audit == nil {
		return nil
	}
	return &audit.Entry{
		Actor: audit.Actor{
			Kind: audit.Client, Subject: q.Subject, ClientID: q.ClientID, Issuer: q.Issuer, CompanyUUID: q.Company,
			Certificate: clientcert.ThumbprintFrom(r.Context()),
		},
		Action: q.op.action, RequestID: w.Header().Get("X-Request-Id"), Address: peer.AddressText(r.Context()),
	}
}

// setTarget sets the target of the audit entry to the resource in the path. Operations on other
// resources set the target themselves.
func (q *request) setTarget() {
	if q.entry == nil {
		return
	}
	kind, _, _ := strings.Cut(q.op.action, ".")
	for _, id := range mux.Vars(q.sent) {
		q.auditTarget(nil, kind, id)
	}
	if q.op.ofCompany {
		q.entry.CompanyUUID = &q.company
	}
}

// auditTarget sets the target of the audit entry: the resources that the request changes or creates.
// company is nil when they belong to no company. Empty ids, of failed creations, are left out.
func (q *request) auditTarget(company *uuid.UUID, kind string, ids ...string) {
	if q.entry != nil {
		ids = slices.DeleteFunc(ids, func(id string) bool { return id == "" || id == uuid.Nil.String() })
		q.entry.CompanyUUID, q.entry.Target = company, audit.Target{Kind: kind, IDs: ids}
	}
}

func (q *request) auditDetail(detail string) {
	if q.entry != nil {
		q.entry.Detail = detail
	}
}

// recordAudit writes the audit entry before the request is answered. A refused request changed
// nothing and has no entry, but for a failed challenge.
func (s *server) recordAudit(q *request, err error) {
	if q.entry == nil {
		return
	}
	e := *q.entry
	e.Outcome = audit.Success
	if failed, ok := errors.AsType[*challenge.FailedError](err); ok { // something may have been sent
		e.Action, e.Detail = challenge.Action, failed.Error()
	} else if err != nil {
		if problemOf(err).status < http.StatusInternalServerError {
			return
		}
		e.Outcome = audit.Unknown
	}
	e.Fields = fieldsOf(q.body)
	s.opts.Audit.Record(e)
}

// fieldsOf returns the names of a body's fields except companyUuid. Each is the name of a
// known field, because the body has been decoded strictly.
func fieldsOf(body []byte) []string {
	var fields map[string]jsontext.Value
	if json.Unmarshal(body, &fields) != nil {
		return nil
	}
	delete(fields, "companyUuid")
	return slices.Sorted(maps.Keys(fields))
}

// exportSize is how many entries an export reads at a time.
const exportSize = 500

// ListAudit is GET /api/v1/audit. With NDJSON it answers with all entries that match. An error after the
// first byte closes the connection, since the status has been sent.
func (s *server) ListAudit(ctx context.Context, q *request, p gen.ListAuditParams) (reply, error) {
	if err := checkPeriod(p.From, p.To); err != nil {
		return reply{}, err
	}
	f := audit.Filter{
		Company: q.companies, Actor: textOf(p.Actor), Action: textOf(p.Action), Target: textOf(p.Target),
		From: p.From, To: p.To, Cursor: textOf(p.Cursor), Size: or(p.Size, defaultSize),
	}
	export := wantsNDJSON(q.sent.Header.Get("Accept"))
	if export {
		f.Size = exportSize
	}
	page, err := s.opts.Audit.List(ctx, f)
	if err != nil {
		return reply{}, err
	}
	if !export {
		return byCursor(f.Size, page.Items, page.Next, same[audit.Entry]), nil
	}
	all := inParts(s, q, page.Items, same[audit.Entry], func(ctx context.Context) (more []audit.Entry, err error) {
		if f.Cursor = page.Next; f.Cursor == "" {
			return nil, nil
		}
		page, err = s.opts.Audit.List(ctx, f)
		return page.Items, err
	})
	rep := reply{status: http.StatusOK, content: all, write: all.lines, bytes: pageBytes}
	return rep.with("Content-Type", mediaNDJSON), nil
}

// optional returns a pointer to value, or nil for the zero value.
func optional[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}

// optionalList returns nil for an empty list.
func optionalList[T any](list []T) *[]T {
	if len(list) == 0 {
		return nil
	}
	return &list
}
