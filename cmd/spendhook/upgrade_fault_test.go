package main

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/redis/go-redis/v9"

	"spendhook/api/gen"
	"spendhook/internal/redistest"
)

// Each build takes over what an earlier one left in Redis when it was killed:
// what was in flight, waiting for a retry, queued or held is delivered, what was
// delivered or dead stays so, and the old signing secrets and ids are known.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/upgrade/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var f fixture
			if err := json.Unmarshal(text, &f); err != nil {
				t.Fatal(err)
			}
			upgrade(t, &f)
		})
	}
}

func upgrade(t *testing.T, f *fixture) {
	t.Helper()
	server := redistest.Start(t, redistest.Options{})
	receivers := map[string]*endpoint{}
	for role, s := range f.Subscribers {
		receivers[role] = newEndpoint(t, nil)
		receivers[role].knows(t, s.UUID, s.Secret)
	}
	client := server.Client()
	f.load(t, client, receivers)
	d := newHouse(t, server.URL(), briefRetries+sharedKey).startChild(t)

	for _, name := range []string{"done", "flight", "retry", "queued"} {
		f.reaches(t, d, steady, name, gen.DeliveryStatusDELIVERED, "")
	}
	f.wantPosts(t, receivers[steady], map[string]int{"done": 0, "flight": 1, "retry": 1, "queued": 1})

	f.reaches(t, d, held, "held", gen.DeliveryStatusRETRYING, "SUBSCRIBER_DISABLED")
	f.reaches(t, d, gone, "dead", gen.DeliveryStatusDEAD, "")
	f.wantListed(t, d, steady, "", "done", "flight", "retry", "queued")
	f.wantListed(t, d, held, gen.DeliveryStatusRETRYING, "held")
	f.wantListed(t, d, gone, gen.DeliveryStatusDEAD, "dead")
	for _, role := range []string{held, gone} {
		status, _, body := d.do(t, http.MethodPatch, "/api/v1/subscribers/"+f.Subscribers[role].UUID.String(), `{"enabled":true}`)
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
	}
	f.reaches(t, d, held, "held", gen.DeliveryStatusDELIVERED, "")
	f.wantPosts(t, receivers[held], map[string]int{"held": 1})
	f.wantPosts(t, receivers[gone], map[string]int{"dead": 0})
	for id := range f.Events {
		if strings.HasPrefix(id, "dead") {
			d.cli(t, "", "replay", "--event", id).want(t, exitOK, "", "")
		}
	}
	f.reaches(t, d, gone, "dead", gen.DeliveryStatusDELIVERED, "")

	for id, body := range f.Events {
		if status, _, answer := d.do(t, http.MethodPost, "/api/v1/events", body); status != http.StatusOK {
			t.Errorf("%s again: %d %s", id, status, answer)
		}
	}
	wantNothingPending(t, d)
	f.wantForgotten(t, client)
	f.wantPosts(t, receivers[steady], map[string]int{"done": 0, "flight": 1, "retry": 1, "queued": 1})
	d.stop(t)
}

// wantListed checks that the list of a subscriber's deliveries in that status, or
// in any, has all events of these names.
func (f *fixture) wantListed(t *testing.T, d *running, role string, status gen.DeliveryStatus, names ...string) {
	t.Helper()
	path := "/api/v1/deliveries?size=100&subscriberUuid=" + f.Subscribers[role].UUID.String()
	if status != "" {
		path += "&status=" + string(status)
	}
	var page gen.DeliveryList
	d.read(t, path, &page)
	listed := map[string]bool{}
	for _, delivery := range page.Content {
		listed[delivery.EventID] = true
	}
	for id := range f.Events {
		name, _, _ := strings.Cut(id, "-")
		if slices.Contains(names, name) && !listed[id] {
			t.Errorf("%s is not in the list of its subscriber's deliveries %s", id, status)
		}
	}
}

// wantForgotten waits until nothing is noted any more as in flight in the daemon
// that was killed: its work was taken over, not just found to be lost.
func (f *fixture) wantForgotten(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	for _, k := range f.Keys {
		if strings.HasPrefix(k.Key, "sh:inflight:") {
			eventually(t, patience, k.Key+" is gone", func() bool { return client.Exists(t.Context(), k.Key).Val() == 0 })
		}
	}
}

// wantPosts checks how often each event came, by the name of its kind.
func (f *fixture) wantPosts(t *testing.T, e *endpoint, want map[string]int) {
	t.Helper()
	e.counts(t) // all were signed right
	for id := range f.Events {
		name, _, _ := strings.Cut(id, "-")
		n, ok := want[name]
		if _, posts := e.of(id); ok && posts != n {
			t.Errorf("%s: %d POSTs, want %d", id, posts, n)
		}
	}
}
