// Package config reads the daemon's settings from defaults, a YAML file, the
// environment and flags, and reports all of their problems in one error.
package config

import (
	"net/netip"
	"time"

	"spendhook/internal/secret"
)

// Config holds every setting; its keys are the yaml tags, joined by dots.
// testdata/good/full.yml explains each. Sizes are in bytes.
type Config struct {
	Listen        string        `yaml:"listen"`
	AdminListen   string        `yaml:"admin_listen"`
	AdminPublic   bool          `yaml:"admin_public"`
	AdminWeb      string        `yaml:"admin_web_config_file"`
	AdminProfiles bool          `yaml:"admin_profiles"`
	PublicURL     string        `yaml:"public_url"`
	DataDir       string        `yaml:"data_dir"`
	Redis         Redis         `yaml:"redis"`
	Dev           bool          `yaml:"dev"`
	ShutdownGrace time.Duration `yaml:"shutdown_grace"`
	Storage       Storage       `yaml:"storage"`
	Log           Log           `yaml:"log"`
	Auth          auth          `yaml:"auth"`
	Events        events        `yaml:"events"`
	Operations    operations    `yaml:"operations"`
	Subscribers   subscribers   `yaml:"subscribers"`
	Delivery      delivery      `yaml:"delivery"`
	Cards         cards         `yaml:"cards"`
	Egress        egressRules   `yaml:"egress"`
	Encryption    Encryption    `yaml:"encryption"`
	Limits        Limits        `yaml:"limits"`
	HTTP          httpLimits    `yaml:"http"`
	Audit         audit         `yaml:"audit"`
	Metrics       metrics       `yaml:"metrics"`
	TLS           tlsFiles      `yaml:"tls"`
	Console       console       `yaml:"console"`
}

// Redis configures the connection: the URL, or a file with the URL, the CA of the server's
// certificate, and a client certificate. Memory is the memory of Redis in bytes; 0 means its
// maxmemory, or half of this machine's memory for an embedded Redis. New events may fill the
// share HighWater of it.
type Redis struct {
	URL       secret.Text `yaml:"url"`
	URLFile   string      `yaml:"url_file"`
	CAFile    string      `yaml:"ca_file"`
	CertFile  string      `yaml:"cert_file"`
	KeyFile   string      `yaml:"key_file"`
	Memory    int         `yaml:"memory"`
	HighWater float64     `yaml:"high_water"`
	FullSync  bool        `yaml:"full_sync"` // of an embedded Redis
}

// Storage configures the connection to the spend database, with files as in Redis. An empty
// URL means SQLite in the data directory. MaxConns 0 means the default of the database.
type Storage struct {
	URL      secret.Text `yaml:"url"`
	URLFile  string      `yaml:"url_file"`
	CAFile   string      `yaml:"ca_file"`
	CertFile string      `yaml:"cert_file"`
	KeyFile  string      `yaml:"key_file"`
	MaxConns int         `yaml:"max_conns"`
	FullSync bool        `yaml:"full_sync"` // of SQLite
}

// Log configures the level and the format of the log.
type Log struct {
	Level  string `yaml:"level"`
	Format string `yaml:"format"`
}

// auth is about the access tokens that the daemon issues and accepts.
type auth struct {
	Issuer   string          `yaml:"issuer"`
	Builtin  bool            `yaml:"builtin"`
	Issuers  []trustedIssuer `yaml:"issuers"`
	KeepKeys time.Duration   `yaml:"keep_keys"`
}

// trustedIssuer is another issuer whose tokens are accepted.
type trustedIssuer struct {
	Issuer       string   `yaml:"issuer"`
	JWKSURL      string   `yaml:"jwks_url"`
	Audience     string   `yaml:"audience"`
	Scopes       []string `yaml:"scopes"`
	ScopeClaim   string   `yaml:"scope_claim"`
	CompanyClaim string   `yaml:"company_claim"`
}

// events limits accepted events and their retention.
type events struct {
	Retention       time.Duration `yaml:"retention"`
	KeepDelivered   time.Duration `yaml:"keep_delivered"`
	Catalogue       []eventType   `yaml:"catalogue"`
	StrictCatalogue bool          `yaml:"strict_catalogue"`
}

// eventType is one more entry of the event catalogue.
type eventType struct {
	Name        string `yaml:"name"`
	Description string `yaml:"description"`
}

// operations names the company whose subscribers also receive the operational events of all
// other companies; empty means none.
type operations struct {
	Company string `yaml:"company"`
}

// subscribers limits the subscribers of a company.
type subscribers struct {
	MaxPerCompany int           `yaml:"max_per_company"`
	SecretOverlap time.Duration `yaml:"secret_overlap"`
}

// delivery is how events are sent. Schedule holds the waits between attempts;
// the first attempt is at once.
type delivery struct {
	Schedule            []time.Duration `yaml:"schedule"`
	Jitter              float64         `yaml:"jitter"`
	ConnectTimeout      time.Duration   `yaml:"connect_timeout"`
	AttemptTimeout      time.Duration   `yaml:"attempt_timeout"`
	RetryAfterMax       time.Duration   `yaml:"retry_after_max"`
	Concurrency         int             `yaml:"concurrency"`
	EndpointConcurrency int             `yaml:"endpoint_concurrency"`
	HostConcurrency     int             `yaml:"host_concurrency"`
	DeadRetention       time.Duration   `yaml:"dead_retention"`
	FailingAfter        int             `yaml:"failing_after"`
	DisableAfter        time.Duration   `yaml:"disable_after"`
	SignEd25519         bool            `yaml:"sign_ed25519"`
}

// cards is how bulk creations of cards are worked off.
type cards struct {
	Concurrency int `yaml:"concurrency"`
}

// egressRules configures which addresses deliveries may call besides public https ones, and
// the proxy for deliveries; an empty ProxyURL means no proxy.
type egressRules struct {
	AllowHTTP    bool           `yaml:"allow_http"`
	AllowCIDRs   []netip.Prefix `yaml:"allow_cidrs"`
	ProxyURL     secret.Text    `yaml:"proxy_url"`
	ProxyURLFile string         `yaml:"proxy_url_file"`
	ProxyCAFile  string         `yaml:"proxy_ca_file"`
}

// Encryption has the keys that encrypt the secrets in Redis and SQL, each as text or as a
// file. Without a key, the daemon creates one in the data directory. The old keys only
// decrypt.
type Encryption struct {
	Key         secret.Text   `yaml:"key"`
	KeyFile     string        `yaml:"key_file"`
	OldKeys     []secret.Text `yaml:"old_keys"`
	OldKeyFiles []string      `yaml:"old_key_files"`
}

// Limits are the rates of requests, or of the items in them, per second, with their bursts,
// and the pending events of a company. A rate of 0 means no limit.
type Limits struct {
	ClientRate     int `yaml:"client_rate"`
	ClientBurst    int `yaml:"client_burst"`
	CompanyRate    int `yaml:"company_rate"`
	CompanyBurst   int `yaml:"company_burst"`
	CompanyBacklog int `yaml:"company_backlog"`
}

// audit is how long, and how many, entries of the audit log are kept.
type audit struct {
	Retention  time.Duration `yaml:"retention"`
	MaxEntries int           `yaml:"max_entries"`
}

// console configures access to the web console.
type console struct {
	// ClientCertificates says whether a browser needs a client certificate: required
	// or optional. With required, the request for a link needs one, too.
	ClientCertificates string `yaml:"client_certificates"`
}

// ConsoleCertificateRequired reports whether a browser needs a client certificate. Without
// mutual TLS, which only dev allows, it needs none.
func (c *Config) ConsoleCertificateRequired() bool {
	return c.Console.ClientCertificates == required && c.TLS.mutualTLS()
}

// metrics configures how many companies the backlog metric shows; 0 means none.
type metrics struct {
	TopCompanies int `yaml:"top_companies"`
}

// httpLimits bounds the connections and times of clients on a listener.
type httpLimits struct {
	MaxConnections           int           `yaml:"max_connections"`
	MaxConnectionsPerAddress int           `yaml:"max_connections_per_address"`
	HeaderTimeout            time.Duration `yaml:"header_timeout"`
	RequestTimeout           time.Duration `yaml:"request_timeout"`
	IdleTimeout              time.Duration `yaml:"idle_timeout"`
}

// tlsFiles configures TLS and client certificates of the API: terminated here, by trusted
// proxies in front, or both.
type tlsFiles struct {
	CertFile           string             `yaml:"cert_file"`
	KeyFile            string             `yaml:"key_file"`
	ClientCAFile       string             `yaml:"client_ca_file"`
	TrustedProxies     []netip.Prefix     `yaml:"trusted_proxies"`
	ProxyHeader        string             `yaml:"proxy_header"`
	ClientCertificates clientCertificates `yaml:"client_certificates"`
}

// The values of a group of operations in ClientCertificates.
const (
	required = "required"
	optional = "optional"
)

// clientCertificates says for each group of operations whether a client needs a
// certificate: required or optional.
type clientCertificates struct {
	Subscribers    string `yaml:"subscribers"`
	Reimbursements string `yaml:"reimbursements"`
	Events         string `yaml:"events"`
	Deliveries     string `yaml:"deliveries"`
	Cards          string `yaml:"cards"`
	Locations      string `yaml:"locations"`
	Billing        string `yaml:"billing"`
	Audit          string `yaml:"audit"`
	Clients        string `yaml:"clients"`
}

func (c clientCertificates) byGroup() map[string]string {
	return map[string]string{
		"subscribers": c.Subscribers, "reimbursements": c.Reimbursements, "events": c.Events,
		"deliveries": c.Deliveries, "cards": c.Cards, "locations": c.Locations, "billing": c.Billing, "audit": c.Audit,
		"clients": c.Clients,
	}
}

// mutualTLS reports whether clients have a way to present a certificate.
func (t tlsFiles) mutualTLS() bool { return t.ClientCAFile != "" || len(t.TrustedProxies) > 0 }

// CertificateRequired reports for every group of operations whether a client needs a
// certificate. Without mutual TLS, which only dev allows, no group does.
func (c *Config) CertificateRequired() map[string]bool {
	groups := map[string]bool{"console": c.ConsoleCertificateRequired()}
	for group, value := range c.TLS.ClientCertificates.byGroup() {
		groups[group] = value == required && c.TLS.mutualTLS()
	}
	return groups
}

// DefaultIssuer is the default of auth.issuer.
const DefaultIssuer = "spendhook"

// defaults returns the default settings.
func defaults() Config {
	return Config{
		Listen:        "127.0.0.1:8080",
		AdminListen:   "127.0.0.1:9090",
		AdminProfiles: true,
		DataDir:       "./spendhook-data",
		Redis:         Redis{URL: "embedded", HighWater: 0.85, FullSync: true},
		Storage:       Storage{FullSync: true},
		ShutdownGrace: 30 * time.Second,
		Log:           Log{Level: "info", Format: "auto"},
		Auth:          auth{Issuer: DefaultIssuer, Builtin: true, KeepKeys: 24 * time.Hour},
		Events: events{
			Retention:     7 * 24 * time.Hour,
			KeepDelivered: 72 * time.Hour,
		},
		Subscribers: subscribers{MaxPerCompany: 100, SecretOverlap: 24 * time.Hour},
		Delivery:    defaultDelivery(),
		Cards:       cards{Concurrency: 8},
		Limits:      Limits{ClientRate: 1000, ClientBurst: 2000, CompanyRate: 2000, CompanyBurst: 4000, CompanyBacklog: 1_000_000},
		HTTP: httpLimits{
			MaxConnections: 8192, MaxConnectionsPerAddress: 1024,
			HeaderTimeout: 10 * time.Second, RequestTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		},
		TLS: tlsFiles{ProxyHeader: "client-cert", ClientCertificates: clientCertificates{
			Subscribers: required, Reimbursements: required,
			Events: optional, Deliveries: optional, Cards: optional, Locations: optional, Billing: optional, Audit: optional, Clients: optional,
		}},
		Console: console{ClientCertificates: optional},
		Audit:   audit{Retention: 400 * 24 * time.Hour, MaxEntries: 1_000_000},
		Metrics: metrics{TopCompanies: 10},
	}
}

func defaultDelivery() delivery {
	return delivery{
		Schedule: []time.Duration{
			5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
			10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
		},
		Jitter:              0.2,
		ConnectTimeout:      5 * time.Second,
		AttemptTimeout:      15 * time.Second,
		RetryAfterMax:       24 * time.Hour,
		Concurrency:         2048,
		EndpointConcurrency: 64,
		HostConcurrency:     256,
		DeadRetention:       30 * 24 * time.Hour,
		FailingAfter:        4,
		DisableAfter:        5 * 24 * time.Hour,
	}
}
