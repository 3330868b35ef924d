package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/redis/go-redis/v9"

	"spendhook/api/gen"
	"spendhook/auth"
	"spendhook/auth/clients"
	"spendhook/auth/keys"
	"spendhook/auth/tokens"
	"spendhook/console/session"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/internal/clientcert"
	"spendhook/internal/egress"
	"spendhook/internal/partition"
	"spendhook/internal/peer"
	"spendhook/internal/queues"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/storage"
	"spendhook/storage/importer"
	"spendhook/storage/storagetest"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
)

// twoCompanies is an API whose stores hold the data of two companies, acme and bolt.
type twoCompanies struct {
	*harness

	acme, bolt              *tenant
	mine, another, stranger *x509.Certificate // mine and another are of the trusted CA, stranger is not
	client                  redis.UniversalClient
	database                *sql.DB
	version                 any    // PRAGMA data_version at the last dump
	dump                    string // the last dump of the database
	signer                  *ecdsa.PrivateKey
	receiver                string
	later                   atomic.Bool // see now
}

// tenant is a company with one resource of each kind. Its texts begin with its name.
type tenant struct {
	name    string
	company uuid.UUID
	token   string            // with allScopes
	bound   string            // the same, bound to the certificate mine
	things  map[string]string // the values of {subscriber}, {card} and so on in a path or body
}

// fill puts the things into a path or a body.
func (c *tenant) fill(template string) string {
	for name, value := range c.things {
		template = strings.ReplaceAll(template, "{"+name+"}", value)
	}
	return template
}

// shownIn returns the names of the things whose values are in text and not in the request.
func (c *tenant) shownIn(text, request string) []string {
	var found []string
	for name, value := range c.things {
		if strings.Contains(text, value) && !strings.Contains(request, value) {
			found = append(found, name)
		}
	}
	return found
}

// now is the clock of the subscribers' store: the tenants were set up an hour ago, so their signing keys can be
// rotated.
func (w *twoCompanies) now() time.Time {
	if w.later.Load() {
		return time.Now()
	}
	return time.Now().Add(-time.Hour)
}

func setupTwo(t *testing.T) *twoCompanies {
	t.Helper()
	w := &twoCompanies{client: redistest.New(t), signer: newSigner(t)}
	ca := newCA(t)
	w.mine, w.another, w.stranger = clientCert(t, ca), clientCert(t, ca), clientCert(t, newCA(t))
	pool := ca.Pool()
	dir, keys := t.TempDir(), keysOf(t, w.signer)
	store := storagetest.Open(t, storage.Options{DataDir: dir, Timeout: patient})
	w.harness = setupOn(t, w.client, func(o *Options) {
		o.Keys, o.Verifier, o.Timeout = keys, verifierOf(keys), patient
		o.Peers = peer.New(peer.Options{Proxies: testProxies, Authorities: func() *x509.CertPool { return pool }, RefuseClear: true})
		o.CertificateRequired = certificateSwitches()
		o.EgressAddresses = func() []egress.Source { return []egress.Source{{Range: netip.MustParsePrefix("203.0.113.7/32")}} }
		o.Tokens = tokens.NewEndpoint(tokens.Options{Keys: keys, Clients: clients.NewStore(store, nil)})
		o.Subscribers = subscribers.NewStore(subscribers.StoreOptions{
			Client: w.client, Keyring: sealtest.Keyring(), Policy: callback.Policy{AllowHTTP: true}, Now: w.now,
		})
		*o = withSpend(store, *o)
	})
	w.keys = keys
	files, err := filepath.Glob(filepath.Join(dir, "*.db"))
	if err != nil || len(files) != 1 {
		t.Fatalf("databases %v, %v", files, err)
	}
	if w.database, err = sql.Open("sqlite", files[0]); err != nil {
		t.Fatal(err)
	}
	w.database.SetMaxOpenConns(1) // data_version is a connection's own
	t.Cleanup(func() { _ = w.database.Close() })
	w.receiver = answering(t, http.StatusTeapot).URL
	w.acme, w.bolt = w.tenant("acme", store), w.tenant("bolt", store)
	w.later.Store(true)
	w.certify(w.acme)
	client, _, err := w.options.Clients.Create(t.Context(), clients.Registration{Name: "acme's", Company: &w.acme.company, Scopes: []string{"events:read"}})
	if err != nil {
		t.Fatal(err)
	}
	w.acme.things["client"] = client.ID
	return w
}

// call is harness.call with the client certificate mine.
func (w *twoCompanies) call(method, target, body string, options ...option) answer {
	w.t.Helper()
	return w.harness.call(method, target, body, append([]option{withCert(w.mine)}, options...)...)
}

func newSigner(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// keysOf returns a Signer whose only key is key.
func keysOf(t *testing.T, key *ecdsa.PrivateKey) *keys.Signer {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := jwk.Import(key.Public())
	if err == nil {
		err = jwk.AssignKeyID(public)
	}
	if err != nil {
		t.Fatal(err)
	}
	id, _ := public.KeyID()
	sealed, err := sealtest.Keyring().Seal(der, "token key "+id)
	if err != nil {
		t.Fatal(err)
	}
	now := storage.At(time.Now())
	return openKeysIn(t, t.TempDir(), &memoryKeys{rows: []keys.Key{{ID: id, Sealed: sealed, CreatedAt: now, SignsFrom: now}}})
}

// tenant creates a company with its things, and waits until its background work has ended.
func (w *twoCompanies) tenant(name string, store *storage.DB) *tenant {
	w.t.Helper()
	c := &tenant{name: name, company: uuid.New()}
	c.token = w.mint(&c.company, allScopes)
	c.bound = w.bound(&c.company, w.mine)
	c.things = map[string]string{
		"company": c.company.String(), "name": name + "'s own", "callback": w.receiver + "/" + name, "event": name + "-event", "unwanted": name + "-unwanted",
	}
	for _, thing := range []string{"user", "card", "spareCard", "lastCard", "reimbursement", "location", "statement", "openStatement"} {
		c.things[thing] = uuid.NewString()
	}
	w.load(store, c)
	w.deliver(c)
	w.startJobs(c)
	c.things["consoleSession"] = w.consoleSession(c).String()
	return c
}

// callAs is call with the token of a company, whose things it puts into target and body.
func (w *twoCompanies) callAs(c *tenant, method, target, body string) answer {
	w.t.Helper()
	return w.call(method, c.fill(target), c.fill(body), bearer(c.token))
}

// deliver creates a subscriber, a dead letter, an event without a subscriber, and an entry of
// each kind in the quarantine.
func (w *twoCompanies) deliver(c *tenant) {
	w.t.Helper()
	sub := as[gen.SubscriberWithSecret](w.callAs(c, "POST", "/api/v1/subscribers", `{"name":"{name}","callbackUrl":"{callback}","events":["PAYMENT_PAID"]}`).want(http.StatusCreated))
	c.things["subscriber"], c.things["secret"] = sub.UUID.String(), sub.Secret
	c.things["delivery"] = c.fill("{event}.{subscriber}")
	w.callAs(c, "POST", "/api/v1/events", `{"id":"{event}","event":"PAYMENT_PAID","timestamp":"`+now()+`","metadata":{"of":"{name}"}}`).want(http.StatusAccepted)
	eventually(w.t, func() bool {
		a := w.callAs(c, "GET", "/api/v1/deliveries/{delivery}", "")
		return a.Code == http.StatusOK && as[gen.DeliveryDetail](a).Status == "DEAD"
	})
	w.callAs(c, "POST", "/api/v1/events", `{"id":"{unwanted}","event":"UNWANTED","timestamp":"`+now()+`","metadata":{"of":"{name}"}}`).want(http.StatusAccepted)
	eventually(w.t, func() bool {
		return as[gen.Event](w.callAs(c, "GET", "/api/v1/events/{unwanted}", "").want(http.StatusOK)).Status == gen.EventStatusNOSUBSCRIBER
	})
	w.quarantine(quarantine.Entry{Company: c.company, EventID: c.things["event"]})
	w.quarantine(quarantine.Entry{Company: c.company, EventID: c.things["event"], Subscriber: &sub.UUID})
	other := uuid.New() // the subscriber of a delivery without an attempt in flight
	c.things["quarantined"] = c.things["event"] + "." + other.String()
	w.quarantine(quarantine.Entry{Company: c.company, EventID: c.things["event"], Subscriber: &other})
}

// startJobs creates a job of each kind, and one that stays QUEUED.
func (w *twoCompanies) startJobs(c *tenant) {
	w.t.Helper()
	job := as[gen.Job](w.callAs(c, "POST", "/api/v1/subscribers/{subscriber}/recover", `{"since":"2026-01-01T00:00:00Z","dryRun":true}`).want(http.StatusAccepted))
	c.things["recoverJob"] = job.UUID.String()
	eventually(w.t, func() bool {
		return as[gen.Job](w.callAs(c, "GET", "/api/v1/jobs/{recoverJob}", "")).Status == "COMPLETED"
	})
	more := as[gen.Job](w.callAs(c, "POST", "/api/v1/deliveries/retry", `{"dryRun":true,"subscriberUuid":"{subscriber}"}`).want(http.StatusOK))
	c.things["job"] = more.UUID.String()
	eventually(w.t, func() bool { // a job stays due while it rests
		due, err := w.client.ZRange(w.t.Context(), queues.DueKey(partition.Of(c.company)), 0, -1).Result()
		return err == nil && !slices.ContainsFunc(due, func(entry string) bool { return strings.HasPrefix(entry, "j:"+c.company.String()) })
	})
	// This job is in no queue. No replica runs it, so it stays QUEUED.
	c.things["waitingJob"] = uuid.NewString()
	text := `{"uuid":"` + c.things["waitingJob"] + `","company":"` + c.company.String() + `","kind":"RETRY","status":"QUEUED","examined":0,"changed":0,"createdAt":"` + now() + `","updatedAt":"` + now() + `"}`
	if err := w.client.HSet(w.t.Context(), partition.Key(c.company, "jobs:"+c.company.String()), c.things["waitingJob"], text).Err(); err != nil {
		w.t.Fatal(err)
	}
	cards := as[gen.CardJob](w.callAs(c, "POST", "/api/v3/cards/bulk-create", `{"cardsRequests":[`+newCard+`]}`).want(http.StatusAccepted))
	c.things["cardJob"] = cards.UUID.String()
}

// consoleSession opens a console session of the company and returns its id.
func (w *twoCompanies) consoleSession(c *tenant) uuid.UUID {
	w.t.Helper()
	made := as[gen.ConsoleLink](w.call("POST", "/api/v1/console-links", "", bearer(c.token)).want(http.StatusCreated))
	_, secret, _ := strings.Cut(made.URL, "?link=")
	opened, _, err := w.options.Sessions.Open(w.t.Context(), secret, session.Visitor{})
	if err != nil {
		w.t.Fatal(err)
	}
	return opened.ID
}

// quarantine adds an entry.
func (w *twoCompanies) quarantine(e quarantine.Entry) {
	w.t.Helper()
	err := w.client.ZAdd(w.t.Context(), quarantine.Key(partition.Of(e.Company)), redis.Z{Score: 1795201200000, Member: e.Member()}).Err()
	if err != nil {
		w.t.Fatal(err)
	}
}

const newCertificate = `{"certificateChain":"{chain}","privateKey":"{key}"}`

// certify sets an egress certificate for the company, and reads one of its signing keys.
func (w *twoCompanies) certify(c *tenant) {
	w.t.Helper()
	_, pair := certificateBody(w.t, c.name)
	escape := strings.NewReplacer("\n", `\n`)
	c.things["chain"], c.things["key"] = escape.Replace(string(pair.Cert)), escape.Replace(string(pair.Key))
	w.callAs(c, "PUT", "/api/v1/egress-certificate", newCertificate).want(http.StatusOK)
	w.callAs(c, "PUT", "/api/v1/subscribers/{subscriber}/egress-certificate", newCertificate).want(http.StatusOK)
	c.things["webhookKey"] = as[gen.CompanyKeys](w.callAs(c, "GET", "/api/v1/webhook-keys", "").want(http.StatusOK)).Keys[0].Kid
}

// bound is a token of the company, with allScopes, that only cert may use.
func (w *twoCompanies) bound(company *uuid.UUID, cert *x509.Certificate) string {
	w.t.Helper()
	token, err := auth.Mint(w.keys, auth.Grant{
		Subject: "test", Company: company, Scopes: strings.Fields(allScopes), TTL: time.Hour, Thumbprint: clientcert.Thumbprint(cert),
	}, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	return token
}

const newCard = `{"type":"VIRTUAL","alias":"{name}","userUuid":"{user}"}`

func (w *twoCompanies) load(store *storage.DB, c *tenant) {
	w.t.Helper()
	lines := []string{
		`{"kind":"company","uuid":"{company}","name":"{name}","currency":"EUR","creditLimit":1000}`,
		`{"kind":"user","uuid":"{user}","companyUuid":"{company}","username":"{name}","name":"{name}"}`,
		`{"kind":"location","uuid":"{location}","companyUuid":"{company}","name":"{name}","code":"C","status":"ACTIVE"}`,
		`{"kind":"reimbursement","uuid":"{reimbursement}","companyUuid":"{company}","description":"{name}",` +
			`"audit":{"requestCreationDate":"2026-01-01","lastUpdateDate":"2026-06-01"},"requester":{"uuid":"{user}"},` +
			`"amountValue":{"currency":"EUR","amount":1},"validationStatus":{"status":"PENDING"}}`,
		statement("{statement}", 7, "CLOSED"), statement("{openStatement}", 8, "OPEN"),
		card("{card}"), card("{spareCard}"), card("{lastCard}"),
	}
	in := importer.Importer{DB: store, Refused: func(r importer.Refusal) { w.t.Errorf("refused: %+v", r) }}
	if _, err := in.Run(context.Background(), strings.NewReader(c.fill(strings.Join(lines, "\n")))); err != nil {
		w.t.Fatal(err)
	}
}

func card(id string) string {
	return `{"kind":"card","uuid":"` + id + `","companyUuid":"{company}","holderUuid":"{user}","lastFour":"1234",` +
		`"type":"MASTER_VIRTUAL","status":"ACTIVE","name":"{name}","issuedAt":"2026-07-01T10:00:00Z"}`
}

func statement(id string, month int, status string) string {
	return fmt.Sprintf(`{"kind":"statement","statementUuid":"%s","companyUuid":"{company}","month":%d,"year":2026,`+
		`"status":"%s","totalAmount":1,"currency":"EUR","closingDate":"2026-08-31"}`, id, month, status)
}

// state dumps Redis and the database, without heartbeats, clocks and messages between processes.
func (w *twoCompanies) state() string {
	w.t.Helper()
	return w.redisState() + w.databaseState()
}

func (w *twoCompanies) redisState() string {
	w.t.Helper()
	keys, err := w.client.Keys(context.Background(), "sh:*").Result()
	if err != nil {
		w.t.Fatal(err)
	}
	keys = slices.DeleteFunc(keys, func(key string) bool {
		heartbeats := strings.HasSuffix(key, "}:replicas") || strings.HasSuffix(key, "}:clock")
		usedLinks := strings.HasPrefix(key, "sh:{console}:taken:") // they expire within the minute
		return heartbeats || usedLinks || !strings.HasPrefix(key, "sh:{")
	})
	slices.Sort(keys)
	dumps := make([]*redis.StringCmd, len(keys))
	_, err = w.client.Pipelined(context.Background(), func(p redis.Pipeliner) error {
		for i, key := range keys {
			dumps[i] = p.Dump(context.Background(), key)
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) { // a key that expired meanwhile
		w.t.Fatal(err)
	}
	var all strings.Builder
	for i, key := range keys {
		fmt.Fprintf(&all, "%s %q\n", key, dumps[i].Val())
	}
	return all.String()
}

// databaseState dumps all tables. It returns the last dump if nothing was written since.
func (w *twoCompanies) databaseState() string {
	w.t.Helper()
	version := rows(w.t, w.database, "PRAGMA data_version")[0][0]
	if version == w.version {
		return w.dump
	}
	var all strings.Builder
	for _, table := range rows(w.t, w.database, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'") {
		fmt.Fprintf(&all, "%s %q\n", table[0], rows(w.t, w.database, fmt.Sprint("SELECT * FROM ", table[0])))
	}
	w.version, w.dump = version, all.String()
	return w.dump
}

func rows(t *testing.T, db *sql.DB, query string) (all [][]any) {
	t.Helper()
	found, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	names, err := found.Columns()
	for err == nil && found.Next() {
		row, into := make([]any, len(names)), make([]any, len(names))
		for i := range row {
			into[i] = &row[i]
		}
		err = found.Scan(into...)
		all = append(all, row)
	}
	if err := errors.Join(err, found.Err()); err != nil {
		t.Fatal(err)
	}
	return all
}

// naming returns the JSON object body with companyUuid added.
func naming(company uuid.UUID, body string) string {
	if body == "" {
		body = "{}"
	}
	members := map[string]any{}
	if err := json.Unmarshal([]byte(body), &members); err != nil {
		panic(err)
	}
	members["companyUuid"] = company
	text, err := json.Marshal(members)
	if err != nil {
		panic(err)
	}
	return string(text)
}
