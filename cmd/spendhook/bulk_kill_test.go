package main

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/internal/redistest"
	"spendhook/storage"
	"spendhook/storage/cards"
)

const (
	bulkItems = 500
	doomEvery = 10 // each tenth item must fail

	// eventsPerKill is small, so that items are left for the later kills even when the daemon
	// finished more items than it reported.
	eventsPerKill = 10
)

// bulkRequest requests cards for Ann. The items that must fail have, in turn, an unknown user
// and a threshold above the company's limit.
func bulkRequest() string {
	items := make([]string, bulkItems)
	for i := range items {
		user, threshold := annUUID, 100
		switch {
		case i%(2*doomEvery) == 0:
			user = cardUUID // is no user
		case i%doomEvery == 0:
			threshold = 1001
		}
		items[i] = fmt.Sprintf(`{"type":"VIRTUAL","alias":"card %d","userUuid":"%s","threshold":%d}`, i, user, threshold)
	}
	return `{"cardsRequests":[` + strings.Join(items, ",") + `]}`
}

func doomOf(index int) string {
	switch {
	case index%(2*doomEvery) == 0:
		return "USER_NOT_FOUND"
	case index%doomEvery == 0:
		return "THRESHOLD_EXCEEDS_LIMIT"
	}
	return ""
}

// killer kills the daemon as soon as the subscriber has received a number of events.
type killer struct {
	mu     sync.Mutex
	seen   map[string]bool
	at     int // 0: never
	victim *running
}

func (k *killer) answer(id string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen[id] = true
	if k.at > 0 && len(k.seen) >= k.at {
		k.at = 0
		k.victim.signal(syscall.SIGKILL)
	}
	return http.StatusNoContent
}

// aim makes the killer kill the victim after that many more events.
func (k *killer) aim(victim *running, more int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.victim, k.at = victim, len(k.seen)+more
}

// The daemon is killed up to five times during a bulk creation of 500 items, of which 50 must
// fail. The result is 450 cards, one event for each item, and a job with these counts.
func TestKilledBulkMakesEachCardOnce(t *testing.T) {
	t.Parallel()
	killBulk(t, "")
}

// killBulk runs the test on the database of a URL; "" means SQLite.
func killBulk(t *testing.T, database string) {
	t.Helper()
	h := newInstallation(t, redistest.Start(t, redistest.Options{AOF: true}).URL(), quickRetries)
	h.database = database
	h.importData(t, strings.Join(strings.SplitAfter(spendLines(), "\n")[:2], ""), "-").want(t, exitOK, "imported 2", "")
	d := h.startChild(t)
	k := &killer{seen: map[string]bool{}}
	e := newEndpoint(t, k.answer)
	e.subscribe(t, d, "CARD_CREATION_REQUEST_CREATED", "CARD_CREATION_REQUEST_ERROR")
	status, header, body := d.do(t, http.MethodPost, "/api/v3/cards/bulk-create", bulkRequest())
	if status != http.StatusAccepted {
		t.Fatalf("%d %s", status, body)
	}
	path := header.Get("Location")
	k.aim(d, eventsPerKill)
	for kill := range 5 {
		d.ended(t)
		job := h.job(t, path)
		t.Logf("kill %d: %s, %d of %d items done", kill+1, job.Status, job.Succeeded+job.Failed, job.Total)
		done := job.Status != cards.JobRunning
		if done && kill < 2 {
			t.Fatalf("kill %d came when the job was %s: it proves little", kill+1, job.Status)
		}
		d = h.beginChild(t)
		if done {
			break
		}
		if kill < 4 {
			k.aim(d, eventsPerKill)
		}
	}
	d.await(t)
	e.awaits(t, bulkItems)
	wantNothingPending(t, d)
	wantBulkDone(t, d, e, path)
	d.stop(t)
}

// job reads the job of a killed daemon from its database.
func (h installation) job(t *testing.T, path string) cards.Job {
	t.Helper()
	store, err := storage.Open(storage.Options{URL: h.database, DataDir: h.dir, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	job, err := cards.New(store, nil).CardJob(t.Context(), developerCompany, uuid.MustParse(path[strings.LastIndex(path, "/")+1:]))
	if err != nil {
		t.Fatal(err)
	}
	return job
}

func wantBulkDone(t *testing.T, d *running, e *endpoint, path string) {
	t.Helper()
	var job gen.CardJob
	d.read(t, path, &job)
	bad := bulkItems / doomEvery
	if job.Status != gen.CardJobStatusCOMPLETED || job.Total != bulkItems || job.Succeeded != bulkItems-bad || job.Failed != bad || job.FinishedAt == nil {
		t.Errorf("the job: %s, %d succeeded and %d failed of %d", job.Status, job.Succeeded, job.Failed, job.Total)
	}
	told := e.outcomes(t)
	if len(told) != bulkItems {
		t.Errorf("%d events came, want %d", len(told), bulkItems)
	}
	made := map[uuid.UUID]bool{}
	for i, item := range job.Items {
		if item.ErrorCode != doomOf(i) || (item.CardUUID == nil) != (item.ErrorCode != "") {
			t.Errorf("item %d: %+v", i, item)
		}
		if item.CardUUID != nil {
			made[*item.CardUUID] = true
		}
		if got, want := told[item.RequestUUID], outcomeOf(&job, &item); got != want {
			t.Errorf("item %d was told as %+v, want %+v", i, got, want)
		}
	}
	if cards := allCards(t, d); !maps.Equal(cards, made) || len(made) != bulkItems-bad {
		t.Errorf("there are %d cards, and the job made %d, want %d", len(cards), len(made), bulkItems-bad)
	}
	_, repeated, posts := e.counts(t)
	t.Logf("%d events came more than once, in %d POSTs", repeated, posts)
}

// outcome is the content of an event about an item.
type outcome struct {
	event, errorCode string
	job              uuid.UUID
	index            int
	card             uuid.UUID
}

func outcomeOf(job *gen.CardJob, item *gen.CardJobItem) outcome {
	o := outcome{event: "CARD_CREATION_REQUEST_CREATED", errorCode: item.ErrorCode, job: job.UUID, index: item.Index}
	if item.CardUUID == nil {
		o.event = "CARD_CREATION_REQUEST_ERROR"
	} else {
		o.card = *item.CardUUID
	}
	return o
}

// outcomes are the events that came, by request; a second event about a request
// fails the test.
func (e *endpoint) outcomes(t *testing.T) map[uuid.UUID]outcome {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	told := map[uuid.UUID]outcome{}
	for id, body := range e.bodies {
		var event struct {
			Event     string `json:"event"`
			ErrorCode string `json:"errorCode"`
			Metadata  struct {
				RequestUUID uuid.UUID `json:"requestUuid"`
				JobUUID     uuid.UUID `json:"jobUuid"`
				Index       int       `json:"index"`
				CardUUID    uuid.UUID `json:"cardUuid"`
			} `json:"metadata"`
		}
		if err := json.Unmarshal([]byte(body), &event); err != nil {
			t.Fatal(err)
		}
		m := event.Metadata
		if _, twice := told[m.RequestUUID]; twice {
			t.Errorf("a second event, %s, about request %s", id, m.RequestUUID)
		}
		told[m.RequestUUID] = outcome{event.Event, event.ErrorCode, m.JobUUID, m.Index, m.CardUUID}
	}
	return told
}

// allCards reads every page of the company's cards.
func allCards(t *testing.T, d *running) map[uuid.UUID]bool {
	t.Helper()
	cards := map[uuid.UUID]bool{}
	for page := 0; ; page++ {
		var list []gen.CardItem
		d.read(t, fmt.Sprintf("/api/v3/cards?size=100&page=%d", page), &list)
		for _, card := range list {
			if cards[card.UUID] || card.HolderUUID.String() != annUUID {
				t.Errorf("%+v is listed twice, or another's", card)
			}
			cards[card.UUID] = true
		}
		if len(list) < 100 {
			return cards
		}
	}
}
