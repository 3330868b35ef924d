package api

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/dispatcher/feed"
	"spendhook/internal/invalid"
)

// feed is a subscriber's feed, without a query.
func (h *harness) feed(types ...string) string {
	h.t.Helper()
	body := fmt.Sprintf(`{"name":"feed","callbackUrl":"http://127.0.0.1:9/%s","events":["%s"],"enabled":false}`, uuid.New(), strings.Join(types, `","`))
	sub := as[gen.SubscriberWithSecret](h.call("POST", "/api/v1/subscribers", body).want(http.StatusCreated))
	return "/api/v1/subscribers/" + sub.UUID.String() + "/feed"
}

func (h *harness) emitTyped(id, kind string) {
	h.t.Helper()
	h.call("POST", "/api/v1/events", `{"id":"`+id+`","event":"`+kind+`","timestamp":"`+now()+`","metadata":{"n":1}}`).want(http.StatusAccepted)
}

func TestFeedParameters(t *testing.T) {
	t.Parallel()
	h := setup(t)
	path := h.feed("A")
	for query, field := range map[string]string{
		"after=-1": "after", "after=x": "after", "limit=0": "limit", "limit=1001": "limit", "wait=31s": "wait", "wait=5": "wait",
		"wait=1m": "wait", "signatures=yes": "signatures",
		"cursor=x": "cursor", "cursor=0-17&after=0": "cursor",
	} {
		h.call("GET", path+"?"+query, "").wantField(field, "INVALID")
	}
	h.call("GET", path+"?after=1", "").wantField("after", "OUT_OF_RANGE")
	h.call("GET", "/api/v1/subscribers/"+uuid.NewString()+"/feed", "").want(http.StatusNotFound, "SUBSCRIBER_NOT_FOUND")
	for _, scope := range []string{"events:read", "subscribers:read"} {
		h.call("GET", path, "", bearer(h.mint(&h.company, scope))).want(http.StatusForbidden, "INSUFFICIENT_SCOPE")
	}
	other := uuid.New()
	h.call("GET", path, "", bearer(h.mint(&other, allScopes))).want(http.StatusNotFound, "SUBSCRIBER_NOT_FOUND")
	if empty := as[gen.Feed](h.call("GET", path, "").want(http.StatusOK)); empty.Next != 0 || empty.Last != 0 || empty.More || len(empty.Content) != 0 {
		t.Errorf("an empty feed is %+v", empty)
	}
}

// A reader waits for the next event that matches, and skips those that do not.
func TestFeedWaits(t *testing.T) {
	t.Parallel()
	h := setup(t)
	path := h.feed("A")
	h.emitTyped("e1", "A")
	one := as[gen.Feed](h.call("GET", path+"?wait=30s&signatures=true", "").want(http.StatusOK))
	if len(one.Content) != 1 || one.Next != 1 || one.More || one.Content[0].ID != "e1" || one.Content[0].Headers == nil ||
		!strings.HasPrefix(one.Content[0].Body, `{"id":"e1",`) || one.Content[0].ContentType != "application/json" {
		t.Fatalf("the first page is %+v", one)
	}
	var reading sync.WaitGroup
	for range 3 {
		reading.Go(func() {
			for at := one.Cursor; ; { // a busy machine may let the wait end first
				page := as[gen.Feed](h.call("GET", path+"?wait=30s&cursor="+at, "").want(http.StatusOK))
				at = page.Cursor
				if len(page.Content) == 0 {
					continue
				}
				if page.Content[0].ID != "e3" || page.Next != 3 {
					t.Errorf("waited for %+v", page)
				}
				return
			}
		})
	}
	h.emitTyped("e2", "B")
	h.emitTyped("e3", "A")
	reading.Wait()
	h.call("GET", path+"?wait=1s&cursor=1-"+one.Cursor[2:], "").want(http.StatusOK)
	h.call("GET", path+"?wait=1s&cursor=1-17", "").want(http.StatusConflict, "FEED_CHANGED")
	h.call("GET", path+"?cursor=4-17", "").want(http.StatusConflict, "FEED_CHANGED")
	if past := as[gen.Feed](h.call("GET", path+"?after=3&wait=1s", "").want(http.StatusOK)); len(past.Content) != 0 || past.Next != 3 {
		t.Errorf("nothing came: %+v", past)
	}
}

// Readers that wait hold no memory of answers, and end at once when the daemon stops. A reader above the limit
// of waiting readers is refused.
func TestWaitingReadersHoldNoMemory(t *testing.T) {
	t.Parallel()
	var reader *feed.Reader
	h := setup(t, func(o *Options) { reader, o.AnswerBytes = o.Feed, 5*pageBytes })
	path := h.feed("A")
	const mayWait = 16
	answers := make(chan answer, mayWait+1)
	for range cap(answers) {
		go func() { answers <- h.call("GET", path+"?wait=30s", "") }()
	}
	if refused := (<-answers).want(http.StatusTooManyRequests, "TOO_MANY_WAITING"); refused.Header().Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	h.call("GET", "/api/v1/events", "").want(http.StatusOK)
	h.call("GET", path, "").want(http.StatusOK)
	reader.Close()
	for range mayWait {
		if page := as[gen.Feed]((<-answers).want(http.StatusOK)); len(page.Content) != 0 {
			t.Errorf("read %+v", page)
		}
	}
}

// A reader that waits as long as it may, 30 s, gets its answer before the operation times out.
func TestAFeedTimesOutAfterItsLongestWait(t *testing.T) {
	t.Parallel()
	op := documentedRoutes(t)["/api/v1/subscribers/{uuid}/feed"][http.MethodGet]
	var problems invalid.Error
	if op.query["wait"].read(&problems, "wait", []string{"30s"}) == "" || op.timeout < 30*time.Second+2*1500*time.Millisecond {
		t.Errorf("time-out %v, problems %v", op.timeout, problems.Fields)
	}
}
