package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"spendhook/api/gen"
)

// An erased event is gone from what can be read, stays known, and is audited.
func TestErasePayload(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.emitTyped("e1", "A")
	h.settled("e1")
	const path = "/api/v1/events/e1/payload"
	other := uuid.New()
	h.call("DELETE", path, "", bearer(h.mint(&other, allScopes))).want(http.StatusNotFound, "EVENT_NOT_FOUND")
	for _, scope := range []string{"events:write", "deliveries:write"} {
		h.call("DELETE", path, "", bearer(h.mint(&h.company, scope))).want(http.StatusForbidden, "INSUFFICIENT_SCOPE")
	}
	h.call("DELETE", path, "").want(http.StatusNoContent)
	h.call("DELETE", path, "").want(http.StatusNoContent)
	h.call("GET", "/api/v1/events/e1", "").want(http.StatusGone, "EVENT_COMPACTED")
	if list := as[gen.EventList](h.call("GET", "/api/v1/events", "").want(http.StatusOK)); len(list.Content) != 0 {
		t.Errorf("listed: %+v", list.Content)
	}
	h.call("POST", "/api/v1/events", `{"id":"e1","event":"A","timestamp":"`+now()+`","metadata":{"n":2}}`).want(http.StatusConflict, "EVENT_CONFLICT")
	if feed := as[gen.Feed](h.call("GET", h.feed("A"), "").want(http.StatusOK)); len(feed.Content) != 1 || feed.Content[0].Gone != gen.FeedEventGoneCOMPACTED || feed.Content[0].Body != "" {
		t.Errorf("the feed has %+v", feed.Content)
	}
	h.call("DELETE", "/api/v1/events/unknown/payload", "").want(http.StatusNotFound, "EVENT_NOT_FOUND")

	// The event is open while its subscriber does not answer well.
	sub := as[gen.SubscriberWithSecret](h.call("POST", "/api/v1/subscribers",
		`{"name":"x","callbackUrl":"http://127.0.0.1:9/","events":["B"]}`).want(http.StatusCreated)).UUID.String()
	h.call("POST", "/api/v1/subscribers/"+sub+"/pause", "").want(http.StatusOK)
	h.emitTyped("e2", "B")
	h.call("DELETE", "/api/v1/events/e2/payload", "").want(http.StatusConflict, "EVENT_OPEN")

	eventually(t, func() bool { return len(h.audited("action=event.erase")) == 2 })
	if e := h.audited("action=event.erase")[0]; strings.Join(e.Target.Ids, " ") != "e1" {
		t.Errorf("audited: %+v", e)
	}
}
