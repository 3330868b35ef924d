package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/config"
	"spendhook/dispatcher/workqueue/backlog"
	"spendhook/dispatcher/workqueue/storedformat"
	"spendhook/internal/clock"
	"spendhook/internal/datadir"
	"spendhook/internal/egress"
	"spendhook/internal/keycheck"
	"spendhook/internal/partition"
	"spendhook/internal/redismemory"
	"spendhook/internal/redisx"
	"spendhook/internal/seal"
	"spendhook/internal/servertls"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
)

type doctorCmd struct {
	configFlags

	JSON    bool          `name:"json" help:"Print the findings as JSON."`
	Timeout time.Duration `default:"10s" help:"Time limit of each check."`
}

const (
	slowDatabase  = time.Second          // to connect and read the schema version
	oldestRedis   = 7                    // major version, of Redis and Valkey
	slowRedis     = 5 * time.Millisecond // round trip
	overdueWork   = time.Minute
	historyBehind = 5 * time.Minute
	nearlyFull    = 0.8 // of a quota, or of the high-water mark
	mostPending   = 10  // companies with the most pending events, whose quotas are checked
)

// The results of a check.
const (
	findingOK      = "ok"
	findingWarning = "warning" // it works now, but may stop working
	findingProblem = "problem" // it does not work, or loses data
)

// finding is one result of a check.
type finding struct {
	Check   string `json:"check"`
	Result  string `json:"result"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"` // empty if the result is ok
}

// errDoctor means that there are problems. They have been printed.
var errDoctor = errors.New("there are problems")

// doctor runs the checks and collects their findings.
type doctor struct {
	cfg      *config.Config
	timeout  time.Duration
	findings []finding
	current  string        // the name of the current check
	okText   string        // the message of the current check if it finds no problem
	redis    *redisx.Redis // nil until all servers of Redis have answered
}

// Run runs all checks and changes nothing. It fails if a check finds a problem, but not for
// warnings.
func (c *doctorCmd) Run(ctx context.Context, term *stdio) error {
	d := &doctor{timeout: c.Timeout}
	d.check(ctx, "configuration", "the settings are valid", func(context.Context) {
		if _, err := config.LoadDaemon(c.Config, os.Environ(), c.overrides()); err != nil {
			d.problem("correct the settings in the configuration file, the SPENDHOOK_* variables or the flags; 'spendhook config check' checks them again", "%v", err)
		}
		if cfg, err := c.load(); err == nil { // without the rules that apply to serve only
			d.cfg = cfg
		}
	})
	if d.cfg != nil {
		d.checkAll(ctx)
	}
	if err := d.print(term, c.JSON); err != nil {
		return err
	}
	if slices.ContainsFunc(d.findings, func(f finding) bool { return f.Result == findingProblem }) {
		return errDoctor
	}
	return nil
}

func (d *doctor) problem(remedy, format string, args ...any) {
	d.findings = append(d.findings, finding{d.current, findingProblem, fmt.Sprintf(format, args...), remedy})
}

func (d *doctor) warn(remedy, format string, args ...any) {
	d.findings = append(d.findings, finding{d.current, findingWarning, fmt.Sprintf(format, args...), remedy})
}

// check runs a check within the timeout. If there is no finding, it adds one with the message okText.
func (d *doctor) check(ctx context.Context, name, okText string, run func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	d.current, d.okText = name, okText
	before := len(d.findings)
	if run(ctx); len(d.findings) == before {
		d.findings = append(d.findings, finding{Check: name, Result: findingOK, Message: d.okText})
	}
}

func (d *doctor) checkAll(ctx context.Context) {
	d.check(ctx, "data directory", "it exists, and only its owner can read it", func(context.Context) {
		if err := datadir.Check(d.cfg.DataDir); err != nil {
			d.problem("name the daemon's directory with --data-dir, or run 'spendhook serve' once, which creates it", "%v", err)
		}
	})
	ring, err := openKeyring(d.cfg, seal.ReadFile)
	d.check(ctx, "encryption key files", "they can be read", func(context.Context) {
		if err != nil {
			d.problem("set encryption.key or encryption.key_file to the key that the daemon used until now (docs/secrets.md)", "%v", err)
		}
	})
	d.check(ctx, "certificates", "none expires within 30 days", d.certificates)
	d.check(ctx, "spend database", "it answers, and its schema is current", d.database)
	d.check(ctx, "history", "", d.history)
	d.check(ctx, "egress", "public names resolve, or the proxy accepts connections", d.egress)
	d.check(ctx, "egress addresses", "", d.egressAddresses)
	d.check(ctx, "mail", "the SMTP server answers, with TLS and login as configured", d.mail)
	d.check(ctx, "console login", "the provider answers, and its discovery document is valid", d.consoleLogin)
	d.check(ctx, "Redis", "it persists all writes, and evicts nothing", d.connect)
	if d.redis == nil {
		return
	}
	defer func() { _ = d.redis.Close() }() // nothing was written
	d.check(ctx, "Redis servers", "their versions are supported, they answer fast, and their clocks agree with this machine's", d.servers)
	d.check(ctx, "Redis memory", "", d.memory)
	d.check(ctx, "work", "none is overdue, none is in the quarantine, no company is near its limit", d.work)
	d.check(ctx, "egress certificates", "none expires within 30 days", d.egressCertificates)
	d.check(ctx, "replicas", "daemons run, and all of them read the stored format", d.replicas)
	if ring == nil {
		return
	}
	store := subscribers.NewStore(subscribers.StoreOptions{Client: d.redis.Client(), Keyring: ring})
	d.check(ctx, "signing keys", "", func(ctx context.Context) { d.signingKeys(ctx, store) })
	d.check(ctx, "callback URLs", "none waits for its verification", func(ctx context.Context) { d.callbackURLs(ctx, store) })
	d.check(ctx, "receiver tokens", "no receiver fails for want of an access token", func(ctx context.Context) { d.receiverTokens(ctx, store) })
	d.check(ctx, "retry schedules", "all end while their events are kept", func(ctx context.Context) { d.retrySchedules(ctx, store) })
	d.check(ctx, "canary", "", func(ctx context.Context) { d.canary(ctx, ring) })
	d.check(ctx, "encryption keys", "all are configured", func(ctx context.Context) {
		if err := keycheck.Check(ctx, d.redis.Client(), ring); err != nil {
			d.problem("set the missing key, also as one of encryption.old_keys (docs/secrets.md)", "%v", err)
		}
	})
}

// certificates checks when the certificates that the settings name expire.
func (d *doctor) certificates(context.Context) {
	for _, f := range []struct{ setting, path string }{
		{"tls.cert_file", d.cfg.TLS.CertFile},
		{"tls.client_ca_file", d.cfg.TLS.ClientCAFile},
		{"redis.ca_file", d.cfg.Redis.CAFile},
		{"redis.cert_file", d.cfg.Redis.CertFile},
		{"storage.ca_file", d.cfg.Storage.CAFile},
		{"storage.cert_file", d.cfg.Storage.CertFile},
		{"egress.proxy_ca_file", d.cfg.Egress.ProxyCAFile},
		{"smtp.ca_file", d.cfg.SMTP.CAFile},
	} {
		if f.path == "" {
			continue
		}
		const renew = "renew the certificate; the daemon reloads the file by itself"
		certificates, err := servertls.ReadCertificates(f.path)
		if err != nil {
			d.problem("name a PEM file with certificates that the daemon may read", "%s: %v", f.setting, err)
			continue
		}
		ends := servertls.FirstToExpire(certificates).NotAfter
		switch left := time.Until(ends); {
		case left <= 0:
			d.problem(renew, "%s expired at %s", f.setting, ends.Format(time.RFC3339))
		case left < certificateNotice:
			d.warn(renew, "%s expires at %s", f.setting, ends.Format(time.RFC3339))
		}
	}
}

// mostCertificates is how many egress certificates that expire are named.
const mostCertificates = 5

// egressCertificates checks when the client certificates of companies and subscribers expire.
func (d *doctor) egressCertificates(ctx context.Context) {
	ending, err := certificate.New(certificate.Options{Client: d.redis.Client()}).ExpiringBefore(ctx, time.Now().Add(certificateNotice))
	if err != nil {
		d.problem("make Redis answer, then run this again", "%v", err)
		return
	}
	slices.SortFunc(ending, func(a, b certificate.Expiring) int { return a.NotAfter.Compare(b.NotAfter) })
	for i, c := range ending {
		if i == mostCertificates {
			d.warn("the daemon's log names them, once an hour", "%d more expire within 30 days or have expired", len(ending)-i)
			return
		}
		owner, remedy := "company "+c.Company.String(), "set a new one: spendhook certificate set client.pem client.key --company-uuid "+c.Company.String()
		if c.Subscriber != uuid.Nil {
			owner = "subscriber " + c.Subscriber.String() + " of " + owner
			remedy += " --subscriber " + c.Subscriber.String()
		}
		d.warn(remedy, "that of %s ends at %s", owner, c.NotAfter.Format(time.RFC3339))
	}
}

// mostCompanies is how many companies' signing keys and receivers are read.
const mostCompanies = 1000

// signingKeys checks that the signing keys of companies can be decrypted.
func (d *doctor) signingKeys(ctx context.Context, store *subscribers.Store) {
	read, locked, err := store.CheckSigningKeys(ctx, mostCompanies)
	switch {
	case err != nil:
		d.problem("make Redis answer, then run this again", "%v", err)
	case locked > 0:
		d.problem("set the missing key, also as one of encryption.old_keys (docs/secrets.md)", "those of %d of %d companies cannot be decrypted, and the deliveries that they sign wait", locked, read)
	case read == mostCompanies:
		d.okText = fmt.Sprintf("those of the first %d companies can be decrypted; no more were read", read)
	default:
		d.okText = fmt.Sprintf("those of %d companies can be decrypted", read)
	}
}

func (d *doctor) database(ctx context.Context) {
	db, err := openStorage(d.cfg)
	if err != nil {
		d.problem("check storage.url; for SQLite run 'spendhook serve' or 'spendhook migrate' once", "%v", err)
		return
	}
	defer func() { _ = db.Close() }() // nothing was written
	began := time.Now()
	outdated, err := db.Outdated(ctx)
	switch took := time.Since(began); {
	case err != nil:
		d.problem("start the database, or correct storage.url and its certificates; deliveries continue meanwhile", "%v", err)
	case outdated:
		d.warn("start the daemon, or run 'spendhook migrate'", "it has the schema of an older release")
	case took > slowDatabase:
		d.warn("look for slow queries in the database; every request for spend data waits for the database", "it answers within %v", took.Round(time.Millisecond))
	}
	if ahead, _, err := clock.Offset(ctx, time.Now, db.Now); err == nil {
		d.clock("the database", ahead)
	}
}

// history checks that the database of the history answers. How far it is behind is a check of the work.
func (d *doctor) history(ctx context.Context) {
	db, err := openHistory(d.cfg, nil, true)
	switch {
	case err != nil:
		d.problem("run 'spendhook serve' with history.enabled once, which creates the database", "%v", err)
		return
	case db == nil:
		d.okText = "it is off (history.enabled): Redis alone keeps settled events"
		return
	}
	defer func() { _ = db.Close() }() // nothing was written
	switch outdated, err := db.Outdated(ctx); {
	case err != nil:
		d.problem("start the database, or correct storage.url; settled events wait in Redis meanwhile", "%v", err)
	case outdated:
		d.warn("start the daemon, which creates or changes its tables", "it has not the schema of this release")
	default:
		d.okText = fmt.Sprintf("it answers; events are kept for %d days", int(d.cfg.History.Retention.Hours()/24))
	}
}

// egress checks that public names resolve, or that the egress proxy is reachable.
func (d *doctor) egress(ctx context.Context) {
	if d.cfg.Egress.ProxyURL == "" {
		if _, err := net.DefaultResolver.LookupNetIP(ctx, "ip", "a.root-servers.net."); err != nil { // a name that always exists
			d.warn("configure a resolver for public names, or egress.proxy_url; without either, no public receiver can be reached", "public names do not resolve: %v", err)
		}
		return
	}
	proxy, err := egress.NewProxy(d.cfg.Egress.ProxyURL.Reveal(), nil)
	if err == nil {
		var conn net.Conn
		if conn, err = new(net.Dialer).DialContext(ctx, "tcp", proxy.Address()); err == nil {
			_ = conn.Close()
			return
		}
	}
	d.problem("start the proxy, or correct egress.proxy_url; until then no delivery is sent", "the proxy cannot be reached: %v", err)
}

func (d *doctor) print(term *stdio, asJSON bool) error {
	if asJSON {
		text, err := json.Marshal(map[string]any{"findings": d.findings}, jsontext.WithIndent("  "))
		if err == nil {
			_, err = fmt.Fprintf(term.Out, "%s\n", text)
		}
		return err
	}
	marks := map[string]string{findingOK: "ok  ", findingWarning: "WARN", findingProblem: "FAIL"}
	for _, f := range d.findings {
		fmt.Fprintf(term.Out, "%s  %s: %s\n", marks[f.Result], f.Check, f.Message)
		if f.Remedy != "" {
			fmt.Fprintf(term.Out, "      do: %s\n", f.Remedy)
		}
	}
	return nil
}

// connect connects to Redis and reports the problems of its servers. It closes the connection again
// if a server does not answer.
func (d *doctor) connect(ctx context.Context) {
	r, err := redisx.Open(ctx, attachOptions(d.cfg))
	if err != nil {
		d.problem("start Redis, or correct redis.url and its certificates", "%v", err)
		return
	}
	client := r.Client()
	// The client of a Cluster first asks any server for its commands and the slot map. If that
	// server hangs, the first call times out, although the other servers answer.
	_ = client.Ping(ctx).Err()
	_ = redisx.EachMaster(ctx, client, func(context.Context, string, redis.UniversalClient) error { return nil })
	status := r.Check(ctx)
	const settings = "see docs/redis.md for the settings that Redis needs"
	for _, p := range status.Problems {
		d.problem("start Redis if it does not answer, else "+settings+"; the daemon is not ready until then", "%s", p)
	}
	for _, p := range status.Down {
		d.problem("start this server, or free its disk; until then only the companies of other shards are served, and the other checks of Redis are not made", "%s", p)
	}
	for _, w := range status.Warnings {
		d.warn(settings, "%s", w)
	}
	if status.Up {
		d.redis = r
	} else {
		_ = r.Close() // nothing was written
	}
}

// servers checks version, latency, clock and replicas of each master.
func (d *doctor) servers(ctx context.Context) {
	var mu sync.Mutex
	err := redisx.EachMaster(ctx, d.redis.Client(), func(ctx context.Context, name string, c redis.UniversalClient) error {
		mu.Lock() // one server at a time, so that the measurements do not disturb each other
		defer mu.Unlock()
		name = cmp.Or(name, "Redis")
		info := redisx.ParseInfo(c.Info(ctx).Val())
		version := cmp.Or(info["valkey_version"], info["redis_version"])
		if major, err := strconv.Atoi(strings.SplitN(version, ".", 2)[0]); err != nil || major < oldestRedis {
			d.problem("use Redis 7.0 or Valkey, or a later one: older ones refuse scripts at their memory limit", "%s has the version %q", name, version)
		}
		ahead, roundTrip, err := clock.Offset(ctx, time.Now, func(ctx context.Context) (time.Time, error) { return c.Time(ctx).Result() })
		if err != nil {
			return err
		}
		if roundTrip > slowRedis {
			d.warn("run Redis nearer to the daemon, and look at SLOWLOG and at the load of its machine: each event needs several round trips", "%s answers within %v", name, roundTrip.Round(10*time.Microsecond))
		}
		d.clock(name, ahead)
		if info["connected_slaves"] == "0" { // no replica to fail over to
			return nil
		}
		const setting = "min-replicas-to-write"
		settings, err := c.ConfigGet(ctx, setting).Result()
		if err != nil || settings[setting] == "0" {
			d.warn("make sure that it is at least 1: a master without reachable replicas otherwise goes on accepting events, and a failover loses these", "%s of %s is 0, or cannot be read", setting, name)
		}
		return nil
	})
	if err != nil {
		d.problem("find out why Redis does not answer", "%v", err)
	}
}

// clock reports a clock that is too far ahead of this machine's, or behind.
func (d *doctor) clock(of string, ahead time.Duration) {
	if ahead.Abs() > maxClockOffset {
		d.problem("synchronise both clocks (chrony, systemd-timesyncd): tokens, retries and retention depend on them",
			"the clock of %s and this machine's are %v apart", of, ahead.Abs().Round(time.Millisecond))
	}
}

// memory checks the memory of the fullest server.
func (d *doctor) memory(ctx context.Context) {
	m := redismemory.New(d.redis.Client(), redismemory.Options{HighWater: d.cfg.Redis.HighWater, Limit: int64(d.cfg.Redis.Memory)})
	m.Read(ctx)
	use := m.Fullest()
	share := float64(use.Used) / float64(use.HighWater)
	const remedy = "give Redis more memory, or find the companies whose receivers do not accept deliveries"
	used := fmt.Sprintf("%d of %d MB are used; new events are refused from %d MB (the high-water mark)", use.Used>>20, use.Limit>>20, use.HighWater>>20)
	switch {
	case use.Limit == 0 && len(m.Warnings()) == 0:
		d.problem("find out why Redis does not answer", "the memory use cannot be read")
	case use.Limit == 0:
		d.warn("set maxmemory of Redis, or redis.memory", "%s", m.Warnings()[0])
	case share >= 1:
		d.problem(remedy, "%s", used)
	case share >= nearlyFull:
		d.warn(remedy, "%s", used)
	}
	d.okText = fmt.Sprintf("%d MB are free below the high-water mark (%d MB)", (use.HighWater-use.Used)>>20, use.HighWater>>20)
}

// work checks pending work, quotas, and that each partition has an owner.
func (d *doctor) work(ctx context.Context) {
	waiting, err := backlog.New(d.redis.Client(), 0, nil).Measure(ctx, partition.All(), mostPending)
	if err != nil {
		d.problem("find out why Redis does not answer", "%v", err)
	}
	if waiting.OldestDue > overdueWork {
		d.problem("check that a daemon runs and is ready (/readyz): a partition has no owner, or its owner makes no progress",
			"no replica serves work that is overdue by %v", waiting.OldestDue.Round(time.Second))
	}
	if waiting.Behind > historyBehind {
		d.warn("make the database of the history answer (docs/runbooks/SpendhookHistoryBehind.md)",
			"%d settled events wait to be written to the history, the first for %v", waiting.Unarchived, waiting.Behind.Round(time.Second))
	}
	if waiting.Quarantined > 0 {
		d.warn("list the entries with 'spendhook quarantine list'; retry or drop each", "%d events, deliveries or subscribers are in the quarantine", waiting.Quarantined)
	}
	for _, c := range waiting.Largest {
		if float64(c.Pending) >= nearlyFull*float64(d.cfg.Limits.CompanyBacklog) {
			d.warn("look at the failing subscribers of the company; raise limits.company_backlog only with memory to spare",
				"company %s has %d of %d pending events", c.Company, c.Pending, d.cfg.Limits.CompanyBacklog)
		}
	}
}

// replicas checks that daemons run, and that all running releases read the stored format.
func (d *doctor) replicas(ctx context.Context) {
	formats, err := storedformat.Read(ctx, d.redis.Client())
	if err != nil {
		d.problem("find out why Redis does not answer", "%v", err)
		return
	}
	for p, format := range formats.Partitions {
		if format < partition.OldestFormat || format > partition.NewestFormat() {
			d.problem("run a newer release; daemons of this release cannot serve this Redis", "%v", &partition.FormatError{Partition: p, Format: format})
			return
		}
	}
	for _, reader := range formats.Readers {
		if !reader.Reads(partition.NewestFormat()) {
			d.warn("upgrade the replica; 'spendhook format raise' fails until then", "replica %s is of an older release", reader.Replica)
		}
	}
	if len(formats.Readers) == 0 {
		d.warn("start a daemon", "no daemon is running on this Redis")
	}
}
