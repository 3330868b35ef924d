package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/internal/idempotency"
	"spendhook/internal/peer"
	"spendhook/internal/redistest"
	"spendhook/internal/requestmemory"
	"spendhook/internal/seal/sealtest"
	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/importer"
	"spendhook/storage/storagetest"
)

// suite is tests of the spend API by name: the section of the interface
// specification and its table row or example.
type suite map[string]func(*spendHarness)

// TestSpend runs every suite on both databases.
func TestSpend(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		runSuites(t, func(t *testing.T) storage.Options { t.Helper(); return storage.Options{} })
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		runSuites(t, func(t *testing.T) storage.Options { t.Helper(); return storage.Options{URL: storagetest.Postgres(t)} })
	})
}

// patient is for machines that are busy with other tests.
const patient = 2 * time.Minute

// runSuites runs the tests of all suites in parallel on one database, except those that process jobs,
// because a worker takes the items of any job.
func runSuites(t *testing.T, options func(*testing.T) storage.Options) {
	t.Helper()
	open := func(t *testing.T) *storage.DB { t.Helper(); return storagetest.Open(t, options(t)) }
	store := open(t)
	for _, s := range []suite{cardTests, cardInputTests, cardJobTests, reimbursementTests, locationTests, companyTests, statementTests, creationCrashTests} {
		for name, test := range s {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(spendSetup(t, store))
			})
		}
	}
	for name, test := range cardWorkTests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(spendSetup(t, open(t)))
		})
	}
}

// spendHarness is the spend API with two companies of its own: the token's (EUR,
// limit 1,000.00) with the users ann (ERP-1) and the inactive ivo, and bolt
// (JPY, limit 50,000) with bo.
type spendHarness struct {
	*harness
	db                 *storage.DB
	store              *cards.Store
	jobs               *atomic.Int64
	bolt, ann, ivo, bo uuid.UUID
	boltToken          string
}

func spendSetup(t *testing.T, db *storage.DB) *spendHarness {
	t.Helper()
	h := &spendHarness{
		harness: &harness{t: t, company: uuid.New(), seen: &transcript{}}, db: db, store: cards.New(db, nil), jobs: &atomic.Int64{},
		bolt: uuid.New(), ann: uuid.New(), ivo: uuid.New(), bo: uuid.New(),
	}
	h.keys = newKeys(t)
	var err error
	h.options = withSpend(db, Options{
		Idempotency: idempotency.New(redistest.New(t), sealtest.Keyring(), nil), Timeout: patient, StoreTimeout: patient,
		Keys: h.keys, Verifier: verifierOf(h.keys), Logger: slog.New(slog.NewTextHandler(h.seen, nil)),
		Peers: peer.New(peer.Options{}), Bodies: requestmemory.NewBodies(nil, nil),
	})
	h.options.CardJobs = counting{submitter{h.options.Cards}, h.jobs}
	if h.handler, err = New(h.options); err != nil {
		t.Fatal(err)
	}
	h.token, h.boltToken = h.mint(&h.company, allScopes), h.mint(&h.bolt, allScopes)
	h.load(
		`{"kind":"company","uuid":"%s","name":"Acme","currency":"EUR","creditLimit":1000.00}`, h.company,
		`{"kind":"company","uuid":"%s","name":"Bolt","currency":"JPY","creditLimit":50000}`, h.bolt,
		`{"kind":"user","uuid":"%s","companyUuid":"%s","username":"ann","name":"Ánn Mûller","erpId":"ERP-1"}`, h.ann, h.company,
		`{"kind":"user","uuid":"%s","companyUuid":"%s","username":"ivo","name":"Ivo","erpId":"ERP-2","active":false}`, h.ivo, h.company,
		`{"kind":"user","uuid":"%s","companyUuid":"%s","username":"bo","name":"Bo","erpId":"ERP-1"}`, h.bo, h.bolt,
	)
	return h
}

// counting counts the bulk creations that were stored.
type counting struct {
	submitter
	jobs *atomic.Int64
}

func (c counting) Submit(ctx context.Context, company uuid.UUID, requests []cards.Request, once cards.Once) (cards.Job, error) {
	job, err := c.submitter.Submit(ctx, company, requests, once)
	if err == nil {
		c.jobs.Add(1)
	}
	return job, err
}

// load imports lines; each is a format followed by its arguments.
func (h *spendHarness) load(parts ...any) {
	h.t.Helper()
	var lines []string
	for len(parts) > 0 {
		format := parts[0].(string)
		n := strings.Count(format, "%")
		lines = append(lines, fmt.Sprintf(format, parts[1:1+n]...))
		parts = parts[1+n:]
	}
	in := importer.Importer{DB: h.db, Refused: func(r importer.Refusal) { h.t.Errorf("refused: %+v", r) }}
	if _, err := in.Run(context.Background(), strings.NewReader(strings.Join(lines, "\n"))); err != nil {
		h.t.Fatal(err)
	}
}

// card imports a card of ann with the given members beside the usual ones.
func (h *spendHarness) card(members string) uuid.UUID {
	h.t.Helper()
	id := uuid.New()
	h.loadCard(id, h.company, h.ann, members)
	return id
}

func (h *spendHarness) loadCard(id, company, holder uuid.UUID, members string) {
	h.t.Helper()
	card := map[string]any{
		"kind": "card", "uuid": id, "companyUuid": company, "holderUuid": holder, "lastFour": "1234",
		"type": "MASTER_VIRTUAL", "status": "ACTIVE", "name": "Card", "issuedAt": "2026-07-01T10:00:00Z",
	}
	if err := json.Unmarshal([]byte("{"+members+"}"), &card); err != nil {
		h.t.Fatal(err)
	}
	text, err := json.Marshal(card)
	if err != nil {
		h.t.Fatal(err)
	}
	h.load(strings.ReplaceAll(string(text), "%", ""))
}

// state is all that requests could have changed.
func (h *spendHarness) state() string {
	h.t.Helper()
	parts := []any{h.jobs.Load(), "jobs"}
	for _, company := range []uuid.UUID{h.company, h.bolt} {
		list, total, err := h.store.Cards(context.Background(), cards.Filter{Company: &company, Page: storage.Page{Size: 100}})
		if err != nil {
			h.t.Fatal(err)
		}
		shown, err := json.Marshal(list)
		if err != nil {
			h.t.Fatal(err)
		}
		parts = append(parts, total, "cards", string(shown))
	}
	return fmt.Sprintln(parts...)
}

// unchanged fails the test when do changes anything.
func (h *spendHarness) unchanged(what string, do func()) {
	h.t.Helper()
	before := h.state()
	do()
	if after := h.state(); after != before {
		h.t.Errorf("%s has changed\n%s\nto\n%s", what, before, after)
	}
}

// members are the sorted names of the object's members.
func members(t *testing.T, object []byte) string {
	t.Helper()
	var all map[string]jsontext.Value
	if err := json.Unmarshal(object, &all); err != nil {
		t.Fatalf("%v: %s", err, object)
	}
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// elements are those of an array that was answered.
func elements(a answer) []jsontext.Value { return as[[]jsontext.Value](a.want(http.StatusOK)) }

// uuidsOf are those of the objects, in order.
func uuidsOf(t *testing.T, objects []jsontext.Value) []uuid.UUID {
	t.Helper()
	ids := make([]uuid.UUID, len(objects))
	for i, text := range objects {
		var object struct{ UUID uuid.UUID }
		if err := json.Unmarshal(text, &object, json.MatchCaseInsensitiveNames(true)); err != nil {
			t.Fatal(err)
		}
		ids[i] = object.UUID
	}
	return ids
}
