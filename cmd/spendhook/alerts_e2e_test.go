//go:build alerts

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/api/gen"
	"spendhook/internal/child"
	"spendhook/internal/devca"
	"spendhook/internal/partition"
	"spendhook/internal/pgtest"
	"spendhook/internal/porttest"
	"spendhook/internal/redistest"
)

const (
	// shortenedBy divides every duration of the rules, so that minutes become seconds. Range
	// windows still cover several scrapes, and waits still outlast a takeover.
	shortenedBy = 20
	scrapeEvery = "1s"
	// alertPatience is a time-out for steps that take some minutes on an idle machine.
	alertPatience = 8 * time.Minute
	// After the expected alert, other alerts are looked for during lookOn seconds. Where no
	// alert is expected, lookFor seconds are longer than any alert waits.
	lookOn, lookFor = 5.0, 40.0
)

// monitoring is a Prometheus with the shipped rules, shortened, and an Alertmanager
// with the shipped inhibition rules, for some daemons. Both end with the test.
type monitoring struct {
	dir                      string
	prometheus, alertmanager string // base addresses
}

func startMonitoring(t *testing.T, daemons ...*running) *monitoring {
	t.Helper()
	m := &monitoring{dir: t.TempDir()}
	for _, file := range []string{"rules.yaml", "alerts.yaml"} {
		m.write(t, file, shorten(readText(t, filepath.Join(monitoringDir, file))))
	}
	routes := regexp.MustCompile(`(group_wait|group_interval): \S+`).ReplaceAllString(readText(t, filepath.Join(monitoringDir, "alertmanager.yml")), "$1: 1s")
	m.write(t, "alertmanager.yml", routes)
	manager := freeAddress(t)
	m.alertmanager = "http://" + manager
	m.aim(t, daemons...)
	m.write(t, "prometheus.yml", fmt.Sprintf(`
global: {scrape_interval: %[1]s, scrape_timeout: %[1]s, evaluation_interval: %[1]s}
rule_files: [rules.yaml, alerts.yaml]
alerting: {alertmanagers: [{static_configs: [{targets: ['%[2]s']}]}]}
scrape_configs:
- {job_name: spendhook, file_sd_configs: [{files: [targets.json], refresh_interval: 1s}]}
- {job_name: spendhook-relay, file_sd_configs: [{files: [relays.json], refresh_interval: 1s}]}
`, scrapeEvery, manager))
	prometheus := freeAddress(t)
	m.prometheus = "http://" + prometheus
	m.start(t, alertmanagerBinary(), "--config.file=alertmanager.yml", "--storage.path=am", "--web.listen-address="+manager, "--cluster.listen-address=", "--log.level=error")
	m.start(t, "prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb", "--web.listen-address="+prometheus, "--rules.alert.resend-delay=1s", "--log.level=error")
	return m
}

// shorten divides the durations of rules.
func shorten(rules string) string {
	duration := regexp.MustCompile(`(for: |\[|offset )(\d+)([smhd])`)
	units := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
	return duration.ReplaceAllStringFunc(rules, func(text string) string {
		m := duration.FindStringSubmatch(text)
		n, _ := strconv.Atoi(m[2])
		return m[1] + strconv.FormatInt((time.Duration(n)*units[m[3]]/shortenedBy).Milliseconds(), 10) + "ms"
	})
}

func (m *monitoring) write(t *testing.T, name, text string) {
	t.Helper()
	temp := filepath.Join(m.dir, name+".new")
	err := os.WriteFile(temp, []byte(text), 0o600)
	if err = errors.Join(err, os.Rename(temp, filepath.Join(m.dir, name))); err != nil {
		t.Fatal(err)
	}
}

func (m *monitoring) start(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), name, args...)
	out := &lockedBuffer{}
	cmd.Dir, cmd.Stdout, cmd.Stderr = m.dir, out, out
	p, err := child.Start(cmd)
	if err != nil {
		t.Fatalf("%v (scripts/ensure prometheus installs it)", err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s:\n%s", name, out)
		}
	})
}

// alertmanagerBinary returns the program's name, which differs in Debian.
func alertmanagerBinary() string {
	if _, err := exec.LookPath("prometheus-alertmanager"); err == nil {
		return "prometheus-alertmanager"
	}
	return "alertmanager"
}

// freeAddress returns an address on which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	return "127.0.0.1:" + strconv.Itoa(porttest.Free(t))
}

// aim makes Prometheus scrape these daemons and no others.
func (m *monitoring) aim(t *testing.T, daemons ...*running) {
	t.Helper()
	m.target(t, "targets.json", daemons...)
}

func (m *monitoring) target(t *testing.T, file string, daemons ...*running) {
	t.Helper()
	targets := []string{}
	for _, d := range daemons {
		targets = append(targets, strings.TrimPrefix(d.admin, "http://"))
	}
	text, _ := json.Marshal([]map[string]any{{"targets": targets}})
	m.write(t, file, string(text))
}

// ask reads an answer of Prometheus or Alertmanager. It returns false without an answer.
func (m *monitoring) ask(t *testing.T, address string, into any) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK && json.UnmarshalRead(resp.Body, into) == nil
}

// value returns the first value of a query's result, and false if there is none.
func (m *monitoring) value(t *testing.T, query string) (float64, bool) {
	t.Helper()
	var answer struct {
		Data struct {
			Result []struct {
				Value [2]any `json:"value"`
			} `json:"result"`
		} `json:"data"`
	}
	if !m.ask(t, m.prometheus+"/api/v1/query?query="+url.QueryEscape(query), &answer) || len(answer.Data.Result) == 0 {
		return 0, false
	}
	text, _ := answer.Data.Result[0].Value[1].(string)
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil
}

func (m *monitoring) is(t *testing.T, query string, want float64) bool {
	t.Helper()
	got, ok := m.value(t, query)
	return ok && got == want
}

// told returns the active alerts of Alertmanager by name; with inhibited, also the inhibited
// ones.
func (m *monitoring) told(t *testing.T, inhibited bool) (map[string]string, bool) {
	t.Helper()
	var alerts []struct {
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	}
	if !m.ask(t, fmt.Sprintf("%s/api/v2/alerts?active=true&silenced=false&inhibited=%t", m.alertmanager, inhibited), &alerts) {
		return nil, false
	}
	told := map[string]string{}
	for _, a := range alerts {
		told[a.Labels["alertname"]] = a.Annotations["summary"] + " " + a.Annotations["runbook_url"]
	}
	return told, true
}

// quiet waits until all daemons are scraped and healthy, and no alert is active or was active
// in the last seconds: Prometheus tells Alertmanager of an alert a moment after it fires.
func (m *monitoring) quiet(t *testing.T, seen map[string]string, daemons int) {
	t.Helper()
	var last map[string]string
	defer func() {
		if t.Failed() {
			t.Logf("still there: %v", last)
		}
	}()
	eventually(t, alertPatience, "no alert is left", func() bool {
		told, ok := m.told(t, false)
		if seen != nil {
			maps.Copy(seen, told)
		}
		var all bool
		last, all = m.told(t, true)
		delete(last, "SpendhookSLOBurnSlow") // it looks back for three days
		return ok && all && len(last) == 0 && m.is(t, `sum(up{job="spendhook"})`, float64(daemons)) &&
			m.is(t, "sum(spendhook_partitions_owned)", partition.Count) &&
			m.is(t, `absent(max_over_time(ALERTS{alertname!="SpendhookSLOBurnSlow",alertstate="firing"}[3s]))`, 1)
	})
}

// site is a monitored deployment in which a drill makes an outage.
type site struct {
	*monitoring
	t       *testing.T
	server  *redistest.Server
	in      installation
	daemons []*running
	traffic steadyEvents
	company uuid.UUID // of the receivers
}

// drill is an outage that a test begins and ends. alert is the expected alert, "" for none.
type drill struct {
	name, alert string
	besides     string // an alert that may fire as well
	settings    string
	redis       redistest.Options
	replicas    int // 1
	flags       func(s *site) []string
	database    func(s *site) string
	begin       func(s *site) (end func())
}

// TestAlertsOfOutages makes each outage under a real Prometheus and Alertmanager. After
// inhibition, exactly the alert of the cause fires; the alerts of burnt error budgets may
// fire as well. No alert is left after the outage. Every query of the dashboards has a result
// at some moment of at least one outage.
func TestAlertsOfOutages(t *testing.T) {
	var mu sync.Mutex
	unanswered := dashboardQueries(t)
	table := map[string]string{}
	t.Run("outages", func(t *testing.T) {
		for _, o := range outages() {
			t.Run(o.name, func(t *testing.T) {
				t.Parallel()
				seen := o.run(t, func(m *monitoring) {
					mu.Lock()
					defer mu.Unlock()
					maps.DeleteFunc(unanswered, func(query string, _ bool) bool {
						_, ok := m.value(t, fmt.Sprintf("last_over_time((%s)[10m:2s])", query))
						return ok
					})
				})
				mu.Lock()
				defer mu.Unlock()
				table[o.name] = strings.Join(slices.Sorted(maps.Keys(seen)), ", ")
			})
		}
	})
	if len(table) == len(outages()) {
		for query := range unanswered {
			t.Errorf("a dashboard query has no result in any outage: %s", query)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		t.Logf("%-44s %s", name, table[name])
	}
}

// dashboardQueries are the queries of all dashboards.
func dashboardQueries(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(monitoringDir, "dashboards", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatal(err, len(files))
	}
	queries := map[string]bool{}
	for _, file := range files {
		for _, m := range regexp.MustCompile(`"expr": ("(?:[^"\\]|\\.)*")`).FindAllStringSubmatch(readText(t, file), -1) {
			var query string
			if err := json.Unmarshal([]byte(m[1]), &query); err != nil {
				t.Fatal(err)
			}
			queries[strings.ReplaceAll(query, "$__rate_interval", "10s")] = true
		}
	}
	return queries
}

// run makes the outage and ends it, calls after, and returns the alerts that fired.
func (o drill) run(t *testing.T, after func(*monitoring)) map[string]string {
	t.Helper()
	s := &site{t: t, server: redistest.Start(t, o.redis)}
	s.in = newInstallation(t, s.server.URL(), o.settings)
	if o.database != nil {
		s.in.database = o.database(s)
	}
	var flags []string
	if o.flags != nil {
		flags = o.flags(s)
	}
	for i := range max(o.replicas, 1) {
		in := s.in
		if i > 0 { // a replica has a directory of its own
			in = newInstallation(t, s.server.URL(), o.settings)
			in.database = s.in.database
		}
		if o.replicas > 1 {
			s.daemons = append(s.daemons, in.startChild(t))
		} else {
			s.daemons = append(s.daemons, in.start(t, flags...))
		}
	}
	s.monitoring = startMonitoring(t, s.daemons...)
	s.quiet(t, nil, len(s.daemons))
	seen := map[string]string{}
	end := o.begin(s)
	o.await(s, seen)
	if end != nil {
		end()
	}
	s.quiet(t, seen, len(s.daemons))
	after(s.monitoring)
	s.traffic.end()
	for name := range seen {
		if name != o.alert && name != o.besides && !strings.HasPrefix(name, "SpendhookSLOBurn") {
			t.Errorf("%s was told as well: %s", name, seen[name])
		}
	}
	return seen
}

// await waits until the alert fires with its summary and runbook. Then it looks for other
// alerts for a while.
func (o drill) await(s *site, seen map[string]string) {
	t := s.t
	t.Helper()
	look := func() map[string]string {
		told, _ := s.told(t, false)
		maps.Copy(seen, told)
		return told
	}
	if o.alert != "" {
		eventually(t, alertPatience, o.alert+" fires", func() bool { return look()[o.alert] != "" })
		if text := seen[o.alert]; !strings.HasSuffix(text, "/docs/runbooks/"+o.alert+".md") || strings.Contains(text, "no value") || strings.Contains(text, "<error") {
			t.Errorf("%s says %q", o.alert, text)
		}
	}
	from, until := 0.0, lookOn
	if o.alert == "" {
		until = lookFor
	}
	eventually(t, alertPatience, "it was looked at for a while", func() bool {
		look()
		now, ok := s.value(t, "vector(time())")
		if ok && from == 0 {
			from = now
		}
		return ok && now-from >= until
	})
}

// steadyEvents posts events until it is stopped, whatever the answers are.
type steadyEvents struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	n      atomic.Int64
}

// emit posts an event to a daemon, again and again.
func (s *site) emit(d *running) {
	ctx, cancel := context.WithCancel(context.Background())
	s.traffic.cancel = cancel
	s.t.Cleanup(s.traffic.end)
	api, token := d.api, d.token
	s.traffic.done.Go(func() {
		client := &http.Client{Timeout: 5 * time.Second}
		defer client.CloseIdleConnections()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			body := fmt.Sprintf(`{"id":"e-%d","event":"PAYMENT_PAID","timestamp":%d}`, s.traffic.n.Add(1), time.Now().UnixMilli())
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, api+"/api/v1/events", strings.NewReader(body))
			req.Header.Set("Authorization", "Bearer "+token)
			req.Header.Set("Content-Type", "application/json")
			if resp, err := client.Do(req); err == nil {
				resp.Body.Close()
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
}

func (tr *steadyEvents) end() {
	if tr.cancel != nil {
		tr.cancel()
	}
	tr.done.Wait()
}

// receiver answers with the status; for 0 it closes the connection.
func (s *site) receiver(status *atomic.Int64) {
	s.t.Helper()
	s.receive(s.daemons[0], func(w http.ResponseWriter, _ *http.Request) {
		if status.Load() == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(int(status.Load()))
	})
}

// receive subscribes a receiver for the company of d.
func (s *site) receive(d *running, handler http.HandlerFunc) {
	s.t.Helper()
	e := httptest.NewServer(handler)
	s.t.Cleanup(e.Close)
	body := fmt.Sprintf(`{"name":"r","callbackUrl":"%s/hook","events":["PAYMENT_PAID"]}`, e.URL)
	code, _, answer := d.do(s.t, http.MethodPost, "/api/v1/subscribers", body)
	var created gen.Subscriber
	if err := json.Unmarshal([]byte(answer), &created); err != nil || code != http.StatusCreated {
		s.t.Fatalf("%d %s", code, answer)
	}
	s.company = created.CompanyUUID
}

func answering(status int64) *atomic.Int64 {
	var a atomic.Int64
	a.Store(status)
	return &a
}

func (s *site) post(d *running, id string) {
	s.t.Helper()
	body := fmt.Sprintf(`{"id":"%s","event":"PAYMENT_PAID","timestamp":%d}`, id, time.Now().UnixMilli())
	if code, _, answer := d.do(s.t, http.MethodPost, "/api/v1/events", body); code != http.StatusAccepted {
		s.t.Fatalf("%d %s", code, answer)
	}
}

// restart starts the daemon again, at other addresses.
func (s *site) restart(i int, in installation, asChild bool) {
	if asChild {
		s.daemons[i] = in.startChild(s.t)
	} else {
		s.daemons[i] = in.start(s.t)
	}
	s.aim(s.t, s.daemons...)
}

func outages() []drill {
	const steady = "delivery: {schedule: [5s, 5m]}\n"
	return []drill{
		{name: "Redis is stopped", alert: "SpendhookRedisUnsafe", begin: (*site).stopRedis},
		{
			name: "Redis is filled", alert: "SpendhookRedisNearHighWater",
			redis: redistest.Options{Args: []string{"--maxmemory", "64mb"}}, begin: (*site).fillRedis,
		},
		{name: "all receivers are out of reach", alert: "SpendhookManyEndpointsOpen", settings: steady, begin: (*site).cutReceivers},
		{name: "one receiver of six fails", settings: steady, begin: (*site).cutOneReceiver},
		{
			// On a slow machine the takeover may last longer than the shortened patience of besides.
			name: "a replica is killed", alert: "SpendhookReplicaLost", besides: "SpendhookPartitionWithoutOwner",
			replicas: 2, settings: sharedKey, begin: (*site).killReplica,
		},
		{
			name: "all places of a replica are taken", alert: "SpendhookWorkPastDue",
			settings: "delivery: {concurrency: 2, endpoint_concurrency: 2, attempt_timeout: 5m}\n", begin: (*site).takePlaces,
		},
		databaseOutage(),
		{name: "the table of the history is away", alert: "SpendhookHistoryBehind", settings: "history: {enabled: true}\n", begin: (*site).hideHistory},
		certificateOutage(),
		canaryOutage(),
		{
			name: "a record is poisoned", alert: "SpendhookQuarantineNotEmpty",
			settings: "delivery: {schedule: [3s, 5m]}\n", begin: (*site).poisonRecord,
		},
		{
			name: "a company is at its quota", alert: "SpendhookCompanyAtQuota",
			settings: steady + "limits: {company_backlog: 5}\n", begin: (*site).failDeliveries,
		},
		{
			name: "deliveries become dead letters", alert: "SpendhookDeadLettersGrowing",
			settings: "delivery: {schedule: [100ms]}\n", begin: (*site).failDeliveries,
		},
		{name: "the only replica is down", alert: "SpendhookTargetDown", begin: (*site).stopReplica},
		{name: "a relay's records are refused", alert: "SpendhookRelayBehind", begin: (*site).refuseRelay},
		{name: "records of a relay are dead", alert: "SpendhookRelayDeadLetters", begin: (*site).poisonOutbox},
		{name: "the stored format is not readable", alert: "SpendhookPartitionWithoutOwner", begin: (*site).raiseFormat},
	}
}

// stopRedis stops Redis while events are delivered.
func (s *site) stopRedis() (end func()) {
	s.receiver(answering(http.StatusNoContent))
	s.emit(s.daemons[0])
	s.server.Stop()
	return s.server.Restart
}

// fillRedis fills most of the memory of Redis.
func (s *site) fillRedis() (end func()) {
	s.receiver(answering(http.StatusNoContent))
	s.emit(s.daemons[0])
	client := s.server.Client()
	if err := client.SetRange(s.t.Context(), "junk", 56<<20, "x").Err(); err != nil {
		s.t.Fatal(err)
	}
	return func() { client.Del(s.t.Context(), "junk") }
}

// cutReceivers lets all of six receivers close each connection.
func (s *site) cutReceivers() (end func()) {
	status := answering(0)
	for range 6 {
		s.receiver(status)
	}
	s.emit(s.daemons[0])
	return func() { status.Store(http.StatusNoContent) }
}

// cutOneReceiver lets one of six receivers close each connection.
func (s *site) cutOneReceiver() (end func()) {
	status := answering(0)
	s.receiver(status)
	for range 5 {
		s.receiver(answering(http.StatusNoContent))
	}
	s.emit(s.daemons[0])
	eventually(s.t, alertPatience, "its breaker opens", func() bool { return s.is(s.t, `sum(spendhook_endpoints{state="open"})`, 1) })
	return func() { status.Store(http.StatusNoContent) }
}

// failDeliveries lets the receiver of steady events fail.
func (s *site) failDeliveries() (end func()) {
	s.receiver(answering(http.StatusServiceUnavailable))
	s.emit(s.daemons[0])
	return s.traffic.end
}

// killReplica kills one replica of two.
func (s *site) killReplica() (end func()) {
	s.daemons[1].signal(syscall.SIGKILL)
	s.daemons[1].ended(s.t)
	return func() {
		s.restart(1, newInstallation(s.t, s.server.URL(), sharedKey), true)
	}
}

// stopReplica stops the only replica.
func (s *site) stopReplica() (end func()) {
	s.daemons[0].stop(s.t)
	return func() { s.restart(0, s.in, false) }
}

// raiseFormat gives each partition a stored format that the replica cannot read.
func (s *site) raiseFormat() (end func()) {
	client := s.server.Client()
	for p := range partition.Count {
		client.Set(s.t.Context(), partition.Prefix(p)+"format", 99, 0)
	}
	return func() {
		for p := range partition.Count {
			client.Del(s.t.Context(), partition.Prefix(p)+"format")
		}
		s.daemons[0].stop(s.t)
		s.restart(0, s.in, false)
	}
}

// relay starts a relay that Prometheus scrapes.
func (s *site) relay() *relayTrial {
	s.t.Helper()
	r := newRelayTrial(s.t, s.in, s.daemons[0])
	r.start()
	eventually(s.t, patience, "the relay reads", func() bool { // else it is told as one that reads nothing
		_, text := get(s.t, r.relay.admin+"/metrics")
		return strings.Contains(text, "spendhook_relay_active{source=\"orders\"} 1\n")
	})
	s.target(s.t, "relays.json", r.relay)
	return r
}

// refuseRelay lets a relay with the token of another company find a row that is ten minutes old.
func (s *site) refuseRelay() (end func()) {
	r := s.relay()
	r.relay.stop(s.t)
	right := readText(s.t, r.file("token"))
	r.authorize(s.daemons[0].as(s.t, s.in, uuid.New()).token)
	r.insert("late", time.Now().Add(-10*time.Minute), r.company)
	restart := func() {
		r.start()
		s.target(s.t, "relays.json", r.relay)
	}
	restart()
	return func() {
		r.relay.stop(s.t)
		r.authorize(right)
		restart()
	}
}

// poisonOutbox writes rows of a company that the relay's source may not name.
func (s *site) poisonOutbox() (end func()) {
	r := s.relay()
	for i := range 3 {
		r.insert(fmt.Sprintf("poison-%d", i), time.Now(), uuid.New())
	}
	return nil
}

func databaseOutage() drill {
	var server *pgtest.Server
	return drill{
		name: "the spend database is unavailable", alert: "SpendhookDatabaseDown",
		database: func(s *site) string {
			server = pgtest.Start(s.t)
			return server.URL()
		},
		begin: func(*site) func() {
			server.Stop()
			return server.Restart
		},
	}
}

// hideHistory renames the table of the history, while events are delivered.
func (s *site) hideHistory() (end func()) {
	s.emit(s.daemons[0])
	rename := func(from, to string) {
		db, err := sql.Open("sqlite", filepath.Join(s.in.dir, "history.db"))
		if err == nil {
			_, err = db.ExecContext(s.t.Context(), "PRAGMA busy_timeout = 10000; ALTER TABLE "+from+" RENAME TO "+to)
			err = errors.Join(err, db.Close())
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	rename("history_events", "hidden_events")
	return func() { rename("hidden_events", "history_events") }
}

func certificateOutage() drill {
	var install func(valid time.Duration)
	return drill{
		name: "the certificate ends in three days", alert: "SpendhookCertificateExpiring",
		flags: func(s *site) []string {
			dir := s.t.TempDir()
			ca, err := devca.New("test", time.Now().Add(-time.Hour), time.Now().Add(365*24*time.Hour))
			install = func(valid time.Duration) {
				pair, err := ca.Issue(devca.Leaf{Name: "spendhook", Hosts: []string{"127.0.0.1"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(valid)})
				for file, text := range map[string][]byte{"ca.pem": ca.PEM(), "cert.pem": pair.Cert, "key.pem": pair.Key} {
					temp := filepath.Join(dir, file+".new")
					err = errors.Join(err, os.WriteFile(temp, text, 0o600), os.Rename(temp, filepath.Join(dir, file)))
				}
				if err != nil {
					s.t.Fatal(err)
				}
			}
			if err != nil {
				s.t.Fatal(err)
			}
			install(90 * 24 * time.Hour)
			return []string{"--tls-cert", filepath.Join(dir, "cert.pem"), "--tls-key", filepath.Join(dir, "key.pem"), "--client-ca", filepath.Join(dir, "ca.pem")}
		},
		begin: func(*site) func() {
			install(3 * 24 * time.Hour)
			return func() { install(90 * 24 * time.Hour) }
		},
	}
}

// noLogins are settings for the metrics of logins: nobody signs in.
const noLogins = `console: {login: {issuer: 'http://127.0.0.1:9', client_id: hooks, client_secret: none, roles: [{group: operators, role: operator}]}}
`

// canaryOutage lets the load balancer pass nothing on, while all parts are healthy.
func canaryOutage() drill {
	var b *balancer
	return drill{
		name: "the load balancer passes nothing on", alert: "SpendhookCanaryMissing",
		flags: func(s *site) []string {
			b = newBalancer(s.t)
			s.in.settings(s.t, "delivery: {schedule: [1s, 5m]}\n"+canarySettings+noLogins+"public_url: "+b.URL+"\n")
			address := freeAddress(s.t)
			b.daemons.Store(&[]*running{{api: "http://" + address}})
			return []string{"--listen", address}
		},
		begin: func(*site) func() {
			daemons := b.daemons.Swap(nil)
			return func() { b.daemons.Store(daemons) }
		},
	}
}

// takePlaces lets the slow receivers of two companies occupy both in-flight places of a
// replica. The event of a third company, whose receiver is healthy, then becomes past due.
func (s *site) takePlaces() (end func()) {
	release := make(chan struct{})
	for range 2 {
		d, came := s.daemons[0].as(s.t, s.in, uuid.New()), make(chan struct{}, 1)
		s.receive(d, func(w http.ResponseWriter, r *http.Request) {
			came <- struct{}{}
			select {
			case <-release:
			case <-r.Context().Done():
			}
			w.WriteHeader(http.StatusNoContent)
		})
		s.post(d, "held")
		select {
		case <-came:
		case <-time.After(alertPatience):
			s.t.Fatal("a delivery does not come")
		}
	}
	third := s.daemons[0].as(s.t, s.in, uuid.New())
	s.receive(third, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	s.post(third, "late")
	return func() { close(release) }
}

// poisonRecord overwrites the record of a delivery as soon as it waits for its retry.
func (s *site) poisonRecord() (end func()) {
	s.receiver(answering(http.StatusServiceUnavailable))
	s.post(s.daemons[0], "poison")
	key := partition.Key(s.company, "d:"+s.company.String()+"/poison")
	client := s.server.Client()
	eventually(s.t, alertPatience, "a delivery waits", func() bool {
		fields, err := client.HGetAll(s.t.Context(), key).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			s.t.Fatal(err)
		}
		for field, record := range fields {
			if _, err := uuid.Parse(field); err == nil && strings.HasPrefix(record, "R") {
				return client.HSet(s.t.Context(), key, field, "garbage").Err() == nil
			}
		}
		return false
	})
	return s.dropQuarantined
}

// dropQuarantined drops all entries of the quarantine.
func (s *site) dropQuarantined() {
	var list struct {
		Content []struct {
			ID string `json:"id"`
		} `json:"content"`
	}
	s.daemons[0].read(s.t, "/api/v1/quarantine", &list)
	for _, item := range list.Content {
		if code, _, answer := s.daemons[0].do(s.t, http.MethodDelete, "/api/v1/quarantine/"+url.PathEscape(item.ID), ""); code/100 != 2 {
			s.t.Errorf("%d %s", code, answer)
		}
	}
}
