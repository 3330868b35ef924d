package api

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/api/gen"
)

const hooks = "https://hooks.example.com/a"

func create(h *harness, url string, types ...string) gen.SubscriberWithSecret {
	h.t.Helper()
	if types == nil {
		types = []string{"PAYMENT_PAID"}
	}
	body := fmt.Sprintf(`{"name":"Books","callbackUrl":%q,"events":["%s"]}`, url, strings.Join(types, `","`))
	return as[gen.SubscriberWithSecret](h.call("POST", "/api/v1/subscribers", body).want(http.StatusCreated))
}

func TestSubscriberLife(t *testing.T) {
	t.Parallel()
	h := setup(t)
	made := h.call("POST", "/api/v1/subscribers",
		`{"name":"Books","callbackUrl":"HTTPS://Hooks.Example.com:443/a#x","events":["PAYMENT_PAID"],"companyUuid":"`+strings.ToUpper(h.company.String())+`"}`).
		want(http.StatusCreated)
	sub := as[gen.SubscriberWithSecret](made)
	path := "/api/v1/subscribers/" + sub.UUID.String()
	if got := made.Header().Get("Location"); got != path {
		t.Errorf("Location %q, want %q", got, path)
	}
	if sub.CallbackURL != hooks || sub.CompanyUUID != h.company || !sub.Enabled || sub.Health.State != "healthy" || !strings.HasPrefix(sub.Secret, "whsec_") {
		t.Errorf("created %s", made.Body)
	}

	got := as[gen.Subscriber](h.call("GET", path, "").want(http.StatusOK))
	if got.UUID != sub.UUID || !got.CreatedAt.Equal(sub.CreatedAt) {
		t.Errorf("read %+v", got)
	}
	changed := as[gen.Subscriber](h.call("PATCH", path, `{"name":"Ledger","enabled":false}`).want(http.StatusOK))
	if changed.Name != "Ledger" || changed.Enabled || changed.Health.State != "disabled" || *changed.Health.DisabledReason != "MANUAL" {
		t.Errorf("updated %+v", changed)
	}
	enabled := as[gen.Subscriber](h.call("PATCH", path, `{"enabled":true}`).want(http.StatusOK))
	if enabled.Health.State != "healthy" || enabled.Health.DisabledReason != nil {
		t.Errorf("enabled %+v", enabled)
	}

	added := as[gen.Subscriber](h.call("POST", "/api/v1/subscribers/add-event", `{"callbackUrl":"`+hooks+`","event":"CARD_CREATION_REQUEST_ERROR"}`).want(http.StatusCreated))
	if len(added.Events) != 2 {
		t.Errorf("added %v", added.Events)
	}
	h.call("DELETE", "/api/v1/subscribers/delete-event", `{"callbackUrl":"`+hooks+`","event":"CARD_CREATION_REQUEST_ERROR"}`).want(http.StatusNoContent)
	h.call("DELETE", "/api/v1/subscribers/delete-event?event=NOT_IN_IT&callbackUrl="+hooks, "").want(http.StatusNoContent)
	h.call("DELETE", "/api/v1/subscribers/delete-event", `{"callbackUrl":"https://other.example.com","event":"PAYMENT_PAID"}`).want(http.StatusNotFound)

	rotated := as[gen.SubscriberWithSecret](h.call("POST", path+"/rotate-secret", "").want(http.StatusOK))
	if rotated.Secret == sub.Secret || !strings.HasPrefix(rotated.Secret, "whsec_") {
		t.Error("the secret did not change")
	}
	h.call("GET", path+"/stats", "").want(http.StatusOK)
	h.call("DELETE", path, `{"companyUuid":"`+h.company.String()+`"}`).want(http.StatusNoContent)
	h.call("DELETE", path, "").want(http.StatusNotFound, "SUBSCRIBER_NOT_FOUND")
	h.call("GET", path, "").want(http.StatusNotFound)
	h.call("PATCH", path, `{}`).want(http.StatusNotFound)
	h.call("POST", path+"/rotate-secret", "").want(http.StatusNotFound)
	h.call("POST", path+"/test", "").want(http.StatusNotFound)
	h.call("GET", path+"/stats", "").want(http.StatusNotFound)
	h.call("POST", path+"/recover", `{"since":"2026-11-01T00:00:00Z"}`).want(http.StatusNotFound)
}

// The client secret of oauth is in no answer and no error.
func TestDeliveriesWithAnAccessToken(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const oauth = `{"tokenUrl":"https://LOGIN.example.com/token","clientId":"us","clientSecret":"hunter22-hunter22","scope":"hooks","audience":"api"}`
	body := `{"name":"n","callbackUrl":"` + hooks + `","events":["PAYMENT_PAID"],"oauth":%s}`
	quiet := func(a answer) answer {
		t.Helper()
		if strings.Contains(a.Body.String(), "hunter22") {
			t.Errorf("the answer has the secret: %s", a.Body)
		}
		return a
	}
	for field, bad := range map[string]string{
		"oauth":               `{"tokenUrl":"https://login.example.com/token","clientId":"us","clientSecret":"hunter22","other":"x"}`,
		"/oauth/clientSecret": `{"tokenUrl":"https://login.example.com/token","clientId":"us"}`,
		"/oauth/clientId":     `{"tokenUrl":"https://login.example.com/token","clientSecret":"hunter22"}`,
		"/oauth/tokenUrl":     `{"tokenUrl":"ftp://login.example.com/token","clientId":"us","clientSecret":"hunter22"}`,
	} {
		if a := quiet(h.call("POST", "/api/v1/subscribers", fmt.Sprintf(body, bad))); !names(a, strings.TrimPrefix(field, "/")) {
			t.Errorf("%s: %d %s", bad, a.Code, a.Body)
		}
	}
	made := quiet(h.call("POST", "/api/v1/subscribers", fmt.Sprintf(body, oauth))).want(http.StatusCreated)
	sub := as[gen.SubscriberWithSecret](made)
	if o := sub.OAuth; o.TokenURL != "https://login.example.com/token" || o.ClientID != "us" || *o.Scope != "hooks" || *o.Audience != "api" {
		t.Errorf("created %+v", o)
	}
	path := "/api/v1/subscribers/" + sub.UUID.String()
	for _, bad := range []string{`5`, `{"scope":null}`, `{"scope":5}`, `{"clientSecret":"***"}`, `{"tokenUrl":"https://evil.example/"}`} {
		quiet(h.call("PATCH", path, `{"oauth":`+bad+`}`)).want(http.StatusBadRequest)
	}
	h.call("PATCH", path, `{"headers":{"Authorization":"Bearer x"}}`).wantField("oauth", "CONFLICT")
	changed := as[gen.Subscriber](quiet(h.call("PATCH", path, `{"oauth":{"scope":"","clientSecret":"hunter22-2"}}`)).want(http.StatusOK))
	if o := changed.OAuth; o.Scope != nil || o.ClientID != "us" {
		t.Errorf("changed %+v", o)
	}
	quiet(h.call("GET", "/api/v1/subscribers", ""))
	if without := as[gen.Subscriber](h.call("PATCH", path, `{"oauth":null}`).want(http.StatusOK)); without.OAuth != nil {
		t.Errorf("removed: %+v", without.OAuth)
	}
	quiet(h.call("GET", "/api/v1/audit?action=subscriber.update", "")).want(http.StatusOK)
}

func TestHowASubscriberIsServed(t *testing.T) {
	t.Parallel()
	h := setup(t)
	body := `{"name":"In order","callbackUrl":"` + hooks + `","events":["PAYMENT_PAID"],"ordered":true,"onDead":"pause","rateLimit":{"perSecond":0.5}}`
	sub := as[gen.SubscriberWithSecret](h.call("POST", "/api/v1/subscribers", body).want(http.StatusCreated))
	path := "/api/v1/subscribers/" + sub.UUID.String()
	if !sub.Ordered || *sub.OnDead != gen.OnDeadPause || sub.RateLimit.PerSecond != 0.5 || *sub.RateLimit.Burst != 1 || sub.Paused {
		t.Errorf("created %+v", sub)
	}
	changed := as[gen.Subscriber](h.call("PATCH", path, `{"rateLimit":{"perSecond":5,"burst":10},"onDead":"continue"}`).want(http.StatusOK))
	if !changed.Ordered || *changed.OnDead != gen.OnDeadContinue || changed.RateLimit.PerSecond != 5 || *changed.RateLimit.Burst != 10 {
		t.Errorf("changed %+v", changed)
	}
	changed = as[gen.Subscriber](h.call("PATCH", path, `{"rateLimit":null,"ordered":false}`).want(http.StatusOK))
	if changed.Ordered || changed.RateLimit != nil {
		t.Errorf("without: %+v", changed)
	}
	h.call("PATCH", path, `{"orderedBy":"[1]"}`).wantField("orderedBy", "INVALID")
	changed = as[gen.Subscriber](h.call("PATCH", path, `{"orderedBy":"metadata.cardUuid"}`).want(http.StatusOK))
	if *changed.OrderedBy != "metadata.cardUuid" {
		t.Errorf("ordered by %v", changed.OrderedBy)
	}
	h.call("PATCH", path, `{"ordered":true}`).wantField("orderedBy", "CONFLICT")
	if changed = as[gen.Subscriber](h.call("PATCH", path, `{"orderedBy":""}`).want(http.StatusOK)); changed.OrderedBy != nil {
		t.Errorf("ordered by %v", *changed.OrderedBy)
	}
	h.call("PATCH", path, `{"rateLimit":{"perSecond":0.009}}`).wantField("/rateLimit/perSecond", "OUT_OF_RANGE")
	h.call("PATCH", path, `{"rateLimit":{"perSecond":1,"burst":10001}}`).wantField("/rateLimit/burst", "OUT_OF_RANGE")
	h.call("PATCH", path, `{"rateLimit":{"perSecond":1,"per":2}}`).wantField("rateLimit", "INVALID")
	changed = as[gen.Subscriber](h.call("PATCH", path, `{"stopOn":[422,404]}`).want(http.StatusOK))
	if !slices.Equal(*changed.StopOn, []int{404, 422}) {
		t.Errorf("stops on %v", changed.StopOn)
	}
	if changed = as[gen.Subscriber](h.call("PATCH", path, `{"stopOn":[]}`).want(http.StatusOK)); changed.StopOn != nil {
		t.Errorf("stops on %v", changed.StopOn)
	}
	for _, bad := range []string{"399", "408", "410", "421", "425", "429", "500"} {
		h.call("PATCH", path, `{"stopOn":[422,`+bad+`]}`).wantField("/stopOn/1", "INVALID")
	}
	h.call("PATCH", path, `{"stopOn":[422,422]}`).wantField("/stopOn/1", "INVALID")
	h.call("PATCH", path, `{"stopOn":[400,401,402,403,404,405,406,407,409]}`).wantField("stopOn", "TOO_LONG")
	changed = as[gen.Subscriber](h.call("PATCH", path, `{"retrySchedule":[5,604795]}`).want(http.StatusOK))
	if !slices.Equal(*changed.RetrySchedule, []int{5, 604795}) {
		t.Errorf("%v", changed.RetrySchedule)
	}
	if changed = as[gen.Subscriber](h.call("PATCH", path, `{"retrySchedule":[]}`).want(http.StatusOK)); changed.RetrySchedule != nil {
		t.Errorf("%v", changed.RetrySchedule)
	}
	h.call("PATCH", path, `{"retrySchedule":[5,604796]}`).wantField("retrySchedule", "OUT_OF_RANGE")
	h.call("PATCH", path, `{"retrySchedule":[5,0]}`).wantField("/retrySchedule/1", "OUT_OF_RANGE")
	h.call("PATCH", path, `{"retrySchedule":[`+strings.Repeat("1,", 30)+`1]}`).wantField("retrySchedule", "TOO_LONG")
	h.call("PATCH", path, `{"onDead":"stop"}`).wantField("onDead", "INVALID")
	h.call("PATCH", path, `{"format":"xml"}`).wantField("format", "INVALID")
	for _, bad := range []string{`[]`, `["v1"]`, `["standard","standard"]`, `null`} {
		h.call("PATCH", path, `{"signatures":`+bad+`}`).want(http.StatusBadRequest)
	}
	if both := as[gen.Subscriber](h.call("PATCH", path, `{"signatures":["http-message","standard"]}`).want(http.StatusOK)); !slices.Equal(*both.Signatures, []string{"standard", "http-message"}) {
		t.Errorf("signatures %v, want them in one order", *both.Signatures)
	}
	h.call("PATCH", path, `{"signatureAlgorithm":"rsa"}`).wantField("signatureAlgorithm", "INVALID")
	if changed = as[gen.Subscriber](h.call("PATCH", path, `{"signatures":["http-message"],"signatureAlgorithm":"ecdsa-p256-sha256"}`).want(http.StatusOK)); !slices.Equal(*sub.Signatures, []string{"standard"}) || sub.SignatureAlgorithm != nil ||
		!slices.Equal(*changed.Signatures, []string{"http-message"}) || *changed.SignatureAlgorithm != gen.KeyAlgorithmEcdsaP256Sha256 {
		t.Errorf("signatures %v, then %v of %v", sub.Signatures, changed.Signatures, changed.SignatureAlgorithm)
	}
	if changed = as[gen.Subscriber](h.call("PATCH", path, `{"format":"thin"}`).want(http.StatusOK)); sub.Format != gen.FormatStandard || changed.Format != gen.FormatThin {
		t.Errorf("format %s, then %s", sub.Format, changed.Format)
	}
	for _, bad := range []string{
		`{"rateLimit":{}}`, `{"rateLimit":5}`, `{"rateLimit":{"perSecond":10001}}`, `{"rateLimit":{"perSecond":0}}`,
		`{"rateLimit":{"perSecond":1,"burst":0}}`, `{"rateLimit":{"perSecond":"1"}}`, `{"ordered":"yes"}`,
	} {
		h.call("PATCH", path, bad).want(http.StatusBadRequest)
	}

	paused := as[gen.Subscriber](h.call("POST", path+"/pause", "").want(http.StatusOK))
	if !paused.Paused || paused.PausedAt == nil || *paused.PausedReason != gen.SubscriberPausedReasonMANUAL {
		t.Errorf("paused %+v", paused)
	}
	again := as[gen.Subscriber](h.call("POST", path+"/pause", "").want(http.StatusOK))
	if !again.PausedAt.Equal(*paused.PausedAt) {
		t.Errorf("paused at %v, then at %v", paused.PausedAt, again.PausedAt)
	}
	resumed := as[gen.Subscriber](h.call("POST", path+"/resume", "").want(http.StatusOK))
	if resumed.Paused || resumed.PausedAt != nil || resumed.PausedReason != nil {
		t.Errorf("resumed %+v", resumed)
	}
	dropping := h.call("POST", path+"/resume", `{"drop":true}`).want(http.StatusAccepted)
	if job := as[gen.Job](dropping); job.Kind != gen.JobKindDROP || dropping.Header().Get("Location") != "/api/v1/jobs/"+job.UUID.String() {
		t.Errorf("dropping: %+v at %s", job, dropping.Header().Get("Location"))
	}
	for _, verb := range []string{"/pause", "/resume"} {
		h.call("POST", "/api/v1/subscribers/"+uuid.NewString()+verb, "").want(http.StatusNotFound, "SUBSCRIBER_NOT_FOUND")
	}
	h.call("POST", "/api/v1/subscribers/"+uuid.NewString()+"/resume", `{"drop":true}`).want(http.StatusNotFound, "SUBSCRIBER_NOT_FOUND")
}

func TestFilterOfASubscriber(t *testing.T) {
	t.Parallel()
	h := setup(t)
	sub := create(h, hooks, "PAYMENT_PAID")
	path := "/api/v1/subscribers/" + sub.UUID.String()
	now := time.Now().UnixMilli()
	for i, amount := range []string{"99.99", "100.00", "1000"} {
		h.call("POST", "/api/v1/events", fmt.Sprintf(`{"id":"p-%d","event":"PAYMENT_PAID","timestamp":%d,"metadata":{"amount":%q}}`, i, now+int64(i), amount)).want(http.StatusAccepted)
	}
	h.call("POST", "/api/v1/events", fmt.Sprintf(`{"id":"other","event":"OTHER","timestamp":%d}`, now)).want(http.StatusAccepted)
	h.call("POST", "/api/v1/events", fmt.Sprintf(`{"id":"bare","event":"PAYMENT_PAID","timestamp":%d}`, now)).want(http.StatusAccepted)
	verdicts := func(body string) map[string]string {
		out := map[string]string{}
		for _, v := range as[gen.FilterTestResult](h.call("POST", path+"/filter-test", body).want(http.StatusOK)).Results {
			out[v.EventID] = strconv.FormatBool(v.Matches)
			if v.Error != nil {
				out[v.EventID] = *v.Error
			}
		}
		return out
	}
	const large = `"filter":"decimal(metadata.amount) >= decimal(\"100\")"`
	want := map[string]string{"p-0": "false", "p-1": "true", "p-2": "true", "other": "false", "bare": "filter: no such key: amount"}
	if got := verdicts(`{` + large + `}`); !maps.Equal(got, want) {
		t.Errorf("tried: %v", got)
	}
	if got := verdicts(""); got["p-0"] != "true" || got["bare"] != "true" || got["other"] != "false" {
		t.Errorf("without a filter: %v", got)
	}
	if got := verdicts(`{"eventId":"p-1","filter":"id == \"p-1\""}`); !maps.Equal(got, map[string]string{"p-1": "true"}) {
		t.Errorf("of one event: %v", got)
	}
	h.call("POST", path+"/filter-test", `{"eventId":"none"}`).want(http.StatusNotFound)

	changed := as[gen.Subscriber](h.call("PATCH", path, `{`+large+`}`).want(http.StatusOK))
	if changed.Filter == nil || !strings.HasPrefix(*changed.Filter, "decimal(") {
		t.Errorf("changed: %+v", changed)
	}
	for _, bad := range []string{`event ==`, `event`, strings.Repeat("x", 2001)} {
		h.call("PATCH", path, fmt.Sprintf(`{"filter":%q}`, bad)).wantField("filter", "INVALID")
		h.call("POST", path+"/filter-test", fmt.Sprintf(`{"filter":%q}`, bad)).wantField("filter", "INVALID")
	}
	if got := verdicts(""); !maps.Equal(got, want) {
		t.Errorf("of the subscriber: %v", got)
	}
	shown := func(body string) []string {
		var out []string
		for _, v := range as[gen.FilterTestResult](h.call("POST", path+"/filter-test", body).want(http.StatusOK)).Results {
			if out = append(out, v.EventID+" "+string(v.Body)); v.TransformError != nil {
				out = append(out, *v.TransformError)
			}
		}
		return out
	}
	const transform = `"transform":"{\"text\": metadata.amount + \" EUR\"}"`
	if got := shown(`{"eventId":"p-1",` + transform + `}`); !slices.Equal(got, []string{`p-1 {"text":"100.00 EUR"}`}) {
		t.Errorf("transformed: %q", got)
	}
	if got := shown(`{"eventId":"bare","filter":"",` + transform + `}`); !slices.Equal(got, []string{"bare ", "no such key: amount"}) {
		t.Errorf("transformed: %q", got)
	}
	if got := shown(`{"eventId":"p-0",` + transform + `}`); !slices.Equal(got, []string{"p-0 "}) {
		t.Errorf("what does not match is transformed: %q", got)
	}
	for _, bad := range []string{`{`, `event`, strings.Repeat("x", 2001)} {
		h.call("PATCH", path, fmt.Sprintf(`{"transform":%q}`, bad)).wantField("transform", "INVALID")
		h.call("POST", path+"/filter-test", fmt.Sprintf(`{"transform":%q}`, bad)).wantField("transform", "INVALID")
	}
	h.call("PATCH", path, `{"format":"thin",`+transform+`}`).wantField("transform", "CONFLICT")
	changed = as[gen.Subscriber](h.call("PATCH", path, `{`+transform+`}`).want(http.StatusOK))
	if changed.Transform == nil || *changed.Transform != `{"text": metadata.amount + " EUR"}` {
		t.Errorf("changed: %+v", changed)
	}
	h.call("PATCH", path, `{"format":"thin"}`).wantField("transform", "CONFLICT")
	explanation := as[gen.EventExplanation](h.call("GET", "/api/v1/events/p-1/explain", "").want(http.StatusOK)).Subscribers[0]
	if string(explanation.Body) != `{"text":"100.00 EUR"}` || explanation.TransformError != nil {
		t.Errorf("explanation: %+v", explanation)
	}
	h.call("POST", path+"/test", "").want(http.StatusConflict, "TRANSFORM_FAILED")
	if changed = as[gen.Subscriber](h.call("PATCH", path, `{"transform":"","format":"thin"}`).want(http.StatusOK)); changed.Transform != nil {
		t.Errorf("changed: %+v", changed)
	}
	h.call("POST", "/api/v1/events", fmt.Sprintf(`{"id":"late","event":"PAYMENT_PAID","timestamp":%d}`, now)).want(http.StatusAccepted)
	explained := as[gen.EventExplanation](h.call("GET", "/api/v1/events/late/explain", "").want(http.StatusOK)).Subscribers[0]
	if explained.Outcome != "FILTERED" || explained.FilterError == nil {
		t.Errorf("explained: %+v", explained)
	}
	if cleared := as[gen.Subscriber](h.call("PATCH", path, `{"filter":""}`).want(http.StatusOK)); cleared.Filter != nil {
		t.Errorf("cleared: %+v", cleared)
	}
}

// Two that change a subscriber at the same time do not undo each other's change.
func TestIfMatch(t *testing.T) {
	t.Parallel()
	h := setup(t)
	created := h.call("POST", "/api/v1/subscribers", `{"name":"Books","callbackUrl":"`+hooks+`","events":["PAYMENT_PAID"]}`).want(http.StatusCreated)
	path := "/api/v1/subscribers/" + as[gen.Subscriber](created).UUID.String()
	tag := created.Header().Get("ETag")
	if read := h.call("GET", path, "").want(http.StatusOK).Header().Get("ETag"); len(tag) < 10 || read != tag {
		t.Fatalf("created with ETag %s, read with %s", tag, read)
	}
	matching := func(tags string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("If-Match", tags) }
	}
	changed := h.call("PATCH", path, `{"name":"Ledger"}`, matching(tag)).want(http.StatusOK).Header().Get("ETag")
	if changed == tag || h.call("GET", path, "").Header().Get("ETag") != changed {
		t.Errorf("changed from %s to %s", tag, changed)
	}
	h.call("PATCH", path, `{"name":"Books"}`, matching(tag)).want(http.StatusPreconditionFailed, "PRECONDITION_FAILED")
	h.call("DELETE", path, "", matching(tag)).want(http.StatusPreconditionFailed, "PRECONDITION_FAILED")
	h.call("PATCH", path, `{"name":"Books"}`, matching("Books")).wantField("If-Match", "INVALID")
	if sub := as[gen.Subscriber](h.call("GET", path, "").want(http.StatusOK)); sub.Name != "Ledger" {
		t.Errorf("the name is %s", sub.Name)
	}
	h.call("PATCH", path, `{"name":"Again"}`, matching("*")).want(http.StatusOK)
	last := h.call("PATCH", path, `{"name":"Last"}`).want(http.StatusOK).Header().Get("ETag")
	for _, malformed := range []string{`"a`, `"a" "b"`, `a,"b"`, ``, `,`} {
		h.call("PATCH", path, `{"name":"Books"}`, matching(malformed)).wantField("If-Match", "INVALID")
	}
	h.call("DELETE", path, "", matching("W/"+last)).want(http.StatusPreconditionFailed, "PRECONDITION_FAILED")
	h.call("DELETE", path, "", matching(`"0`+last[1:])).want(http.StatusPreconditionFailed, "PRECONDITION_FAILED")
	h.call("DELETE", path, "", matching(`"a,b", `+tag+", "+last)).want(http.StatusNoContent)
}

func TestListSubscribers(t *testing.T) {
	t.Parallel()
	h := setup(t)
	first := create(h, hooks, "PAYMENT_PAID", "OTHER")
	create(h, "https://hooks.example.com/b", "CARD_CREATION_REQUEST_ERROR")
	for query, want := range map[string]int{
		"":                                   2,
		"?companyUuid=" + h.company.String(): 2,
		"?uuid=" + first.UUID.String():       1,
		"?name=oO":                           2,
		"?name=nobody":                       0,
		"?callbackUrl=HTTPS://HOOKS.example.com:443/a": 1,
		"?enabled=true":      2,
		"?enabled=false":     0,
		"?events=OTHER,NONE": 1,
		"?events=OTHER,CARD_CREATION_REQUEST_ERROR": 2,
	} {
		page := as[gen.SubscriberPage](h.call("GET", "/api/v1/subscribers"+query, "").want(http.StatusOK))
		if page.TotalElements != want || len(page.Content) != want || page.Size != 20 || page.Number != 0 {
			t.Errorf("%q: %+v", query, page)
		}
	}
	page := as[gen.SubscriberPage](h.call("GET", "/api/v1/subscribers?page=1&size=1", "").want(http.StatusOK))
	if page.TotalElements != 2 || page.TotalPages != 2 || page.Number != 1 || page.Size != 1 || len(page.Content) != 1 {
		t.Errorf("second page: %+v", page)
	}
	if page = as[gen.SubscriberPage](h.call("GET", "/api/v1/subscribers?size=1000", "").want(http.StatusOK)); page.Size != 100 {
		t.Errorf("size %d, want it clamped to 100", page.Size)
	}
	for query, field := range map[string]string{
		"?page=-1": "page", "?page=x": "page", "?page=1.5": "page", "?page=99999999999999999999": "page",
		"?page=9999999999": "page", "?size=0": "size", "?size=-1": "size", "?uuid=no": "uuid", "?enabled=maybe": "enabled",
		"?page=1&page=2": "page", "?name=%ff": "name",
	} {
		h.call("GET", "/api/v1/subscribers"+query, "").wantField(field, "INVALID")
	}
	h.call("GET", "/api/v1/subscribers?title=x", "").wantField("title", "UNKNOWN_PARAMETER")
	h.call("GET", "/api/v1/subscribers?a=%zz", "").want(http.StatusBadRequest, "MALFORMED_QUERY")
}

func TestCallbackURLIsUniqueUnderConcurrentCreates(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const n = 50
	answers := make([]answer, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			answers[i] = h.call("POST", "/api/v1/subscribers", `{"name":"x","callbackUrl":"`+hooks+`","events":["A"]}`)
		})
	}
	wg.Wait()
	created := 0
	for _, a := range answers {
		if a.Code == http.StatusCreated {
			created++
		} else {
			a.want(http.StatusConflict)
		}
	}
	if created != 1 {
		t.Errorf("%d were created", created)
	}
}

func TestCompanyScope(t *testing.T) {
	t.Parallel()
	h := setup(t)
	other := uuid.New()
	sub := create(h, hooks)
	path, foreign := "/api/v1/subscribers/"+sub.UUID.String(), "companyUuid="+other.String()

	h.call("GET", "/api/v1/subscribers?"+foreign, "").want(http.StatusForbidden, "COMPANY_MISMATCH")
	h.call("GET", path+"?"+foreign, "").want(http.StatusForbidden, "COMPANY_MISMATCH")
	h.call("PATCH", path, `{"companyUuid":"`+other.String()+`"}`).want(http.StatusForbidden, "COMPANY_MISMATCH")
	h.call("DELETE", path, `{"companyUuid":"`+other.String()+`"}`).want(http.StatusForbidden, "COMPANY_MISMATCH")
	h.call("GET", path, "", bearer(h.mint(&other, allScopes))).want(http.StatusNotFound)
	h.call("DELETE", path, "", bearer(h.mint(&other, allScopes))).want(http.StatusNotFound)

	free, platform := bearer(h.mint(nil, allScopes)), bearer(h.mint(nil, allScopes+" platform"))
	h.call("GET", path, "", free).wantField("companyUuid", "REQUIRED")
	h.call("GET", path, "", platform).wantField("companyUuid", "REQUIRED")
	h.call("POST", "/api/v1/subscribers", `{"name":"x","callbackUrl":"https://x.example","events":["A"]}`, free).wantField("companyUuid", "REQUIRED")
	h.call("GET", path+"?companyUuid="+h.company.String(), "", free).want(http.StatusOK)
	h.call("DELETE", path+"?"+foreign, `{"companyUuid":"`+h.company.String()+`"}`, free).wantField("companyUuid", "INVALID")
	h.call("GET", "/api/v1/subscribers", "", free).want(http.StatusForbidden, "INSUFFICIENT_SCOPE")
	h.call("GET", "/api/v1/events", "", free).want(http.StatusForbidden, "INSUFFICIENT_SCOPE")
	h.call("GET", "/api/v1/deliveries", "", free).want(http.StatusForbidden, "INSUFFICIENT_SCOPE")
	h.call("POST", "/api/v1/subscribers", `{"name":"x","callbackUrl":"`+hooks+`","events":["A"],"companyUuid":"`+other.String()+`"}`, free).want(http.StatusCreated)
	all := as[gen.SubscriberPage](h.call("GET", "/api/v1/subscribers", "", platform).want(http.StatusOK))
	one := as[gen.SubscriberPage](h.call("GET", "/api/v1/subscribers?companyUuid="+h.company.String(), "", free).want(http.StatusOK))
	if all.TotalElements != 2 || one.TotalElements != 1 {
		t.Errorf("%d of all companies and %d of one, want 2 and 1", all.TotalElements, one.TotalElements)
	}
}

func TestBadSubscriberBodies(t *testing.T) {
	t.Parallel()
	h := setup(t)
	sub := create(h, hooks)
	post := func(body string, options ...option) answer {
		return h.call("POST", "/api/v1/subscribers", body, options...)
	}
	for body, want := range map[string][2]string{
		`{}`:                             {"name", "REQUIRED"},
		`{"name":"x","callbackURL":"y"}`: {"callbackURL", "UNKNOWN_FIELD"},
		`{"name":"x","name":"y"}`:        {"name", "DUPLICATE_FIELD"},
		`{"name":1}`:                     {"name", "INVALID"},
		`{"events":"A"}`:                 {"events", "INVALID"},
		`{"events":["A",2]}`:             {"/events/1", "INVALID"},
		`{"enabled":"yes"}`:              {"enabled", "INVALID"},
		`{"companyUuid":"hunter2"}`:      {"companyUuid", "INVALID"},
		`[]`:                             {"", "INVALID"},
		`{"name":"x","callbackUrl":"ftp://hunter2@h","events":["A"]}`:             {"callbackUrl", "INVALID"},
		`{"name":"x","callbackUrl":"https://u:hunter2@h.example","events":["A"]}`: {"callbackUrl", "INVALID"},
	} {
		post(body).wantField(want[0], want[1])
	}
	for _, body := range []string{`{`, `{"name":"x"} trailing`, `{"name":"x"}{}`, "{\"name\":\"\xff\"}", `nul`, "\xef\xbb\xbf{}", strings.Repeat("[", maxNesting+1) + strings.Repeat("]", maxNesting+1)} {
		post(body).want(http.StatusBadRequest, "MALFORMED_BODY")
	}
	post("").want(http.StatusBadRequest, "BODY_REQUIRED")
	post(`{}`, header("Content-Type", "text/plain")).want(http.StatusUnsupportedMediaType)
	post(`{}`, header("Content-Encoding", "gzip")).want(http.StatusUnsupportedMediaType)
	post(`{}`, header("Content-Type", "application/json; charset=latin1")).want(http.StatusUnsupportedMediaType)
	post(`{}`, header("Content-Type", "application/json; charset=UTF-8")).want(http.StatusBadRequest, "VALIDATION_ERROR")
	post(`{}`, header("Content-Type", "application/json; charset=utf8")).want(http.StatusBadRequest, "VALIDATION_ERROR")
	post(`{}`, header("Content-Encoding", "Identity")).want(http.StatusBadRequest, "VALIDATION_ERROR")
	post(`{}`, header("Accept", "text/html, application/json;q=0")).want(http.StatusNotAcceptable)
	post(`{}`, header("Accept", "text/html, */*;q=0.1")).want(http.StatusBadRequest)
	post(`"` + strings.Repeat("x", bodyLimit) + `"`).want(http.StatusRequestEntityTooLarge)
	h.call("GET", "/api/v1/subscribers/not-a-uuid", "").wantField("uuid", "INVALID")
	h.call("POST", "/api/v1/subscribers/"+sub.UUID.String()+"/recover", `{}`).wantField("since", "REQUIRED")
	h.call("POST", "/api/v1/subscribers/"+sub.UUID.String()+"/recover", `{"since":"yesterday"}`).wantField("since", "INVALID")
	h.call("POST", "/api/v1/subscribers/"+sub.UUID.String()+"/recover", `{"since":"2026-11-01T00:00:00Z","statuses":["LOST"]}`).wantField("/statuses/0", "INVALID")
	h.call("POST", "/api/v1/subscribers/"+sub.UUID.String()+"/recover", `{"since":"2200-11-01T00:00:00Z","dryRun":true}`).wantField("since", "INVALID")
	if n := as[gen.SubscriberPage](h.call("GET", "/api/v1/subscribers", "")).TotalElements; n != 1 {
		t.Errorf("%d subscribers, bad input has left some", n)
	}
	if h.seen.count("hunter2") > 0 {
		t.Error("an answer or a log line repeats a submitted secret")
	}
}
