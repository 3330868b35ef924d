package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"spendhook/api/gen"
	"spendhook/auth"
	"spendhook/auth/tokens"
	"spendhook/console/session"
	"spendhook/dispatcher/challenge"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/feed"
	"spendhook/dispatcher/inspect"
	"spendhook/dispatcher/redelivery"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
	"spendhook/events/eventtype"
	"spendhook/events/publish"
	"spendhook/events/sequence"
	"spendhook/internal/cursor"
	"spendhook/internal/idempotency"
	"spendhook/internal/invalid"
	"spendhook/internal/peer"
	"spendhook/internal/redisx"
	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
)

// problem is an error in its HTTP form (RFC 9457).
type problem struct {
	status int
	code   string // upper snake, stable
	detail string
	fields []invalid.Field
	header http.Header

	results []gen.EventItemResult // of the events of an array that was refused as a whole
	cause   error                 // the error to log; nil when the caller is at fault
}

func (p *problem) Error() string { return p.detail }

// newProblem is a problem with the status and the Retry-After of its code in the document.
func newProblem(code, format string, args ...any) *problem {
	known := codes()[code]
	p := &problem{status: cmp.Or(known.Status, http.StatusInternalServerError), code: code, header: http.Header{}, detail: fmt.Sprintf(format, args...)}
	if known.RetryAfter > 0 {
		p = p.with("Retry-After", strconv.Itoa(known.RetryAfter))
	}
	return p
}

// passing reports whether the same request may succeed later.
func (p *problem) passing() bool {
	return p.status == http.StatusTooManyRequests || p.status == http.StatusServiceUnavailable
}

// with sets a header of the answer.
func (p *problem) with(name, value string) *problem {
	p.header.Set(name, value)
	return p
}

// fieldProblem is the 400 of one field.
func fieldProblem(field, code, format string, args ...any) error {
	e := &invalid.Error{}
	e.Add(field, code, format, args...)
	return e
}

// domainProblems maps the sentinels of the domain to answers.
var domainProblems = []struct {
	err          error
	code, detail string
}{
	{events.ErrNotFound, "EVENT_NOT_FOUND", "There is no such event."},
	{events.ErrCompacted, "EVENT_COMPACTED", "The event is settled, and its payload was removed."},
	{events.ErrNoHistory, "NO_HISTORY", "There is no history to search in."},
	{events.ErrSearching, "SEARCH_UNDER_WAY", "A search of the company is under way, or too many of others."},
	{publish.ErrConflict, "EVENT_CONFLICT", "The id is known with other content; nothing was changed."},
	{eventtype.ErrNotFound, "NOT_FOUND", "The event type is not known, or has no stored documentation."},
	{eventtype.ErrFixed, "EVENT_TYPE_FIXED", "The event type is one of the daemon's own, which cannot be changed."},
	{eventtype.ErrFull, "TOO_MANY_EVENT_TYPES", "The limit of documented event types is reached: 1,000 types, and 1 MiB in total."},
	{subscribers.ErrNotFound, "SUBSCRIBER_NOT_FOUND", "There is no such subscriber."},
	{subscribers.ErrConflict, "CALLBACK_URL_TAKEN", "Another subscriber of the company has this callbackUrl."},
	{subscribers.ErrChanged, "PRECONDITION_FAILED", "If-Match is not the current ETag: the subscriber was changed meanwhile."},
	{subscribers.ErrQuota, "TOO_MANY_SUBSCRIBERS", "The company has the maximum number of subscribers."},
	{subscribers.ErrUnverified, "SUBSCRIBER_UNVERIFIED", "The callback URL of the subscriber must be verified first."},
	{challenge.ErrUnderWay, "CHALLENGE_IN_FLIGHT", "A challenge of this subscriber is under way."},
	{subscribers.ErrTooManySecrets, "TOO_MANY_SECRETS", "Five secrets sign the deliveries of the subscriber."},
	{subscribers.ErrNoSigningKey, "NO_WEBHOOK_KEYS", "The company has no such signing key."},
	{feed.ErrChanged, "FEED_CHANGED", "The events up to this cursor were lost in a failover, and others have their numbers."},
	{subscribers.ErrRotatedRecently, "KEYS_ROTATED_RECENTLY", "The signing keys were rotated too recently."},
	{certificate.ErrNotFound, "NO_EGRESS_CERTIFICATE", "There is no egress certificate."},
	{certificate.ErrDamaged, "EGRESS_CERTIFICATE_DAMAGED", "The stored client certificate cannot be read: set it again, or delete it."},
	{certificate.ErrNoSubscriber, "SUBSCRIBER_NOT_FOUND", "There is no such subscriber."},
	{certificate.ErrTooMany, "TOO_MANY_CERTIFICATES", "The company has the maximum number of subscribers with a client certificate of their own."},
	{session.ErrNotFound, "NOT_FOUND", "There is no such session."},
	{delivery.ErrNotFound, "NOT_FOUND", "There is no such delivery."},
	{redelivery.ErrFinished, "JOB_FINISHED", "The job has completed."},
	{redelivery.ErrNotCancellable, "JOB_NOT_CANCELLABLE", "The job erases a company."},
	{store.ErrOpen, "EVENT_OPEN", "The event is not settled: a delivery of it is open, or it is in quarantine."},
	{delivery.ErrInFlight, "DELIVERY_IN_FLIGHT", "An attempt of this delivery is under way."},
	{quarantine.ErrNotFound, "NOT_FOUND", "There is no such entry in the quarantine."},
	{inspect.ErrTesting, "TEST_IN_FLIGHT", "A test of this subscriber is under way."},
	{delivery.ErrSubscriberGone, "SUBSCRIBER_GONE", "The subscriber of this delivery was deleted."},
	{delivery.ErrSubscriberDisabled, "SUBSCRIBER_DISABLED", "The subscriber is disabled; enable it first."},
	{idempotency.ErrReused, keyReused, "The Idempotency-Key was used for another request."},
	{cards.ErrKeyReused, keyReused, "The Idempotency-Key was used for another request."},
	{storage.ErrNotFound, "NOT_FOUND", "There is no such resource."},
	{cards.ErrUserNotFound, "USER_NOT_FOUND", "The user is not an active user of the company."},
	{cards.ErrNotActive, "CARD_NOT_ACTIVE", "The card is not active."},
	{cards.ErrThresholdExceedsLimit, "THRESHOLD_EXCEEDS_LIMIT", "The threshold exceeds the company's credit limit."},
	{peer.ErrUntrusted, "CLIENT_CERTIFICATE_INVALID", "The client certificate is expired or not trusted."},
	{peer.ErrMalformed, "CLIENT_CERTIFICATE_MALFORMED", "The client certificate that the proxy forwards cannot be read."},
	{peer.ErrInClear, "TLS_REQUIRED", "This request must come by TLS."},
	{publish.ErrBacklogFull, "BACKLOG_FULL", "The company has the maximum number of pending events; send the event again after some are delivered."},
	{certificate.ErrFull, "STORAGE_FULL", "No memory is left for one more certificate; send it again after some events are delivered."},
	{publish.ErrStorageFull, "STORAGE_FULL", "No memory is left for this request; send it again after some events are delivered."},
	{idempotency.ErrInProgress, "IDEMPOTENCY_KEY_IN_PROGRESS", "The first request with this Idempotency-Key is still under way."},
	{sequence.ErrTooManyWaiting, "TOO_MANY_WAITING", "Too many requests wait for new events."},
	{redelivery.ErrTooManyJobs, "TOO_MANY_JOBS", "The company has too many unfinished jobs; try again after some have finished, or cancel some."},
	{session.ErrTooMany, "TOO_MANY_CONSOLE_LINKS", "The company has the maximum number of links into the console, or of sessions."},
}

// problemOf returns the HTTP form of an error.
func problemOf(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	if e, ok := errors.AsType[*invalid.Error](err); ok {
		return invalidProblem(e)
	}
	if e, ok := errors.AsType[*challenge.FailedError](err); ok {
		return newProblem("CHALLENGE_FAILED", "The receiver is not verified: %s.", e.Reason)
	}
	if e, ok := errors.AsType[*challenge.LimitError](err); ok {
		return newProblem("TOO_MANY_CHALLENGES", "The host of the callback URL was challenged too often within an hour, or by this company.").
			with("Retry-After", strconv.Itoa(wholeSeconds(e.RetryAfter)))
	}
	if e, ok := errors.AsType[*tokens.Error](err); ok {
		return refusalProblem(e)
	}
	if e, ok := errors.AsType[*requests.TransformError](err); ok {
		return newProblem("TRANSFORM_FAILED", "%s.", "The transform of the subscriber failed: "+e.Why.Error())
	}
	for _, k := range domainProblems {
		if errors.Is(err, k.err) {
			return newProblem(k.code, "%s", k.detail)
		}
	}
	if e, ok := errors.AsType[redelivery.UnknownSubscribersError](err); ok {
		return newProblem("UNKNOWN_SUBSCRIBERS", "The company has no such subscribers: %s.", e)
	}
	if errors.Is(err, sequence.ErrAhead) {
		return problemOf(fieldProblem("after", "OUT_OF_RANGE", "is beyond the last event of the company"))
	}
	if errors.Is(err, cursor.ErrBad) {
		return problemOf(fieldProblem("cursor", "INVALID", "is not a cursor of this list"))
	}
	if errors.Is(err, subscribers.ErrLocked) {
		p := newProblem("SECRETS_LOCKED", "A secret of the subscriber or the signing keys of the company cannot be decrypted.")
		p.cause = err
		return p
	}
	if unavailable(err) {
		p := newProblem("UNAVAILABLE", "The service cannot answer now; try again.")
		p.cause = err
		return p
	}
	p := newProblem("INTERNAL_ERROR", "An unexpected error occurred.")
	p.cause = err
	return p
}

// missing maps a part of a route to the detail of its 404, for errors that do not name the
// kind of resource. The first match counts.
var missing = []struct{ part, detail string }{
	{"{jobUuid}", "There is no such job."},
	{"/cards/", "There is no such card."},
	{"/locations/", "There is no such location."},
	{"/billing-statements/", "There is no billing statement of that month."},
	{"{clientId}", "There is no such client."},
	{"/companies/", "The company has no name."},
}

// setMissing sets the detail of a 404 by the route.
func (p *problem) setMissing(route string) {
	for _, m := range missing {
		if p.code == "NOT_FOUND" && strings.Contains(route, m.part) {
			p.detail = m.detail
			return
		}
	}
}

// ownCode lists the field codes that also become the code of the problem.
var ownCode = map[string]bool{"EVENT_TOO_OLD": true, "EVENT_IN_FUTURE": true, "EVENT_TYPE_RESERVED": true, "CALLBACK_URL_REFUSED": true}

func invalidProblem(e *invalid.Error) *problem {
	pointed := &invalid.Error{}
	for _, f := range e.Fields {
		pointed.Add(pointer(f.Field), f.Code, "%s", f.Message)
	}
	p := newProblem("VALIDATION_ERROR", "%s", pointed.Error())
	p.fields = pointed.Fields
	if len(e.Fields) == 1 && ownCode[e.Fields[0].Code] {
		p.code = e.Fields[0].Code
	}
	return p
}

// pointer is the JSON pointer (RFC 6901) to a field, within the body or else within
// the parameters.
func pointer(field string) string {
	if field == "" || field[0] == '/' {
		return field
	}
	return "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(field)
}

// unavailable reports whether Redis or the database is unreachable or too slow.
func unavailable(err error) bool {
	_, network := errors.AsType[net.Error](err)
	return network || redisx.Unavailable(err) || errors.Is(err, io.EOF) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, context.Canceled) || errors.Is(err, events.ErrUnavailable) || errors.Is(err, publish.ErrClosed) ||
		errors.Is(err, storage.ErrUnavailable) || errors.Is(err, auth.ErrUnavailable)
}

// document is the body of the problem. Kind is its type: the URI of the explanation of its code.
func (p *problem) document(r *http.Request, kind, requestID string, now time.Time) gen.Problem {
	return gen.Problem{
		Type: kind, Title: http.StatusText(p.status), Status: p.status,
		Detail: p.detail, Message: p.detail, Code: p.code,
		Instance: strings.ToValidUTF8(r.URL.EscapedPath(), ""), Timestamp: now, RequestID: requestID, Errors: p.fields, Results: p.results,
	}
}

// errorCode is the description of a code in x-error-codes of the document.
type errorCode struct {
	Status        int `json:"status"`     // 0: the code is only in the errors of a 400
	RetryAfter    int `json:"retryAfter"` // seconds after which the same request may succeed; 0: no Retry-After
	Cause, Remedy string
}

// codes returns the codes of the document.
func codes() map[string]errorCode {
	doc, _ := parse() // New returns its error
	return doc.codes
}

func shownStatus(status int) string {
	if status == 0 {
		return "In `errors` of a 400"
	}
	return fmt.Sprintf("%d %s", status, http.StatusText(status))
}

var errorsPage = template.Must(template.New("").Funcs(template.FuncMap{"lower": strings.ToLower, "status": shownStatus}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Error codes</title><h1>Error codes</h1>
{{range $code, $c := .}}<h2 id="{{lower $code}}">{{$code}}</h2><p>{{status $c.Status}}. {{$c.Cause}}</p><p><b>What to do:</b> {{$c.Remedy}}</p>
{{end}}`))

// errorsHTML is the page at /docs/errors.
func errorsHTML() ([]byte, error) {
	var b bytes.Buffer
	err := errorsPage.Execute(&b, codes())
	return b.Bytes(), err
}
