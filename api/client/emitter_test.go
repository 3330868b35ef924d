package client_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"spendhook/api/client"
)

// ingest answers requests with events, without a network.
type ingest struct {
	bodies  []string
	at      []time.Time
	answers []func(ids []string) (status int, body string) // beyond them all events are accepted
}

func (i *ingest) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	i.bodies, i.at = append(i.bodies, string(body)), append(i.at, time.Now())
	var items []client.EventInput
	if err := json.Unmarshal(body, &items); err != nil {
		return nil, err
	}
	ids := make([]string, len(items))
	for n, item := range items {
		ids[n] = item.ID
	}
	answer := withResults("")
	if len(i.answers) > 0 {
		answer, i.answers = i.answers[0], i.answers[1:]
	}
	status, text := answer(ids)
	if status == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(text))}, nil
}

// withResults refuses the events whose ids are a key, and accepts the others.
func withResults(refused string, ids ...string) func([]string) (int, string) {
	return func(all []string) (int, string) {
		results := make([]string, len(all))
		for i, id := range all {
			results[i] = fmt.Sprintf(`{"id":%q,"status":"ACCEPTED"}`, id)
			if slices.Contains(ids, id) {
				results[i] = fmt.Sprintf(`{"id":%q,%s}`, id, refused)
			}
		}
		return http.StatusMultiStatus, `{"results":[` + strings.Join(results, ",") + `]}`
	}
}

func status(code int, body string) func([]string) (int, string) {
	return func([]string) (int, string) { return code, body }
}

func inputs(count int, metadata string) []client.EventInput {
	all := make([]client.EventInput, count)
	for i := range all {
		all[i] = client.EventInput{ID: fmt.Sprintf("evt_%d", i), Event: "PAYMENT_PAID", Timestamp: time.Unix(1795167000, 0).UTC(), Metadata: json.RawMessage(metadata)}
	}
	return all
}

const (
	later    = `"status":"REJECTED","error":{"code":"BUSY","message":"later","retryAfter":5}`
	conflict = `"status":"CONFLICT","error":{"code":"EVENT_CONFLICT","message":"other content"}`
)

// Each case begins with one array; how many requests there are, and of which sizes, and after how long the last came.
func TestSendAll(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events   []client.EventInput
		answers  []func([]string) (int, string)
		sizes    []int
		took     time.Duration
		statuses string // of the results, their first letters
		fails    string
	}{
		"accepted":                 {inputs(2, "{}"), nil, []int{2}, 0, "AA", ""},
		"nothing":                  {nil, nil, nil, 0, "", ""},
		"a conflict":               {inputs(3, "{}"), []func([]string) (int, string){withResults(conflict, "evt_1")}, []int{3}, 0, "ACA", ""},
		"refused for a while":      {inputs(4, "{}"), []func([]string) (int, string){withResults(later, "evt_1", "evt_3"), withResults(later, "evt_3")}, []int{4, 2, 1}, 10 * time.Second, "AAAA", ""},
		"refused for too long":     {inputs(2, "{}"), slices.Repeat([]func([]string) (int, string){withResults(later, "evt_1")}, 20), []int{2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, time.Minute, "AR", "1 events are still refused: later"},
		"cut":                      {inputs(2, "{}"), []func([]string) (int, string){status(0, "")}, []int{2, 2}, -1, "AA", ""},
		"cut within the answer":    {inputs(2, "{}"), []func([]string) (int, string){status(202, `{"resu`)}, []int{2, 2}, time.Second, "AA", ""},
		"too few results":          {inputs(2, "{}"), []func([]string) (int, string){status(202, `{"results":[]}`)}, []int{2}, 0, "  ", "got 0 results"},
		"refused":                  {inputs(2, "{}"), []func([]string) (int, string){status(403, `{"code":"FORBIDDEN"}`)}, []int{2}, 0, "  ", "FORBIDDEN"},
		"an array of 1,001":        {inputs(1001, "{}"), nil, []int{1000, 1}, 0, strings.Repeat("A", 1001), ""},
		"the second array refused": {inputs(1001, "{}"), []func([]string) (int, string){withResults(""), status(403, `{"code":"FORBIDDEN"}`)}, []int{1000, 1}, 0, strings.Repeat("A", 1000) + " ", "FORBIDDEN"},
		"more than 4 MiB":          {inputs(5, `"`+strings.Repeat("x", 2<<20-500)+`"`), nil, []int{2, 2, 1}, 0, "AAAAA", ""},
		"an event of 5 MiB":        {inputs(2, `"`+strings.Repeat("x", 5<<20)+`"`), nil, []int{1, 1}, 0, "AA", ""},
		"too large alone":          {inputs(2, `"`+strings.Repeat("x", 5<<20)+`"`), []func([]string) (int, string){status(413, "<html>")}, []int{1, 1}, 0, "RA", ""},
		"too large together":       {inputs(5, "{}"), []func([]string) (int, string){status(413, "<html>"), withResults(""), status(413, "<html>"), withResults(""), status(413, "<html>")}, []int{5, 2, 3, 1, 2, 1, 1}, 0, "AAAAA", ""},
		"one is malformed":         {inputs(2, "{}"), []func([]string) (int, string){status(400, `{"code":"MALFORMED_BODY"}`), withResults(""), status(400, `{"code":"MALFORMED_BODY"}`)}, []int{2, 1, 1}, 0, "AR", ""},
		"an error after a half":    {inputs(2, "{}"), []func([]string) (int, string){status(413, "<html>"), withResults(""), status(422, `{"code":"X"}`)}, []int{2, 1, 1}, 0, "A ", "X"},
		"too large at last":        {inputs(2, "{}"), []func([]string) (int, string){withResults(later, "evt_1"), status(413, "<html>")}, []int{2, 1}, 5 * time.Second, "AR", ""},
		"malformed alone":          {inputs(1, "{}"), []func([]string) (int, string){status(400, `{"code":"MALFORMED_BODY"}`)}, []int{1}, 0, "R", ""},
		"refused alone":            {inputs(1, "{}"), []func([]string) (int, string){status(400, `{"error":"invalid_scope"}`)}, []int{1}, 0, " ", "invalid_scope"},
		"an event without an id":   {[]client.EventInput{{Timestamp: time.Unix(1, 0)}}, nil, nil, 0, " ", "needs an id"},
		"an event without a time":  {[]client.EventInput{{ID: "evt_1"}}, nil, nil, 0, " ", "needs an id and a timestamp"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				i := &ingest{answers: c.answers}
				began := time.Now()
				got, err := newEmitter(t, i).SendAll(t.Context(), c.events)
				if (err == nil) != (c.fails == "") || (err != nil && !strings.Contains(err.Error(), c.fails)) {
					t.Errorf("error %v", err)
				}
				if s := letters(got); s != c.statuses {
					t.Errorf("results %.50q", s)
				}
				for n, event := range c.events {
					if event.ID != "" && len(i.bodies) > 0 && *got[n].ID != event.ID {
						t.Errorf("result %d is of %s", n, *got[n].ID)
					}
				}
				i.check(t, c.sizes)
				if took := time.Since(began); c.took >= 0 && took != c.took {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}

// The result of an event that is alone in a request has the reason of the answer.
func TestTheRefusalOfOne(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]client.ItemError{
		`{"code":"BODY_TOO_LARGE","detail":"large","errors":[{"field":"/"}]}`: {Code: "BODY_TOO_LARGE", Message: "large", Errors: &[]client.FieldError{{Field: "/"}}},
		"<html>": {Code: "PAYLOAD_TOO_LARGE", Message: "Request Entity Too Large"},
	} {
		i := &ingest{answers: slices.Repeat([]func([]string) (int, string){status(413, text)}, 2)}
		results, err := newEmitter(t, i).SendAll(t.Context(), inputs(1, "{}"))
		if err != nil || *results[0].ID != "evt_0" || !reflect.DeepEqual(results[0].Error, &want) {
			t.Errorf("%s: %+v, %v", text, results, err)
		}
		if refusal := asError(t, newEmitter(t, i).Send(t.Context(), inputs(1, "{}")[0])); refusal.Code != want.Code || refusal.Detail != want.Message {
			t.Errorf("%s: %+v", text, refusal)
		}
	}
}

func letters(results []client.EventItemResult) string {
	var s strings.Builder
	for _, r := range results {
		s.WriteString((string(r.Status) + " ")[:1])
	}
	return s.String()
}

// check compares how many events the requests had. A request with as many as the one before is a repeat.
func (i *ingest) check(t *testing.T, sizes []int) {
	t.Helper()
	var got []int
	for n, body := range i.bodies {
		count := strings.Count(body, `"timestamp"`)
		if got = append(got, count); n > 0 && count == got[n-1] && count > 2 && body != i.bodies[n-1] {
			t.Error("a repeat has other bytes")
		}
	}
	if !slices.Equal(got, sizes) {
		t.Errorf("the requests had %v events", got)
	}
}

func newEmitter(t *testing.T, transport http.RoundTripper) *client.Emitter {
	t.Helper()
	e, err := client.NewEmitter("https://hooks.example.com/", client.EmitterOptions{Options: client.Options{Token: "t", Transport: transport}})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// A token goes over TLS, or to this host.
func TestATokenIsNotSentInClear(t *testing.T) {
	t.Parallel()
	token := client.Options{Token: "t"}
	for name, c := range map[string]struct {
		url     string
		options client.Options
		ok      bool
	}{
		"https":                    {"https://hooks.example.com", token, true},
		"http":                     {"http://hooks.example.com", token, false},
		"http with credentials":    {"http://192.0.2.1:8080", client.Options{Credentials: &client.Credentials{ID: "i"}}, false},
		"http without a token":     {"http://hooks.example.com", client.Options{}, true},
		"http, insecure":           {"http://hooks.example.com", client.Options{Token: "t", Insecure: true}, true},
		"http to localhost":        {"http://localhost:8080", token, true},
		"http to 127.0.0.1":        {"http://127.0.0.1:8080", token, true},
		"http to ::1":              {"http://[::1]:8080", token, true},
		"http to a name like that": {"http://127.0.0.1.example.com", token, false},
		"no URL":                   {"hooks.example.com", client.Options{}, false},
	} {
		_, emitterErr := client.NewEmitter(c.url, client.EmitterOptions{Options: c.options})
		if _, err := client.New(c.url, c.options); (err == nil) != c.ok || (emitterErr == nil) != c.ok {
			t.Errorf("%s: %v, %v", name, err, emitterErr)
		}
	}
}

// An Emitter works with a daemon.
func TestEmitterOfADaemon(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	e, err := client.NewEmitter(d.url, client.EmitterOptions{Options: client.Options{Credentials: d.credentials(t, "events:write")}})
	if err != nil {
		t.Fatal(err)
	}
	event := client.EventInput{ID: "evt_1", Event: "PAYMENT_PAID", Timestamp: time.Now(), Metadata: json.RawMessage(`{"amount":"12.50"}`)}
	for range 2 {
		if err := e.Send(t.Context(), event); err != nil {
			t.Error(err)
		}
	}
	event.Metadata = json.RawMessage(`{"amount":"13.50"}`)
	refusal := asError(t, e.Send(t.Context(), event))
	if refusal.Status != http.StatusConflict || refusal.Code == "" || refusal.Detail == "" {
		t.Errorf("%+v", refusal)
	}
	bad := client.EventInput{ID: "evt_2", Event: "no type", Timestamp: time.Now()}
	if refusal := asError(t, e.Send(t.Context(), bad)); refusal.Status != http.StatusUnprocessableEntity || len(refusal.Errors) == 0 {
		t.Errorf("%+v", refusal)
	}
	results, err := e.SendAll(t.Context(), []client.EventInput{event, bad, {ID: "evt_3", Event: "PAYMENT_PAID", Timestamp: time.Now()}})
	if err != nil || letters(results) != "CRA" {
		t.Errorf("%+v, %v", results, err)
	}
	company := uuid.New()
	other, err := client.NewEmitter(d.url, client.EmitterOptions{Options: client.Options{Credentials: d.credentials(t, "events:write")}, Company: &company})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Send(t.Context(), client.EventInput{ID: "evt_4", Event: "PAYMENT_PAID", Timestamp: time.Now()}); err == nil {
		t.Error("an event of another company is taken")
	} else if _, ok := errors.AsType[*client.Error](err); !ok {
		t.Error(err)
	}
}
