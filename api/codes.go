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
	Status        int // 0: it is a code in the errors of a 400
	Cause, Remedy string
}

// codes explains every code of the answers, in alphabetical order.
var codes = []explained{
	{"AUTHORIZATION_REPEATED", 400, "The request has more than one `Authorization` header.", "Send one. A proxy may have added its own."},
	{"BACKLOG_FULL", 429, "The company has reached its limit of pending events (`limits.company_backlog`): its receivers are slow or down.", "Wait as long as `Retry-After` says and send the event again. Look at the company's failing subscribers."},
	{"BODY_NOT_ALLOWED", 400, "The operation has no body, but the DELETE came with one.", "Send no body. `companyUuid` may be in the query."},
	{"BODY_REQUIRED", 400, "The operation needs a JSON body, and there was none.", "Send one. A proxy may have dropped it."},
	{"BODY_TOO_LARGE", 413, "The body is larger than 1 MiB, or 8 MiB for events.", "Split it: several arrays of events, several bulk creations."},
	{"BODY_UNREADABLE", 400, "The connection broke while the body was read, or the framing of the body is wrong.", "Send the request again."},
	{"CALLBACK_URL_REFUSED", 400, "The host of `callbackUrl` does not resolve, or resolves to an address that deliveries may not reach.", "Use a public https address, or ask the operator to allow the address (`egress.allow_cidrs`)."},
	{"CALLBACK_URL_TAKEN", 409, "Another subscriber of the company has this `callbackUrl`, which is compared after normalisation.", "Change that subscriber, or use another path."},
	{"CARD_NOT_ACTIVE", 422, "The card is cancelled or expired, or, for a threshold, blocked.", "Unlock a blocked card first. A cancelled or expired card cannot be changed."},
	{"CLIENT_CERTIFICATE_INVALID", 403, "The client certificate has expired, is not valid yet, or is not signed by a trusted CA.", "Present a valid certificate of a CA that the operator trusts."},
	{"CLIENT_CERTIFICATE_MALFORMED", 400, "The proxy in front of the daemon forwarded a client certificate that cannot be read.", "The operator corrects the proxy: RFC 9440 `Client-Cert`, or Envoy's XFCC."},
	{"CLIENT_CERTIFICATE_REQUIRED", 403, "The operation needs mutual TLS, and no client certificate was presented.", "Present one. See `docs/tls.md`."},
	{"COMPANY_MISMATCH", 403, "`companyUuid` is not the company of the token.", "Omit it, or use a token of that company or of no company."},
	{"CONFLICT", 0, "Two fields exclude each other.", "Send one of them."},
	{"DELIVERY_IN_FLIGHT", 409, "An attempt of the delivery is under way.", "Wait until it ends; it may succeed."},
	{"DUPLICATE", 0, "A list has a value twice, or a header is given in two spellings.", "Send it once."},
	{"DUPLICATE_FIELD", 0, "An object has a field twice.", "Send it once."},
	{"EVENT_COMPACTED", 410, "The payload of the event was removed: the event settled long ago (`events.keep_delivered`), or it was erased.", "Get the event from its emitter. Its id stays known."},
	{"EVENT_CONFLICT", 409, "An event with this id and other content is known. Nothing was overwritten.", "Repeat an event with the same content, including `timestamp`. Give another event another id."},
	{"EVENT_IN_FUTURE", 400, "The event's `timestamp` is more than 5 minutes ahead of the daemon's clock.", "Correct the clock of the emitter."},
	{"EVENT_NOT_FOUND", 404, "The company has no event with this id, or it is past its retention.", "Check the id and the company."},
	{"EVENT_OPEN", 409, "The event is not settled: a delivery of it is open, or it is in quarantine.", "Wait until its deliveries have ended, or end them: delete the subscriber, or drop its waiting deliveries. Drop a quarantined event from the quarantine."},
	{"EVENT_TOO_OLD", 400, "The event's `timestamp` is older than the time for which ids are remembered (`events.retention`).", "Do not send it again: it may have been delivered before. Give a new event its own time."},
	{"EVENT_TYPE_FIXED", 409, "The daemon itself emits and documents this event type: operational events and outcomes of bulk card creations.", "Document your own types only."},
	{"EVENT_TYPE_RESERVED", 400, "Only the daemon emits events of this type (operational events).", "Use another type."},
	{"EXPIRED", 0, "The certificate has expired.", "Send one that is valid."},
	{"HEADERS_TOO_LARGE", 431, "Path, query and headers have more than 64 KiB. Beyond 96 KiB the answer is plain text, and the connection is closed.", "Send shorter lists in the query, or fewer headers."},
	{"IDEMPOTENCY_KEY_IN_PROGRESS", 409, "The first request with this `Idempotency-Key` is still under way.", "Wait as long as `Retry-After` says and send it again."},
	{"IDEMPOTENCY_KEY_REUSED", 422, "The `Idempotency-Key` was used for another request within the last 24 hours.", "Use a new key for each new request, and the same key only with the same body."},
	{"INSUFFICIENT_SCOPE", 403, "The token lacks the scope that the operation needs; `WWW-Authenticate` names it.", "Request a token with the scope; the client must have it."},
	{"INTERNAL_ERROR", 500, "An error in the daemon, or a damaged stored record.", "Send the request again. Give the operator the `requestId`: the log has the cause."},
	{"INVALID", 0, "The value does not have the form in the message.", "Send the form in the message."},
	{"JOB_FINISHED", 409, "The job has completed.", "Nothing: its work cannot be undone."},
	{"JOB_NOT_CANCELLABLE", 409, "The job erases a company.", "Wait until it ends."},
	{"MALFORMED_BODY", 400, "The body is not one JSON value in UTF-8, or nests deeper than 64 levels.", "Encode it with a JSON library."},
	{"MALFORMED_QUERY", 400, "The query is not well-formed: a `%` without two hexadecimal digits, or a semicolon.", "Encode it with a URL library."},
	{"METHOD_NOT_ALLOWED", 405, "The path does not answer this method.", "Use one of `Allow`."},
	{"MISMATCH", 0, "The private key is not that of the certificate.", "Send the key of the certificate."},
	{"NOT_ACCEPTABLE", 406, "The `Accept` header allows no media type that the operation answers with.", "Send `Accept: application/json`, or none."},
	{"NOT_FOUND", 404, "The company has no such resource; `detail` names its kind.", "Check the id and the company."},
	{"NOT_YET_VALID", 0, "The certificate is not valid yet.", "Send one that is valid now."},
	{"NO_BUILTIN_ISSUER", 404, "The daemon issues no tokens: it trusts another issuer.", "Get a token from that issuer."},
	{"NO_EGRESS_CERTIFICATE", 404, "The company has set no client certificate for its deliveries.", "Set one if receivers require mutual TLS."},
	{"NO_SUCH_ROUTE", 404, "The API has no such path.", "Check the path against the API document; a path has no slash at the end."},
	{"NO_WEBHOOK_KEYS", 404, "Deliveries of this company carry no `v1a` signatures.", "Verify `v1` signatures with the subscriber's secret."},
	{"OUT_OF_RANGE", 0, "The number is outside the bounds in the message.", "Send a number within the bounds."},
	{"OVERLOADED", 503, "The memory for answers is used up, by the company or in total, or the company reads more than 32 MiB of lists a second.", "Wait as long as `Retry-After` says. Read fewer and smaller pages, and pause between them."},
	{"PLATFORM_ONLY", 403, "The operation concerns all companies, and the token belongs to one.", "Use a token of no company with the scope `platform`."},
	{"PRECONDITION_FAILED", 412, "`If-Match` is not the current `ETag`: the resource was changed meanwhile.", "Read the resource again, and send the new `ETag`."},
	{"RATE_LIMITED", 429, "The credential or the company has exceeded its rate limit. Nothing was done.", "Wait as long as `Retry-After` says; `RateLimit` shows the requests that are left."},
	{"REQUEST_TIMEOUT", 408, "The body did not arrive within the time for a request (`http.request_timeout`).", "Send it again, faster or in parts."},
	{"REQUIRED", 0, "The field is missing or empty.", "Send it."},
	{"RESERVED", 0, "The header belongs to the delivery or to its connection.", "Omit it."},
	{"STORAGE_FULL", 503, "The company has used its share of Redis's memory, or Redis has no memory left for new events.", "Wait as long as `Retry-After` says and send the event again. The operator can give Redis more memory."},
	{"SUBSCRIBER_DISABLED", 409, "The subscriber is disabled.", "Enable it first."},
	{"SUBSCRIBER_GONE", 409, "The subscriber of the delivery was deleted.", "Create a new subscriber and replay the event."},
	{"SUBSCRIBER_NOT_FOUND", 404, "The company has no such subscriber.", "Check the id or `callbackUrl`, and the company."},
	{"TEST_IN_FLIGHT", 409, "A test delivery to this subscriber is under way.", "Wait until it ends."},
	{"THRESHOLD_EXCEEDS_LIMIT", 422, "The threshold exceeds the company's credit limit.", "Use a lower threshold."},
	{"TLS_REQUIRED", 403, "The request came without TLS.", "Use https, or the proxy that the operator listed."},
	{"TOKEN_INVALID", 401, "The token has expired, is not from a trusted issuer, or is bound to another client certificate.", "Get a new token, and present the certificate that it is bound to."},
	{"TOKEN_REQUIRED", 401, "There is no `Authorization: Bearer` header.", "Get a token from `/oauth/token` and send it."},
	{"TOO_DEEP", 0, "The value nests too deeply.", "Send a flatter one."},
	{"TOO_LONG", 0, "The value is longer than the message says.", "Send a shorter one."},
	{"TOO_MANY", 0, "There are more values than the message says.", "Send fewer, in several requests."},
	{"TOO_MANY_BODIES", 503, "The memory for request bodies is used up, of the connection, the address, the company or the daemon.", "Wait as long as `Retry-After` says and send the request again. Send fewer large bodies at once."},
	{"TOO_MANY_CONSOLE_LINKS", 429, "The company has 500 unused links into the web console, or 500 sessions.", "Wait as long as `Retry-After` says, or end sessions: `DELETE /api/v1/console-sessions/{uuid}`."},
	{"TOO_MANY_EVENT_TYPES", 409, "The limit of documented event types is reached: 1,000 types, and 1 MiB in total.", "Remove some, or shorten their examples."},
	{"TOO_MANY_JOBS", 429, "The company has 100 unfinished jobs. Nothing was done.", "Wait as long as `Retry-After` says. List the jobs with `GET /api/v1/jobs`, and cancel those that are not needed."},
	{"TOO_MANY_SUBSCRIBERS", 409, "The company has the maximum number of subscribers (`subscribers.max_per_company`).", "Delete a subscriber that is not needed."},
	{"TOO_MANY_WAITING", 429, "Too many feed requests of the company or of the replica wait for new events.", "Wait as long as `Retry-After` says. Send fewer requests with `wait` at once."},
	{"UNAVAILABLE", 503, "Redis or the database is unavailable, or the request took too long. It may or may not have been carried out.", "Wait as long as `Retry-After` says and send the request again, with the same `Idempotency-Key`."},
	{"UNKNOWN_EVENT_TYPE", 0, "The event type is not in the catalogue (`events.strict_catalogue`).", "Use a type of `GET /api/v1/event-types`, or ask the operator to add it."},
	{"UNKNOWN_FIELD", 0, "The operation does not know the field.", "Check its spelling; names are case-sensitive."},
	{"UNKNOWN_PARAMETER", 0, "The operation does not know the query parameter.", "Check its spelling; names are case-sensitive."},
	{"UNKNOWN_SUBSCRIBERS", 422, "The company does not have the subscribers that `detail` names.", "Omit them, or the list."},
	{"UNSUPPORTED_MEDIA_TYPE", 415, "The body is not declared as `application/json` in UTF-8, or is compressed.", "Send `Content-Type: application/json` and no `Content-Encoding`."},
	{"USER_NOT_FOUND", 422, "The user is not an active user of the company.", "Check `userUuid` and the company."},
	{"VALIDATION_ERROR", 400, "Fields or parameters are not valid; `errors` names each.", "See the codes in `errors`."},
}

// typeOf is the type of a problem: the URI of the explanation of its code.
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
