package api

import (
	"bytes"
	"fmt"
	"html/template"
	"net/http"
	"strings"
)

// explained is what docs/errors.md and /docs/errors say of a code.
type explained struct {
	Code          string
	Status        int // 0: it stands in errors[].code of a 400
	Cause, Remedy string
}

// codes explains every code that is answered, in the order of the alphabet.
var codes = []explained{
	{"AUTHORIZATION_REPEATED", 400, "The request has more than one `Authorization` header.", "Send one. A proxy may have added its own."},
	{"BACKLOG_FULL", 429, "The company has as many pending events as it may (`limits.company_backlog`): its receivers do not keep up, or are down.", "Wait as long as `Retry-After` says and send the event again. Look at the company's failing subscribers."},
	{"BODY_NOT_ALLOWED", 400, "The operation has no body, but the DELETE came with one.", "Leave the body out. `companyUuid` may be in the query."},
	{"BODY_REQUIRED", 400, "The operation needs a JSON body, and there was none.", "Send one. A proxy may have dropped it."},
	{"BODY_TOO_LARGE", 413, "The body is larger than 1 MiB, or 8 MiB for events.", "Send less at once: several arrays of events, a bulk creation in parts."},
	{"BODY_UNREADABLE", 400, "The connection broke while the body was read, or its framing is wrong.", "Send the request again."},
	{"CALLBACK_URL_REFUSED", 400, "The host of `callbackUrl` does not resolve, or resolves to an address that deliveries may not reach.", "Use a public https address, or have the operator allow the address (`egress`)."},
	{"CALLBACK_URL_TAKEN", 409, "Another subscriber of the company has this `callbackUrl`, which is compared after normalisation.", "Change that subscriber, or use another path."},
	{"CARD_NOT_ACTIVE", 422, "The card is cancelled or expired, or, for a threshold, blocked.", "Unlock a blocked card first. Nothing can be changed of the others."},
	{"CLIENT_CERTIFICATE_INVALID", 403, "The client certificate has expired, is not valid yet, or is not signed by a trusted CA.", "Present a certificate of the authority that the operator trusts, within its dates."},
	{"CLIENT_CERTIFICATE_MALFORMED", 400, "The proxy in front of the daemon forwarded a client certificate that cannot be read.", "The operator mends the proxy: RFC 9440 `Client-Cert`, or Envoy's XFCC."},
	{"CLIENT_CERTIFICATE_REQUIRED", 403, "The operation needs mutual TLS, and no client certificate was presented.", "Present one. See `docs/tls.md`."},
	{"COMPANY_MISMATCH", 403, "`companyUuid` is not the company of the token.", "Leave it out, or use a token of that company, or one of none."},
	{"CONFLICT", 0, "Two fields exclude each other.", "Send one of them."},
	{"DELIVERY_IN_FLIGHT", 409, "An attempt of the delivery is under way.", "Wait for its end; it may well succeed."},
	{"DUPLICATE", 0, "A value stands twice in a list, or a header under two spellings.", "Send it once."},
	{"DUPLICATE_FIELD", 0, "A field stands twice in an object.", "Send it once."},
	{"EVENT_COMPACTED", 410, "The event settled long ago, and its payload is not kept any more (`events.keep_delivered`).", "Take it from its source. Its id stays known."},
	{"EVENT_CONFLICT", 409, "The event's id is known with another content. Nothing was overwritten.", "Send the same content, with the same `timestamp`, or give another event another id."},
	{"EVENT_IN_FUTURE", 400, "The event's `timestamp` is more than 5 minutes ahead of the daemon's clock.", "Set the clock of the source."},
	{"EVENT_NOT_FOUND", 404, "The company has no event with this id, or it is past its retention.", "Check the id and the company."},
	{"EVENT_OPEN", 409, "The event is not settled: a delivery of it is open, or it is in quarantine.", "Wait until its deliveries have ended, or end them: delete the subscriber, or drop what waits for it. Drop it from the quarantine."},
	{"EVENT_TOO_OLD", 400, "The event's `timestamp` is older than the time for which ids are remembered (`events.retention`).", "Nothing: it could be a repeat of one that was delivered. Give a new event its own time."},
	{"EVENT_TYPE_FIXED", 409, "The event type is raised by the daemon itself, and documented by it: the operational types, and those of bulk creations of cards.", "Nothing: read it. Document your own types."},
	{"EVENT_TYPE_RESERVED", 400, "The type is one of the daemon's own, operational events.", "Use another type."},
	{"EXPIRED", 0, "The certificate has expired.", "Send one that is valid."},
	{"HEADERS_TOO_LARGE", 431, "Path, query and headers have more than 64 KiB. (Beyond some 96 KiB Go's `net/http` answers 431 itself, in plain text, and closes the connection.)", "Send shorter lists in the query, or fewer headers."},
	{"IDEMPOTENCY_KEY_IN_PROGRESS", 409, "The first request with this `Idempotency-Key` is still under way.", "Wait as long as `Retry-After` says and send it again."},
	{"IDEMPOTENCY_KEY_REUSED", 422, "The `Idempotency-Key` came with another request within 24 hours.", "Use a new key for a new request, the same body for the same one."},
	{"INSUFFICIENT_SCOPE", 403, "The token lacks the scope that the operation needs; `WWW-Authenticate` names it.", "Ask for a token with the scope; the client must have it."},
	{"INTERNAL_ERROR", 500, "A fault of the daemon, or a stored record that is damaged.", "Send the request again. Give the operator the `requestId`: the log has the cause under it."},
	{"INVALID", 0, "The value is not of the form that the message says.", "Send what the message says."},
	{"JOB_FINISHED", 409, "The job has completed.", "Nothing: what it did is done."},
	{"JOB_NOT_CANCELLABLE", 409, "The job is part of a change of a subscriber, or erases a company, which would otherwise stay half done.", "Wait for its end."},
	{"MALFORMED_BODY", 400, "The body is not one JSON value in UTF-8, or nests deeper than 64 levels.", "Encode it with a JSON library."},
	{"MALFORMED_QUERY", 400, "The query is not well-formed: a `%` without two hexadecimal digits, or a semicolon.", "Encode it with a URL library."},
	{"METHOD_NOT_ALLOWED", 405, "The path does not answer this method.", "Use one of `Allow`."},
	{"MISMATCH", 0, "The private key is not that of the certificate.", "Send the two that belong together."},
	{"NOT_ACCEPTABLE", 406, "The `Accept` header allows neither JSON nor what else the operation answers.", "Send `Accept: application/json`, or none."},
	{"NOT_FOUND", 404, "The company has no such thing; `detail` says of what kind.", "Check the id and the company."},
	{"NOT_YET_VALID", 0, "The certificate is not valid yet.", "Send one that is valid now."},
	{"NO_BUILTIN_ISSUER", 404, "The daemon issues no tokens: it trusts another issuer.", "Ask that issuer for one."},
	{"NO_EGRESS_CERTIFICATE", 404, "The company has set no client certificate for its deliveries.", "Set one, if its receivers ask for mutual TLS."},
	{"NO_SUCH_ROUTE", 404, "There is nothing at this path.", "Compare it with the API document; there is no slash at the end."},
	{"NO_WEBHOOK_KEYS", 404, "Deliveries of this company carry no `v1a` signatures.", "Verify `v1` signatures with the subscriber's secret."},
	{"OUT_OF_RANGE", 0, "The number is not within the bounds that the message says.", "Send one that is."},
	{"OVERLOADED", 503, "As many bytes of answers are under way, to the company or in all, as there may be, or the company reads more than 32 MiB of lists a second.", "Wait as long as `Retry-After` says. Read fewer and smaller pages, and pause between them."},
	{"PLATFORM_ONLY", 403, "The operation concerns the whole system, and the token is one company's.", "Use a token that is tied to no company, with the scope `platform`."},
	{"PRECONDITION_FAILED", 412, "`If-Match` names another state of the thing than it has: it was changed meanwhile.", "Read it again, and decide again; send its new `ETag`."},
	{"RATE_LIMITED", 429, "More items than the credential or the company may send. Nothing was done.", "Wait as long as `Retry-After` says; `RateLimit` tells what is left."},
	{"REQUEST_TIMEOUT", 408, "The body did not come within the time that a request may take.", "Send it again, faster or in parts."},
	{"REQUIRED", 0, "The field is missing or empty.", "Send it."},
	{"RESERVED", 0, "The header belongs to the delivery or to its connection.", "Leave it out."},
	{"STORAGE_FULL", 503, "No memory of Redis is left for new events, of the company or at all.", "Wait as long as `Retry-After` says and send the event again. The operator gives Redis more memory."},
	{"SUBSCRIBER_DISABLED", 409, "The subscriber is disabled.", "Enable it first."},
	{"SUBSCRIBER_GONE", 409, "The subscriber of the delivery was deleted.", "Nothing can be sent to it. Create one and replay the event."},
	{"SUBSCRIBER_NOT_FOUND", 404, "The company has no such subscriber.", "Check the id or `callbackUrl`, and the company."},
	{"TEST_IN_FLIGHT", 409, "A test of this subscriber is under way.", "Wait for its answer."},
	{"THRESHOLD_EXCEEDS_LIMIT", 422, "The threshold exceeds the company's credit limit.", "Use a lower one."},
	{"TLS_REQUIRED", 403, "The request came in clear, not by TLS.", "Use https, or the proxy that the operator listed."},
	{"TOKEN_INVALID", 401, "The token has expired, is not from a trusted issuer, or is bound to another client certificate.", "Get a new one, with the certificate that it is used with."},
	{"TOKEN_REQUIRED", 401, "There is no `Authorization: Bearer` header.", "Get a token from `/oauth/token` and send it."},
	{"TOO_DEEP", 0, "The value nests too deeply.", "Send a flatter one."},
	{"TOO_LONG", 0, "The value is longer than the message says.", "Send a shorter one."},
	{"TOO_MANY", 0, "There are more values than the message says.", "Send fewer, in several requests."},
	{"TOO_MANY_BODIES", 503, "The bodies that are being received hold all the memory that they may: of the connection, the address, the company or the daemon.", "Wait as long as `Retry-After` says and send the request again. Send fewer large bodies at once."},
	{"TOO_MANY_CONSOLE_LINKS", 429, "The company has 500 unused links into the web console, or 500 sessions.", "Wait as long as `Retry-After` says, or end sessions: `DELETE /api/v1/console-sessions/{uuid}`."},
	{"TOO_MANY_EVENT_TYPES", 409, "As many event types are documented as may be: 1,000 of them, and 1 MiB together.", "Remove some, or shorten their examples."},
	{"TOO_MANY_JOBS", 429, "100 jobs of the company are not finished, or 1,000 when a subscriber is to be deleted. Nothing was done.", "Wait as long as `Retry-After` says. Look at `GET /api/v1/jobs`, and cancel what is not needed."},
	{"TOO_MANY_SUBSCRIBERS", 409, "The company has as many subscribers as it may (`subscribers.max_per_company`).", "Delete one that is not needed."},
	{"TOO_MANY_WAITING", 429, "As many requests wait for new events as may, of the company or of the replica.", "Wait as long as `Retry-After` says. Let fewer readers of a feed wait at once, or read without `wait`."},
	{"UNAVAILABLE", 503, "Redis or the database is away, or the request took too long. It may or may not have been carried out.", "Wait as long as `Retry-After` says and send it again, with the same `Idempotency-Key`."},
	{"UNKNOWN_EVENT_TYPE", 0, "The event type is not in the catalogue (`events.strict_catalogue`).", "Use one of `/api/v1/event-types`, or have the operator add it."},
	{"UNKNOWN_FIELD", 0, "The operation does not know the field.", "Check its spelling; names are case-sensitive."},
	{"UNKNOWN_PARAMETER", 0, "The operation does not know the query parameter.", "Check its spelling; names are case-sensitive."},
	{"UNKNOWN_SUBSCRIBERS", 422, "The company does not have the subscribers that `detail` names.", "Leave them out, or leave the list out."},
	{"UNSUPPORTED_MEDIA_TYPE", 415, "The body is not declared as `application/json` in UTF-8, or is compressed.", "Send `Content-Type: application/json` and no `Content-Encoding`."},
	{"USER_NOT_FOUND", 422, "The user is not an active user of the company.", "Check `userUuid` and the company."},
	{"VALIDATION_ERROR", 400, "Fields or parameters are not valid; `errors` names each.", "See the codes within `errors`."},
}

// typeOf is where a code is explained, a URI for the type of a problem.
func (s *server) typeOf(code string) string {
	return s.opts.PublicURL + "/docs/errors#" + strings.ToLower(code)
}

func shownStatus(status int) string {
	if status == 0 {
		return "In `errors` of a 400"
	}
	return fmt.Sprintf("%d %s", status, http.StatusText(status))
}

var errorsPage = template.Must(template.New("").Funcs(template.FuncMap{"lower": strings.ToLower, "status": shownStatus}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Error codes</title><h1>Error codes</h1>
{{range .}}<h2 id="{{lower .Code}}">{{.Code}}</h2><p>{{status .Status}}. {{.Cause}}</p><p><b>What to do:</b> {{.Remedy}}</p>
{{end}}`))

// errorsHTML is the page at /docs/errors.
func errorsHTML() ([]byte, error) {
	var b bytes.Buffer
	err := errorsPage.Execute(&b, codes)
	return b.Bytes(), err
}
