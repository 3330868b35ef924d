package api

import (
	"net/http"
	"testing"

	"spendhook/api/gen"
	"spendhook/events/layout"
)

// A list leaves out damaged events; reading one of them fails.
func TestListSkipsDamagedEvents(t *testing.T) {
	t.Parallel()
	w := setupDamaged(t)
	for _, id := range []string{"a", "b", "c"} {
		w.call("POST", "/api/v1/events", event(id)).want(http.StatusAccepted)
	}
	eventually(t, func() bool { return w.pending() == 0 })
	w.overwrite("a", "?")
	if err := w.client.Del(t.Context(), layout.EventKey(w.ref("b"))).Err(); err != nil {
		t.Fatal(err)
	}
	if err := w.client.LPush(t.Context(), layout.EventKey(w.ref("b")), "x").Err(); err != nil {
		t.Fatal(err)
	}
	list := as[gen.EventList](w.call("GET", "/api/v1/events", "").want(http.StatusOK)).Content
	if len(list) != 1 || list[0].ID != "c" {
		t.Errorf("listed %+v", list)
	}
	w.call("GET", "/api/v1/events/a", "").want(http.StatusInternalServerError)
	w.call("GET", "/api/v1/events/b", "").want(http.StatusInternalServerError)
}
